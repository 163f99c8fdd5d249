//! Asks nodes what a bundle would change on them, and changes nothing.
//!
//! Each node is asked for itself, so that everyone has an answer or the reason why not. What an
//! answer means is left to those who asked.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::iter;

use ccm_core::model::envelope::{CALLER, DEADLINE};
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::node::{BundleRef, NodeName};
use ccm_core::model::run::{APPLY_REQUEST, ApplyRequest, ApplyResponse, RunSummary};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::streams::MANIFESTS;
use ccm_nats::{Connection, Headers, NatsError, Subjects, Verb};
use ccm_value::{Value, json};

/// How many nodes are asked at once.
const AT_ONCE: usize = 64;

/// What a node is asked.
#[derive(Clone, Debug)]
pub struct Question {
    pub node: NodeName,
    pub bundle: BundleRef,
    pub data: Value,
}

/// Why a node did not say what it would do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Silence {
    #[error("no answer")]
    NoAnswer,
    #[error("it answered what can't be read: {0}")]
    Unreadable(String),
    #[error("it did not say how the run ended")]
    NoRun,
    #[error("{0}")]
    Refused(String),
}

/// What a node would do.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlook {
    pub run: RunSummary,
    /// What would change or fails.
    pub events: Vec<TransactionEvent>,
}

/// What was asked, and what came of it.
pub type Answer = (Question, Result<Outlook, Silence>);

/// Asks nodes, many at once, and returns the answers in the order of the questions.
pub async fn ask(
    connection: &Connection,
    subjects: &Subjects,
    questions: Vec<Question>,
    caller: &str,
    limit: Duration,
) -> Result<Vec<Answer>, NatsError> {
    let asking = iter(questions).map(|question| async move {
        let answer = ask_one(connection, subjects, &question, caller, limit).await?;
        Ok((question, answer))
    });
    let answers: Vec<_> = asking.buffered(AT_ONCE).collect().await;
    answers.into_iter().collect()
}

async fn ask_one(
    connection: &Connection,
    subjects: &Subjects,
    question: &Question,
    caller: &str,
    limit: Duration,
) -> Result<Result<Outlook, Silence>, NatsError> {
    let request = ApplyRequest {
        protocol: APPLY_REQUEST.into(),
        source: format!("obj://{MANIFESTS}/{}", question.bundle.object()),
        noop: true,
        data: question.data.clone(),
        wait: true,
        ..ApplyRequest::default()
    };
    let subject = subjects.node(&question.node.token(), Verb::Apply);
    let body = json::compact(&request).map_err(|err| NatsError::Failed {
        action: "request",
        subject: subject.to_string(),
        source: err.into(),
    })?;
    let deadline = SystemClock.now() + limit;
    let headers = Headers::new()
        .with(DEADLINE, &deadline.to_rfc3339())?
        .with(CALLER, caller)?;
    match connection
        .request(&subject, headers, body.into(), limit)
        .await
    {
        Ok(reply) => Ok(read(&reply.body)),
        Err(NatsError::NoResponders(_) | NatsError::NoAnswer { .. }) => Ok(Err(Silence::NoAnswer)),
        Err(err) => Err(err),
    }
}

fn read(body: &[u8]) -> Result<Outlook, Silence> {
    let response: ApplyResponse =
        serde_json::from_slice(body).map_err(|err| Silence::Unreadable(err.to_string()))?;
    match (response.error, response.run) {
        (Some(error), _) => Err(Silence::Refused(error)),
        (None, Some(run)) => Ok(Outlook {
            run,
            events: response.events,
        }),
        (None, None) => Err(Silence::NoRun),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_a_run_is_a_refusal_with_its_reason() {
        for (body, reason) in [
            (&b"junk"[..], "it answered what can't be read: "),
            (br#"{"protocol":"x","error":"busy"}"#, "busy"),
            (
                br#"{"protocol":"x","state":"accepted"}"#,
                "it did not say how the run ended",
            ),
        ] {
            let silence = read(body).unwrap_err().to_string();
            assert!(silence.starts_with(reason), "{silence}");
        }
    }
}
