//! Interpretation of replies: an outcome and one line of text, equal for equal replies so that they
//! can be grouped.
//!
//! Error codes are those of HTTP, as agents send them. Texts come from nodes, so they are reduced
//! to one line of printable characters. `event_line` has the text of one event.

mod event_line;

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::reply_body::ReplyBody;
use super::scatter::RawReply;
use super::summarize::{Outcome, ReplyLine};
use ccm_core::model::event::{Outcome as EventOutcome, TransactionEvent};
use ccm_core::model::node::{NodeName, NodeStatus, Pause};
use ccm_core::model::run::{ApplyResponse, CurrentRun, RunOutcome, RunSummary};
use ccm_nats::{NatsError, Verb};
use ccm_value::text::go_duration;

pub use event_line::event_line;

/// Maximum length of a line, in bytes.
const MAX_LINE: usize = 500;

/// Maximum number of resources that the line of a run names.
const MAX_NAMED: usize = 5;

/// The interpreted reply of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReply {
    pub node: NodeName,
    pub outcome: Outcome,
    /// One line.
    pub text: String,
    /// The whole reply; null without one.
    pub body: ReplyBody,
    pub elapsed: Duration,
}

impl NodeReply {
    /// Returns the result for a node without a reply, such as one that is offline.
    pub fn no_reply(node: NodeName, reason: &str) -> Self {
        Self {
            node,
            outcome: Outcome::NoReply,
            text: reason.into(),
            body: ReplyBody::default(),
            elapsed: Duration::ZERO,
        }
    }

    /// Returns the line for a summary.
    pub fn to_line(&self) -> ReplyLine {
        ReplyLine {
            node: self.node.clone(),
            outcome: self.outcome,
            text: self.text.clone(),
        }
    }
}

/// Interprets the reply to a request.
pub fn interpret(verb: Verb, raw: RawReply) -> NodeReply {
    let (outcome, text, body) = match raw.reply {
        Ok(reply) => {
            let size = reply.body.len();
            let body = ReplyBody::new(reply.body.clone());
            let (outcome, text) = match reply.service_error() {
                Some((code, text)) => (error_outcome(verb, code), error_text(&body, text)),
                None => read(verb, size, &body),
            };
            (outcome, text, body)
        }
        Err(NatsError::Denied(denial)) => {
            (Outcome::Denied, denial.to_string(), ReplyBody::default())
        }
        Err(err) => (Outcome::NoReply, no_reply_text(&err), ReplyBody::default()),
    };
    NodeReply {
        node: raw.node,
        outcome,
        text: one_line(&text),
        body,
        elapsed: raw.elapsed,
    }
}

/// Returns why there is no reply, with the same text for every node.
fn no_reply_text(err: &NatsError) -> String {
    match err {
        NatsError::NoResponders(_) => "no reply: the agent is not connected".into(),
        NatsError::NoReply { limit, .. } => format!("no reply within {}", go_duration(*limit)),
        other => format!("no reply: {other}"),
    }
}

/// Returns the outcome of an error code. Only busy nodes are worth a retry.
fn error_outcome(verb: Verb, code: u16) -> Outcome {
    match (verb, code) {
        (_, 401 | 403 | 423) => Outcome::Denied,
        (_, 408 | 429 | 503) => Outcome::Busy,
        // A run is on one node only: that other nodes do not know it is no failure.
        (Verb::Cancel, 404) => Outcome::Ok,
        _ => Outcome::Failed,
    }
}

/// Returns the error text: that of the body, which may be longer than the header.
fn error_text(body: &ReplyBody, header: &str) -> String {
    body.text("error").unwrap_or_else(|| header.to_owned())
}

/// Why a reply can't be parsed.
#[derive(Debug, thiserror::Error)]
enum InvalidReply {
    #[error("no state in the reply")]
    NoState,
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

fn read(verb: Verb, size: usize, body: &ReplyBody) -> (Outcome, String) {
    let parsed = match verb {
        Verb::Ensure => ensured(body),
        Verb::Apply => applied(body),
        Verb::Status => state(body),
        Verb::Facts => Ok((Outcome::Ok, body.document().to_string())),
        Verb::Ping | Verb::Nudge => presence(body).map(|text| (Outcome::Ok, text)),
        Verb::Pause => status(body).map(|status| (Outcome::Changed, paused(&status))),
        Verb::Resume => status(body).map(|_| (Outcome::Changed, "resumed".into())),
        Verb::Cancel => status(body).map(|_| (Outcome::Changed, "cancelled".into())),
    };
    parsed.unwrap_or_else(|reason| {
        let text = format!("invalid reply of {size} bytes: {reason}");
        (Outcome::Failed, text)
    })
}

fn ensured(body: &ReplyBody) -> Result<(Outcome, String), InvalidReply> {
    if let Some(error) = body.text("error") {
        return Ok((Outcome::Failed, error));
    }
    let event: TransactionEvent = body.field("state")?.ok_or(InvalidReply::NoState)?;
    Ok((outcome_of(&event), event_line(&event)))
}

/// Returns the outcome of an event.
fn outcome_of(event: &TransactionEvent) -> Outcome {
    match event.outcome() {
        _ if event.blocks() => Outcome::Failed,
        EventOutcome::Failed => Outcome::Failed,
        EventOutcome::Changed if event.noop => Outcome::WouldChange,
        EventOutcome::Changed => Outcome::Changed,
        EventOutcome::Skipped | EventOutcome::Stable => Outcome::Ok,
    }
}

fn applied(body: &ReplyBody) -> Result<(Outcome, String), InvalidReply> {
    let response: ApplyResponse = body.parse()?;
    let Some(run) = response.run else {
        // The run id differs between nodes, so it is not part of the line.
        return Ok(match response.error {
            Some(error) => (Outcome::Failed, error),
            None => (Outcome::Ok, "accepted".into()),
        });
    };
    let outcome = match run.outcome {
        RunOutcome::Failed => Outcome::Failed,
        RunOutcome::Changed => Outcome::Changed,
        RunOutcome::Noop => Outcome::WouldChange,
        RunOutcome::Stable | RunOutcome::Skipped => Outcome::Ok,
    };
    Ok((outcome, run_line(&run, &response.events)))
}

/// Returns the line of a run and its notable events.
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
    // Failures first, so that they are never cut off.
    let (blocking, others): (Vec<_>, Vec<_>) = events.iter().partition(|event| event.blocks());
    let mut named: Vec<String> = blocking.into_iter().chain(others).map(event_line).collect();
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

fn state(body: &ReplyBody) -> Result<(Outcome, String), InvalidReply> {
    if let Some(error) = body.text("error") {
        return Ok((Outcome::Failed, error));
    }
    let state: Value = body.field("state")?.ok_or(InvalidReply::NoState)?;
    let text = |key| state.get(key).and_then(Value::as_str).unwrap_or_default();
    let label = format!("{}#{}", text("type"), text("name"));
    // The version, if there is one, is more specific than the state.
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

fn status(body: &ReplyBody) -> Result<NodeStatus, InvalidReply> {
    Ok(body.parse()?)
}

/// The parts of a status that the reply to a ping shows.
#[derive(Deserialize)]
struct PingStatus {
    version: String,
    #[serde(default)]
    pause: Option<Pause>,
    #[serde(default)]
    current_run: Option<CurrentRun>,
}

/// Returns the version of an online node and what it is doing.
fn presence(body: &ReplyBody) -> Result<String, InvalidReply> {
    let status: PingStatus = body.parse()?;
    let doing = match (&status.pause, &status.current_run) {
        (Some(pause), _) => format!("paused: {}", pause.reason),
        (None, Some(run)) => match &run.waiting_for {
            Some(what) => format!("waiting for {what} to apply {}", run.source),
            None => format!("applying {}", run.source),
        },
        (None, None) => "idle".into(),
    };
    Ok(format!("version {}, {doing}", status.version))
}

fn paused(status: &NodeStatus) -> String {
    match &status.pause {
        Some(pause) => {
            // The duration is equal on all nodes, the end time is not.
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

/// Returns a text as one line of printable characters, cut to [`MAX_LINE`].
fn one_line(text: &str) -> String {
    let mut line = String::new();
    // Lines are joined by "; ". An indented line continues the one above.
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
    use ccm_nats::{Bytes, Headers, Reply};

    fn interpreted(verb: Verb, headers: &[(&str, &str)], body: &Value) -> (Outcome, String) {
        let headers = headers.iter().fold(Headers::new(), |all, (name, value)| {
            all.with(name, value).unwrap()
        });
        let reply = Reply {
            subject: "x".into(),
            reply: None,
            headers,
            body: Bytes::from(body.to_string()),
        };
        let raw = RawReply {
            node: "web1".parse().unwrap(),
            reply: Ok(reply),
            elapsed: Duration::ZERO,
        };
        let reply = interpret(verb, raw);
        (reply.outcome, reply.text)
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
    fn an_ensured_resource_is_one_line() {
        for (more, outcome, text) in [
            (json!({}), Outcome::Ok, "package#nginx stable"),
            (
                json!({"changed": true}),
                Outcome::Changed,
                "package#nginx changed to 1.24",
            ),
            (
                json!({"changed": true, "previous": {"ensure": "1.22"}}),
                Outcome::Changed,
                "package#nginx changed 1.22 -> 1.24",
            ),
            (
                json!({"changed": true, "previous": {"ensure": "absent"}}),
                Outcome::Changed,
                "package#nginx changed to 1.24",
            ),
            (
                json!({"changed": true, "noop": true, "noop_message": "Would have upgraded to 1.24",
                    "previous": {"ensure": "1.22"}}),
                Outcome::WouldChange,
                "package#nginx would change: Would have upgraded to 1.24 from 1.22",
            ),
            (
                json!({"type": "file", "name": "/a", "changed": true, "final_ensure": "present",
                    "previous": {"ensure": "present", "mode": "0644", "owner": "root",
                        "group": "root", "checksum": "aa"},
                    "status": {"metadata": {"mode": "0600", "owner": "root", "group": "adm",
                        "checksum": "bb"}}}),
                Outcome::Changed,
                "file#/a changed: content, group root -> adm, mode 0644 -> 0600",
            ),
            (
                json!({"type": "service", "name": "web", "changed": true,
                    "final_ensure": "running", "previous": {"ensure": "running", "enabled": false},
                    "status": {"metadata": {"enabled": true, "running": true}}}),
                Outcome::Changed,
                "service#web changed: enabled",
            ),
            (
                json!({"changed": true, "noop": true, "noop_message": "Would have upgraded"}),
                Outcome::WouldChange,
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
                "package#nginx skipped: unmet requirements file#/a",
            ),
        ] {
            let body = json!({"protocol": "x", "state": event(&more)});
            assert_eq!(
                interpreted(Verb::Ensure, &[], &body),
                (outcome, text.into())
            );
        }
    }

    #[test]
    fn an_error_code_determines_the_outcome() {
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
            let found = interpreted(Verb::Ensure, &headers, &json!({"error": "line 1\nline 2"}));
            assert_eq!(found, (outcome, "line 1; line 2".into()));
        }
    }

    #[test]
    fn a_run_is_counts_and_notable_events() {
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
            interpreted(
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
        let (_, text) = interpreted(
            Verb::Apply,
            &[],
            &response("failed", "", count(1, MAX_NAMED, 0), many.into()),
        );
        let start = format!("1 failed, {MAX_NAMED} changed: package#nginx failed: broken; ");
        assert!(text.starts_with(&start), "{text}");
        assert_eq!(
            interpreted(
                Verb::Apply,
                &[],
                &response("stable", "", count(0, 0, 3), json!([]))
            ),
            (Outcome::Ok, "3 stable".into())
        );
        assert_eq!(
            interpreted(
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
            interpreted(Verb::Apply, &[], &accepted),
            (Outcome::Ok, "accepted".into())
        );
    }

    #[test]
    fn a_state_includes_the_version() {
        let body = |state: Value| json!({"protocol": "x", "state": state});
        let package = body(json!({
            "type": "package", "name": "nginx", "ensure": "1.24", "metadata": {"version": "1.24"}
        }));
        assert_eq!(
            interpreted(Verb::Status, &[], &package).1,
            "package#nginx 1.24".to_owned()
        );
        let file = body(json!({"type": "file", "name": "/a", "ensure": "absent"}));
        assert_eq!(
            interpreted(Verb::Status, &[], &file).1,
            "file#/a absent".to_owned()
        );
    }

    #[test]
    fn an_invalid_reply_fails_and_control_characters_are_removed() {
        let (outcome, text) = interpreted(Verb::Ensure, &[], &json!([1]));
        assert_eq!(outcome, Outcome::Failed);
        assert_eq!(text, "invalid reply of 3 bytes: no state in the reply");
        assert_eq!(one_line("a\u{1b}[2Jb\n"), "a [2Jb");
        assert_eq!(one_line("one\r\ntwo\n | here"), "one; two  | here");
        assert_eq!(one_line(&"é".repeat(400)).chars().count(), 251);
    }

    #[test]
    fn a_missing_reply_has_the_same_text_for_every_node() {
        let limit = Duration::from_secs(10);
        let subject = || "ccm.v1.default.node.web1.ping".to_owned();
        for (err, text) in [
            (
                NatsError::NoResponders(subject()),
                "no reply: the agent is not connected",
            ),
            (
                NatsError::NoReply {
                    subject: subject(),
                    limit,
                },
                "no reply within 10s",
            ),
        ] {
            assert_eq!(no_reply_text(&err), text);
        }
    }
}
