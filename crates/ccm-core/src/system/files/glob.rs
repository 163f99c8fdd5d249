//! File name patterns with the syntax of Go's `path.Match`: `*`, `?`, `[a-z]`, `[^a-z]` and `\`.
//!
//! A pattern matches one path component. Matching takes at most the product of both lengths, and
//! the number of matching files is limited.

use std::io;
use std::iter::Peekable;
use std::path::{Component, Path, PathBuf};
use std::str::Chars;

use super::{FileError, FileKind, inspect, list};

/// Maximum number of paths that match a pattern or its beginning.
const MAX_MATCHES: usize = 10_000;

/// A pattern with invalid syntax.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("syntax error in pattern")]
pub struct BadPattern;

/// A failed expansion of a pattern.
#[derive(Debug, thiserror::Error)]
pub enum GlobError {
    #[error(transparent)]
    Pattern(#[from] BadPattern),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("more than {MAX_MATCHES} paths match")]
    TooMany,
}

/// Returns the existing paths that match a pattern, sorted.
pub fn expand(pattern: &Path) -> Result<Vec<PathBuf>, GlobError> {
    let mut found = vec![PathBuf::new()];
    for part in pattern.components() {
        let name = match part {
            Component::Normal(name) => name.to_str().filter(|name| is_pattern(name)),
            _ => None,
        };
        found = match name {
            Some(name) => below(&found, &Glob::parse(name)?)?,
            None => found.iter().map(|path| path.join(part)).collect(),
        };
        if found.len() > MAX_MATCHES {
            return Err(GlobError::TooMany);
        }
    }
    let mut matching = Vec::new();
    for path in found {
        if kind(&path)?.is_some() {
            matching.push(path);
        }
    }
    matching.sort();
    Ok(matching)
}

fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?', '[', '\\'])
}

/// Returns the type of a file, or `None` if it does not exist.
fn kind(path: &Path) -> Result<Option<FileKind>, FileError> {
    match inspect(path, true) {
        Err(err) if err.os_kind() == Some(io::ErrorKind::NotADirectory) => Ok(None),
        metadata => Ok(metadata?.map(|metadata| metadata.kind)),
    }
}

/// Returns the matching entries of directories.
fn below(directories: &[PathBuf], glob: &Glob) -> Result<Vec<PathBuf>, GlobError> {
    let mut found = Vec::new();
    for directory in directories {
        let here = if directory.as_os_str().is_empty() {
            Path::new(".")
        } else {
            directory
        };
        if kind(here)? != Some(FileKind::Directory) {
            continue;
        }
        for name in list(here)? {
            if name.to_str().is_some_and(|name| glob.matches(name)) {
                found.push(directory.join(name));
            }
        }
        if found.len() > MAX_MATCHES {
            return Err(GlobError::TooMany);
        }
    }
    Ok(found)
}

/// A parsed pattern.
#[derive(Clone, Debug)]
pub struct Glob(Vec<Part>);

#[derive(Clone, Debug)]
enum Part {
    /// `*`: any text.
    Any,
    /// `?`: any character.
    One,
    Char(char),
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
}

impl Glob {
    /// Parses a pattern.
    pub fn parse(pattern: &str) -> Result<Self, BadPattern> {
        let mut parts = Vec::new();
        let mut chars = pattern.chars().peekable();
        while let Some(c) = chars.next() {
            parts.push(match c {
                '*' => Part::Any,
                '?' => Part::One,
                '[' => class(&mut chars)?,
                '\\' => Part::Char(chars.next().ok_or(BadPattern)?),
                c => Part::Char(c),
            });
        }
        Ok(Self(parts))
    }

    /// Whether a whole name matches.
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.as_slice();
        let mut rest = name.chars();
        // The parts after the last star, and the text it has not consumed.
        let mut star: Option<(&[Part], Chars<'_>)> = None;
        loop {
            let before = rest.clone();
            match (parts.split_first(), rest.next()) {
                (None, None) => return true,
                (Some((Part::Any, after)), _) => {
                    star = Some((after, before.clone()));
                    (parts, rest) = (after, before);
                    continue;
                }
                (Some((part, after)), Some(c)) if part.accepts(c) => {
                    parts = after;
                    continue;
                }
                _ => {}
            }
            // Backtrack: the last star consumes one more character.
            let Some((after, mut left)) = star.take() else {
                return false;
            };
            if left.next().is_none() {
                return false;
            }
            (parts, rest) = (after, left.clone());
            star = Some((after, left));
        }
    }
}

impl Part {
    fn accepts(&self, c: char) -> bool {
        match self {
            Self::Any => false,
            Self::One => true,
            Self::Char(wanted) => *wanted == c,
            Self::Class { negated, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated
            }
        }
    }
}

fn class(chars: &mut Peekable<Chars<'_>>) -> Result<Part, BadPattern> {
    let negated = chars.next_if_eq(&'^').is_some();
    let mut ranges = Vec::new();
    loop {
        if !ranges.is_empty() && chars.next_if_eq(&']').is_some() {
            return Ok(Part::Class { negated, ranges });
        }
        let low = class_char(chars)?;
        let high = match chars.next_if_eq(&'-') {
            Some(_) => class_char(chars)?,
            None => low,
        };
        ranges.push((low, high));
    }
}

/// Parses one end of a range; `-` and `]` must be escaped.
fn class_char(chars: &mut Peekable<Chars<'_>>) -> Result<char, BadPattern> {
    match chars.next() {
        None | Some('-' | ']') => Err(BadPattern),
        Some('\\') => chars.next().ok_or(BadPattern),
        Some(c) => Ok(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, matches) in [
            ("*.go", "main.go", true),
            ("*.go", "main.go.txt", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("?", "é", true),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxbxx", false),
            ("a*a*a", "aa", false),
            ("[a-c]x", "bx", true),
            ("[a-c]x", "dx", false),
            ("[^a-c]x", "dx", true),
            ("[^a-c]x", "ax", false),
            ("[xyz]", "y", true),
            ("[\\]\\-]", "-", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("!a", "!a", true),
            ("*.{a,b}", "x.a", false),
        ] {
            let glob = Glob::parse(pattern).unwrap();
            assert_eq!(glob.matches(name), matches, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_that_is_not_finished_is_refused() {
        for pattern in [
            "[", "[a", "[]a]", "[-x]", "[a-]", "[^]", "\\", "a\\", "[a-\\",
        ] {
            assert_eq!(Glob::parse(pattern).unwrap_err(), BadPattern, "{pattern}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_ends_soon() {
        let glob = Glob::parse(&"a*".repeat(200)).unwrap();
        assert!(!glob.matches(&format!("{}b", "a".repeat(199))));
        assert!(glob.matches(&"a".repeat(5000)));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test's own files")]
    fn files_that_fit_are_found_at_any_depth() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a/x.yaml", "b/x.yaml", "b/y.yaml", "b/.z.yaml", "c.yaml"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let matching = |pattern: &str| -> Vec<String> {
            let found = expand(&dir.path().join(pattern)).unwrap();
            let inside = found
                .iter()
                .map(|path| path.strip_prefix(dir.path()).unwrap());
            inside.map(|path| path.display().to_string()).collect()
        };
        assert_eq!(matching("*/x.yaml"), ["a/x.yaml", "b/x.yaml"]);
        assert_eq!(matching("b/*"), ["b/.z.yaml", "b/x.yaml", "b/y.yaml"]);
        assert_eq!(matching("[^a]/x*"), ["b/x.yaml"]);
        assert_eq!(matching("c.yaml"), ["c.yaml"]);
        assert!(matching("d.yaml").is_empty());
        assert!(matching("*/*/*").is_empty());
        let error = expand(&dir.path().join("[")).unwrap_err().to_string();
        assert_eq!(error, "syntax error in pattern");
    }
}
