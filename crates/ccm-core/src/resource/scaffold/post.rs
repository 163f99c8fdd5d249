//! Post commands: what is run on a file once it is in place, and how the next run knows.
//!
//! A command gets the real path of a file that was just written; it runs once per writing, never
//! in noop and never for a stable file. It may rewrite the file (a formatter) or its mode, and
//! then the file no longer equals its template. Running the command again to find out what it
//! would make is not allowed, so the file itself remembers: it carries a note (an extended
//! attribute) that seals together what was rendered, the commands, and what they made of it. As
//! long as all three are the same, the file is stable; an edit, another template or another
//! command breaks the seal and the file is written and processed again.
//!
//! The note is attached before the file appears and sealed after the last command succeeded, so
//! a run that was killed in between, or a command that failed, is made up for by the next run.
//! A file without a note, such as one that was there before us, is judged by content and mode
//! alone. Where the file system keeps no notes, so is every file: commands that change nothing
//! are fine there, and those that rewrite run again each time, with a warning.
//!
//! Whoever may write the file may forge its seal; the seal saves work and guards nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::render::RenderedFile;
use super::{PostError, ScaffoldError};
use crate::model::secret::REDACTED;
use crate::model::text::split_words;
use crate::resource::Host;
use crate::system::files::{self, FileError, Glob, Note};
use crate::system::{Command, Digest, Digester};

/// The attribute that holds the seal.
const NOTE: &str = "user.ccm.scaffold";

/// What stands in the note until the commands are through: no seal looks like this.
const PENDING: &str = "pending";

/// How long one command may take. A formatter that needs longer hangs.
const TIMEOUT: Duration = Duration::from_secs(600);

/// What a command line calls the file.
const PLACEHOLDER: &str = "{}";

/// The post commands of a scaffold, in order.
#[derive(Clone, Debug, Default)]
pub struct Posts(Vec<Post>);

#[derive(Clone, Debug)]
struct Post {
    glob: Glob,
    program: String,
    args: Vec<String>,
}

impl Posts {
    /// Reads patterns and commands; a mistake is found before anything is written.
    pub fn parse(steps: &[BTreeMap<String, String>]) -> Result<Self, ScaffoldError> {
        let posts = steps.iter().flatten().map(|(pattern, command)| {
            let pattern = pattern.clone();
            let glob = match Glob::parse(&pattern) {
                Ok(glob) => glob,
                Err(cause) => return Err(ScaffoldError::Pattern { pattern, cause }),
            };
            let mut words = match split_words(command) {
                Ok(words) => words.into_iter(),
                Err(cause) => return Err(ScaffoldError::Command { pattern, cause }),
            };
            let program = words.next().filter(|word| !word.is_empty());
            Ok(Post {
                glob,
                program: program.ok_or(ScaffoldError::NoCommand(pattern))?,
                args: words.collect(),
            })
        });
        Ok(Self(posts.collect::<Result<_, _>>()?))
    }

    /// Returns what is to be done with a file; its base name decides.
    pub(super) fn of(&self, path: &Path) -> FilePosts<'_> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let fits = |post: &&Post| post.glob.matches(&name);
        FilePosts(self.0.iter().filter(fits).collect())
    }
}

/// The post commands of one file.
pub(super) struct FilePosts<'a>(Vec<&'a Post>);

impl FilePosts<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the note of a file that is yet to be processed.
    pub(super) fn pending(&self) -> Note<'static> {
        Note {
            name: NOTE,
            text: PENDING,
        }
    }

    /// Returns what the note of a file says about it: that the commands made exactly this of what
    /// was rendered, that they did not, or nothing.
    pub(super) fn is_sealed(
        &self,
        path: &Path,
        rendered: &RenderedFile,
    ) -> Result<Option<bool>, FileError> {
        if self.is_empty() {
            return Ok(None);
        }
        let Some(note) = files::note(path, NOTE)? else {
            return Ok(None);
        };
        let seal = self.seal(path, rendered)?;
        Ok(Some(seal.is_some_and(|seal| seal.text == note)))
    }

    /// Runs the commands on a file that was just written and seals the result. Returns whether
    /// the next run will know it again.
    pub(super) fn run(
        &self,
        path: &Path,
        rendered: &RenderedFile,
        sensitive: bool,
        host: Host<'_>,
    ) -> Result<bool, ScaffoldError> {
        if self.is_empty() {
            return Ok(true);
        }
        let shown = path.to_string_lossy();
        for post in &self.0 {
            post.run(&shown, sensitive, host)?;
        }
        let failed = |cause: FileError| ScaffoldError::Post {
            file: shown.to_string(),
            cause: cause.into(),
            output: String::new(),
        };
        // A command that removed the file has nothing to be known again.
        let Some(seal) = self.seal(path, rendered).map_err(failed)? else {
            return Ok(true);
        };
        let note = Note {
            name: NOTE,
            text: &seal.text,
        };
        Ok(files::set_note(path, note).map_err(failed)? || seal.is_untouched)
    }

    /// Seals what was rendered, the commands, and what is there now, if that is a regular file.
    fn seal(&self, path: &Path, rendered: &RenderedFile) -> Result<Option<Seal>, FileError> {
        let Some((seen, Some(found))) = files::inspect_and_hash(path)? else {
            return Ok(None);
        };
        let wanted = Digest::of(&rendered.content);
        let mut digester = Digester::default();
        for (digest, mode) in [(wanted, rendered.mode), (found, seen.mode)] {
            digester.update(digest.as_bytes());
            digester.update(&mode.to_be_bytes());
        }
        for post in &self.0 {
            let words = std::iter::once(&post.program).chain(&post.args);
            for word in words {
                digester.update(word.as_bytes());
                digester.update(b"\0");
            }
            digester.update(b"\n");
        }
        Ok(Some(Seal {
            text: digester.finish().to_string(),
            is_untouched: wanted == found && rendered.mode == seen.mode,
        }))
    }
}

struct Seal {
    text: String,
    /// The file is as it was rendered.
    is_untouched: bool,
}

impl Post {
    fn run(&self, file: &str, sensitive: bool, host: Host<'_>) -> Result<(), ScaffoldError> {
        let mut args: Vec<String> = Vec::with_capacity(self.args.len() + 1);
        args.extend(self.args.iter().map(|arg| arg.replace(PLACEHOLDER, file)));
        if !self.args.iter().any(|arg| arg.contains(PLACEHOLDER)) {
            args.push(file.into());
        }
        let command = Command {
            cwd: Some(host.working_dir.join(".")),
            timeout: Some(TIMEOUT),
            ..Command::new(&self.program, args)
        };
        let (cause, output) = match host.runner.run(&command) {
            Ok(output) if output.is_success() => return Ok(()),
            Ok(output) => {
                let text = format!("{}{}", output.stdout_text(), output.stderr_text());
                (PostError::Exit(output.code), text)
            }
            Err(err) if sensitive => (err.without_program().into(), String::new()),
            Err(err) => (err.into(), String::new()),
        };
        Err(ScaffoldError::Post {
            file: file.into(),
            cause,
            output: if sensitive && !output.is_empty() {
                REDACTED.into()
            } else {
                output
            },
        })
    }
}
