//! Headers and messages, without the types of the client library.

use std::fmt;
use std::str::FromStr as _;

use async_nats::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;

use super::NatsError;

/// The headers of a message. Names are case sensitive.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(HeaderMap);

impl Headers {
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the headers with one header set.
    pub fn with(mut self, name: &str, value: &str) -> Result<Self, NatsError> {
        self.set(name, value)?;
        Ok(self)
    }

    /// Sets a header; replaces existing values of the name.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), NatsError> {
        let bad = || NatsError::Header(name.into());
        if name.is_empty() {
            return Err(bad());
        }
        let key = HeaderName::from_str(name).map_err(|_| bad())?;
        let value = HeaderValue::from_str(value).map_err(|_| bad())?;
        self.0.insert(key, value);
        Ok(())
    }

    /// Returns the first value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        let name = HeaderName::from_str(name).ok()?;
        self.0.get(name).map(HeaderValue::as_str)
    }

    /// Returns the last value of a name: headers added by the server come last.
    pub(crate) fn last(&self, name: &str) -> Option<&str> {
        let name = HeaderName::from_str(name).ok()?;
        self.0.get_all(name).last().map(HeaderValue::as_str)
    }

    /// Returns the number of values of a name.
    pub fn count(&self, name: &str) -> usize {
        match HeaderName::from_str(name) {
            Ok(name) => self.0.get_all(name).count(),
            Err(_) => 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn into_map(self) -> HeaderMap {
        self.0
    }
}

impl fmt::Debug for Headers {
    /// Shows names only: a value may be a signature.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list()
            .entries(self.0.iter().map(|(name, _)| name))
            .finish()
    }
}

/// A received message.
#[derive(Clone, Debug)]
pub struct Message {
    pub subject: String,
    /// The reply subject.
    pub reply: Option<String>,
    pub headers: Headers,
    pub body: Bytes,
}

/// A reply to a request.
pub type Reply = Message;

impl Message {
    /// Returns the first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)
    }

    /// Returns code and text if the message is the error reply of a micro service.
    pub fn service_error(&self) -> Option<(u16, &str)> {
        let text = self.header(crate::micro::ERROR)?;
        let code = self.header(crate::micro::ERROR_CODE);
        let code = code.and_then(|code| code.parse().ok()).unwrap_or(500);
        Some((code, text))
    }
}

impl From<async_nats::Message> for Message {
    fn from(message: async_nats::Message) -> Self {
        Self {
            subject: message.subject.to_string(),
            reply: message.reply.map(|reply| reply.to_string()),
            headers: Headers(message.headers.unwrap_or_default()),
            body: message.payload,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_names_are_case_sensitive() {
        let headers = Headers::new().with("Ccm-Noop", "true").unwrap();
        assert_eq!(headers.get("Ccm-Noop"), Some("true"));
        assert_eq!(headers.get("ccm-noop"), None);
        assert_eq!(headers.get("no:name"), None);
    }

    #[test]
    fn header_that_breaks_the_protocol_is_rejected() {
        for (name, value) in [
            ("a:b", "x"),
            ("a\r\nb", "x"),
            ("", "x"),
            ("a", "x\r\nEvil: 1"),
        ] {
            assert!(
                Headers::new().with(name, value).is_err(),
                "{name:?} {value:?}"
            );
        }
    }
}
