//! scaffold: a directory or archive of templates, rendered to a target directory.
//!
//! Reading the state is rendering everything into memory and comparing it with the target, by
//! content and permission bits: a file gets the bits of its template, and drift of either is a
//! change. Files of the target that no template makes are only touched by `purge`. To take a
//! scaffold away it is rendered too: only that tells which files are its own.
//!
//! What a run, a noop and a status see is the same comparison, and neither of them changes
//! anything before `change`. Read `source` for where templates come from, `render` for what they
//! can do, `compare` for what counts as a difference, `place` for writing, `post` for commands that
//! run on written files.

mod compare;
mod error;
mod post;
mod render;
mod source;
#[cfg(test)]
mod tests;
mod tree;
mod write;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

pub use compare::{Item, Survey, Verdict, survey};
pub use error::{PostError, ScaffoldError};
pub use post::Posts;
pub use render::{Job, Rendered, RenderedFile, Variables, render};
pub use source::Sources;
pub use write::write;

use super::{Done, Host, Plan, ResourceError};
use crate::model::resource::{Resource, Scaffold};
use crate::model::state::{Detail, ScaffoldMetadata, State};
use crate::model::{TypeName, Value};
use crate::system::files;
use ccm_template::{Engine, engines};

/// The one provider, always usable.
pub(super) const PROVIDER: &str = "choria";

/// One thing to do to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write what differs, then remove what no template makes if that was asked for.
    Render { purge: bool },
    /// Remove what templates make.
    Remove,
}

/// What templates make and what the target holds.
struct Look {
    rendered: Rendered,
    posts: Posts,
    survey: Survey,
}

impl Look {
    fn take(
        resource: &Resource,
        scaffold: &Scaffold,
        host: Host<'_>,
    ) -> Result<Self, ResourceError> {
        let target = Path::new(&resource.common.name);
        if scaffold.purge && target.parent().is_none() {
            return Err(ScaffoldError::PurgeRoot(target.into()).into());
        }
        let posts = Posts::parse(&scaffold.post)?;
        let rendered = render(job(target, scaffold, host)?)?;
        let mut survey = survey(target, &rendered, &posts)?;
        match survey.obstacle.take() {
            Some(obstacle) if !is_absent_wanted(resource) => Err(obstacle),
            _ => Ok(Self {
                rendered,
                posts,
                survey,
            }),
        }
    }

    fn items(&self, fits: impl Fn(&Item) -> bool) -> impl Iterator<Item = &Item> {
        self.survey.items.iter().filter(move |item| fits(item))
    }

    /// Returns the files that differ from what was rendered or are not there.
    fn changed(&self) -> impl Iterator<Item = &Item> {
        self.items(|item| item.verdict != Verdict::Remove && !item.is_stable())
    }

    /// Returns the files that are there and not ours.
    fn foreign(&self) -> impl Iterator<Item = &Item> {
        self.items(|item| item.verdict == Verdict::Remove)
    }

    /// Returns our files that are there, stable or not.
    fn remaining(&self) -> impl Iterator<Item = &Item> {
        self.items(|item| matches!(item.verdict, Verdict::Update | Verdict::Equal))
    }
}

fn is_absent_wanted(resource: &Resource) -> bool {
    resource.common.ensure == "absent"
}

fn job(target: &Path, scaffold: &Scaffold, host: Host<'_>) -> Result<Job, ScaffoldError> {
    let mut env = host.env.clone();
    if let Some(data @ Value::Map(map)) = &scaffold.data
        && !map.is_empty()
    {
        env.data = data.clone();
    }
    Ok(Job {
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

/// Renders and compares. Without a source, as a status may be asked for, only the target is
/// looked at.
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
        let look = Look::take(resource, scaffold, host)?;
        metadata.target_exists = look.survey.target_exists;
        metadata.purged = paths(target, look.foreign());
        metadata.stable = paths(target, look.items(Item::is_stable));
        metadata.changed = if is_absent_wanted(resource) {
            paths(target, look.remaining().filter(|item| !item.is_stable()))
        } else {
            paths(target, look.changed())
        };
    }
    let is_gone = metadata.changed.is_empty() && metadata.stable.is_empty();
    let ensure = if is_absent_wanted(resource) && is_gone {
        "absent"
    } else {
        "present"
    };
    let detail = Detail::Scaffold { metadata };
    Ok(State::new(host.clock.now(), name, ensure, detail))
}

fn paths<'a>(target: &Path, items: impl Iterator<Item = &'a Item>) -> Vec<String> {
    items
        .map(|item| target.join(&item.path).to_string_lossy().into_owned())
        .collect()
}

/// How many files a state lists: those that differ, those that do not, and those to be purged.
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

fn not_reached(resource: &Resource, reason: impl Into<String>) -> ResourceError {
    ResourceError::NotReached {
        ensure: resource.common.ensure.clone(),
        reason: reason.into(),
    }
}

/// Decides what to do about a target.
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
            // A source that makes no file is a mistake. Found now, it purges nothing either.
            let reason = "scaffold produced no changed, stable, or purged files";
            return Err(not_reached(resource, reason));
        }
        if changed + purged == 0 {
            return Ok(Plan::stable());
        }
        let count = changed + purged;
        let message = format!("Would have changed {count} scaffold files");
        let purge = scaffold.purge;
        (Action::Render { purge }, message)
    };
    Ok(Plan {
        actions: vec![action],
        message,
        refreshed: false,
        satisfied: false,
        settles: true,
        tentative: false,
    })
}

/// Carries one action out.
pub(super) fn change(
    resource: &Resource,
    scaffold: &Scaffold,
    action: Action,
    host: Host<'_>,
) -> Result<Done, ResourceError> {
    let target = Path::new(&resource.common.name);
    let look = Look::take(resource, scaffold, host)?;
    match action {
        Action::Render { purge } => {
            let Look {
                rendered, posts, ..
            } = &look;
            let sensitive = resource.common.sensitive;
            let forgotten = write(target, rendered, look.changed(), posts, sensitive, host)?;
            if purge {
                write::remove(target, look.foreign())?;
            }
            Ok(Done {
                warning: warning(&forgotten),
                ..Done::default()
            })
        }
        Action::Remove => {
            write::remove(target, look.remaining())?;
            write::remove_empty(target, &look.survey.directories)?;
            Ok(Done::default())
        }
    }
}

fn warning(forgotten: &[PathBuf]) -> Option<String> {
    let paths: Vec<_> = forgotten
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    (!paths.is_empty()).then(|| {
        format!(
            "post commands rewrote {} where the file system keeps no extended attributes; they \
             will run again",
            paths.join(", ")
        )
    })
}

/// Renders and compares again, and checks what is left to do.
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
        return Err(not_reached(resource, reason));
    }
    if !is_absent_wanted(resource) && changed + stable + counts.purged == 0 {
        let reason = "scaffold produced no changed, stable, or purged files";
        return Err(not_reached(resource, reason));
    }
    Ok(state)
}

/// Writes what an action would change, as unified diffs of the files and a line for each that goes.
pub(super) fn diff(
    out: &mut String,
    resource: &Resource,
    scaffold: &Scaffold,
    action: Action,
    host: Host<'_>,
) -> Result<(), ResourceError> {
    let target = Path::new(&resource.common.name);
    let look = Look::take(resource, scaffold, host)?;
    match action {
        Action::Render { purge } => {
            for item in look.changed() {
                diff_file(out, &look, target, item, resource.common.sensitive)?;
            }
            removed(out, target, look.foreign().filter(|_| purge));
        }
        Action::Remove => removed(out, target, look.remaining()),
    }
    Ok(())
}

fn removed<'a>(out: &mut String, target: &Path, items: impl Iterator<Item = &'a Item>) {
    for item in items {
        let _ = writeln!(out, "{}: removed", target.join(&item.path).display());
    }
}

fn diff_file(
    out: &mut String,
    look: &Look,
    target: &Path,
    item: &Item,
    sensitive: bool,
) -> Result<(), ResourceError> {
    let Some(file) = item
        .path
        .to_str()
        .and_then(|name| look.rendered.files.get(name))
    else {
        return Ok(());
    };
    let path = target.join(&item.path);
    let name = path.display().to_string();
    if item.verdict != Verdict::Equal {
        let old = super::file::content_of(&path, item.verdict == Verdict::Update);
        let old = match old {
            Err(err) if err.is_not_found() => Some(String::new()),
            old => old?,
        };
        match (old, std::str::from_utf8(&file.content)) {
            _ if sensitive => {
                let _ = writeln!(out, "Content of {name} differs and is sensitive");
            }
            (Some(old), Ok(new)) => {
                let diff = similar::TextDiff::from_lines(old.as_str(), new);
                let _ = write!(out, "{}", diff.unified_diff().header(&name, &name));
            }
            _ => {
                let _ = writeln!(out, "Content of {name} differs and is no text to show");
            }
        }
    }
    if item.verdict != Verdict::Add
        && let Some(seen) = files::inspect(&path, true)?
        && seen.mode != file.mode
    {
        let _ = writeln!(out, "{name}: mode {:04o} -> {:04o}", seen.mode, file.mode);
    }
    Ok(())
}
