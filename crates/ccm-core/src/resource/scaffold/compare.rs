//! Compares what was rendered with what is in the target. Changes nothing.
//!
//! The target itself may be a link to a directory; below it a directory is only ever a real one,
//! so that a link put there by someone else cannot lead a file out of the target. A link in the
//! place of a file is read through, as the file type does, and replaced when it differs.

use std::path::{Path, PathBuf};

use super::post::Posts;
use super::render::{Rendered, RenderedFile};
use super::tree::{Tree, WalkError, walk};
use crate::resource::ResourceError;
use crate::system::FileError;
use crate::system::files::{self, FileKind, Metadata};

/// How much of a target is looked at.
const MAX_FILES: usize = 1_000_000;

/// What has to happen to the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Add,
    Update,
    Equal,
    /// It is in the target and was not rendered.
    Remove,
}

/// One file of the target, there or to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// From the target.
    pub path: PathBuf,
    pub verdict: Verdict,
    /// The content is right and the permissions are not.
    pub mode_drifts: bool,
}

impl Item {
    pub(super) fn is_stable(&self) -> bool {
        self.verdict == Verdict::Equal && !self.mode_drifts
    }
}

/// What a look at the target shows.
#[derive(Debug, Default)]
pub struct Survey {
    /// By their path, byte by byte.
    pub items: Vec<Item>,
    pub target_exists: bool,
    /// The directories of the scaffold that are there, parents first.
    pub directories: Vec<PathBuf>,
    /// Something in the place of a file or directory that we do not replace.
    pub obstacle: Option<ResourceError>,
}

/// Compares a target with what it should hold.
pub fn survey(target: &Path, rendered: &Rendered, posts: &Posts) -> Result<Survey, ResourceError> {
    let mut survey = Survey::default();
    let seen = files::inspect(target, true)?;
    survey.target_exists = seen.is_some();
    let tree = match seen.map(|seen| seen.kind) {
        Some(FileKind::Directory) => walk(target, MAX_FILES).map_err(|err| match err {
            WalkError::File(err) => ResourceError::File(err),
            WalkError::TooMany(err) => ResourceError::Scaffold(err),
        })?,
        // A link that leads nowhere gives way to a directory.
        None | Some(FileKind::Symlink) => Tree::new(),
        Some(_) => {
            survey.obstacle = Some(FileError::NotADirectory(target.into()).into());
            Tree::new()
        }
    };
    for directory in &rendered.directories {
        match tree.get(Path::new(directory)).map(|seen| seen.kind) {
            Some(FileKind::Directory) => survey.directories.push(directory.into()),
            Some(FileKind::Regular | FileKind::Special) => {
                let obstacle = FileError::NotADirectory(target.join(directory));
                survey.obstacle.get_or_insert(obstacle.into());
            }
            None | Some(FileKind::Symlink) => {}
        }
    }
    for (name, file) in &rendered.files {
        let (verdict, mode_drifts) = match tree.get(Path::new(name)) {
            None => (Verdict::Add, false),
            Some(seen) if seen.kind == FileKind::Directory => {
                let path = target.join(name).to_string_lossy().into_owned();
                survey
                    .obstacle
                    .get_or_insert(ResourceError::IsDirectory(path));
                (Verdict::Add, false)
            }
            Some(seen) => judge(&target.join(name), *seen, file, posts)?,
        };
        survey.items.push(Item {
            path: name.into(),
            verdict,
            mode_drifts,
        });
    }
    let foreign = tree
        .into_iter()
        .filter(|(path, seen)| is_foreign(path, seen, rendered));
    survey.items.extend(foreign.map(|(path, _)| Item {
        path,
        verdict: Verdict::Remove,
        mode_drifts: false,
    }));
    survey
        .items
        .sort_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
    Ok(survey)
}

/// Reports whether a file of the target is none of ours. A link where a directory belongs gives
/// way to that directory.
fn is_foreign(path: &Path, seen: &Metadata, rendered: &Rendered) -> bool {
    let name = path.to_str().unwrap_or_default();
    match seen.kind {
        FileKind::Directory => false,
        FileKind::Symlink if rendered.directories.contains(name) => false,
        _ => !rendered.files.contains_key(name),
    }
}

fn judge(
    path: &Path,
    mut seen: Metadata,
    file: &RenderedFile,
    posts: &Posts,
) -> Result<(Verdict, bool), ResourceError> {
    if seen.kind == FileKind::Symlink {
        match files::inspect(path, true)? {
            Some(behind) => seen = behind,
            None => return Ok((Verdict::Add, false)),
        }
    }
    if seen.kind != FileKind::Regular {
        return Ok((Verdict::Update, false));
    }
    Ok(match posts.of(path).is_sealed(path, file)? {
        Some(true) => (Verdict::Equal, false),
        Some(false) => (Verdict::Update, false),
        None if has_content(path, seen.size, &file.content)? => {
            (Verdict::Equal, seen.mode != file.mode)
        }
        None => (Verdict::Update, false),
    })
}

fn has_content(path: &Path, size: u64, content: &[u8]) -> Result<bool, FileError> {
    let wanted = u64::try_from(content.len()).unwrap_or(u64::MAX);
    if size != wanted {
        return Ok(false);
    }
    match files::read(path, wanted) {
        Ok(found) => Ok(found == content),
        Err(FileError::TooLarge { .. }) => Ok(false),
        Err(err) if err.is_not_found() => Ok(false),
        Err(err) => Err(err),
    }
}
