//! What a node's answer amounts to: an outcome, and one line that people read and equal answers
//! share.
//!
//! Codes of refusals are those of HTTP, as agents use them. Texts come from nodes, so they are cut
//! to one line of plain characters. How answers were gathered and where lines go is not known here.

use std::time::Duration;

use serde::Deserialize as _;
use serde_json::Value;

use super::scatter::Heard;
use super::summarize::{Answer, Outcome};
use ccm_core::model::event::{Outcome as EventOutcome, TransactionEvent};
use ccm_core::model::node::{NodeName, NodeStatus};
use ccm_core::model::run::{ApplyResponse, RunOutcome, RunSummary};
use ccm_nats::{NatsError, Reply, Verb};
use ccm_value::text::go_duration;

/// The longest line that is made of an answer.
const MAX_LINE: usize = 500;

/// How many resources of a run a line names.
const MAX_NAMED: usize = 5;

/// What one node said, understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    pub node: NodeName,
    pub outcome: Outcome,
    /// One line.
    pub text: String,
    /// The whole answer; null without one.
    pub body: Value,
    pub took: Duration,
}

impl Told {
    /// Returns what is told of a node that was not even asked, such as one that is offline.
    pub fn absent(node: NodeName, why: &str) -> Self {
        Self {
            node,
            outcome: Outcome::NoAnswer,
            text: why.into(),
            body: Value::Null,
            took: Duration::ZERO,
        }
    }

    /// Returns the line that can be folded with others.
    pub fn to_answer(&self) -> Answer {
        Answer {
            node: self.node.clone(),
            outcome: self.outcome,
            text: self.text.clone(),
        }
    }
}

/// Returns what a node's answer to a verb amounts to.
pub fn understand(verb: Verb, heard: Heard) -> Told {
    let (outcome, text, body) = match heard.reply {
        Ok(reply) => {
            let body = serde_json::from_slice(&reply.body).unwrap_or(Value::Null);
            let (outcome, text) = match reply.service_error() {
                Some((code, text)) => (refusal(verb, code), refused(&body, text)),
                None => read(verb, &reply, &body),
            };
            (outcome, text, body)
        }
        Err(NatsError::Denied(denial)) => (Outcome::Denied, denial.to_string(), Value::Null),
        Err(err) => (Outcome::NoAnswer, silence(&err), Value::Null),
    };
    Told {
        node: heard.node,
        outcome,
        text: one_line(&text),
        body,
        took: heard.took,
    }
}

/// Returns why there is no answer, in the same words for every node.
fn silence(err: &NatsError) -> String {
    match err {
        NatsError::NoResponders(_) => "no answer: the agent is not connected".into(),
        NatsError::NoAnswer { limit, .. } => format!("no answer within {}", go_duration(*limit)),
        other => format!("no answer: {other}"),
    }
}

/// Returns what a code of a refusal means: one may come back to a busy node, not to another.
fn refusal(verb: Verb, code: u16) -> Outcome {
    match (verb, code) {
        (_, 401 | 403 | 423) => Outcome::Denied,
        (_, 408 | 429 | 503) => Outcome::Busy,
        // A run is on one node; that the others know nothing of it is as it should be.
        (Verb::Cancel, 404) => Outcome::Ok,
        _ => Outcome::Failed,
    }
}

/// Returns the reason of a refusal; the body may say more than fits into a header.
fn refused(body: &Value, header: &str) -> String {
    let said = body.get("error").and_then(Value::as_str);
    said.unwrap_or(header).to_owned()
}

/// Why an answer can't be read.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error("it holds no state")]
    NoState,
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

fn read(verb: Verb, reply: &Reply, body: &Value) -> (Outcome, String) {
    let understood = match verb {
        Verb::Ensure => ensured(body),
        Verb::Apply => applied(body),
        Verb::Status => state(body),
        Verb::Facts => Ok((Outcome::Ok, body.to_string())),
        Verb::Ping | Verb::Nudge => status(body).map(|status| (Outcome::Ok, presence(&status))),
        Verb::Pause => status(body).map(|status| (Outcome::Changed, paused(&status))),
        Verb::Resume => status(body).map(|_| (Outcome::Changed, "resumed".into())),
        Verb::Cancel => status(body).map(|_| (Outcome::Changed, "cancelled".into())),
    };
    understood.unwrap_or_else(|reason| {
        let size = reply.body.len();
        let text = format!("can't read the answer of {size} bytes: {reason}");
        (Outcome::Failed, text)
    })
}

fn ensured(body: &Value) -> Result<(Outcome, String), Unreadable> {
    if let Some(error) = body.get("error").and_then(Value::as_str) {
        return Ok((Outcome::Failed, error.to_owned()));
    }
    let event = body.get("state").ok_or(Unreadable::NoState)?;
    let event = TransactionEvent::deserialize(event)?;
    Ok((outcome_of(&event), line_of(&event)))
}

/// Returns what an event counts as. What only would change counts as changed, and says so.
fn outcome_of(event: &TransactionEvent) -> Outcome {
    match event.outcome() {
        _ if event.blocks() => Outcome::Failed,
        EventOutcome::Failed => Outcome::Failed,
        EventOutcome::Changed => Outcome::Changed,
        EventOutcome::Skipped | EventOutcome::Stable => Outcome::Ok,
    }
}

/// Returns the one line about a resource.
pub fn line_of(event: &TransactionEvent) -> String {
    let label = format!("{}#{}", event.type_name, event.name);
    if event.failed {
        let errors = event.errors.join(", ");
        return format!("{label} failed: {errors}");
    }
    if !event.unmet_requirements.is_empty() {
        let unmet = event.unmet_requirements.join(", ");
        return format!("{label} skipped: {unmet} did not come out well");
    }
    match event.outcome() {
        EventOutcome::Changed if event.noop => match event.noop_message.as_str() {
            "" => format!("{label} would change"),
            message => format!("{label} would change: {message}"),
        },
        EventOutcome::Changed if event.refreshed => format!("{label} refreshed"),
        EventOutcome::Changed => match event.final_ensure.as_str() {
            "" => format!("{label} changed"),
            state => format!("{label} changed to {state}"),
        },
        EventOutcome::Skipped => format!("{label} skipped"),
        EventOutcome::Failed | EventOutcome::Stable => format!("{label} stable"),
    }
}

fn applied(body: &Value) -> Result<(Outcome, String), Unreadable> {
    let response = ApplyResponse::deserialize(body)?;
    let Some(run) = response.run else {
        // The run's id differs from node to node; it is in the whole answer.
        return Ok(match response.error {
            Some(error) => (Outcome::Failed, error),
            None => (Outcome::Ok, "accepted".into()),
        });
    };
    let outcome = match run.outcome {
        RunOutcome::Failed => Outcome::Failed,
        RunOutcome::Changed | RunOutcome::Noop => Outcome::Changed,
        RunOutcome::Stable | RunOutcome::Skipped => Outcome::Ok,
    };
    Ok((outcome, run_line(&run, &response.events)))
}

/// Returns the one line about a run and its noteworthy events.
fn run_line(run: &RunSummary, events: &[TransactionEvent]) -> String {
    let summary = &run.summary;
    let changed = if run.noop { "would change" } else { "changed" };
    let counts: Vec<String> = [
        (summary.failed_resources, "failed"),
        (summary.changed_resources, changed),
        (summary.skipped_resources, "skipped"),
        (summary.stable_resources, "stable"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, word)| format!("{count} {word}"))
    .collect();
    let mut line = match (run.error.as_str(), counts.is_empty()) {
        ("", true) => "no resources".to_owned(),
        ("", false) => counts.join(", "),
        (error, true) => error.to_owned(),
        (error, false) => format!("{error}; {}", counts.join(", ")),
    };
    // What went wrong must not be among those that are left out.
    let (blocking, others): (Vec<_>, Vec<_>) = events.iter().partition(|event| event.blocks());
    let mut named: Vec<String> = blocking.into_iter().chain(others).map(line_of).collect();
    let more = named.len().saturating_sub(MAX_NAMED);
    named.truncate(MAX_NAMED);
    if !named.is_empty() {
        line.push_str(&format!(": {}", named.join("; ")));
    }
    if more > 0 {
        line.push_str(&format!("; {more} more"));
    }
    line
}

fn state(body: &Value) -> Result<(Outcome, String), Unreadable> {
    if let Some(error) = body.get("error").and_then(Value::as_str) {
        return Ok((Outcome::Failed, error.to_owned()));
    }
    let state = body.get("state").ok_or(Unreadable::NoState)?;
    let text = |key| state.get(key).and_then(Value::as_str).unwrap_or_default();
    let label = format!("{}#{}", text("type"), text("name"));
    // Where a version or the like is known it says more than the word for the state.
    let version = state
        .get("metadata")
        .and_then(|metadata| metadata.get("version"))
        .and_then(Value::as_str)
        .filter(|version| !version.is_empty());
    Ok((
        Outcome::Ok,
        match (text("ensure"), version) {
            ("", None) => label,
            ("", Some(version)) => format!("{label} {version}"),
            (ensure, Some(version)) if ensure != version => format!("{label} {ensure} {version}"),
            (ensure, _) => format!("{label} {ensure}"),
        },
    ))
}

fn status(body: &Value) -> Result<NodeStatus, Unreadable> {
    Ok(NodeStatus::deserialize(body)?)
}

/// Returns what a node that is there is doing.
fn presence(status: &NodeStatus) -> String {
    let doing = match (&status.pause, &status.current_run) {
        (Some(pause), _) => format!("paused: {}", pause.reason),
        (None, Some(run)) => match &run.waiting_for {
            Some(what) => format!("waiting for {what} to apply {}", run.source),
            None => format!("applying {}", run.source),
        },
        (None, None) => "idle".into(),
    };
    format!("version {}, {doing}", status.version)
}

fn paused(status: &NodeStatus) -> String {
    match &status.pause {
        Some(pause) => {
            // How long is the same everywhere; until when differs with every clock.
            let lasting = pause
                .until
                .and_then(|until| (until - pause.since).to_std().ok());
            match lasting {
                Some(lasting) => format!("paused for {}: {}", go_duration(lasting), pause.reason),
                None => format!("paused: {}", pause.reason),
            }
        }
        None => "not paused".into(),
    }
}

/// Returns a text as one line that a terminal can show.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    // Several problems are several lines; what is indented belongs to the line above.
    let mut text = text.trim().replace("\n ", "  ").replace('\n', "; ");
    text.retain(|c| c != '\r');
    let words = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    for c in words {
        if line.len() + c.len_utf8() > MAX_LINE {
            line.push('…');
            break;
        }
        line.push(c);
    }
    line
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use ccm_nats::{Bytes, Headers};

    fn told(verb: Verb, headers: &[(&str, &str)], body: &Value) -> (Outcome, String) {
        let headers = headers.iter().fold(Headers::new(), |all, (name, value)| {
            all.with(name, value).unwrap()
        });
        let reply = Reply {
            subject: "x".into(),
            reply: None,
            headers,
            body: Bytes::from(body.to_string()),
        };
        let heard = Heard {
            node: "web1".parse().unwrap(),
            reply: Ok(reply),
            took: Duration::ZERO,
        };
        let told = understand(verb, heard);
        (told.outcome, told.text)
    }

    fn event(more: &Value) -> Value {
        let mut event = json!({
            "protocol": "io.choria.ccm.v1.transaction.event",
            "event_id": "0".repeat(27),
            "timestamp": "2027-01-15T08:00:00Z",
            "type": "package",
            "provider": "apt",
            "name": "nginx",
            "requested_ensure": "latest",
            "final_ensure": "1.24",
            "duration": 1,
            "properties": {},
            "status": null,
            "error": null,
            "changed": false,
            "refreshed": false,
            "failed": false,
            "skipped": false,
            "noop": false,
            "unmet_requirements": null
        });
        for (key, value) in more.as_object().unwrap() {
            event[key] = value.clone();
        }
        event
    }

    #[test]
    fn an_ensured_resource_is_told_in_one_line() {
        for (more, outcome, text) in [
            (json!({}), Outcome::Ok, "package#nginx stable"),
            (
                json!({"changed": true}),
                Outcome::Changed,
                "package#nginx changed to 1.24",
            ),
            (
                json!({"changed": true, "noop": true, "noop_message": "Would have upgraded"}),
                Outcome::Changed,
                "package#nginx would change: Would have upgraded",
            ),
            (
                json!({"failed": true, "error": ["no such package", "again"]}),
                Outcome::Failed,
                "package#nginx failed: no such package, again",
            ),
            (
                json!({"skipped": true, "unmet_requirements": ["file#/a"]}),
                Outcome::Failed,
                "package#nginx skipped: file#/a did not come out well",
            ),
        ] {
            let body = json!({"protocol": "x", "state": event(&more)});
            assert_eq!(told(Verb::Ensure, &[], &body), (outcome, text.into()));
        }
    }

    #[test]
    fn a_refusal_is_told_by_its_code() {
        for (code, outcome) in [
            ("400", Outcome::Failed),
            ("401", Outcome::Denied),
            ("403", Outcome::Denied),
            ("423", Outcome::Denied),
            ("408", Outcome::Busy),
            ("429", Outcome::Busy),
            ("503", Outcome::Busy),
            ("500", Outcome::Failed),
        ] {
            let headers = [
                ("Nats-Service-Error", "short"),
                ("Nats-Service-Error-Code", code),
            ];
            let found = told(Verb::Ensure, &headers, &json!({"error": "line 1\nline 2"}));
            assert_eq!(found, (outcome, "line 1; line 2".into()));
        }
    }

    #[test]
    fn a_run_is_told_by_its_counts_and_what_is_noteworthy() {
        let count = |failed, changed, stable| {
            json!({
                "start_time": "2027-01-15T08:00:00Z", "end_time": "2027-01-15T08:00:00Z",
                "total_duration": 0, "total_resources": 3, "unique_resources": 3,
                "changed_resources": changed, "failed_resources": failed,
                "skipped_resources": 0, "stable_resources": stable, "refreshed_count": 0,
                "requirements_unmet_count": 0, "health_checked_count": 0,
                "health_check_ok_count": 0, "health_check_warning_count": 0,
                "health_check_critical_count": 0, "health_check_unknown_count": 0,
                "total_errors": 0
            })
        };
        let response = |outcome: &str, error: &str, summary: Value, events: Value| {
            json!({
                "protocol": "io.choria.ccm.v1.manifest.apply.response",
                "state": "finished",
                "run": {
                    "protocol": "io.choria.ccm.v1.run.summary",
                    "event_id": "0".repeat(27), "run_id": "0".repeat(27),
                    "identity": "web1", "collective": "default", "source": "inline",
                    "trigger": "request", "outcome": outcome, "error": error,
                    "timestamp": "2027-01-15T08:00:00Z", "summary": summary
                },
                "events": events
            })
        };
        let failed = event(&json!({"failed": true, "error": ["broken"]}));
        assert_eq!(
            told(
                Verb::Apply,
                &[],
                &response("failed", "", count(1, 0, 2), json!([&failed]))
            ),
            (
                Outcome::Failed,
                "1 failed, 2 stable: package#nginx failed: broken".into()
            )
        );
        let mut many = vec![event(&json!({"changed": true})); MAX_NAMED];
        many.push(failed);
        let (_, text) = told(
            Verb::Apply,
            &[],
            &response("failed", "", count(1, MAX_NAMED, 0), many.into()),
        );
        let start = format!("1 failed, {MAX_NAMED} changed: package#nginx failed: broken; ");
        assert!(text.starts_with(&start), "{text}");
        assert_eq!(
            told(
                Verb::Apply,
                &[],
                &response("stable", "", count(0, 0, 3), json!([]))
            ),
            (Outcome::Ok, "3 stable".into())
        );
        assert_eq!(
            told(
                Verb::Apply,
                &[],
                &response("failed", "no manifest", count(0, 0, 0), json!([]))
            ),
            (Outcome::Failed, "no manifest".into())
        );
        let accepted = json!({
            "protocol": "io.choria.ccm.v1.manifest.apply.response",
            "run_id": "0".repeat(27),
            "state": "accepted"
        });
        assert_eq!(
            told(Verb::Apply, &[], &accepted),
            (Outcome::Ok, "accepted".into())
        );
    }

    #[test]
    fn a_state_is_told_with_its_version() {
        let body = |state: Value| json!({"protocol": "x", "state": state});
        let package = body(json!({
            "type": "package", "name": "nginx", "ensure": "1.24", "metadata": {"version": "1.24"}
        }));
        assert_eq!(
            told(Verb::Status, &[], &package).1,
            "package#nginx 1.24".to_owned()
        );
        let file = body(json!({"type": "file", "name": "/a", "ensure": "absent"}));
        assert_eq!(
            told(Verb::Status, &[], &file).1,
            "file#/a absent".to_owned()
        );
    }

    #[test]
    fn an_answer_that_is_none_fails_and_is_no_terminal_command() {
        let (outcome, text) = told(Verb::Ensure, &[], &json!([1]));
        assert_eq!(outcome, Outcome::Failed);
        assert_eq!(text, "can't read the answer of 3 bytes: it holds no state");
        assert_eq!(one_line("a\u{1b}[2Jb\n"), "a [2Jb");
        assert_eq!(one_line("one\r\ntwo\n | here"), "one; two  | here");
        assert_eq!(one_line(&"é".repeat(400)).chars().count(), 251);
    }

    #[test]
    fn silence_is_told_in_the_same_words_for_every_node() {
        let limit = Duration::from_secs(10);
        let subject = || "ccm.v1.default.node.web1.ping".to_owned();
        for (err, text) in [
            (
                NatsError::NoResponders(subject()),
                "no answer: the agent is not connected",
            ),
            (
                NatsError::NoAnswer {
                    subject: subject(),
                    limit,
                },
                "no answer within 10s",
            ),
        ] {
            assert_eq!(silence(&err), text);
        }
    }
}
