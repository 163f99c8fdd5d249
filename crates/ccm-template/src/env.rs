//! Environment of a template: data, facts, and closures for everything outside the process.
//!
//! Facts are gathered by section and only when a template refers to them. A function whose closure
//! is absent fails with "not available".

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, Utc};

use crate::secrets::Secrets;
use crate::{CallError, UnknownValue};
use ccm_value::Value;

/// Gathers one section of the facts (`host`, `network`, …), or all sections for `None`.
pub type GatherFacts = Arc<dyn Fn(Option<&str>) -> Value + Send + Sync>;

/// Reads a file; the path is already joined to the working directory.
pub type ReadFile = Arc<dyn Fn(&Path) -> Result<String, CallError> + Send + Sync>;

/// Checks whether a file that a resource refers to may be read.
pub type MayRead = Arc<dyn Fn(&Path) -> Result<(), CallError> + Send + Sync>;

/// Reads a key of a key-value bucket.
pub type KvGet = Arc<dyn Fn(&str, &str) -> Result<String, CallError> + Send + Sync>;

/// Looks up registrations by cluster, protocol, service and address (`*` or empty: any). Returns a
/// list of maps with the fields `Cluster Service Protocol Address Port Priority Annotations TTL`.
pub type Registrations = Arc<dyn Fn([&str; 4]) -> Result<Value, CallError> + Send + Sync>;

/// Returns the current time.
pub type Now = Arc<dyn Fn() -> DateTime<Utc> + Send + Sync>;

/// Template function: takes evaluated arguments, returns a value or an error without a position.
pub type Function = Arc<dyn Fn(&[Value]) -> Result<Value, CallError> + Send + Sync>;

/// Template functions by name, in addition to the engine's built-in ones.
pub type Functions = BTreeMap<&'static str, Function>;

/// Environment of a template.
#[derive(Clone, Default)]
pub struct Env {
    pub facts: Facts,
    pub data: Value,
    pub environ: Value,
    /// Base directory of relative paths: the directory of the manifest.
    pub working_dir: PathBuf,
    pub read_file: Option<ReadFile>,
    pub kv_get: Option<KvGet>,
    pub registrations: Option<Registrations>,
    /// Reason why environment variables may not be read; `environ` is empty in that case.
    pub environ_denied: Option<&'static str>,
    /// Secrets in the data, and what opens encrypted values.
    pub secrets: Secrets,
    /// Values that are not known, because a manifest is checked for no particular node.
    pub unknown: Unknown,
    /// Check for files that a resource refers to; without it every file may be read.
    pub may_read: Option<MayRead>,
    /// Whether errors must leave out rendered text, because the resource is sensitive.
    pub hide_rendered: bool,
    /// Clock of `now` and related functions; the system clock if absent.
    pub now: Option<Now>,
    /// Whether only `Facts` and `lookup` exist, as in Hiera documents.
    pub restricted: bool,
    /// Whether a `lookup` of a missing key returns "" instead of an error.
    pub default_on_missing: bool,
}

impl Env {
    /// Checks whether a file that a resource refers to may be read.
    pub fn check_read(&self, path: &Path) -> Result<(), CallError> {
        match &self.may_read {
            Some(may_read) => may_read(path),
            None => Ok(()),
        }
    }

    /// Checks that environment variables may be read.
    pub(crate) fn check_environ(&self) -> Result<(), CallError> {
        match self.environ_denied {
            Some(reason) => Err(reason.into()),
            None if self.unknown.environ => Err(CallError::new(UnknownValue::Environ)),
            None => Ok(()),
        }
    }

    /// Checks that the data is known.
    pub(crate) fn check_data(&self) -> Result<(), CallError> {
        match self.unknown.data {
            true => Err(CallError::new(UnknownValue::Data)),
            false => Ok(()),
        }
    }
}

/// Variables whose values are not known. Reading one is an [`UnknownValue`] error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unknown {
    /// The data, because it depends on unknown facts.
    pub data: bool,
    /// The environment variables.
    pub environ: bool,
}

/// Facts that are known, or that are gathered by section on demand. Reading facts that are not known
/// is an [`UnknownValue`] error.
#[derive(Clone)]
pub enum Facts {
    Known(Value),
    Lazy(GatherFacts),
    /// Facts without some of the sections that every node has.
    Partial {
        known: Value,
        unknown: Arc<[&'static str]>,
    },
    Unknown,
}

impl Default for Facts {
    fn default() -> Self {
        Self::Known(Value::empty_map())
    }
}

impl Facts {
    /// Returns one section without gathering the others.
    pub fn section(&self, name: &str) -> Option<Value> {
        match self {
            Self::Known(facts) | Self::Partial { known: facts, .. } => facts.get(name).cloned(),
            Self::Lazy(gather) => gather(Some(name)).get(name).cloned(),
            Self::Unknown => None,
        }
    }

    /// Returns all facts.
    pub fn all(&self) -> Value {
        match self {
            Self::Known(facts) | Self::Partial { known: facts, .. } => facts.clone(),
            Self::Lazy(gather) => gather(None),
            Self::Unknown => Value::empty_map(),
        }
    }

    /// Checks that facts are known at all.
    pub(crate) fn check(&self) -> Result<(), CallError> {
        match self {
            Self::Unknown => Err(CallError::new(UnknownValue::Facts)),
            Self::Known(_) | Self::Lazy(_) | Self::Partial { .. } => Ok(()),
        }
    }

    /// Checks that a section is known.
    pub(crate) fn check_section(&self, name: &str) -> Result<(), CallError> {
        self.check()?;
        match self {
            Self::Partial { unknown, .. } => match unknown.iter().find(|it| **it == name) {
                Some(section) => Err(CallError::new(UnknownValue::Section(section))),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Facts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(facts) => out.debug_tuple("Known").field(facts).finish(),
            Self::Lazy(_) => out.write_str("Lazy"),
            Self::Partial { known, unknown } => out
                .debug_struct("Partial")
                .field("known", known)
                .field("unknown", unknown)
                .finish(),
            Self::Unknown => out.write_str("Unknown"),
        }
    }
}
