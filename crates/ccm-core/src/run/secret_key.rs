//! Secret key of a node: the file with the key that opens its encrypted values.

use std::path::{Path, PathBuf};

use crate::secrets::{self, Identity, KeyError, Recipient, parse_identities};
use crate::system::FileError;
use crate::system::files::{self, Durability};
use ccm_template::secrets::Secrets;

/// File of the key in the state directory.
const FILE: &str = "secret.key";

/// Longest key file.
const MAX_FILE: u64 = 1 << 16;

/// Unusable key file.
#[derive(Debug, thiserror::Error)]
pub enum SecretKeyError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: {cause}", path.display())]
    Key {
        path: PathBuf,
        #[source]
        cause: KeyError,
    },
}

/// Returns the key file of a state directory.
pub fn path_in(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

/// Returns the keys of a file; `None` if it does not exist. The file must be private.
pub fn load(path: &Path) -> Result<Option<Vec<Identity>>, SecretKeyError> {
    if files::inspect(path, true)?.is_none() {
        return Ok(None);
    }
    let text = files::read_secret(path, MAX_FILE)?;
    let keys = parse_identities(&text).map_err(|cause| SecretKeyError::Key {
        path: path.to_owned(),
        cause,
    })?;
    Ok(Some(keys))
}

/// Returns the keys of a file; creates one with a new key if it does not exist.
pub fn load_or_create(path: &Path) -> Result<Vec<Identity>, SecretKeyError> {
    if let Some(keys) = load(path)? {
        return Ok(keys);
    }
    let failed = |cause| SecretKeyError::Key {
        path: path.to_owned(),
        cause,
    };
    let key = Identity::generate().map_err(failed)?;
    let text = key.to_file().map_err(failed)?;
    files::write_private(path, text.as_bytes(), Durability::Complete)?;
    Ok(vec![key])
}

/// Returns what opens values with the keys of a file; without the file, nothing does.
pub fn secrets(path: &Path) -> Result<Secrets, SecretKeyError> {
    let keys = load(path)?;
    Ok(keys.map(secrets::secrets_of).unwrap_or_default())
}

/// Returns the recipient that values for a node are encrypted for: that of its first key.
pub fn recipient(keys: &[Identity]) -> Option<Recipient> {
    keys.first().map(Identity::recipient)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_created_once_and_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_in(directory.path());
        assert!(load(&path).unwrap().is_none());
        let created = recipient(&load_or_create(&path).unwrap());
        assert_eq!(recipient(&load_or_create(&path).unwrap()), created);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_in(directory.path());
        load_or_create(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(load(&path).is_err());
    }

    #[test]
    fn a_damaged_key_is_an_error_without_its_text() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_in(directory.path());
        files::write_private(&path, b"AGE-SECRET-KEY-1QQQ\n", Durability::Complete).unwrap();
        let error = load(&path).unwrap_err().to_string();
        assert!(
            error.ends_with("expected AGE-SECRET-KEY-1 and 58 characters"),
            "{error}"
        );
    }
}
