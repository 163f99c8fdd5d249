//! Data sources: parsing of their locations and of the documents fetched from them.
//!
//! Fetches nothing: callers match on [`Source`], fetch the bytes, check the status with
//! [`Source::check_status`] or [`Source::check_put`] and parse the bytes with [`Source::read`].

use std::fmt;
use std::path::PathBuf;
use std::str::{self, FromStr};

use super::annotations::{Annotations, parse_annotations};
use super::error::HieraError;
use super::hierarchy::or_default;
use crate::model::Value;
use crate::model::document::{self, DocumentError, Mark};
use crate::model::secret::{Secret, redact_url, url_identity};
use crate::model::text::url_scheme;

/// Location of a data document. Displayed without credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// File; a relative path is relative to the working directory.
    File(PathBuf),
    /// URL, which may contain credentials.
    Http(Secret),
    Kv {
        bucket: String,
        key: String,
    },
    /// Object in a NATS object store.
    Object {
        bucket: String,
        name: String,
    },
}

/// Document and the annotations in its comments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    pub root: Value,
    pub annotations: Annotations,
    /// Name and text, for the positions of errors.
    pub name: String,
    pub text: String,
}

impl Document {
    /// Adds the position in this document to an error of its data.
    pub fn locate(&self, error: HieraError, data_key: &str) -> HieraError {
        error.located(&self.name, &self.text, or_default(data_key))
    }
}

impl FromStr for Source {
    type Err = HieraError;

    fn from_str(text: &str) -> Result<Self, HieraError> {
        if text.is_empty() {
            return Err(HieraError::NoSource);
        }
        let Some((scheme, rest)) = url_scheme(text) else {
            return Ok(Self::File(text.into()));
        };
        let unsupported = || HieraError::UnsupportedSource(redact_url(text).into_owned());
        match scheme.to_ascii_lowercase().as_str() {
            "file" => match split_url(rest) {
                ("" | "localhost", path) if !path.is_empty() => {
                    decode(path, text).map(|path| Self::File(path.into()))
                }
                _ => Err(unsupported()),
            },
            "http" | "https" => match split_url(rest) {
                ("", _) => Err(unsupported()),
                _ => Ok(Self::Http(Secret::new(text))),
            },
            "kv" => {
                let (bucket, path) = split_url(rest);
                if bucket.is_empty() {
                    return Err(HieraError::NoBucket);
                }
                let key = decode(path.trim_start_matches('/'), text)?;
                if key.is_empty() {
                    return Err(HieraError::NoKey);
                }
                Ok(Self::Kv {
                    bucket: bucket.into(),
                    key,
                })
            }
            "obj" => {
                let (bucket, path) = split_url(rest);
                let name = decode(path.trim_start_matches('/'), text)?;
                if bucket.is_empty() || name.is_empty() {
                    return Err(HieraError::NoObject);
                }
                Ok(Self::Object {
                    bucket: bucket.into(),
                    name,
                })
            }
            _ => Err(unsupported()),
        }
    }
}

/// Splits a URL after its scheme into host and path, without credentials, query and fragment.
fn split_url(rest: &str) -> (&str, &str) {
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let Some(rest) = rest.strip_prefix("//") else {
        return ("", rest);
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    (host, path)
}

/// Returns a part of a URL with its `%` escapes decoded.
fn decode(part: &str, url: &str) -> Result<String, HieraError> {
    let bad = |escape: &str| HieraError::Escape {
        url: redact_url(url).into_owned(),
        escape: escape.into(),
    };
    let mut pieces = part.split('%');
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let byte = piece
            .get(..2)
            .filter(|hex| hex.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        let Some(byte) = byte else {
            let shown: String = piece.chars().take(2).collect();
            return Err(bad(&format!("%{shown}")));
        };
        bytes.push(byte);
        bytes.extend(piece.bytes().skip(2));
    }
    String::from_utf8(bytes).map_err(|_| bad(part))
}

impl Source {
    /// Returns the location as in a configuration file, without secrets; identifies the source in
    /// files and signatures.
    pub fn location(&self) -> String {
        match self {
            Self::Kv { bucket, key } => format!("kv://{bucket}/{key}"),
            Self::Object { bucket, name } => format!("obj://{bucket}/{name}"),
            Self::Http(url) => url_identity(url.reveal()).into_owned(),
            Self::File(_) => self.to_string(),
        }
    }

    /// Rejects any HTTP status but 200. `status` is the text of the status line.
    pub fn check_status(&self, code: u16, status: &str) -> Result<(), HieraError> {
        match code {
            200 => Ok(()),
            code => Err(HieraError::Status {
                from: self.clone(),
                code,
                status: status.into(),
            }),
        }
    }

    /// Rejects a KV entry whose last operation was not a put.
    pub fn check_put(&self, is_put: bool) -> Result<(), HieraError> {
        if is_put {
            Ok(())
        } else {
            Err(HieraError::NotPut(self.clone()))
        }
    }

    /// Parses a document fetched from the source: as JSON if it looks like JSON, otherwise as YAML,
    /// with the annotations of the data under `data_key`. Only a file may be empty.
    pub fn read(&self, body: &[u8], data_key: &str) -> Result<Document, HieraError> {
        if body.is_empty() && !matches!(self, Self::File(_)) {
            return Err(HieraError::Empty { from: self.clone() });
        }
        let failed = |format, cause| HieraError::Parse {
            format,
            from: self.clone(),
            cause: Box::new(cause),
        };
        let text = str::from_utf8(body)
            .map_err(|err| failed("YAML", DocumentError::new(Mark::default(), err.to_string())))?;
        let is_json = document::is_json(text);
        let name = self.to_string();
        let root = document::parse_message(text).map_err(|cause| {
            let format = if is_json { "JSON" } else { "YAML" };
            failed(format, cause).located(&name, text, data_key)
        })?;
        Ok(Document {
            root: root.to_value(),
            annotations: if is_json {
                Annotations::default()
            } else {
                parse_annotations(text, data_key)
            },
            name,
            text: text.into(),
        })
    }

    /// Returns the prefix for error messages about a response of the source.
    pub(super) fn response_prefix(&self) -> &'static str {
        match self {
            Self::Http(_) => "HTTP response from ",
            Self::File(_) | Self::Kv { .. } | Self::Object { .. } => "",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(out),
            Self::Http(url) => out.write_str(&redact_url(url.reveal())),
            Self::Kv { bucket, key } => write!(out, "kv {bucket}#{key}"),
            Self::Object { bucket, name } => write!(out, "obj://{bucket}/{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        text.parse().unwrap()
    }

    fn error(text: &str) -> String {
        text.parse::<Source>().unwrap_err().to_string()
    }

    fn kv(bucket: &str, key: &str) -> Source {
        Source::Kv {
            bucket: bucket.into(),
            key: key.into(),
        }
    }

    #[test]
    fn a_text_without_a_scheme_is_a_path() {
        for path in [".hiera", "/etc/a.yaml", "dir/a:b", "./a:b"] {
            assert_eq!(source(path), Source::File(path.into()));
        }
    }

    #[test]
    fn file_urls_are_local_paths() {
        assert_eq!(source("file:///a%20b"), Source::File("/a b".into()));
        assert_eq!(source("file://localhost/a"), Source::File("/a".into()));
        assert_eq!(
            error("file://elsewhere/a"),
            "unsupported hiera data source: file://elsewhere/a"
        );
    }

    #[test]
    fn kv_urls_name_a_bucket_and_a_key() {
        assert_eq!(source("kv://B/a/b.c"), kv("B", "a/b.c"));
        assert_eq!(source("KV://B/k?x#y"), kv("B", "k"));
        assert_eq!(
            error("kv:B/k"),
            "bucket name is required for kv hiera data source"
        );
        assert_eq!(error("kv://B/"), "key is required for kv hiera data source");
    }

    #[test]
    fn a_location_has_no_credentials() {
        for (text, place) in [
            ("KV://B/a%20b", "kv://B/a b"),
            (
                "https://u:pw@h/x?y",
                "https://REDACTED@h/x?sha256=a1fce4363854ff888cff4b8e7875d600c2682390412a8cf79b37d0b11148b0fa",
            ),
            ("file:///srv/x", "/srv/x"),
        ] {
            assert_eq!(source(text).location(), place);
        }
    }

    #[test]
    fn an_unknown_scheme_is_rejected_without_showing_credentials() {
        assert_eq!(
            error("ftp://ann:pw@h/x"),
            "unsupported hiera data source: ftp://REDACTED@h/x"
        );
        assert_eq!(error("http://"), "unsupported hiera data source: http://");
    }

    #[test]
    fn an_invalid_escape_is_reported() {
        assert_eq!(
            error("kv://B/a%zz"),
            "invalid URL escape \"%zz\" in hiera data source kv://B/a%zz"
        );
        assert_eq!(
            error("kv://B/%é"),
            "invalid URL escape \"%é\" in hiera data source kv://B/%é"
        );
        assert!(error("kv://B/%ff").contains("\"%ff\""));
    }

    #[test]
    fn credentials_are_never_shown() {
        let source = source("https://ann:pw@h.example/x");
        let shown = format!("{source} {source:?}");
        assert!(!shown.contains("ann") && !shown.contains("pw"), "{shown}");
        assert_eq!(
            source
                .check_status(404, "404 Not Found")
                .unwrap_err()
                .to_string(),
            "HTTP request to https://REDACTED@h.example/x failed with status 404: 404 Not Found"
        );
    }

    #[test]
    fn an_empty_response_is_an_error_but_an_empty_file_is_not() {
        let empty = |text: &str| source(text).read(b"", "data");
        assert_eq!(
            empty("http://h/x").unwrap_err().to_string(),
            "HTTP response from http://h/x is empty"
        );
        assert_eq!(
            empty("kv://B/k").unwrap_err().to_string(),
            "kv B#k is empty"
        );
        assert_eq!(empty("f.yaml").unwrap().root, Value::Null);
    }

    #[test]
    fn json_is_detected_and_must_be_valid() {
        let error = |body: &[u8]| kv("B", "k").read(body, "data").unwrap_err().to_string();
        assert!(error(b"{bad: 1}").starts_with("failed to parse JSON from kv B#k: "));
        assert!(error(b"a: [").starts_with("failed to parse YAML from kv B#k: "));
        assert!(error(b"a: \xff").starts_with("failed to parse YAML from kv B#k: "));
    }

    #[test]
    fn a_deleted_kv_entry_is_an_error() {
        assert_eq!(
            kv("B", "k").check_put(false).unwrap_err().to_string(),
            "kv B#k is not a put operation"
        );
    }

    #[test]
    fn annotations_come_with_yaml_only() {
        let read = |body: &[u8]| source("f").read(body, "data").unwrap();
        assert_eq!(
            read(b"data:\n  # @require\n  a: 1\n")
                .annotations
                .rules
                .len(),
            1
        );
        assert!(read(b"{\"data\": {\"#\": 1}}").annotations.rules.is_empty());
    }
}
