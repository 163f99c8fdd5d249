//! File name patterns as Go reads them: `*`, `?`, `[a-z]`, `[^a-z]` and `\` before any of these.
//!
//! A pattern is read once, so that a mistake in it is found before anything is written, and
//! matches a whole base name. Matching never takes more than the product of both lengths.

use std::iter::Peekable;
use std::str::Chars;

/// A pattern that can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("syntax error in pattern")]
pub struct BadPattern;

/// A pattern for base names.
#[derive(Clone, Debug)]
pub(super) struct Glob(Vec<Part>);

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
    pub(super) fn parse(pattern: &str) -> Result<Self, BadPattern> {
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

    pub(super) fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.as_slice();
        let mut rest = name.chars();
        // Where the last star stands, and what it has not swallowed yet.
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
            // A dead end: the last star swallows one character more.
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

/// Reads one end of a range; `-` and `]` stand for themselves only behind a backslash.
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
}
