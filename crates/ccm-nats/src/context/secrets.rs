//! Values of a context that stand elsewhere: variables, home directories, and secrets by URI.
//!
//! Reasons of failure name the place, never what was found there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use data_encoding::{BASE64, BASE64URL};

use ccm_core::system::files::{self, FileError};
use ccm_value::secret::Secret;

/// The largest file of credentials that is read.
const MAX_BYTES: u64 = 64 * 1024;

/// Why a value that stands elsewhere can't be had.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{path} may be written by others: run chmod go-w {path}")]
    Writable { path: String },
    #[error("names a home directory that is not known")]
    NoHome,
    #[error("names the home directory of another user")]
    OtherHome,
    #[error("names the variable {0}, which is not set")]
    Unset(String),
    #[error("is not a valid data: URI")]
    Data,
    #[error("uses {0}, which is not supported")]
    Scheme(&'static str),
    #[error("needs a {0}")]
    Alone(&'static str),
}

/// Credentials that are in a file, which is read at every connect, or already here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    File(PathBuf),
    Text(Secret),
}

impl CredentialSource {
    /// Returns the text as it is now.
    pub fn read(&self) -> Result<Secret, SecretError> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => read(path),
        }
    }
}

/// Returns the text of a file, unless others could have written it: whoever does decides who we
/// are to the servers.
fn read(path: &Path) -> Result<Secret, SecretError> {
    let found = files::inspect(path, true)?;
    if found.is_some_and(|found| found.mode & 0o022 != 0) {
        let path = path.display().to_string();
        return Err(SecretError::Writable { path });
    }
    Ok(Secret::new(files::read_to_string(path, MAX_BYTES)?))
}

/// What `$NAME` and `~` stand for.
pub(super) struct Expansion<'a> {
    pub(super) env: &'a BTreeMap<String, String>,
    pub(super) home: Option<&'a Path>,
}

impl Expansion<'_> {
    /// Returns a path with its variables and home directory put in.
    pub(super) fn path(&self, text: &str) -> Result<PathBuf, SecretError> {
        let text = self.variables(text);
        let Some(rest) = text.strip_prefix('~') else {
            return Ok(text.into());
        };
        let home = self.home.ok_or(SecretError::NoHome)?;
        match rest.strip_prefix('/') {
            Some(rest) => Ok(home.join(rest)),
            None if rest.is_empty() => Ok(home.to_owned()),
            None => Err(SecretError::OtherHome),
        }
    }

    /// Returns credentials given by path or URI.
    pub(super) fn material(&self, text: &str) -> Result<CredentialSource, SecretError> {
        match self.by_uri(text)? {
            Some(material) => Ok(material),
            None => self.path(text).map(CredentialSource::File),
        }
    }

    /// Returns a secret that stands here or is named by URI.
    pub(super) fn secret(&self, text: &Secret) -> Result<Secret, SecretError> {
        match self.by_uri(text.reveal())? {
            Some(material) => {
                let found = material.read()?;
                Ok(Secret::new(found.reveal().trim()))
            }
            None => Ok(text.clone()),
        }
    }

    fn by_uri(&self, text: &str) -> Result<Option<CredentialSource>, SecretError> {
        if let Some(path) = text.strip_prefix("file://") {
            return self.path(path).map(|path| Some(CredentialSource::File(path)));
        }
        if let Some(name) = text.strip_prefix("env://") {
            return match self.env.get(name) {
                Some(value) => Ok(Some(CredentialSource::Text(Secret::new(value)))),
                None => Err(SecretError::Unset(name.into())),
            };
        }
        if let Some(data) = text.strip_prefix("data:") {
            return decode(data)
                .map(|text| Some(CredentialSource::Text(Secret::new(text))))
                .ok_or(SecretError::Data);
        }
        for scheme in ["op://", "nsc://"] {
            if text.starts_with(scheme) {
                return Err(SecretError::Scheme(scheme));
            }
        }
        Ok(None)
    }

    /// Replaces `$NAME` and `${NAME}`; a variable that is not set is empty.
    fn variables(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            out.push_str(before);
            let (name, after) = match after.strip_prefix('{').and_then(|s| s.split_once('}')) {
                Some(braced) => braced,
                None => {
                    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                    let end = after.find(|c| !is_name(c)).unwrap_or(after.len());
                    after.split_at(end)
                }
            };
            match (name.is_empty(), self.env.get(name)) {
                (true, _) => out.push('$'),
                (false, value) => out.push_str(value.map_or("", String::as_str)),
            }
            rest = after;
        }
        out.push_str(rest);
        out
    }
}

/// Returns the text of a `data:` URI after its scheme.
fn decode(data: &str) -> Option<String> {
    let (kind, body) = data.split_once(',')?;
    if !kind.ends_with(";base64") {
        return Some(body.into());
    }
    let body = body.trim().as_bytes();
    let bytes = BASE64
        .decode(body)
        .or_else(|_| BASE64URL.decode(body))
        .ok()?;
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<T>(check: impl FnOnce(&Expansion<'_>) -> T) -> T {
        let env = [("DIR", "/etc/nats"), ("PW", "s3cret")];
        let env = env.map(|(name, value)| (name.into(), value.into())).into();
        check(&Expansion {
            env: &env,
            home: Some(Path::new("/home/ann")),
        })
    }

    #[test]
    fn variables_and_home_are_put_into_paths() {
        for (text, path) in [
            ("$DIR/a.creds", "/etc/nats/a.creds"),
            ("${DIR}x", "/etc/natsx"),
            ("~/a", "/home/ann/a"),
            ("/a~b", "/a~b"),
            ("$NONE/a", "/a"),
            ("a$", "a$"),
        ] {
            assert_eq!(with(|e| e.path(text)).unwrap(), Path::new(path), "{text}");
        }
        assert!(with(|e| e.path("~bob/x")).is_err());
    }

    #[test]
    fn a_secret_may_be_named_by_uri() {
        for (text, secret) in [
            ("plain", "plain"),
            ("env://PW", "s3cret"),
            ("data:;base64,czNjcmV0", "s3cret"),
            ("data:,s3cret", "s3cret"),
        ] {
            let found = with(|e| e.secret(&Secret::new(text))).unwrap();
            assert_eq!(found, Secret::new(secret));
        }
    }

    #[test]
    fn a_uri_that_leads_nowhere_is_explained_without_its_secret() {
        for (text, reason) in [
            ("env://NOPE", "names the variable NOPE, which is not set"),
            ("data:;base64,%%hunter2", "is not a valid data: URI"),
            ("op://vault/x", "uses op://, which is not supported"),
        ] {
            let error = with(|e| e.secret(&Secret::new(text))).unwrap_err();
            assert_eq!(error.to_string(), reason);
        }
    }

    #[test]
    fn credentials_are_a_path_unless_they_are_a_uri() {
        assert_eq!(
            with(|e| e.material("$DIR/a")).unwrap(),
            CredentialSource::File("/etc/nats/a".into())
        );
        assert_eq!(
            with(|e| e.material("file://$DIR/a")).unwrap(),
            CredentialSource::File("/etc/nats/a".into())
        );
        assert_eq!(
            with(|e| e.material("env://PW")).unwrap(),
            CredentialSource::Text(Secret::new("s3cret"))
        );
    }
}
