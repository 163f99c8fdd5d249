//! Handler of `cancel`: stops a run after its current resource, or at once.

use serde::Deserialize;

use super::{Handlers, Reply, code, error_reply};
use ccm_core::model::envelope::Envelope;
use ccm_core::model::run::RunId;
use ccm_nats::Verb;
use ccm_value::document::{DocumentError, parse_message};
use ccm_value::text::quote;

/// Why a cancel request could not be parsed.
#[derive(Debug, thiserror::Error)]
enum CancelError {
    #[error("missing run_id in request")]
    NoRunId,
    #[error("invalid run_id {}: expected 27 letters and digits", quote(.0))]
    RunId(String),
    #[error(transparent)]
    Document(#[from] DocumentError),
}

/// Body of a cancel request.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelBody {
    run_id: String,
    #[serde(default)]
    now: bool,
}

#[derive(Debug, PartialEq)]
struct CancelRequest {
    /// Id of the run, or of the request that started it.
    run_id: RunId,
    /// Kills the running command instead of finishing the resource.
    now: bool,
}

impl Handlers {
    /// Cancels the run that the body names: its id alone, or a document with `run_id`.
    pub(super) fn cancel(&self, text: &str, envelope: &Envelope) -> Reply {
        let CancelRequest { run_id, now } = match parse(text) {
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
fn parse(text: &str) -> Result<CancelRequest, CancelError> {
    if text.trim().is_empty() {
        return Err(CancelError::NoRunId);
    }
    let document = parse_message(text).ok();
    let CancelBody { run_id, now } = match document.filter(|node| node.entries().is_some()) {
        Some(document) => CancelBody::deserialize(&document)?,
        None => CancelBody {
            run_id: text.trim().trim_matches('"').into(),
            now: false,
        },
    };
    match run_id.parse() {
        Ok(run_id) => Ok(CancelRequest { run_id, now }),
        Err(_) => Err(CancelError::RunId(run_id)),
    }
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
            let expected = CancelRequest { run_id, now };
            assert_eq!(parse(&body).unwrap(), expected, "{body}");
        }
        assert!(
            parse("")
                .unwrap_err()
                .to_string()
                .contains("missing run_id")
        );
        assert!(parse(&format!(r#"{{"run_id":"{id}","later":true}}"#)).is_err());
    }

    #[test]
    fn an_invalid_id_is_named_as_a_run_id() {
        for body in ["abc", r#"{"run_id":"abc"}"#] {
            let error = parse(body).unwrap_err().to_string();
            assert_eq!(
                error,
                "invalid run_id \"abc\": expected 27 letters and digits"
            );
        }
    }
}
