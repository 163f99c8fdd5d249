//! Secrets, and removal of secrets from URLs.
//!
//! A [`Secret`] prints and serializes as [`REDACTED`]; its text is available only through
//! [`Secret::reveal`].

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use super::value::{Map, Value};

/// Replacement text for a secret.
pub const REDACTED: &str = "REDACTED";

/// Start of an encrypted value.
pub const SEALED: &str = "ENC[age,";

/// Reports whether a text is an encrypted value, valid or not.
pub fn is_sealed(text: &str) -> bool {
    let text = text.trim();
    text.starts_with(SEALED) && text.ends_with(']')
}

/// A password, token or similar text.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the secret text.
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

/// Returns a URL without its secrets: user and password, query values and fragment. Scheme, host,
/// path and query names are kept.
pub fn redact_url(url: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.into();
    };
    let (rest, fragment) = split_before(rest, '#');
    let (without_query, query) = split_before(rest, '?');
    let (authority, path) = split_before(without_query, '/');
    let host = authority.rsplit_once('@').map(|(_, host)| host);
    if host.is_none() && query.len() < 2 && fragment.len() < 2 {
        return url.into();
    }
    let mut shown = format!("{scheme}://");
    match host {
        Some(host) => shown.extend([REDACTED, "@", host]),
        None => shown.push_str(authority),
    }
    shown.push_str(path);
    for (index, part) in query.get(1..).unwrap_or_default().split('&').enumerate() {
        if query.is_empty() {
            break;
        }
        shown.push(if index == 0 { '?' } else { '&' });
        match part.split_once('=') {
            Some((name, "")) => shown.extend([name, "="]),
            Some((name, _)) => shown.extend([name, "=", REDACTED]),
            None if part.is_empty() => {}
            // A query without a name may be the secret itself.
            None => shown.push_str(REDACTED),
        }
    }
    if !fragment.is_empty() {
        shown.extend(["#", REDACTED]);
    }
    shown.into()
}

/// Splits a text before the first occurrence of a character; if there is none, the second part is
/// empty.
fn split_before(text: &str, mark: char) -> (&str, &str) {
    text.split_at(text.find(mark).unwrap_or(text.len()))
}

/// Replaces every URL in a text as [`redact_url`] does. A URL ends at white space, a quote or an
/// angle bracket.
pub fn redact_urls(text: &str) -> Cow<'_, str> {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at);
        let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        let start = before.trim_end_matches(is_scheme).len();
        let is_end = |c: char| c.is_whitespace() || c.is_control() || "\"'`<>".contains(c);
        let end = at + after.find(is_end).unwrap_or(after.len());
        shown.push_str(rest.get(..start).unwrap_or_default());
        shown.push_str(&redact_url(rest.get(start..end).unwrap_or_default()));
        rest = rest.get(end..).unwrap_or_default();
    }
    match shown.is_empty() {
        true => text.into(),
        false => (shown + rest).into(),
    }
}

/// Length of an encoded nkey seed.
const SEED_LENGTH: usize = 58;

/// Replaces every nkey seed in a text.
pub fn redact_seeds(text: &str) -> Cow<'_, str> {
    let is_base32 = |c: char| c.is_ascii_uppercase() || ('2'..='7').contains(&c);
    let is_seed = |word: &&str| word.len() == SEED_LENGTH && word.starts_with('S');
    let words = text.split(|c: char| !is_base32(c));
    words.filter(is_seed).fold(text.into(), |shown, seed| {
        shown.replace(seed, REDACTED).into()
    })
}

/// Applies [`redact_urls`] to every text of a value, including the keys of maps.
pub fn redact_urls_in(value: &Value) -> Value {
    let shown = |text: &Arc<str>| match redact_urls(text) {
        Cow::Borrowed(_) => text.clone(),
        Cow::Owned(shown) => shown.into(),
    };
    match value {
        Value::Str(text) => Value::Str(shown(text)),
        Value::List(items) => items.iter().map(redact_urls_in).collect(),
        Value::Map(map) => {
            let entries = map.iter();
            let shown = entries.map(|(key, value)| (shown(key), redact_urls_in(value)));
            shown.collect::<Map>().into()
        }
        other => other.clone(),
    }
}

/// Returns a URL without secrets that still identifies its source: like [`redact_url`], but with a
/// digest of the query, because `?file=a` and `?file=b` are different sources. A URL that already
/// has a digest is unchanged.
pub fn url_identity(url: &str) -> Cow<'_, str> {
    let (without_query, _) = split_before(url, '#');
    let (without_query, query) = split_before(without_query, '?');
    let query = query.strip_prefix('?').unwrap_or_default();
    let is_digest = |text: &str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if query.is_empty() || !url.contains("://") {
        return redact_url(url);
    }
    let without_query = redact_url(without_query);
    match query.strip_prefix(IDENTITY).filter(|text| is_digest(text)) {
        Some(digest) => format!("{without_query}?{IDENTITY}{digest}").into(),
        None => {
            let digest = Sha256::digest(query);
            let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{without_query}?{IDENTITY}{digest}").into()
        }
    }
}

/// Query name of the digest.
const IDENTITY: &str = "sha256=";

/// Serializes a URL without its secrets.
pub fn serialize_url<S: Serializer>(url: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&redact_url(url))
}

/// Serializes a text without the secrets of its URLs.
pub fn serialize_text<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&redact_urls(text))
}

/// Serializes texts without the secrets of their URLs.
pub fn serialize_texts<S: Serializer>(texts: &[String], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(texts.iter().map(|text| redact_urls(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_prints_as_redacted() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret:?}"), REDACTED);
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"REDACTED\"");
        assert_eq!(serde_json::to_string(&Secret::default()).unwrap(), "\"\"");
    }

    #[test]
    fn a_url_keeps_all_but_its_secrets() {
        for (url, shown) in [
            (
                "https://ann:pw@example.net:8443/x.tgz?q=1",
                "https://REDACTED@example.net:8443/x.tgz?q=REDACTED",
            ),
            ("https://example.net/a@b", "https://example.net/a@b"),
            ("https://a@b@h/", "https://REDACTED@h/"),
            (
                "https://h/p?a=1&b=&c&&d==x?y#part",
                "https://h/p?a=REDACTED&b=&REDACTED&&d=REDACTED#REDACTED",
            ),
            ("https://h?token=x", "https://h?token=REDACTED"),
            ("https://h#x?y=z", "https://h#REDACTED"),
            ("https://h/p?#", "https://h/p?#"),
            ("/no/url?x=1", "/no/url?x=1"),
        ] {
            assert_eq!(redact_url(url), shown);
            assert_eq!(redact_url(shown), shown, "once is enough");
        }
    }

    #[test]
    fn every_url_of_a_text_is_found() {
        for (text, shown) in [
            ("nothing", "nothing"),
            ("://", "://"),
            (
                "curl -s 'https://h/?a=b' && curl \"ftp://u:p@h/x\"; http://h/ok",
                "curl -s 'https://h/?a=REDACTED' && curl \"ftp://REDACTED@h/x\"; http://h/ok",
            ),
            (
                "DATABASE=postgres://app:pw@db/app?sslmode=off\nnext",
                "DATABASE=postgres://REDACTED@db/app?sslmode=REDACTED\nnext",
            ),
            ("ä://ö?ü=é", "ä://ö?ü=REDACTED"),
        ] {
            assert_eq!(redact_urls(text), shown);
        }
        assert!(matches!(redact_urls("no URL"), Cow::Borrowed(_)));
    }

    #[test]
    fn sources_differ_by_query_and_not_by_password() {
        let identity = |url: &str| url_identity(url).into_owned();
        assert_ne!(
            identity("https://h/p?file=a"),
            identity("https://h/p?file=b")
        );
        assert_ne!(identity("https://h/p?file=a"), identity("https://h/p"));
        assert_eq!(identity("https://u:1@h/p?x"), identity("https://v:2@h/p?x"));
        let once = identity("https://h/p?file=a");
        assert_eq!(identity(&once), once);
        assert!(!once.contains("file"), "{once}");
        for plain in ["obj://SITE/site.tar.gz", "/srv/a?b", "https://h/p"] {
            assert_eq!(identity(plain), plain);
        }
    }
}
