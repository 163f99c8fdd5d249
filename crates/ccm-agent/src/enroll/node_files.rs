//! Files of an enrolled node, beside its agent configuration.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::{EnrollError, Membership};
use ccm_core::system::FileError;
use ccm_core::system::files::{self, Attributes, Content, Durability, PrivateDir};
use ccm_nats::jwt::{self, Key, KeyKind};
use ccm_value::secret::Secret;

/// Maximum size of a file.
const MAX_FILE: u64 = 1 << 20;

/// Mode of a new agent configuration.
const CONFIG_MODE: u32 = 0o640;

/// The files of a node.
#[derive(Debug)]
pub(super) struct NodeFiles {
    config: PathBuf,
    directory: PathBuf,
}

impl NodeFiles {
    /// Returns the files beside a configuration; creates the directory.
    pub(super) fn beside(config: &Path) -> Result<Self, FileError> {
        let config = std::path::absolute(config).unwrap_or_else(|_| config.to_owned());
        let directory = config.parent().unwrap_or(Path::new("/")).to_owned();
        if files::inspect(&directory, true)?.is_none() {
            let attributes = Attributes {
                mode: Some(0o755),
                ..Attributes::default()
            };
            files::create_directory(&directory, &attributes)?;
        }
        Ok(Self { config, directory })
    }

    pub(super) fn creds(&self) -> PathBuf {
        self.directory.join("agent.creds")
    }

    /// Returns the file with the seed of an enrolment that is not complete.
    pub(super) fn seed(&self) -> PathBuf {
        self.directory.join("agent.seed")
    }

    pub(super) fn context(&self) -> PathBuf {
        self.directory.join("nats-context.json")
    }

    fn ca(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// Returns the text of the agent configuration; empty if there is none.
    pub(super) fn existing_config(&self) -> Result<String, FileError> {
        let text = files::read_trusted(&self.config, MAX_FILE, files::AllowedWriters::RootGroup);
        absent_as_none(text).map(Option::unwrap_or_default)
    }

    /// Returns the JWT of existing credentials.
    pub(super) fn existing_jwt(&self) -> Result<Option<String>, FileError> {
        let text = absent_as_none(files::read_secret(&self.creds(), MAX_FILE))?;
        Ok(text.and_then(|text| text.lines().nth(1).map(str::to_owned)))
    }

    /// Returns the seed of existing credentials or of an interrupted enrolment; else creates one
    /// and stores it.
    pub(super) fn load_or_create_seed(&self, is_new: bool) -> Result<Secret, EnrollError> {
        if !is_new {
            for path in [self.seed(), self.creds()] {
                let text = absent_as_none(files::read_secret(&path, MAX_FILE))?;
                let text = text.unwrap_or_default();
                let seed = text.lines().find(|line| line.starts_with("SU"));
                if let Some(seed) = seed {
                    return Ok(Secret::new(seed.trim()));
                }
            }
        }
        let seed = Key::generate(KeyKind::User)
            .seed()
            .map_err(EnrollError::Jwt)?;
        let text = format!("{}\n", seed.reveal());
        files::write_private(&self.seed(), text.as_bytes(), Durability::Complete)?;
        Ok(seed)
    }

    /// Writes the CA of the server to a temporary file; nothing if it is one of the system's.
    pub(super) fn temporary_ca(
        &self,
        ca: &str,
    ) -> Result<Option<(PrivateDir, PathBuf)>, FileError> {
        if ca.is_empty() {
            return Ok(None);
        }
        let directory = PrivateDir::create(&self.directory, ".enroll-")?;
        let path = directory.path().join("ca.pem");
        files::write_private(&path, ca.as_bytes(), Durability::Cached)?;
        Ok(Some((directory, path)))
    }

    /// Writes credentials, CA, context and configuration, and returns their paths.
    pub(super) fn write(
        &self,
        seed: &Secret,
        membership: &Membership,
        ca: &str,
        servers: &str,
        config: &str,
    ) -> Result<Vec<PathBuf>, FileError> {
        let creds = jwt::credentials(&membership.jwt, seed);
        let mut context = json!({
            "description": "ccm agent",
            "url": servers,
            "creds": self.creds(),
            "inbox_prefix": membership.inbox_prefix,
        });
        let mut written = vec![self.creds()];
        store(&self.creds(), creds.reveal(), 0o600)?;
        if !ca.is_empty() {
            store(&self.ca(), ca, 0o644)?;
            written.push(self.ca());
            if let Some(fields) = context.as_object_mut() {
                fields.insert("ca".into(), json!(self.ca()));
            }
        }
        store(&self.context(), &format!("{context:#}\n"), 0o600)?;
        let existing = files::inspect(&self.config, true)?;
        let mode = existing.map_or(CONFIG_MODE, |found| found.mode & 0o7777);
        // Written last: the agent does not start with a configuration whose files are missing.
        store(&self.config, config, mode)?;
        files::remove(&self.seed())?;
        written.extend([self.context(), self.config.clone()]);
        Ok(written)
    }
}

fn store(path: &Path, text: &str, mode: u32) -> Result<(), FileError> {
    let attributes = Attributes {
        mode: Some(mode),
        ..Attributes::default()
    };
    let content = Content::Bytes(text.as_bytes());
    files::store(path, content, &attributes, Durability::Complete)
}

fn absent_as_none<T>(result: Result<T, FileError>) -> Result<Option<T>, FileError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(err) if err.is_not_found() => Ok(None),
        Err(err) => Err(err),
    }
}
