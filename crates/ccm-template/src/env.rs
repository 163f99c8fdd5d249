//! What a template can see and what it may reach.
//!
//! Facts are asked for by section and only when a template names them, so a run that uses none
//! gathers none. A function whose closure is absent answers that it is not available here.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, Utc};

use crate::CallError;
use ccm_value::Value;

/// Gathers one section of the facts (`host`, `network`, …), or all of them for `None`.
pub type GatherFacts = Arc<dyn Fn(Option<&str>) -> Value + Send + Sync>;

/// Reads a file; the path is already joined to the working directory.
pub type ReadFile = Arc<dyn Fn(&Path) -> Result<String, CallError> + Send + Sync>;

/// Says whether a file may be read that a resource names, or why not.
pub type MayRead = Arc<dyn Fn(&Path) -> Result<(), CallError> + Send + Sync>;

/// Reads a key of a bucket.
pub type KvGet = Arc<dyn Fn(&str, &str) -> Result<String, CallError> + Send + Sync>;

/// Looks registrations up by cluster, protocol, service and address (`*` or empty: any). Returns
/// a list of maps with the fields `Cluster Service Protocol Address Port Priority Annotations TTL`.
pub type Registrations = Arc<dyn Fn([&str; 4]) -> Result<Value, CallError> + Send + Sync>;

/// Tells the present instant.
pub type Now = Arc<dyn Fn() -> DateTime<Utc> + Send + Sync>;

/// A function of the environment, as every engine calls it: evaluated arguments in, a value or
/// the bare reason of its failure out.
pub type Function = Arc<dyn Fn(&[Value]) -> Result<Value, CallError> + Send + Sync>;

/// The functions an engine offers beside its own, by name.
pub type Functions = BTreeMap<&'static str, Function>;

/// What a template can see and what it may reach.
#[derive(Clone, Default)]
pub struct Env {
    pub facts: Facts,
    pub data: Value,
    pub environ: Value,
    /// Where relative paths start: the directory of the manifest.
    pub working_dir: PathBuf,
    pub read_file: Option<ReadFile>,
    pub kv_get: Option<KvGet>,
    pub registrations: Option<Registrations>,
    /// Why nothing of the environment may be read; `environ` is empty then.
    pub environ_denied: Option<&'static str>,
    /// Asked before a file is read that a resource names; without it every file may be.
    pub may_read: Option<MayRead>,
    /// Errors must not repeat what was rendered.
    pub hide_rendered: bool,
    /// The clock of `now` and its kin; without one they ask the machine.
    pub now: Option<Now>,
    /// Hiera documents: only `Facts` and `lookup` exist.
    pub restricted: bool,
    /// A `lookup` that finds nothing gives "" instead of an error.
    pub default_on_missing: bool,
}

impl Env {
    /// Says whether a file may be read that a resource names, or why not.
    pub fn check_read(&self, path: &Path) -> Result<(), CallError> {
        match &self.may_read {
            Some(may_read) => may_read(path),
            None => Ok(()),
        }
    }

    /// Says whether the environment may be read, or why not.
    pub fn check_environ(&self) -> Result<(), CallError> {
        match self.environ_denied {
            Some(reason) => Err(reason.into()),
            None => Ok(()),
        }
    }
}

/// Facts that are known, or that can be gathered by section.
#[derive(Clone)]
pub enum Facts {
    Known(Value),
    Lazy(GatherFacts),
}

impl Default for Facts {
    fn default() -> Self {
        Self::Known(Value::empty_map())
    }
}

impl Facts {
    /// Returns one section, gathering no other.
    pub fn section(&self, name: &str) -> Option<Value> {
        match self {
            Self::Known(facts) => facts.get(name).cloned(),
            Self::Lazy(gather) => gather(Some(name)).get(name).cloned(),
        }
    }

    /// Returns all facts.
    pub fn all(&self) -> Value {
        match self {
            Self::Known(facts) => facts.clone(),
            Self::Lazy(gather) => gather(None),
        }
    }
}

impl fmt::Debug for Facts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(facts) => out.debug_tuple("Known").field(facts).finish(),
            Self::Lazy(_) => out.write_str("Lazy"),
        }
    }
}
