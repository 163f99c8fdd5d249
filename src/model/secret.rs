//! Texts that must not be shown: they serialize, print and compare as what they are only where
//! the code asks for them by name.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// What stands where a secret was.
pub const REDACTED: &str = "REDACTED";

/// A password, token or the like.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the secret itself, for the one place that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub fn reveal_mut(&mut self) -> &mut String {
        &mut self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(REDACTED)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(if self.is_empty() { "" } else { REDACTED })
    }
}

/// Returns a URL without the user and password it may carry.
pub fn redact_url(url: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.into();
    };
    let (authority, path) = match rest.find(['/', '?', '#']) {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://{REDACTED}@{host}{path}").into(),
        None => url.into(),
    }
}

/// Serializes a URL without its credentials.
pub fn serialize_url<S: Serializer>(url: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&redact_url(url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_shows_only_that_it_is_there() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret:?}"), REDACTED);
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"REDACTED\"");
        assert_eq!(serde_json::to_string(&Secret::default()).unwrap(), "\"\"");
    }

    #[test]
    fn a_url_keeps_all_but_its_credentials() {
        for (url, shown) in [
            (
                "https://ann:pw@example.net:8443/x.tgz?q=1",
                "https://REDACTED@example.net:8443/x.tgz?q=1",
            ),
            ("https://example.net/a@b", "https://example.net/a@b"),
            ("/no/url", "/no/url"),
        ] {
            assert_eq!(redact_url(url), shown);
        }
    }
}
