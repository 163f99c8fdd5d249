//! Nested manifests: the `apply` type. A child runs in its parent's session and inherits noop and
//! health-check-only mode; it can switch them on, never off.

use super::apply_manifest::RunError;
use super::data_files::read_data_file;
use super::pending_refreshes::outside_subscribers;
use super::{Engine, Level, Line, Scope, directory_of, levels_line};
use crate::engine::apply_resource::ApplyError;
use crate::hiera::{DataFile, InheritedData, Layers};
use crate::manifest::{self, Checks, Manifest, ManifestError, ManifestInput};
use crate::model::TypeName;
use crate::model::id::Reference;
use crate::model::resource::{Apply, Resource};
use crate::model::state::{ApplyDetail, Detail, State};
use crate::system::files::{self, FileError};

/// The maximum nesting depth of manifests.
const MAX_DEPTH: usize = 10;

/// Why a child manifest failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChildError {
    #[error("maximum apply depth of {MAX_DEPTH} exceeded")]
    TooDeep,
    #[error("apply resources are denied")]
    Denied,
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("child manifest had {0} failed resources")]
    Failed(usize),
}

impl Engine<'_> {
    /// Runs the manifest that a resource names and returns the outcomes of its resources as a state.
    pub(super) fn apply_child(
        &mut self,
        parent: &Scope,
        resource: &Resource,
        apply: &Apply,
    ) -> Result<State, ApplyError> {
        let (scope, manifest) = self.load_child(parent, resource, apply)?;
        let has_apply = |manifest: &Manifest| {
            let mut types = manifest.resources.iter().map(|r| r.type_name());
            types.any(|type_name| type_name == TypeName::Apply)
        };
        if !apply.allow_apply && has_apply(&manifest) {
            return Err(ChildError::Denied.into());
        }
        if let Some(claim) = &manifest.governor {
            // A run holds one slot, and this run has already started.
            let line = Line::new(Level::Warn, "Governor of a nested manifest is ignored");
            self.log(&scope, line.with("governor", &claim.name));
        }
        self.expand_pending_refreshes(&scope, resource, &manifest)?;
        self.run(&scope, &manifest).map_err(ChildError::Run)?;
        let counts = self.count(&manifest);
        let line = summary_line(&scope, counts.clone());
        self.sink.borrow_mut().line(&line);
        if counts.failed_count > 0 {
            return Err(ChildError::Failed(counts.failed_count).into());
        }
        let changed = counts.changed_count > 0;
        let mut state = State::new(
            self.machine.clock.now(),
            &resource.common.name,
            "present",
            Detail::Apply(counts),
        );
        state.common.changed = changed;
        state.common.stable = !changed;
        state.common.noop = scope.mode.noop;
        Ok(state)
    }

    /// Records the pending refreshes of the manifest's resources, now that they are known.
    fn expand_pending_refreshes(
        &self,
        scope: &Scope,
        resource: &Resource,
        manifest: &Manifest,
    ) -> Result<(), ApplyError> {
        if scope.mode.noop || scope.mode.health_check_only {
            return Ok(());
        }
        let label = resource.label();
        let mut pending = self.pending_refreshes.borrow_mut();
        let is_due = pending.is_due(&label);
        let labels = outside_subscribers(manifest, |reference| {
            is_due
                || self
                    .session
                    .last(reference)
                    .is_ok_and(|event| event.changed)
        });
        Ok(pending.expand(&label, labels)?)
    }

    fn load_child(
        &self,
        parent: &Scope,
        resource: &Resource,
        apply: &Apply,
    ) -> Result<(Scope, Manifest), ChildError> {
        let depth = parent.depth + 1;
        if depth >= MAX_DEPTH {
            return Err(ChildError::TooDeep);
        }
        let name = &resource.common.name;
        let file = parent.working_dir().join(name);
        let text = files::read_to_string(&file, manifest::MAX_BYTES)?;
        let mut scope = parent.clone();
        scope.depth = depth;
        scope.manifest = Some(name.clone());
        scope.mode.noop |= apply.noop;
        scope.mode.health_check_only |= apply.health_check_only;
        scope.env.working_dir = directory_of(&file);
        let applied_before = |reference: Reference<'_>| self.session.last(reference).is_ok();
        let env = scope.env.clone();
        let directory = &env.working_dir;
        let read_data_file = |file: &DataFile| read_data_file(directory, &env, file);
        let input = ManifestInput {
            text: &text,
            source: name,
            layers: Layers {
                inherited: match (&apply.data, &parent.env.secrets.forms) {
                    (Some(data), _) => InheritedData::Property(data.clone()),
                    (None, Some(forms)) => InheritedData::Parent(forms.sealed.clone()),
                    (None, None) => InheritedData::Parent(parent.env.data.clone()),
                },
                inherited_redacted: match (&apply.data, &parent.env.secrets.forms) {
                    (Some(_), _) => apply.redacted_data.clone().map(InheritedData::Property),
                    (None, Some(forms)) => Some(InheritedData::Parent(forms.redacted.clone())),
                    (None, None) => None,
                },
                external: parent.external.clone(),
                ..Layers::default()
            },
            read_data_file: Some(&read_data_file),
            applied_before: Some(&applied_before),
            checks: Checks::Run,
        };
        let loaded = manifest::load(input, &mut scope.env, &self.programs);
        let manifest = loaded.map_err(|err| {
            match scope.env.hide_rendered || err.shows(&scope.env.secrets) {
                true => err.redacted(),
                false => err,
            }
        })?;
        if self.detail_level.is_some_and(|least| least <= Level::Info) {
            let line = levels_line(&manifest.source, &manifest.levels);
            self.sink.borrow_mut().detail(&line);
        }
        Ok((scope, manifest))
    }

    /// Counts a manifest's resources by the outcome of their last event.
    fn count(&self, manifest: &Manifest) -> ApplyDetail {
        let mut counts = ApplyDetail {
            resource_count: manifest.resources.len(),
            ..ApplyDetail::default()
        };
        for resource in &manifest.resources {
            let reference = Reference {
                type_name: resource.type_name().as_str(),
                name: &resource.common.name,
            };
            match self.session.last(reference) {
                Ok(event) if event.blocks() => counts.failed_count += 1,
                Ok(event) if event.changed => counts.changed_count += 1,
                _ => {}
            }
        }
        counts
    }
}

fn summary_line(scope: &Scope, counts: ApplyDetail) -> Line {
    let ApplyDetail {
        resource_count,
        changed_count,
        failed_count,
    } = counts;
    let (level, text) = if failed_count > 0 {
        (Level::Error, "Child manifest had failures")
    } else if changed_count > 0 {
        (Level::Warn, "Child manifest had changes")
    } else {
        (Level::Info, "Child manifest completed")
    };
    Line::new(level, text)
        .with("manifest", scope.manifest.as_deref().unwrap_or_default())
        .with("resources", resource_count)
        .with("changed", changed_count)
        .with("failed", failed_count)
        .with("skipped", resource_count - changed_count - failed_count)
}
