//! Post commands: commands that run on a file after it was written, such as formatters.
//!
//! A command gets the path of the written file. It runs once per write, never in noop mode and never for
//! a stable file. It may change the file's content or mode, so that the file no longer equals its
//! template. To recognize such a file in the next run, an extended attribute stores a fingerprint of the
//! rendered file, the commands and the resulting file. The file is stable as long as the fingerprint
//! matches; otherwise it is written and processed again.
//!
//! The attribute is set to `pending` before the file is moved into place, and to the fingerprint after
//! the last command succeeded, so that the next run repeats commands that were interrupted or failed. A
//! file without the attribute is compared by content and mode. So is every file on a file system without
//! extended attributes: commands that change the file run again in each run there, with a warning.
//!
//! The fingerprint only avoids repeated work; it is no protection against tampering.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::render::RenderedFile;
use super::{PostError, ScaffoldError};
use crate::model::output;
use crate::model::secret::REDACTED;
use crate::model::text::split_words;
use crate::resource::Host;
use crate::system::files::{self, FileError, Glob, Xattr};
use crate::system::{Command, Digest, Digester};

/// The extended attribute that stores the fingerprint.
const ATTRIBUTE: &str = "user.ccm.scaffold";

/// The attribute value until all commands have succeeded; never a valid fingerprint.
const PENDING: &str = "pending";

/// The timeout of one command.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The placeholder for the file in a command line.
const PLACEHOLDER: &str = "{}";

/// The post commands of a scaffold, in order.
#[derive(Clone, Debug, Default)]
pub struct PostCommands(Vec<PostCommand>);

#[derive(Clone, Debug)]
struct PostCommand {
    glob: Glob,
    program: String,
    args: Vec<String>,
}

impl PostCommands {
    /// Parses patterns and commands, so that errors are found before anything is written.
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
            Ok(PostCommand {
                glob,
                program: program.ok_or(ScaffoldError::NoCommand(pattern))?,
                args: words.collect(),
            })
        });
        Ok(Self(posts.collect::<Result<_, _>>()?))
    }

    /// Returns the commands whose pattern matches the base name of a file.
    pub(super) fn of(&self, path: &Path) -> FilePostCommands<'_> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let fits = |post: &&PostCommand| post.glob.matches(&name);
        FilePostCommands(self.0.iter().filter(fits).collect())
    }
}

/// The post commands of one file.
pub(super) struct FilePostCommands<'a>(Vec<&'a PostCommand>);

impl FilePostCommands<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the attribute of a file whose commands have not run yet.
    pub(super) fn pending(&self) -> Xattr<'static> {
        Xattr {
            name: ATTRIBUTE,
            text: PENDING,
        }
    }

    /// Reports whether the fingerprint of a file matches; nothing if the file has none.
    pub(super) fn matches_fingerprint(
        &self,
        path: &Path,
        rendered: &RenderedFile,
    ) -> Result<Option<bool>, FileError> {
        if self.is_empty() {
            return Ok(None);
        }
        let Some(note) = files::xattr(path, ATTRIBUTE)? else {
            return Ok(None);
        };
        let fingerprint = self.fingerprint(path, rendered)?;
        Ok(Some(
            fingerprint.is_some_and(|fingerprint| fingerprint.text == note),
        ))
    }

    /// Runs the commands on a written file and stores the fingerprint. Returns whether the next run will
    /// recognize the file as stable.
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
        let path_text = path.to_string_lossy();
        for post in &self.0 {
            post.run(&path_text, sensitive, host)?;
        }
        let failed = |cause: FileError| ScaffoldError::Post {
            file: path_text.to_string(),
            cause: cause.into(),
            output: String::new(),
        };
        // A command may have removed the file.
        let Some(fingerprint) = self.fingerprint(path, rendered).map_err(failed)? else {
            return Ok(true);
        };
        let note = Xattr {
            name: ATTRIBUTE,
            text: &fingerprint.text,
        };
        Ok(files::set_xattr(path, note).map_err(failed)? || fingerprint.is_untouched)
    }

    /// Returns the fingerprint of the rendered file, the commands and the current file, if it is a regular
    /// file.
    fn fingerprint(
        &self,
        path: &Path,
        rendered: &RenderedFile,
    ) -> Result<Option<Fingerprint>, FileError> {
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
        Ok(Some(Fingerprint {
            text: digester.finish().to_string(),
            is_untouched: wanted == found && rendered.mode == seen.mode,
        }))
    }
}

struct Fingerprint {
    text: String,
    /// The commands did not change the file.
    is_untouched: bool,
}

impl PostCommand {
    fn run(&self, file: &str, sensitive: bool, host: Host<'_>) -> Result<(), ScaffoldError> {
        let mut args: Vec<String> = Vec::with_capacity(self.args.len() + 1);
        args.extend(self.args.iter().map(|arg| arg.replace(PLACEHOLDER, file)));
        if !self.args.iter().any(|arg| arg.contains(PLACEHOLDER)) {
            args.push(file.into());
        }
        let command = Command {
            cwd: Some(host.working_dir.join(".")),
            timeout: Some(TIMEOUT),
            supervised: true,
            ..Command::new(&self.program, args)
        };
        let (cause, output) = match host.runner.run(&command) {
            Ok(output) if output.is_success() => return Ok(()),
            Ok(result) => {
                let text = format!("{}{}", result.stdout_text(), result.stderr_text());
                let end = if text.ends_with('\n') { "\n" } else { "" };
                let text = format!("{}{end}", output::tail(&text));
                (PostError::Exit(result.code), text)
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
