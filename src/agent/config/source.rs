//! Places that the agent's file names: manifests, data and servers. Checked by their form alone;
//! who fetches from them meets the rest. A URL may carry a password, so none is ever shown.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::keys::{filled, list, text, wrong};
use crate::hiera;
use crate::model::document::{DocumentError, Node};
use crate::model::node::Token;
use crate::model::secret::{Secret, redact_url, url_identity};
use crate::model::text::{quote, url_scheme};

/// Where a manifest comes from. Prints without credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManifestSource {
    /// A manifest, a directory with one, or a bundle. Relative ones start where we were started.
    Path(PathBuf),
    /// A bundle in an object store.
    Object { bucket: Token, key: String },
    /// A bundle on a server; the URL may carry credentials.
    Http(Secret),
}

/// Why a text names no place for manifests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceProblem {
    #[error("a source must not be empty")]
    Empty,
    #[error("scheme {} is not supported: use a path, file://, obj://, http:// or https://", quote(.0))]
    Scheme(String),
    #[error("expected obj://BUCKET/KEY")]
    Object,
    #[error("not a usable {0} URL")]
    Url(String),
}

impl FromStr for ManifestSource {
    type Err = SourceProblem;

    fn from_str(text: &str) -> Result<Self, SourceProblem> {
        if text.trim().is_empty() {
            return Err(SourceProblem::Empty);
        }
        let Some((scheme, rest)) = url_scheme(text).filter(|(_, rest)| rest.starts_with("//"))
        else {
            return Ok(Self::Path(text.into()));
        };
        match scheme.to_ascii_lowercase().as_str() {
            "obj" => {
                let (bucket, key) = rest
                    .trim_start_matches('/')
                    .split_once('/')
                    .filter(|(_, key)| !key.is_empty())
                    .ok_or(SourceProblem::Object)?;
                Ok(Self::Object {
                    bucket: bucket.parse().map_err(|_| SourceProblem::Object)?,
                    key: key.into(),
                })
            }
            known @ ("file" | "http" | "https") => match text.parse() {
                Ok(hiera::Source::File(path)) => Ok(Self::Path(path)),
                Ok(hiera::Source::Http(url)) => Ok(Self::Http(url)),
                _ => Err(SourceProblem::Url(known.into())),
            },
            _ => Err(SourceProblem::Scheme(scheme.into())),
        }
    }
}

impl ManifestSource {
    /// Returns what tells the source from others, in files and signatures, without secrets.
    pub fn place(&self) -> String {
        match self {
            Self::Http(url) => url_identity(url.reveal()).into_owned(),
            Self::Path(_) | Self::Object { .. } => self.to_string(),
        }
    }
}

impl fmt::Display for ManifestSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(out, "{}", path.display()),
            Self::Object { bucket, key } => write!(out, "obj://{bucket}/{key}"),
            Self::Http(url) => out.write_str(&redact_url(url.reveal())),
        }
    }
}

/// Returns the place that external data comes from.
pub(super) fn data(text: &str) -> Result<hiera::Source, DocumentError> {
    text.parse()
        .map_err(|_| wrong("expected a path, or a URL with file://, kv://, http:// or https://"))
}

/// Returns servers, from a list or from one text with commas.
pub(super) fn servers(node: &Node) -> Result<Vec<Secret>, DocumentError> {
    if node.items().is_some() {
        return list(node, |item| server(&filled(item)?));
    }
    text(node)?.split(',').map(server).collect()
}

fn server(text: &str) -> Result<Secret, DocumentError> {
    let text = text.trim();
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    let is_known = scheme.is_none_or(|scheme| ["nats", "tls"].contains(&scheme));
    if text.is_empty() || !is_known || text.contains(char::is_whitespace) {
        return Err(wrong(
            "expected servers such as nats://host:4222 or tls://host:4222",
        ));
    }
    Ok(Secret::new(text))
}
