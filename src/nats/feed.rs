//! Stored events in the order they were stored, each handed over once: those of the past, and
//! those to come for whoever wants to follow.
//!
//! A reader that lost its server goes on after the last event it saw. What an event says is not
//! known here. The consumer underneath is in `follow`.

use async_nats::datetime;
use async_nats::jetstream::consumer::DeliverPolicy;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use tokio::time::sleep;

use super::follow::{Broken, Consumer, FOLLOW_BEAT, READ_BEAT, Step, Wanted};
use super::streams::EVENTS;
use super::{Connection, NatsError, Subject, backoff};
use crate::model::text::go_time;

/// How often in a row reading may break off without a single event in between.
const MOST_BREAKS: usize = 5;

/// An event as the stream keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub subject: String,
    pub body: Bytes,
    /// When it was stored.
    pub time: DateTime<Utc>,
}

/// Which events, and until when.
#[derive(Clone, Debug)]
pub struct Reading {
    pub filter: Subject,
    /// Those stored since then; without it only those to come.
    pub since: Option<DateTime<Utc>>,
    /// Waits for more when all that is stored has been handed over.
    pub follow: bool,
}

impl Connection {
    /// Hands over events until there are no more, or `each` wants no more.
    pub async fn read_events(
        &self,
        reading: &Reading,
        each: impl FnMut(Stored) -> bool,
    ) -> Result<(), NatsError> {
        self.read_opened_events(reading, || {}, each).await
    }

    /// Does the same, and says through `opened` each time that the stream was found: a quiet one
    /// hands over nothing that would tell it from one that is missing.
    pub async fn read_opened_events(
        &self,
        reading: &Reading,
        mut opened: impl FnMut(),
        mut each: impl FnMut(Stored) -> bool,
    ) -> Result<(), NatsError> {
        let mut wanted = Wanted {
            stream: EVENTS.into(),
            filter: reading.filter.as_str().into(),
            policy: match reading.since {
                Some(since) => DeliverPolicy::ByStartTime {
                    start_time: moment(since)?,
                },
                None => DeliverPolicy::New,
            },
        };
        let beat = match reading.follow {
            true => FOLLOW_BEAT,
            false => READ_BEAT,
        };
        let mut breaks = 0;
        let mut link = self.state();
        loop {
            if reading.follow && link.wait_for(|link| link.is_up()).await.is_err() {
                return Err(NatsError::Closed);
            }
            link.mark_unchanged();
            let consumer = Consumer::open(self, &wanted, beat).await;
            let outcome = match consumer {
                Ok(mut consumer) => {
                    opened();
                    let mut after = consumer.after();
                    let draining = drain(&mut consumer, reading.follow, |stored, sequence| {
                        after = sequence;
                        breaks = 0;
                        each(stored)
                    });
                    let outcome = tokio::select! {
                        drained = draining => drained,
                        // A new connection may lead to a server that knows no such consumer.
                        _ = link.changed() => Err(Broken::Gap.into_error(EVENTS)),
                    };
                    consumer.close().await;
                    wanted.policy = DeliverPolicy::ByStartSequence {
                        start_sequence: after + 1,
                    };
                    outcome
                }
                Err(NatsError::NoBucket(_)) => {
                    return Err(NatsError::NotStored(wanted.filter));
                }
                Err(err) => Err(err),
            };
            let Err(err) = outcome else {
                return Ok(());
            };
            breaks += 1;
            // A follower waits for servers that restart; a reader wants to know.
            if breaks > MOST_BREAKS && !reading.follow {
                return Err(err);
            }
            sleep(backoff::delay(breaks)).await;
        }
    }
}

/// Hands over what a consumer has until it ends, or breaks.
async fn drain(
    consumer: &mut Consumer,
    follow: bool,
    mut each: impl FnMut(Stored, u64) -> bool,
) -> Result<(), NatsError> {
    let mut left = consumer.pending();
    while follow || left > 0 {
        match consumer.next().await {
            Ok(Step::Message(found, pending)) => {
                left = pending;
                let stored = Stored {
                    subject: found.subject,
                    body: found.body,
                    time: found.time,
                };
                if !each(stored, found.sequence) {
                    break;
                }
            }
            Ok(Step::Idle) if follow => {}
            // What was still to come has expired meanwhile.
            Ok(Step::Idle) => break,
            Err(broken) => return Err(broken.into_error(EVENTS)),
        }
    }
    Ok(())
}

/// Returns a moment as the client library has it.
fn moment(time: DateTime<Utc>) -> Result<datetime::DateTime, NatsError> {
    datetime::parse_rfc3339(&go_time(&time)).map_err(|err| NatsError::Store {
        action: "read",
        name: EVENTS.into(),
        reason: err.to_string(),
    })
}
