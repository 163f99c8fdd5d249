//! References in context fields: variables, home directories, and secrets by URI.
//!
//! Errors name the reference, never its value.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use data_encoding::{BASE64, BASE64URL};

use ccm_core::system::files::{self, FileError};
use ccm_value::secret::Secret;

/// Maximum size of a credential file.
const MAX_BYTES: u64 = 64 * 1024;

/// Why a reference can't be resolved.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{path} is writable by other users: run chmod go-w {path}")]
    Writable { path: String },
    #[error("refers to an unknown home directory")]
    NoHome,
    #[error("refers to the home directory of another user")]
    OtherHome,
    #[error("refers to variable {0}, which is not set")]
    Unset(String),
    #[error("is not a valid data: URI")]
    Data,
    #[error("uses {0}, which is not supported")]
    Scheme(&'static str),
    #[error("needs a {0}")]
    Alone(&'static str),
}

/// Credentials: a file, read at every connect, or a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    File(PathBuf),
    Text(Secret),
}

impl CredentialSource {
    /// Returns the credentials; reads the file.
    pub fn read(&self) -> Result<Secret, SecretError> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => read(path),
        }
    }
}

/// Returns the text of a credential file. Fails if other users can write it.
fn read(path: &Path) -> Result<Secret, SecretError> {
    let metadata = files::inspect(path, true)?;
    if metadata.is_some_and(|metadata| metadata.mode & 0o022 != 0) {
        let path = path.display().to_string();
        return Err(SecretError::Writable { path });
    }
    Ok(Secret::new(files::read_to_string(path, MAX_BYTES)?))
}

/// The variables and the home directory that replace `$NAME` and `~`.
pub(super) struct Expansion<'a> {
    pub(super) env: &'a BTreeMap<String, String>,
    pub(super) home: Option<&'a Path>,
}

impl Expansion<'_> {
    /// Returns a path with variables and `~` replaced.
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
    pub(super) fn credentials(&self, text: &str) -> Result<CredentialSource, SecretError> {
        match self.by_uri(text)? {
            Some(source) => Ok(source),
            None => self.path(text).map(CredentialSource::File),
        }
    }

    /// Returns a secret given as text or by URI.
    pub(super) fn secret(&self, text: &Secret) -> Result<Secret, SecretError> {
        match self.by_uri(text.reveal())? {
            Some(source) => {
                let value = source.read()?;
                Ok(Secret::new(value.reveal().trim()))
            }
            None => Ok(text.clone()),
        }
    }

    fn by_uri(&self, text: &str) -> Result<Option<CredentialSource>, SecretError> {
        if let Some(path) = text.strip_prefix("file://") {
            return self
                .path(path)
                .map(|path| Some(CredentialSource::File(path)));
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

    /// Replaces `$NAME` and `${NAME}`; an unset variable is empty.
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

/// Decodes a `data:` URI, without its scheme.
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
    fn variables_and_home_are_replaced_in_paths() {
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
    fn secret_is_resolved_by_uri() {
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
    fn errors_of_invalid_uris_contain_no_secret() {
        for (text, reason) in [
            ("env://NOPE", "refers to variable NOPE, which is not set"),
            ("data:;base64,%%hunter2", "is not a valid data: URI"),
            ("op://vault/x", "uses op://, which is not supported"),
        ] {
            let error = with(|e| e.secret(&Secret::new(text))).unwrap_err();
            assert_eq!(error.to_string(), reason);
        }
    }

    #[test]
    fn credentials_are_a_path_or_a_uri() {
        assert_eq!(
            with(|e| e.credentials("$DIR/a")).unwrap(),
            CredentialSource::File("/etc/nats/a".into())
        );
        assert_eq!(
            with(|e| e.credentials("file://$DIR/a")).unwrap(),
            CredentialSource::File("/etc/nats/a".into())
        );
        assert_eq!(
            with(|e| e.credentials("env://PW")).unwrap(),
            CredentialSource::Text(Secret::new("s3cret"))
        );
    }
}
