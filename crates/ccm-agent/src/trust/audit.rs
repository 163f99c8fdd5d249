//! The audit: one line in the log for every request that came over the bus, and one event where
//! signatures are looked at.
//!
//! A flood of denied requests must neither fill the disk nor push out events of resources: beyond
//! so many a second they are only counted, and the next record tells how many there were. Nothing
//! that a request holds gets in here, only what it is about.

use parking_lot::Mutex;

use crate::node::Node;
use ccm_core::engine::Level;
use ccm_core::model::audit::{AUDIT, AuditDecision, AuditEvent};
use ccm_core::model::run::RunId;
use ccm_nats::Verb;

/// How many denied requests are recorded one by one in a second.
const MOST_DENIED: u32 = 20;

/// The longest text of a request that is repeated.
const MAX_TEXT: usize = 256;

/// What is known of a request when it has been decided on.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    pub subject: &'a str,
    pub caller: &'a str,
    pub request_id: &'a str,
    pub signer: &'a str,
    /// The resource or the source, as people may see it.
    pub about: &'a str,
    pub noop: bool,
    pub run_id: Option<RunId>,
}

/// Remembers how much was denied lately.
#[derive(Debug, Default)]
pub struct Audit(Mutex<Lately>);

#[derive(Debug, Default)]
struct Lately {
    second: i64,
    recorded: u32,
    unrecorded: u64,
}

impl Lately {
    /// Returns how many went unrecorded, if this one is to be recorded.
    fn take(&mut self, second: i64) -> Option<u64> {
        if self.second != second {
            self.second = second;
            self.recorded = 0;
        }
        if self.recorded >= MOST_DENIED {
            self.unrecorded += 1;
            return None;
        }
        self.recorded += 1;
        Some(std::mem::take(&mut self.unrecorded))
    }
}

impl Audit {
    /// Records that a request is obeyed.
    pub fn allowed(&self, node: &Node, verb: Verb, request: &Request<'_>) {
        record(node, verb, request, AuditDecision::Allowed, "", 0);
    }

    /// Records that a request is denied, and why.
    pub fn denied(&self, node: &Node, verb: Verb, request: &Request<'_>, reason: &str) {
        let second = node.services.clock.now().timestamp();
        let mut lately = self.0.lock();
        let unrecorded = lately.take(second);
        drop(lately);
        if let Some(unrecorded) = unrecorded {
            record(
                node,
                verb,
                request,
                AuditDecision::Denied,
                reason,
                unrecorded,
            );
        }
    }
}

fn record(
    node: &Node,
    verb: Verb,
    request: &Request<'_>,
    decision: AuditDecision,
    reason: &str,
    unrecorded: u64,
) {
    let event = AuditEvent {
        protocol: AUDIT.into(),
        event_id: node.next_id(),
        timestamp: node.services.clock.now(),
        identity: node.identity.name.clone(),
        collective: node.identity.collective.clone(),
        subject: request.subject.into(),
        verb: verb.as_str().into(),
        decision,
        reason: reason.into(),
        signer: request.signer.into(),
        caller: short(request.caller),
        request_id: short(request.request_id),
        about: short(request.about),
        noop: request.noop,
        run_id: request.run_id.clone(),
        unrecorded,
    };
    let (level, text) = match decision {
        AuditDecision::Allowed => (Level::Info, "Request allowed"),
        AuditDecision::Denied => (Level::Warn, "Request denied"),
    };
    node.log(level, text, &fields(&event));
    if node.services.authorizer.is_strict() {
        node.services.event_sink.audit(&event);
    }
}

/// Returns what a line says: nothing about what is empty.
fn fields(event: &AuditEvent) -> Vec<(&'static str, String)> {
    let run = event.run_id.as_ref().map(ToString::to_string);
    let unrecorded = match event.unrecorded {
        0 => String::new(),
        number => number.to_string(),
    };
    let noop = if event.noop { "true" } else { "" };
    let all = [
        ("verb", event.verb.clone()),
        ("subject", event.subject.clone()),
        ("signer", event.signer.clone()),
        ("caller", event.caller.clone()),
        ("request", event.request_id.clone()),
        ("about", event.about.clone()),
        ("noop", noop.to_owned()),
        ("run", run.unwrap_or_default()),
        ("reason", event.reason.clone()),
        ("unrecorded", unrecorded),
    ];
    all.into_iter()
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

fn short(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(MAX_TEXT)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_told_with_the_next_record() {
        let mut lately = Lately::default();
        let recorded = (0..1000).filter(|_| lately.take(5).is_some()).count();
        assert_eq!(recorded, 20);
        assert_eq!(lately.take(6), Some(980));
        assert_eq!(lately.take(6), Some(0));
    }
}
