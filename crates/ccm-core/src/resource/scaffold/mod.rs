//! scaffold type: a directory or archive of templates, rendered to a target directory.
//!
//! Inspecting renders all templates into memory and compares the result with the target by content and
//! permission bits, which are those of the template. Other files of the target are only removed by
//! `purge`. Removing a scaffold renders it too, to find out which files belong to it.
//!
//! `source` fetches templates, `render` renders them, `compare` compares the result with the target,
//! `write` writes and removes files, `post` runs commands on written files.

mod compare;
mod error;
mod post;
mod render;
mod source;
#[cfg(test)]
mod tests;
mod write;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

pub use compare::{Comparison, FileStatus, TargetFile, compare};
pub use error::{PostError, ScaffoldError};
pub use post::PostCommands;
pub use render::{RenderJob, Rendered, RenderedFile, Variables, render};
pub use source::SourceCache;
pub use write::write;

use super::{ChangeReport, Host, Plan, ResourceError};
use crate::model::resource::{Resource, Scaffold};
use crate::model::state::{Detail, ScaffoldMetadata, State};
use crate::model::{TypeName, Value};
use crate::system::files;
use ccm_template::{Engine, engines};

/// The only provider, always usable.
pub(super) const PROVIDER: &str = "choria";

/// A scaffold action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write the files that differ, then remove unmanaged files if `purge` is set.
    Render { purge: bool },
    /// Remove the files of the scaffold.
    Remove,
}

/// The rendered files and their comparison with the target.
struct Inspection {
    rendered: Rendered,
    posts: PostCommands,
    comparison: Comparison,
}

impl Inspection {
    fn run(
        resource: &Resource,
        scaffold: &Scaffold,
        host: Host<'_>,
    ) -> Result<Self, ResourceError> {
        let target = Path::new(&resource.common.name);
        if scaffold.purge && target.parent().is_none() {
            return Err(ScaffoldError::PurgeRoot(target.into()).into());
        }
        let posts = PostCommands::parse(&scaffold.post)?;
        let rendered = render_files(resource, scaffold, host)?;
        let mut comparison = compare(target, &rendered, &posts)?;
        match comparison.conflict.take() {
            Some(conflict) if !is_absent_wanted(resource) => Err(conflict),
            _ => Ok(Self {
                rendered,
                posts,
                comparison,
            }),
        }
    }

    fn items(&self, fits: impl Fn(&TargetFile) -> bool) -> impl Iterator<Item = &TargetFile> {
        self.comparison.items.iter().filter(move |item| fits(item))
    }

    /// Returns the files that are missing or differ from the rendered files.
    fn changed(&self) -> impl Iterator<Item = &TargetFile> {
        self.items(|item| item.status != FileStatus::Remove && !item.is_stable())
    }

    /// Returns the files of the target that do not belong to the scaffold.
    fn unmanaged(&self) -> impl Iterator<Item = &TargetFile> {
        self.items(|item| item.status == FileStatus::Remove)
    }

    /// Returns the files of the scaffold that exist, stable or not.
    fn existing(&self) -> impl Iterator<Item = &TargetFile> {
        self.items(|item| matches!(item.status, FileStatus::Update | FileStatus::Equal))
    }
}

/// Renders the files of a scaffold.
pub(super) fn render_files(
    resource: &Resource,
    scaffold: &Scaffold,
    host: Host<'_>,
) -> Result<Rendered, ScaffoldError> {
    render(render_job(
        Path::new(&resource.common.name),
        scaffold,
        host,
    )?)
}

fn is_absent_wanted(resource: &Resource) -> bool {
    resource.common.ensure == "absent"
}

fn render_job(
    target: &Path,
    scaffold: &Scaffold,
    host: Host<'_>,
) -> Result<RenderJob, ScaffoldError> {
    let mut env = host.env.clone();
    if let Some(data @ Value::Map(map)) = &scaffold.data
        && !map.is_empty()
    {
        env.data = data.clone();
    }
    Ok(RenderJob {
        source: host.scaffolds.directory(&scaffold.source, host)?,
        target: target.into(),
        engine: Engine::parse(&scaffold.engine).unwrap_or(Engine::Jet),
        left: scaffold.left_delimiter.clone(),
        right: scaffold.right_delimiter.clone(),
        skip_empty: scaffold.skip_empty,
        functions: engines::all_functions(&env),
        variables: std::sync::Arc::new(move |text| engines::variables(text, &env)),
    })
}

/// Renders and compares. A status request may have no source; then only the target is inspected.
pub(super) fn inspect(
    resource: &Resource,
    scaffold: &Scaffold,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let name = &resource.common.name;
    let target = Path::new(name);
    let mut metadata = ScaffoldMetadata {
        name: name.clone(),
        provider: PROVIDER.into(),
        engine: scaffold.engine.clone(),
        ..ScaffoldMetadata::default()
    };
    if scaffold.source.is_empty() {
        metadata.target_exists = files::inspect(target, true)?.is_some();
    } else {
        let inspection = Inspection::run(resource, scaffold, host)?;
        metadata.target_exists = inspection.comparison.target_exists;
        metadata.purged = paths(target, inspection.unmanaged());
        metadata.stable = paths(target, inspection.items(TargetFile::is_stable));
        metadata.changed = if is_absent_wanted(resource) {
            paths(
                target,
                inspection.existing().filter(|item| !item.is_stable()),
            )
        } else {
            paths(target, inspection.changed())
        };
    }
    let is_absent = metadata.changed.is_empty() && metadata.stable.is_empty();
    let ensure = if is_absent_wanted(resource) && is_absent {
        "absent"
    } else {
        "present"
    };
    let detail = Detail::Scaffold { metadata };
    Ok(State::new(host.clock.now(), name, ensure, detail))
}

fn paths<'a>(target: &Path, items: impl Iterator<Item = &'a TargetFile>) -> Vec<String> {
    items
        .map(|item| target.join(&item.path).to_string_lossy().into_owned())
        .collect()
}

/// The numbers of changed, stable and purged files in a state.
struct Counts {
    changed: usize,
    stable: usize,
    purged: usize,
}

impl Counts {
    fn of(scaffold: &Scaffold, state: &State) -> Result<Self, ResourceError> {
        let Detail::Scaffold { metadata } = &state.detail else {
            return Err(ResourceError::other_state(TypeName::Scaffold, state));
        };
        Ok(Self {
            changed: metadata.changed.len(),
            stable: metadata.stable.len(),
            purged: if scaffold.purge {
                metadata.purged.len()
            } else {
                0
            },
        })
    }
}

/// Plans the actions for a target.
pub(super) fn plan(
    resource: &Resource,
    scaffold: &Scaffold,
    state: &State,
) -> Result<Plan<Action>, ResourceError> {
    let Counts {
        changed,
        stable,
        purged,
    } = Counts::of(scaffold, state)?;
    let (action, message) = if is_absent_wanted(resource) {
        if changed + stable == 0 {
            return Ok(Plan::stable());
        }
        let count = changed + stable + purged;
        let message = format!("Would have removed {count} scaffold files");
        (Action::Remove, message)
    } else {
        if changed + stable == 0 {
            // A source without files is an error; failing here also prevents a purge of the target.
            let reason = "scaffold produced no changed, stable, or purged files";
            return Err(ResourceError::not_reached(resource, reason));
        }
        if changed + purged == 0 {
            return Ok(Plan::stable());
        }
        let count = changed + purged;
        let message = format!("Would have changed {count} scaffold files");
        let purge = scaffold.purge;
        (Action::Render { purge }, message)
    };
    Ok(Plan::with_actions(vec![action], message))
}

/// Performs one action.
pub(super) fn change(
    resource: &Resource,
    scaffold: &Scaffold,
    action: Action,
    host: Host<'_>,
) -> Result<ChangeReport, ResourceError> {
    let target = Path::new(&resource.common.name);
    let inspection = Inspection::run(resource, scaffold, host)?;
    match action {
        Action::Render { purge } => {
            let Inspection {
                rendered, posts, ..
            } = &inspection;
            let sensitive = resource.common.sensitive;
            let untracked = write(
                target,
                rendered,
                inspection.changed(),
                posts,
                sensitive,
                host,
            )?;
            if purge {
                write::remove(target, inspection.unmanaged())?;
            }
            Ok(ChangeReport {
                warning: warning(&untracked),
                ..ChangeReport::default()
            })
        }
        Action::Remove => {
            write::remove(target, inspection.existing())?;
            write::remove_empty(target, &inspection.comparison.directories)?;
            Ok(ChangeReport::default())
        }
    }
}

fn warning(untracked: &[PathBuf]) -> Option<String> {
    let paths: Vec<_> = untracked
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    (!paths.is_empty()).then(|| {
        format!(
            "post commands changed {}, and the file system does not support extended attributes: \
             they will run again in the next run",
            paths.join(", ")
        )
    })
}

/// Renders and compares again, and checks the result.
pub(super) fn verify(
    resource: &Resource,
    scaffold: &Scaffold,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let state = inspect(resource, scaffold, host)?;
    let counts = Counts::of(scaffold, &state)?;
    let Counts {
        changed, stable, ..
    } = counts;
    if is_absent_wanted(resource) && changed + stable > 0 {
        let reason = format!("target still has {stable} stable and {changed} changed files");
        return Err(ResourceError::not_reached(resource, reason));
    }
    if !is_absent_wanted(resource) && changed + stable + counts.purged == 0 {
        let reason = "scaffold produced no changed, stable, or purged files";
        return Err(ResourceError::not_reached(resource, reason));
    }
    Ok(state)
}

/// Writes the changes of an action: unified diffs, and one line per removed file.
pub(super) fn diff(
    out: &mut String,
    resource: &Resource,
    scaffold: &Scaffold,
    action: Action,
    host: Host<'_>,
) -> Result<(), ResourceError> {
    let target = Path::new(&resource.common.name);
    let inspection = Inspection::run(resource, scaffold, host)?;
    match action {
        Action::Render { purge } => {
            for item in inspection.changed() {
                diff_file(out, &inspection, target, item, resource.common.sensitive)?;
            }
            diff_removed(out, target, inspection.unmanaged().filter(|_| purge));
        }
        Action::Remove => diff_removed(out, target, inspection.existing()),
    }
    Ok(())
}

fn diff_removed<'a>(out: &mut String, target: &Path, items: impl Iterator<Item = &'a TargetFile>) {
    for item in items {
        let _ = writeln!(out, "{}: removed", target.join(&item.path).display());
    }
}

fn diff_file(
    out: &mut String,
    inspection: &Inspection,
    target: &Path,
    item: &TargetFile,
    sensitive: bool,
) -> Result<(), ResourceError> {
    let Some(file) = item
        .path
        .to_str()
        .and_then(|name| inspection.rendered.files.get(name))
    else {
        return Ok(());
    };
    let path = target.join(&item.path);
    let name = path.display().to_string();
    if item.status != FileStatus::Equal {
        let old = super::file::content_of(&path, item.status == FileStatus::Update);
        let old = match old {
            Err(err) if err.is_not_found() => Some(String::new()),
            old => old?,
        };
        let new = std::str::from_utf8(&file.content).ok();
        super::file::diff_content(out, &name, old.as_deref(), new, sensitive);
    }
    if item.status != FileStatus::Add
        && let Some(seen) = files::inspect(&path, true)?
        && seen.mode != file.mode
    {
        let _ = writeln!(out, "{name}: mode {:04o} -> {:04o}", seen.mode, file.mode);
    }
    Ok(())
}
