//! Arguments from files: `@FILE` stands for the lines of a file, one argument each.
//!
//! As upstream has it: blank lines and lines that begin with `#` are left out, a line may name
//! another file, and nothing is replaced behind `--` or within `--flag=@text`. Knows no command and
//! no flag; `completion` and the parser read what comes out.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::CliError;
use ccm_core::system::files;
use ccm_value::text::quote;

/// The largest file of arguments.
const MAX_BYTES: u64 = 1024 * 1024;

/// How many files one call may name: one that names itself would never end.
const MAX_FILES: usize = 32;

/// Returns a command line with the lines of every file that it names in the file's place. The
/// first word is the program and stays as it is.
pub(super) fn expand(line: impl IntoIterator<Item = OsString>) -> Result<Vec<OsString>, CliError> {
    let mut waiting: VecDeque<OsString> = line.into_iter().collect();
    let mut words: Vec<OsString> = waiting.pop_front().into_iter().collect();
    let mut files = 0;
    while let Some(word) = waiting.pop_front() {
        if word == "--" {
            words.push(word);
            words.extend(waiting);
            break;
        }
        let Some(file) = word.as_bytes().strip_prefix(b"@") else {
            words.push(word);
            continue;
        };
        files += 1;
        if files > MAX_FILES {
            let text = format!("more than {MAX_FILES} argument files");
            return Err(CliError::usage(text));
        }
        for line in lines(OsStr::from_bytes(file))?.into_iter().rev() {
            waiting.push_front(line);
        }
    }
    Ok(words)
}

fn lines(file: &OsStr) -> Result<Vec<OsString>, CliError> {
    if file.is_empty() {
        let text = "expected @ file to expand arguments from";
        return Err(CliError::usage(text));
    }
    let text = files::read_to_string(Path::new(file), MAX_BYTES).map_err(|err| {
        let file = quote(&file.to_string_lossy());
        CliError::usage(err)
            .at(format_args!("failed to open arguments file {file}"))
            .hint(
                "what begins with @ names a file, write --flag=@text or -- before it for plain text",
            )
    })?;
    let is_argument = |line: &&str| !line.starts_with('#') && !line.trim().is_empty();
    Ok(text.lines().filter(is_argument).map(Into::into).collect())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests arrange the world by hand")]
mod tests {
    use super::*;

    fn expanded(words: &[&str]) -> Result<Vec<String>, String> {
        let line = words.iter().map(OsString::from);
        let words = expand(line).map_err(|err| err.to_string())?;
        Ok(words
            .into_iter()
            .map(|word| word.into_string().unwrap())
            .collect())
    }

    #[test]
    fn the_lines_of_a_file_stand_where_it_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("inner");
        let outer = directory.path().join("outer");
        std::fs::write(&inner, "two words\n").unwrap();
        let text = format!("# a comment\n--mode\n\n0600\n@{}\n", inner.display());
        std::fs::write(&outer, text).unwrap();
        let outer = format!("@{}", outer.display());
        assert_eq!(
            expanded(&["@ccm", "ensure", &outer, "last"]).unwrap(),
            ["@ccm", "ensure", "--mode", "0600", "two words", "last"]
        );
    }

    #[test]
    fn what_is_joined_to_a_flag_or_stands_behind_two_hyphens_is_plain_text() {
        let words = ["ccm", "--content=@daily", "--", "@file"];
        assert_eq!(expanded(&words).unwrap(), words);
    }

    #[test]
    fn a_file_that_is_missing_or_names_itself_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("loop");
        let word = format!("@{}", file.display());
        let error = expanded(&["ccm", &word]).unwrap_err();
        assert!(
            error.starts_with(&format!("failed to open arguments file {:?}", file)),
            "{error}"
        );
        std::fs::write(&file, &word).unwrap();
        assert_eq!(
            expanded(&["ccm", &word]).unwrap_err(),
            "more than 32 argument files"
        );
        assert_eq!(
            expanded(&["ccm", "@"]).unwrap_err(),
            "expected @ file to expand arguments from"
        );
    }
}
