//! Patterns of `matches`: the syntax of RE2, run in linear time.
//!
//! One habit of RE2 is kept on top of the `regex` crate: a `{` that opens no repetition stands for
//! itself, so that JSON and templates can be matched without escapes.

use regex::Regex;

use super::val::Reason;

/// Compiles a pattern, or says why it is none.
pub(super) fn compile(pattern: &str) -> Result<Regex, Reason> {
    Regex::new(pattern)
        .or_else(|err| Regex::new(&with_literal_braces(pattern)).map_err(|_| err))
        .map_err(|err| {
            let text = err.to_string();
            let reason = text.lines().last().unwrap_or_default();
            let reason = reason.strip_prefix("error: ").unwrap_or(reason);
            format!("error parsing regexp: {reason}: `{pattern}`")
        })
}

/// Escapes every `{` that opens no repetition and belongs to no class such as `\p{L}`.
fn with_literal_braces(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut rest = pattern;
    while let Some(found) = rest.chars().next() {
        let taken = match rest.as_bytes() {
            [b'\\', b'p' | b'P' | b'x', b'{', ..] => 3,
            [b'\\', ..] => 1 + rest.chars().nth(1).map_or(0, char::len_utf8),
            [b'{', ..] if !is_repetition(rest) => {
                out.push('\\');
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

/// Tells whether a text starts with `{n}`, `{n,}` or `{n,m}`.
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

    #[test]
    fn braces_that_repeat_nothing_are_literal() {
        for (pattern, text, fits) in [
            ("^{.*}$", "{x}", true),
            ("^{{ a }}$", "{{ a }}", true),
            ("^a{2}$", "aa", true),
            ("^{a{2,3}$", "{aaa", true),
            (r"{\p{Lu}", "{É", true),
            (r"\{", "{", true),
            ("^a{2}$", "a{2}", false),
        ] {
            assert_eq!(compile(pattern).unwrap().is_match(text), fits, "{pattern}");
        }
    }

    #[test]
    fn other_mistakes_are_named_with_the_pattern() {
        let reason = compile("a[").unwrap_err();
        assert!(reason.starts_with("error parsing regexp: "), "{reason}");
        assert!(reason.ends_with(": `a[`"), "{reason}");
    }
}
