//! Manifests: data and ordered resources, read from a document into a value that needs nothing
//! more but the fields that are resolved just before use.
//!
//! Fetches nothing: the caller brings the text and the directory it came from. Every kind is
//! reported, each with its file, line and column, before anything is touched. Reading is in
//! `read`, what can be found out without running in `check`, every kind in `error`.

mod check;
mod error;
mod read;
pub mod resolve;

use std::sync::Arc;

use serde_json::json;

use crate::hiera::Layers;
use crate::model::document::{Mark, parse};
use crate::model::governor::GovernorClaim;
use crate::model::{Resource, Value};
use ccm_template::Env;
use ccm_template::expr::Cache;

pub use error::{DataError, EntryError, ManifestError, Problem, ProblemKind, TemplateError};

/// The largest manifest that is read.
pub const MAX_BYTES: u64 = 256 << 20;

/// A manifest, ready to run.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    /// Where it came from, as people see it.
    pub source: String,
    pub fail_on_error: bool,
    pub pre_message: String,
    pub post_message: String,
    pub data: Value,
    /// The slot that a run of it needs.
    pub governor: Option<GovernorClaim>,
    pub resources: Vec<Arc<Resource>>,
    /// Where each resource is declared.
    pub marks: Vec<Mark>,
    /// What is odd about the data but no reason to stop.
    pub warnings: Vec<String>,
}

/// A manifest's text and what comes with it.
#[derive(Clone, Debug, Default)]
pub struct ManifestInput<'a> {
    pub text: &'a str,
    /// Where it came from, as people see it.
    pub source: &'a str,
    /// The data that is laid over the manifest's own.
    pub layers: Layers,
}

/// Reads a manifest. `env` is what its templates see; the manifest's data goes into it.
pub fn load(
    input: ManifestInput<'_>,
    env: &mut Env,
    programs: &Cache,
) -> Result<Manifest, ManifestError> {
    let mut problems = Problems::of(input.source);
    let manifest = match parse(input.text) {
        Ok(document) => read::manifest(&document, input, env, programs, &mut problems),
        Err(err) => {
            problems.report(err.mark, None, ProblemKind::Document(err));
            None
        }
    };
    if let Some(manifest) = &manifest {
        check::gates(manifest, &mut problems);
    }
    match manifest {
        Some(manifest) if problems.found.is_empty() => Ok(manifest),
        _ => Err(ManifestError {
            problems: problems.found,
        }),
    }
}

/// Returns what a run might still trip over: expressions that are resolved just before use, and
/// subscriptions to nothing.
pub fn deep_check(manifest: &Manifest) -> Vec<Problem> {
    let mut problems = Problems::of(&manifest.source);
    check::later(manifest, &mut problems);
    problems.found
}

/// Collects what is wrong with one source.
struct Problems<'a> {
    source: &'a str,
    found: Vec<Problem>,
}

impl<'a> Problems<'a> {
    fn of(source: &'a str) -> Self {
        Self {
            source,
            found: Vec::new(),
        }
    }

    fn report(&mut self, mark: Mark, label: Option<String>, kind: impl Into<ProblemKind>) {
        self.found.push(Problem {
            source: self.source.into(),
            mark,
            label,
            kind: kind.into(),
        });
    }
}

impl Manifest {
    /// Returns the resolved manifest as a document; deferred expressions are still in it.
    pub fn render(&self) -> Result<serde_json::Value, serde_json::Error> {
        let mut resources = Vec::with_capacity(self.resources.len());
        for resource in &self.resources {
            let mut entry = serde_json::Map::new();
            let properties = serde_json::to_value(resource.redacted())?;
            entry.insert(resource.type_name().to_string(), properties);
            resources.push(serde_json::Value::Object(entry));
        }
        let mut document = json!({
            "ccm": { "fail_on_error": self.fail_on_error, "resources": resources },
            "data": self.data,
        });
        if let (Some(claim), Some(entries)) = (&self.governor, document.as_object_mut()) {
            entries.insert("governor".into(), serde_json::to_value(claim)?);
        }
        Ok(document)
    }
}
