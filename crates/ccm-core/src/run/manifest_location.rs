//! Manifest locations in the agent's configuration: a path, an object or a URL. Only the syntax is
//! checked here. Credentials in URLs are never printed.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::hiera::Source;
use crate::model::node::Token;
use crate::model::secret::{Secret, redact_url, url_identity};
use crate::model::text::{quote, url_scheme};

/// The location of a manifest. Displayed without credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManifestLocation {
    /// A manifest, a directory with a manifest, or a bundle. Relative to the working directory.
    Path(PathBuf),
    /// A bundle in a NATS object store.
    Object { bucket: Token, key: String },
    /// A bundle on an HTTP server; the URL may contain credentials.
    Http(Secret),
}

/// An invalid manifest location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocationError {
    #[error("a source must not be empty")]
    Empty,
    #[error("scheme {} is not supported: use a path, file://, obj://, http:// or https://", quote(.0))]
    Scheme(String),
    #[error("expected obj://BUCKET/KEY")]
    Object,
    #[error("not a usable {0} URL")]
    Url(String),
}

impl FromStr for ManifestLocation {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Self, LocationError> {
        if text.trim().is_empty() {
            return Err(LocationError::Empty);
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
                    .ok_or(LocationError::Object)?;
                Ok(Self::Object {
                    bucket: bucket.parse().map_err(|_| LocationError::Object)?,
                    key: key.into(),
                })
            }
            known @ ("file" | "http" | "https") => match text.parse() {
                Ok(Source::File(path)) => Ok(Self::Path(path)),
                Ok(Source::Http(url)) => Ok(Self::Http(url)),
                _ => Err(LocationError::Url(known.into())),
            },
            _ => Err(LocationError::Scheme(scheme.into())),
        }
    }
}

impl ManifestLocation {
    /// Returns the identifier of the source in cache files and signatures, without credentials.
    pub fn normalized(&self) -> String {
        match self {
            Self::Http(url) => url_identity(url.reveal()).into_owned(),
            Self::Path(_) | Self::Object { .. } => self.to_string(),
        }
    }
}

impl fmt::Display for ManifestLocation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(out, "{}", path.display()),
            Self::Object { bucket, key } => write!(out, "obj://{bucket}/{key}"),
            Self::Http(url) => out.write_str(&redact_url(url.reveal())),
        }
    }
}
