//! Replies: Choria's codes, and which failure has which.
//!
//! The codes are the protocol's. What a failure is about is said by whoever makes one; texts never
//! repeat the value of an input, because the server logs them.

use serde::Serialize;
use serde_json::{Map, Value};

/// The longest text of a failure that is passed on.
const MAX_MESSAGE: usize = 1024;

/// The codes of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusCode {
    Ok = 0,
    /// Understood, and not done or failed.
    Aborted = 1,
    UnknownAction = 2,
    MissingData = 3,
    InvalidData = 4,
    /// Something is wrong with us or the machine.
    UnknownError = 5,
}

/// Why an action has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
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
    pub(super) fn aborted(reason: impl ToString) -> Self {
        Self::Aborted(reason.to_string())
    }

    pub(super) fn invalid(reason: impl ToString) -> Self {
        Self::InvalidData(reason.to_string())
    }

    /// Returns the failure of something that should have worked.
    pub(super) fn unknown(reason: impl ToString) -> Self {
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

/// What an action found out. It may have done what it was asked, found that it failed, and still
/// have much to tell.
#[derive(Debug)]
pub(super) struct Answer {
    pub data: Map<String, Value>,
    pub failure: Option<Failure>,
}

impl Answer {
    /// Returns an answer that holds the fields of an output.
    pub(super) fn new(output: &impl Serialize) -> Result<Self, Failure> {
        match serde_json::to_value(output).map_err(Failure::unknown)? {
            Value::Object(data) => Ok(Self {
                data,
                failure: None,
            }),
            _ => Err(Failure::unknown("an answer must be an object")),
        }
    }

    #[must_use]
    pub(super) fn failing(self, failure: Option<Failure>) -> Self {
        Self { failure, ..self }
    }
}

/// A reply as it is written.
#[derive(Debug, Serialize)]
pub(super) struct Reply {
    statuscode: u8,
    pub statusmsg: String,
    data: Map<String, Value>,
}

impl Reply {
    pub(super) fn is_ok(&self) -> bool {
        self.statuscode == StatusCode::Ok as u8
    }
}

impl From<Result<Answer, Failure>> for Reply {
    fn from(result: Result<Answer, Failure>) -> Self {
        let (data, failure) = match result {
            Ok(Answer { data, failure }) => (data, failure),
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

/// Returns the beginning of a text, with a mark if that is not all of it.
pub(super) fn clipped(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.into(),
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
    }
}

/// Returns a text without anything that would begin a line of a log, or hide in one.
pub(super) fn on_one_line(text: &str) -> String {
    let mend = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(mend).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_the_code_of_the_protocol() {
        let reply = |failure| Reply::from(Err(failure)).statuscode;
        assert_eq!(reply(Failure::aborted("x")), 1);
        assert_eq!(reply(Failure::UnknownAction("x".into())), 2);
        assert_eq!(reply(Failure::MissingData("x".into())), 3);
        assert_eq!(reply(Failure::invalid("x")), 4);
        assert_eq!(reply(Failure::unknown("x")), 5);
    }

    #[test]
    fn an_answer_without_a_failure_is_ok() {
        let answer = Answer::new(&serde_json::json!({"a": 1}));
        let text = serde_json::to_string(&Reply::from(answer)).unwrap();
        assert_eq!(text, r#"{"statuscode":0,"statusmsg":"OK","data":{"a":1}}"#);
    }

    #[test]
    fn a_failure_keeps_its_data() {
        let answer = Answer::new(&serde_json::json!({"a": 1})).unwrap();
        let reply = Reply::from(Ok(answer.failing(Some(Failure::aborted("no")))));
        let text = serde_json::to_string(&reply).unwrap();
        assert_eq!(text, r#"{"statuscode":1,"statusmsg":"no","data":{"a":1}}"#);
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        assert_eq!(clipped("äöü", 3), "äöü");
        assert_eq!(clipped("äöü", 2), "äö…");
    }
}
