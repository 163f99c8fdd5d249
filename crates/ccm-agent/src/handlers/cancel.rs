//! Handler of `cancel`: stops a run after its current resource, or at once.

use serde::Deserialize;

use super::{Handlers, Reply, code, error_reply};
use ccm_core::model::envelope::Envelope;
use ccm_core::model::id::EventIdError;
use ccm_core::model::run::RunId;
use ccm_nats::Verb;
use ccm_value::document::{DocumentError, parse_message};

/// Why a cancel request could not be parsed.
#[derive(Debug, thiserror::Error)]
enum CancelError {
    #[error("missing run_id in request")]
    NoRunId,
    #[error(transparent)]
    RunId(#[from] EventIdError),
    #[error(transparent)]
    Document(#[from] DocumentError),
}

/// Body of a cancel request.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelBody {
    /// Id of the run, or of the request that started it.
    run_id: RunId,
    /// Kills the running command instead of finishing the resource.
    #[serde(default)]
    now: bool,
}

impl Handlers {
    /// Cancels the run that the body names: its id alone, or a document with `run_id`.
    pub(super) fn cancel(&self, text: &str, envelope: &Envelope) -> Reply {
        let CancelBody { run_id, now } = match parse(text) {
            Ok(body) => body,
            Err(err) => return error_reply(Verb::Cancel, code::BAD_REQUEST, err.to_string()),
        };
        let reason = match envelope.caller.as_str() {
            "" => "cancelled".to_owned(),
            caller => format!("cancelled by {caller}"),
        };
        if self.node.services.run_queue.cancel(&run_id, &reason, now) {
            return self.status();
        }
        let text = format!("no current or waiting run {run_id}");
        error_reply(Verb::Cancel, code::NOT_FOUND, text)
    }
}

/// Parses a cancel request: a run id as plain text, or a document.
fn parse(text: &str) -> Result<CancelBody, CancelError> {
    if text.trim().is_empty() {
        return Err(CancelError::NoRunId);
    }
    let bad = match text.trim().trim_matches('"').parse() {
        Ok(run_id) => return Ok(CancelBody { run_id, now: false }),
        Err(bad) => CancelError::RunId(bad),
    };
    let document = parse_message(text).ok();
    let document = document.filter(|node| node.entries().is_some());
    Ok(CancelBody::deserialize(&document.ok_or(bad)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_named_as_text_or_in_a_document() {
        let id = "0".repeat(27);
        for (body, now) in [
            (id.clone(), false),
            (format!("\"{id}\""), false),
            (format!("run_id: {id}"), false),
            (format!(r#"{{"run_id":"{id}","now":true}}"#), true),
        ] {
            let run_id = id.parse().unwrap();
            assert_eq!(parse(&body).unwrap(), CancelBody { run_id, now }, "{body}");
        }
        assert!(
            parse("")
                .unwrap_err()
                .to_string()
                .contains("missing run_id")
        );
        assert!(parse(&format!(r#"{{"run_id":"{id}","later":true}}"#)).is_err());
    }
}
