//! Regular expressions with Go's syntax (RE2), matched in linear time.
//!
//! Built on the `regex` crate. Where its syntax differs, the pattern is rewritten before it is
//! compiled: in Go `\d`, `\s`, `\w` and `\b` match ASCII only, a `{` that starts no repetition is
//! literal, sets do not nest or intersect, and `\Q…\E` quotes.

use regex::{Regex, RegexBuilder};

/// Maximum size of a compiled pattern, in bytes.
const MAX_COMPILED_SIZE: usize = 2 << 20;

/// Error of an invalid pattern, worded as in Go.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("error parsing regexp: {}: `{pattern}`", short_reason(.cause))]
pub struct PatternError {
    pattern: String,
    #[source]
    cause: regex::Error,
}

impl Eq for PatternError {}

/// Returns the reason from a regex error, without the lines that mark the position.
pub fn short_reason(error: &regex::Error) -> String {
    let text = error.to_string();
    let reason = text.lines().last().unwrap_or_default().trim();
    reason.strip_prefix("error: ").unwrap_or(reason).to_owned()
}

/// Compiles a pattern.
pub fn compile(pattern: &str) -> Result<Regex, PatternError> {
    RegexBuilder::new(&rewritten(pattern))
        .size_limit(MAX_COMPILED_SIZE)
        .build()
        .map_err(|cause| PatternError {
            pattern: pattern.into(),
            cause,
        })
}

fn rewritten(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut rest = pattern;
    let mut is_in_set = false;
    while let Some(found) = rest.chars().next() {
        let taken = match rest.as_bytes() {
            [b'\\', b'Q', ..] => {
                let after = rest.get(2..).unwrap_or_default();
                let (quoted, after) = after.split_once(r"\E").unwrap_or((after, ""));
                out.push_str(&regex::escape(quoted));
                rest = after;
                continue;
            }
            [b'\\', class, ..] if let Some(ascii) = ascii_class(*class, is_in_set) => {
                out.push_str(ascii);
                rest = rest.get(2..).unwrap_or_default();
                continue;
            }
            [b'\\', b'p' | b'P' | b'x', b'{', ..] => 3,
            [b'\\', ..] => 1 + rest.chars().nth(1).map_or(0, char::len_utf8),
            [b'{', ..] if !is_in_set && !is_repetition(rest) => {
                out.push('\\');
                1
            }
            [b'[', b':', ..] if is_in_set => 2,
            [b'[' | b'&' | b'~', ..] if is_in_set => {
                out.push('\\');
                1
            }
            // A `]` that comes first in a set is literal.
            [b'[', b'^', b']', ..] => {
                is_in_set = true;
                3
            }
            [b'[', b']' | b'^', ..] => {
                is_in_set = true;
                2
            }
            [b'[', ..] => {
                is_in_set = true;
                1
            }
            [b':', b']', ..] if is_in_set && closes_name(&out) => 2,
            [b']', ..] => {
                is_in_set = false;
                1
            }
            _ => found.len_utf8(),
        };
        let (head, tail) = rest.split_at(taken);
        out.push_str(head);
        rest = tail;
    }
    out
}

/// Returns whether the output ends with the start of a class name such as `[:alpha`.
fn closes_name(written: &str) -> bool {
    written
        .trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == '^')
        .ends_with("[:")
}

/// Returns the ASCII class for `\d` and similar escapes.
fn ascii_class(letter: u8, is_in_set: bool) -> Option<&'static str> {
    Some(match letter {
        b'd' => "[0-9]",
        b'D' => "[^0-9]",
        b's' => r"[\t\n\f\r ]",
        b'S' => r"[^\t\n\f\r ]",
        b'w' => "[0-9A-Za-z_]",
        b'W' => "[^0-9A-Za-z_]",
        b'b' if !is_in_set => r"(?-u:\b)",
        _ => return None,
    })
}

/// Returns whether a text starts with `{n}`, `{n,}` or `{n,m}`.
fn is_repetition(text: &str) -> bool {
    let body = text.strip_prefix('{').and_then(|rest| rest.split_once('}'));
    let Some((body, _)) = body else {
        return false;
    };
    let (low, high) = body.split_once(',').unwrap_or((body, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    !low.is_empty() && is_number(low) && is_number(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(cases: &[(&str, &str, bool)]) {
        for (pattern, text, fits) in cases {
            let found = compile(pattern).unwrap().is_match(text);
            assert_eq!(found, *fits, "{pattern} on {text}");
        }
    }

    #[test]
    fn braces_without_a_repetition_are_literal() {
        check(&[
            ("^{.*}$", "{x}", true),
            ("^{{ a }}$", "{{ a }}", true),
            ("^a{2}$", "aa", true),
            ("^{a{2,3}$", "{aaa", true),
            (r"{\p{Lu}", "{É", true),
            (r"\{", "{", true),
            ("^a{2}$", "a{2}", false),
            ("^[{]$", "{", true),
        ]);
    }

    #[test]
    fn short_classes_match_only_ascii() {
        check(&[
            (r"^\w+$", "ab_1", true),
            (r"^\w$", "é", false),
            (r"^\W$", "é", true),
            (r"^\d$", "٣", false),
            (r"^\s$", "\u{a0}", false),
            (r"^[\w.-]+$", "a-b.c", true),
            (r"^[^\d]$", "٣", true),
            (r"a\b", "aé", true),
            (r"^\\w$", r"\w", true),
        ]);
    }

    #[test]
    fn sets_do_not_nest_or_intersect() {
        check(&[
            ("^[[a]$", "[", true),
            ("^[a&&b]+$", "a&b", true),
            ("^[]a]+$", "]a", true),
            ("^[^]a]$", "]", false),
            ("^[[:alpha:][:^space:]-]+$", "a-1", true),
            ("^[[:digit:]]$", ":", false),
        ]);
    }

    #[test]
    fn quoted_parts_match_themselves() {
        check(&[(r"^\Qa.b\E+$", "a.bb", true), (r"^\Q.", "x", false)]);
    }

    #[test]
    fn other_mistakes_are_named_with_the_pattern() {
        let reason = compile("a[").unwrap_err().to_string();
        assert!(reason.starts_with("error parsing regexp: "), "{reason}");
        assert!(reason.ends_with(": `a[`"), "{reason}");
    }

    proptest::proptest! {
        #[test]
        fn a_rewritten_pattern_still_compiles(pattern in r"[a-c.*+?|(){}\[\]^$\\wdsbQE&~:é-]{0,24}") {
            // Neither panics, and text outside sets and escapes is only quoted.
            if Regex::new(&pattern).is_ok() && !pattern.contains(['[', '\\']) {
                proptest::prop_assert!(compile(&pattern).is_ok());
            }
        }
    }

    #[test]
    fn a_pattern_too_large_is_refused() {
        assert!(compile(r"(\pL{1000}){1000}").is_err());
    }
}
