//! Shell completion for bash, zsh and fish, based on the dynamic completion of `clap_complete`.
//!
//! A completion script calls `ccm` with the variable `CCM_COMPLETE` set to the name of the shell and
//! the words of the command line after `--`. Candidates come from the command line definition and,
//! for nodes, bundles and rollouts, from NATS; see `fleet::candidates`.
//!
//! `--completion-bash WORDS…` is the interface of upstream CCM: it prints one candidate per line.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use clap::builder::Resettable;
use clap::{Command, CommandFactory as _};
use clap_complete::engine::{CompletionCandidate, complete};
use clap_complete::env::{self, CompleteEnv, EnvCompleter, Shells};

use super::{Cli, CliError, PROGRAM};

/// Environment variable that starts a completion.
const VARIABLE: &str = "CCM_COMPLETE";

/// Characters at which bash splits words, as far as our arguments contain them.
const WORD_BREAKS: [&str; 3] = ["=", ":", "@"];

/// Lets the zsh script also be installed as the file `_ccm` in a directory of `fpath`.
const ZSH_AUTOLOAD: &str = r#"if [[ ${funcstack[1]} == _ccm ]]; then
    _clap_dynamic_completer_ccm "$@"
fi
"#;

const SHELLS: Shells<'static> = Shells(&[&Bash, &env::Fish, &env::Zsh]);

/// Prints the candidates if a completion script started the program. Returns whether it did.
pub(super) fn run(args: &[OsString]) -> Result<bool, clap::Error> {
    if std::env::var_os(VARIABLE).is_none() {
        return Ok(false);
    }
    let directory = std::env::current_dir().ok();
    CompleteEnv::with_factory(command)
        .var(VARIABLE)
        .shells(SHELLS)
        .try_complete(args.iter().cloned(), directory.as_deref())
}

/// Returns the completion script of a shell. `program` is the first argument of the process.
pub(super) fn script(shell: &str, program: &Path) -> Result<String, CliError> {
    let unknown = || CliError::usage(format!("no completion script for {shell}"));
    let completer = SHELLS.completer(shell).ok_or_else(unknown)?;
    // A program that was found in PATH is found there again at completion time.
    let program = if program.components().count() > 1 {
        std::path::absolute(program).map_err(CliError::failed)?
    } else {
        program.to_owned()
    };
    let mut script = Vec::new();
    completer
        .write_registration(
            VARIABLE,
            PROGRAM,
            PROGRAM,
            &program.to_string_lossy(),
            &mut script,
        )
        .map_err(CliError::failed)?;
    let mut script = String::from_utf8(script).map_err(CliError::failed)?;
    if shell == env::Zsh.name() {
        script.push_str(ZSH_AUTOLOAD);
    }
    Ok(script)
}

/// Returns the candidates for the last of these words, one per line, as upstream's
/// `--completion-bash` does: flags only after a hyphen, and for a complete command what follows it.
pub(super) fn candidate_lines(words: &[OsString]) -> Result<String, CliError> {
    let mut command = command();
    let mut words: Vec<OsString> = [PROGRAM.into()].into_iter().chain(words.to_vec()).collect();
    if words.len() == 1 || is_subcommand(&command, &words) {
        words.push(OsString::new());
    }
    let last = words.len() - 1;
    let wants_flags = words
        .last()
        .is_some_and(|word| word.to_string_lossy().starts_with('-'));
    let candidates = complete_split_words(&mut command, words, last, None);
    let mut lines = String::new();
    for candidate in candidates.map_err(CliError::failed)? {
        if wants_flags || !candidate.starts_with('-') {
            lines.push_str(&candidate);
            lines.push('\n');
        }
    }
    Ok(lines)
}

/// Returns the command line definition for completion.
fn command() -> Command {
    hide_aliases(Cli::command())
}

/// Makes the aliases of all subcommands hidden. Of the visible names of a command, `clap_complete`
/// offers only the first in alphabetical order.
fn hide_aliases(command: Command) -> Command {
    let aliases: Vec<String> = command.get_all_aliases().map(ToOwned::to_owned).collect();
    command
        .visible_alias(Resettable::Reset)
        .aliases(aliases)
        .mut_subcommands(hide_aliases)
}

/// Returns whether the last word is the complete name of a subcommand.
fn is_subcommand(root: &Command, words: &[OsString]) -> bool {
    let mut command = root;
    let mut is_subcommand = false;
    for word in words.iter().skip(1) {
        let found = word.to_str().and_then(|word| command.find_subcommand(word));
        is_subcommand = found.is_some();
        command = found.unwrap_or(command);
    }
    is_subcommand
}

/// Returns the words of the command line that is being completed.
pub(super) fn words() -> Vec<OsString> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let count = words.len();
    join_words(words, count).words
}

/// Bash completion. Replaces the one of `clap_complete`, which does not join split words.
struct Bash;

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        env::Bash.name()
    }

    fn is(&self, name: &str) -> bool {
        env::Bash.is(name)
    }

    fn write_registration(
        &self,
        var: &str,
        name: &str,
        bin: &str,
        completer: &str,
        buf: &mut dyn io::Write,
    ) -> io::Result<()> {
        env::Bash.write_registration(var, name, bin, completer, buf)
    }

    fn write_complete(
        &self,
        command: &mut Command,
        words: Vec<OsString>,
        current_dir: Option<&Path>,
        buf: &mut dyn io::Write,
    ) -> io::Result<()> {
        let variable = |name: &str| std::env::var(name).ok();
        let index = variable("_CLAP_COMPLETE_INDEX").and_then(|index| index.parse().ok());
        let separator = variable("_CLAP_IFS").unwrap_or_else(|| "\n".into());
        let index = index.unwrap_or_default();
        let candidates = complete_split_words(command, words, index, current_dir)?;
        write!(buf, "{}", candidates.join(&separator))
    }
}

/// Returns the candidates for one of the words that bash split, without the part of the word that
/// bash keeps.
fn complete_split_words(
    command: &mut Command,
    words: Vec<OsString>,
    index: usize,
    current_dir: Option<&Path>,
) -> io::Result<Vec<String>> {
    let Joined {
        words,
        index,
        prefix,
    } = join_words(words, index);
    let candidates = complete(command, words, index, current_dir)?;
    let value = |candidate: CompletionCandidate| {
        let value = candidate.get_value().to_string_lossy().into_owned();
        match value.strip_prefix(&prefix) {
            Some(rest) => rest.to_owned(),
            None => value,
        }
    };
    Ok(candidates.into_iter().map(value).collect())
}

/// Words of a command line with the splitting of bash undone.
#[derive(Debug, PartialEq)]
struct Joined {
    words: Vec<OsString>,
    /// Index of the word that is being completed.
    index: usize,
    /// Beginning of that word up to the last separator.
    prefix: String,
}

/// Joins words that bash split at separators: `--engine`, `=`, `j` becomes `--engine=j`.
fn join_words(words: Vec<OsString>, index: usize) -> Joined {
    let mut joined = Joined {
        words: Vec::with_capacity(words.len()),
        index: 0,
        prefix: String::new(),
    };
    let mut is_continued = false;
    for (position, word) in words.into_iter().enumerate() {
        let is_separator = WORD_BREAKS.iter().any(|separator| word == *separator);
        match joined.words.last_mut() {
            Some(last) if is_continued || (is_separator && position > 1) => {
                if position == index {
                    joined.prefix = last.to_string_lossy().into_owned();
                }
                last.push(word);
            }
            _ => joined.words.push(word),
        }
        is_continued = is_separator && position > 1;
        if position <= index {
            joined.index = joined.words.len() - 1;
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(words: &[&str]) -> Vec<String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let lines = candidate_lines(&words).unwrap();
        lines.lines().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn commands_are_completed() {
        for words in [&[][..], &[""], &["ens"], &["--debug", ""]] {
            let found = candidates(words);
            assert!(found.contains(&"ensure".to_owned()), "{words:?}: {found:?}");
        }
        for words in [&["ensure"][..], &["ensure", ""], &["ensure", "--noop", ""]] {
            let found = candidates(words);
            assert!(found.contains(&"file".to_owned()), "{words:?}: {found:?}");
            assert!(!found.contains(&"--noop".to_owned()), "{found:?}");
        }
        let found = candidates(&["reg", ""]);
        assert_eq!(found, ["init", "create", "query", "rm", "watch", "help"]);
    }

    #[test]
    fn flags_include_global_ones_and_exclude_hidden_ones() {
        let found = candidates(&["ensure", "file", "/x", "--"]);
        for flag in ["--mode", "--noop", "--debug", "--check-tries", "--help"] {
            assert!(found.contains(&flag.to_owned()), "{flag}: {found:?}");
        }
        assert!(
            !found.contains(&"--cfengine-module".to_owned()),
            "{found:?}"
        );
    }

    #[test]
    fn values_are_completed() {
        let engines = ["jet", "jinja"];
        assert_eq!(
            candidates(&["ensure", "scaffold", "--engine", "j"]),
            engines
        );
        assert_eq!(
            candidates(&["ensure", "scaffold", "--engine", "=", "j"]),
            engines
        );
        assert_eq!(candidates(&["ensure", "file", "--mode", "e"]), [""; 0]);
        assert_eq!(
            candidates(&["util", "vercmp", ""]),
            ["debian", "rpm", "generic"]
        );
    }

    #[test]
    fn words_that_bash_split_are_joined() {
        let words = [
            "ccm", "--server", "nats", ":", "//h", ":", "4222", "app", "@", "1f",
        ];
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        assert_eq!(
            join_words(words, 9),
            Joined {
                words: ["ccm", "--server", "nats://h:4222", "app@1f"]
                    .map(OsString::from)
                    .into(),
                index: 3,
                prefix: "app@".into(),
            }
        );
    }

    #[test]
    fn scripts_call_this_program() {
        for shell in ["bash", "zsh", "fish"] {
            let script = script(shell, Path::new("ccm")).unwrap();
            let call = script.lines().find(|line| line.contains(" -- "));
            assert!(call.is_some_and(|line| line.contains("ccm")), "{script}");
        }
        assert!(script("tcsh", Path::new("ccm")).is_err());
    }
}
