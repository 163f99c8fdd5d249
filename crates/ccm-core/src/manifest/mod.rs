//! Manifests: data and ordered resources, loaded from a document. All expressions are resolved,
//! except those that are deferred until their resource is applied.
//!
//! Fetches nothing: the caller passes the text. All problems are reported together, each with file,
//! line and column, before anything is applied. `read` reads the document, `check` contains static
//! checks, `resolve` evaluates expressions, `error` lists the problems, `problems` finds their
//! positions and `help` has suggestions.

mod check;
mod error;
pub(crate) mod help;
mod problems;
mod read;
pub mod resolve;

use std::sync::Arc;

use serde_json::json;

use crate::hiera::{Layers, ReadDataFile};
use crate::model::diagnostic::{Location, Note};
use crate::model::document::{Mark, parse};
use crate::model::governor::GovernorClaim;
use crate::model::id::Reference;
use crate::model::{Resource, Value};
use ccm_template::Env;
use ccm_template::expr::Cache;

pub use error::{
    DataError, EntryError, ManifestError, Problem, ProblemKind, TemplateError, UnmetReason,
};
use problems::{Problems, ReportedProblems, ResourceText};

/// Maximum size of a manifest.
pub const MAX_BYTES: u64 = 256 << 20;

/// Loaded manifest.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    /// Source of the manifest, for display.
    pub source: String,
    pub fail_on_error: bool,
    pub pre_message: String,
    pub post_message: String,
    pub data: Value,
    /// Sections that the manifest's own data was taken from.
    pub levels: Vec<String>,
    /// Governor slot that a run of the manifest needs.
    pub governor: Option<GovernorClaim>,
    pub resources: Vec<Arc<Resource>>,
    /// Position of each resource in the text.
    pub marks: Vec<Mark>,
    text: ResourceText,
    /// Warnings about the data, such as unknown annotations.
    pub warnings: Vec<String>,
}

/// Reports whether a resource outside a manifest was applied before it.
pub type AppliedBefore<'a> = dyn Fn(Reference<'_>) -> bool + 'a;

/// Text of a manifest, with its source and data layers.
#[derive(Clone, Default)]
pub struct ManifestInput<'a> {
    pub text: &'a str,
    /// Source of the manifest, for display.
    pub source: &'a str,
    /// Data that is merged over the manifest's own.
    pub layers: Layers,
    /// Reads the data files of the manifest's hierarchy; without it there are none.
    pub read_data_file: Option<&'a ReadDataFile<'a>>,
    /// Resources of parent manifests and earlier nested ones, which a nested manifest may require.
    pub applied_before: Option<&'a AppliedBefore<'a>>,
    pub checks: Checks,
}

/// Which problems of a manifest are errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checks {
    /// Problems that prevent a run.
    #[default]
    Run,
    /// Also problems that would fail a resource during the run: invalid deferred expressions, and
    /// subscriptions to resources that are not defined before.
    All,
}

/// Loads a manifest. Templates are evaluated in `env`, whose data is set to the manifest's.
pub fn load(
    input: ManifestInput<'_>,
    env: &mut Env,
    programs: &Cache,
) -> Result<Manifest, ManifestError> {
    match load_known(input, env, programs)? {
        (manifest, unchecked) if unchecked.is_empty() => Ok(manifest),
        (_, problems) => Err(ManifestError { problems }),
    }
}

/// Loads a manifest as far as its values are known, as [`Env::unknown`] and its facts define it. Also
/// returns what could not be checked; such expressions remain unresolved.
pub fn load_known(
    input: ManifestInput<'_>,
    env: &mut Env,
    programs: &Cache,
) -> Result<(Manifest, Vec<Problem>), ManifestError> {
    let ManifestInput {
        checks,
        applied_before,
        ..
    } = input;
    let mut problems = Problems::new(input.source, input.text);
    let mut manifest = match parse(input.text) {
        Ok(document) => read::manifest(&document, input, env, programs, &mut problems),
        Err(err) => {
            problems.report(err.mark, None, ProblemKind::Document(err));
            None
        }
    };
    if let Some(manifest) = &mut manifest {
        manifest.text = problems.resource_text();
        check::gates(manifest, applied_before, &mut problems);
        if checks == Checks::All {
            check::deferred(manifest, &mut problems);
        }
    }
    let ReportedProblems {
        problems,
        unchecked,
    } = problems.finish();
    match manifest {
        Some(manifest) if problems.is_empty() => Ok((manifest, unchecked)),
        _ => Err(ManifestError { problems }),
    }
}

impl Manifest {
    /// Returns the position of a resource, by its number from 0, or one that `find` finds in the text
    /// for it, and the position in the template of rendered resources. The lines of sensitive
    /// resources are hidden.
    pub(crate) fn location(
        &self,
        index: usize,
        find: impl FnOnce(&str, Mark) -> Option<Mark>,
    ) -> (Location, Vec<Note>) {
        let ResourceText { name, text, .. } = &self.text;
        let mark = self.marks.get(index).copied().unwrap_or_default();
        let mark = find(text, mark).unwrap_or(mark);
        let mut location = Location::new(name, text, mark);
        let mut notes = self.text.notes(mark);
        let resource = self.resources.get(index);
        if resource.is_none_or(|resource| resource.common.sensitive) {
            location.line = None;
            notes.iter_mut().for_each(|note| note.location.line = None);
        }
        (location, notes)
    }

    /// Returns why a resource, by its number from 0, cannot refer to another one, for which there is no
    /// event in a run.
    pub(crate) fn unapplied_reason(&self, index: usize, reference: &str) -> UnmetReason {
        check::unapplied_reason(self, index, reference)
    }

    /// Returns the resolved manifest as a document, with deferred expressions unresolved.
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
