//! Replies and their MCORPC status codes.
//!
//! Failure messages never contain input values, because the server logs them.

use serde::Serialize;
use serde_json::{Map, Value};

/// Length limit of a failure message.
const MAX_MESSAGE: usize = 1024;

/// Size limit of a reply: encoding more than doubles it, and the default limit of brokers is 1 MB.
const MAX_REPLY: usize = 384 * 1024;

/// Status codes of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusCode {
    Ok = 0,
    /// The request was valid but was refused or failed.
    Aborted = 1,
    UnknownAction = 2,
    MissingData = 3,
    InvalidData = 4,
    /// Internal error.
    UnknownError = 5,
}

/// Failure of an action.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Aborted(String),
    #[error("{0}")]
    UnknownAction(String),
    #[error("{0} is required")]
    MissingData(String),
    #[error("{0}")]
    InvalidData(String),
    #[error("{0}")]
    UnknownError(String),
}

impl Failure {
    pub fn aborted(reason: impl ToString) -> Self {
        Self::Aborted(reason.to_string())
    }

    pub fn invalid(reason: impl ToString) -> Self {
        Self::InvalidData(reason.to_string())
    }

    /// Returns an internal error.
    pub fn unknown(reason: impl ToString) -> Self {
        Self::UnknownError(reason.to_string())
    }

    fn code(&self) -> StatusCode {
        match self {
            Self::Aborted(_) => StatusCode::Aborted,
            Self::UnknownAction(_) => StatusCode::UnknownAction,
            Self::MissingData(_) => StatusCode::MissingData,
            Self::InvalidData(_) => StatusCode::InvalidData,
            Self::UnknownError(_) => StatusCode::UnknownError,
        }
    }
}

/// Result of an action: output data, and a failure if the run failed.
#[derive(Debug)]
pub struct ActionReply {
    pub data: Map<String, Value>,
    pub failure: Option<Failure>,
}

impl ActionReply {
    /// Returns a reply with the fields of an output.
    pub fn new(output: &impl Serialize) -> Result<Self, Failure> {
        match serde_json::to_value(output).map_err(Failure::unknown)? {
            Value::Object(data) => Ok(Self {
                data,
                failure: None,
            }),
            _ => Err(Failure::unknown(
                "the output of an action must be an object",
            )),
        }
    }

    #[must_use]
    pub fn failing(self, failure: Option<Failure>) -> Self {
        Self { failure, ..self }
    }
}

/// Reply file.
#[derive(Debug, Serialize)]
pub struct Reply {
    statuscode: u8,
    pub statusmsg: String,
    data: Map<String, Value>,
}

impl Reply {
    /// Encodes a reply, or an error reply if it is too long to be sent.
    pub fn encode(self) -> Result<(String, Self), serde_json::Error> {
        let text = serde_json::to_string(&self)?;
        if text.len() <= MAX_REPLY {
            return Ok((text, self));
        }
        let bytes = text.len();
        let reason = format!("the reply has {bytes} bytes, more than can be sent: request less");
        let reply = Self::from(Err(Failure::Aborted(reason)));
        Ok((serde_json::to_string(&reply)?, reply))
    }

    pub fn is_ok(&self) -> bool {
        self.statuscode == StatusCode::Ok as u8
    }
}

impl From<Result<ActionReply, Failure>> for Reply {
    fn from(result: Result<ActionReply, Failure>) -> Self {
        let (data, failure) = match result {
            Ok(ActionReply { data, failure }) => (data, failure),
            Err(failure) => (Map::new(), Some(failure)),
        };
        let code = failure.as_ref().map_or(StatusCode::Ok, Failure::code);
        let message = failure.map_or_else(|| "OK".into(), |failure| failure.to_string());
        Self {
            statuscode: code as u8,
            statusmsg: clipped(&message, MAX_MESSAGE),
            data,
        }
    }
}

/// Shortens a text to a number of characters, with an ellipsis.
pub fn clipped(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        None => text.into(),
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
    }
}

/// Replaces control characters, so that the text stays on one log line.
pub fn on_one_line(text: &str) -> String {
    let replace = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(replace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_map_to_status_codes() {
        let reply = |failure| Reply::from(Err(failure)).statuscode;
        assert_eq!(reply(Failure::aborted("x")), 1);
        assert_eq!(reply(Failure::UnknownAction("x".into())), 2);
        assert_eq!(reply(Failure::MissingData("x".into())), 3);
        assert_eq!(reply(Failure::invalid("x")), 4);
        assert_eq!(reply(Failure::unknown("x")), 5);
    }

    #[test]
    fn a_reply_without_a_failure_is_ok() {
        let reply = ActionReply::new(&serde_json::json!({"a": 1}));
        let text = serde_json::to_string(&Reply::from(reply)).unwrap();
        assert_eq!(text, r#"{"statuscode":0,"statusmsg":"OK","data":{"a":1}}"#);
    }

    #[test]
    fn a_failure_keeps_its_data() {
        let reply = ActionReply::new(&serde_json::json!({"a": 1})).unwrap();
        let reply = Reply::from(Ok(reply.failing(Some(Failure::aborted("no")))));
        let text = serde_json::to_string(&reply).unwrap();
        assert_eq!(text, r#"{"statuscode":1,"statusmsg":"no","data":{"a":1}}"#);
    }

    #[test]
    fn text_is_shortened_at_a_character_boundary() {
        assert_eq!(clipped("äöü", 3), "äöü");
        assert_eq!(clipped("äöü", 2), "äö…");
    }
}
