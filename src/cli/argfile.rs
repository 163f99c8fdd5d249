//! Argument files: `@FILE` is replaced by the lines of the file, one argument per line.
//!
//! As in upstream CCM: blank lines and lines that begin with `#` are ignored, a line may name
//! another file, and nothing is expanded after `--` or within `--flag=@text`.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::CliError;
use ccm_core::system::files;
use ccm_value::text::quote;

/// Size limit of an argument file.
const MAX_BYTES: u64 = 1024 * 1024;

/// Limit on the number of files, so that a file that includes itself is an error.
const MAX_FILES: usize = 32;

/// Expands every `@FILE` argument. The first word is the program and is not expanded.
pub(super) fn expand(line: impl IntoIterator<Item = OsString>) -> Result<Vec<OsString>, CliError> {
    let mut pending: VecDeque<OsString> = line.into_iter().collect();
    let mut words: Vec<OsString> = pending.pop_front().into_iter().collect();
    let mut files = 0;
    while let Some(word) = pending.pop_front() {
        if word == "--" {
            words.push(word);
            words.extend(pending);
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
            pending.push_front(line);
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
                "an argument that begins with @ names a file; for plain text write --flag=@text, or -- before it",
            )
    })?;
    let is_argument = |line: &&str| !line.starts_with('#') && !line.trim().is_empty();
    Ok(text.lines().filter(is_argument).map(Into::into).collect())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests write fixture files")]
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
    fn a_file_is_replaced_by_its_lines() {
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
    fn flag_values_and_words_after_two_hyphens_are_not_expanded() {
        let words = ["ccm", "--content=@daily", "--", "@file"];
        assert_eq!(expanded(&words).unwrap(), words);
    }

    #[test]
    fn missing_and_recursive_files_are_errors() {
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
