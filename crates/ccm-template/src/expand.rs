//! Expansion of text that contains expressions: `{{ Data.name }}` and `${ Data.name }`.
//!
//! Most properties contain no expression; such text is recognised by one search for an opening
//! delimiter and returned unchanged. Results are not expanded again: data that contains `{{ }}`
//! stays as it is. The expressions themselves are evaluated by [`super::expr`].

use std::borrow::Cow;
use std::fmt::Write;
use std::ops::Range;

use super::Env;
use super::expr::{Cache, Expect, ExprError};
use ccm_value::Value;
use ccm_value::value::Map;

/// Maximum number of bytes scanned after opening delimiters that are never closed, beyond the text
/// itself.
const MAX_UNCLOSED_BYTES: usize = 16 << 20;

/// Position of one expression in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Byte range including both delimiters.
    pub outer: Range<usize>,
    /// Byte range of the trimmed expression.
    pub inner: Range<usize>,
}

/// Result of resolving a level of a hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match<'a> {
    pub text: Cow<'a, str>,
    /// True for non-empty text without expressions, and if at least one expression has a non-empty
    /// result.
    pub matched: bool,
}

/// Handling of keys whose value resolves to null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nulls {
    /// Keeps the key, with the value null (Hiera).
    Keep,
    /// Drops the key (properties). Null stays in lists.
    Drop,
}

/// Returns whether a text contains an expression.
pub fn has_expressions(text: &str) -> bool {
    // Too many unclosed delimiters are an error that resolving reports.
    may_have_expressions(text) && scan(text).map_or(true, |spans| !spans.is_empty())
}

/// Returns a text that resolves to `text`: opening delimiters become expressions that yield them. Text
/// without expressions is borrowed.
pub fn literal(text: &str) -> Cow<'_, str> {
    if !has_expressions(text) {
        return Cow::Borrowed(text);
    }
    let is_opening = |c: char| matches!(c, '{' | '$');
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    // Whole sequences of these characters are replaced, so that none is left beside a new delimiter.
    while let Some(start) = rest.find(is_opening) {
        let (before, from) = rest.split_at(start);
        let end = from.find(|c| !is_opening(c)).unwrap_or(from.len());
        let (opening, after) = from.split_at(end);
        out.push_str(before);
        if may_have_expressions(opening) {
            // Writing to a string cannot fail.
            let _ = write!(out, "{{{{\"{opening}\"}}}}");
        } else {
            out.push_str(opening);
        }
        rest = after;
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Searches for an opening delimiter only: fast, and exact for nearly all text.
fn may_have_expressions(text: &str) -> bool {
    let mut bytes = text.as_bytes();
    while let Some(at) = bytes.iter().position(|byte| *byte == b'{') {
        let (before, from) = bytes.split_at(at);
        if before.last() == Some(&b'$') || from.get(1) == Some(&b'{') {
            return true;
        }
        bytes = from.get(1..).unwrap_or_default();
    }
    false
}

/// Returns the expressions of a text, in order.
pub fn scan(text: &str) -> Result<Vec<Span>, ExprError> {
    let bytes = text.as_bytes();
    let mut spans = Vec::new();
    let mut remaining = MAX_UNCLOSED_BYTES.saturating_add(text.len());
    let mut at = 0;
    while let Some(rest) = bytes.get(at..) {
        let closer: fn(&[u8]) -> Option<(usize, usize)> = match rest {
            [] => break,
            [b'{', b'{', ..] => close_braces,
            // `${{` is a `$` followed by `{{`.
            [b'$', b'{', b'{', ..] => {
                at += 1;
                continue;
            }
            [b'$', b'{', ..] => close_brace,
            _ => {
                let skip = rest
                    .iter()
                    .skip(1)
                    .position(|byte| matches!(byte, b'{' | b'$'));
                at += 1 + skip.unwrap_or(rest.len());
                continue;
            }
        };
        let start = at + 2;
        let inside = bytes.get(start..).unwrap_or_default();
        match closer(inside) {
            Some((len, closer)) => {
                spans.push(Span {
                    outer: at..start + len + closer,
                    inner: trimmed(text, start..start + len),
                });
                at = start + len + closer;
            }
            None => {
                remaining = remaining
                    .checked_sub(inside.len())
                    .ok_or(ExprError::Unclosed)?;
                at = start;
            }
        }
    }
    Ok(spans)
}

fn trimmed(text: &str, range: Range<usize>) -> Range<usize> {
    let inner = text.get(range.clone()).unwrap_or_default();
    let start = range.start + (inner.len() - inner.trim_start().len());
    match inner.trim().len() {
        0 => range.start..range.start,
        len => start..start + len,
    }
}

/// Returns the offset and the length of the first `}}` outside quotes.
fn close_braces(inside: &[u8]) -> Option<(usize, usize)> {
    unquoted(inside, |at, byte| {
        byte == b'}' && inside.get(at + 1) == Some(&b'}')
    })
    .map(|at| (at, 2))
}

/// Returns the offset and the length of the `}` that balances the opening one, outside quotes.
fn close_brace(inside: &[u8]) -> Option<(usize, usize)> {
    let mut depth = 1_usize;
    unquoted(inside, |_, byte| {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        depth == 0
    })
    .map(|at| (at, 1))
}

/// Returns the first offset outside quotes for which `wanted` returns true. A backslash escapes the
/// next byte within `'` and `"`, not within backticks.
fn unquoted(bytes: &[u8], mut wanted: impl FnMut(usize, u8) -> bool) -> Option<usize> {
    let mut quote = None;
    let mut escaped = false;
    for (at, byte) in bytes.iter().copied().enumerate() {
        match quote {
            _ if escaped => escaped = false,
            Some(open) if byte == open => quote = None,
            Some(open) => escaped = byte == b'\\' && open != b'`',
            None if matches!(byte, b'"' | b'\'' | b'`') => quote = Some(byte),
            None if wanted(at, byte) => return Some(at),
            None => {}
        }
    }
    None
}

/// Replaces every expression in a text by its value; text without expressions is borrowed.
pub fn resolve_string<'a>(
    text: &'a str,
    env: &Env,
    cache: &Cache,
) -> Result<Cow<'a, str>, ExprError> {
    resolve_match(text, env, cache).map(|found| found.text)
}

/// Replaces every expression in a text, and returns whether the result counts as a match.
pub fn resolve_match<'a>(text: &'a str, env: &Env, cache: &Cache) -> Result<Match<'a>, ExprError> {
    let spans = if may_have_expressions(text) {
        scan(text)?
    } else {
        Vec::new()
    };
    if spans.is_empty() {
        return Ok(Match {
            text: Cow::Borrowed(text),
            matched: !text.is_empty(),
        });
    }
    let mut out = String::with_capacity(text.len());
    let mut matched = false;
    let mut at = 0;
    for span in spans {
        let value = evaluate(text, &span, env, cache)?;
        matched |= !value.is_null() && value.as_str() != Some("");
        out.push_str(text.get(at..span.outer.start).unwrap_or_default());
        // Writing to a string cannot fail.
        let _ = write!(out, "{value}");
        at = span.outer.end;
    }
    out.push_str(text.get(at..).unwrap_or_default());
    Ok(Match {
        text: Cow::Owned(out),
        matched,
    })
}

/// Returns the typed value of a text that consists of one expression; any other text resolves to
/// text.
pub fn resolve_typed(text: &str, env: &Env, cache: &Cache) -> Result<Value, ExprError> {
    if !may_have_expressions(text) {
        return Ok(text.into());
    }
    if let [only] = scan(text)?.as_slice()
        && text.trim() == text.get(only.outer.clone()).unwrap_or_default()
    {
        return evaluate(text, only, env, cache);
    }
    resolve_string(text, env, cache).map(|text| text.as_ref().into())
}

fn evaluate(text: &str, span: &Span, env: &Env, cache: &Cache) -> Result<Value, ExprError> {
    let code = text.get(span.inner.clone()).unwrap_or_default();
    let program = cache.program(code, Expect::Any, env.restricted)?;
    program.run_with(env, None, cache)
}

/// Resolves every text in a value and keeps result types; map keys are not expanded. Parts without
/// expressions are shared, not copied.
pub fn expand_value(
    value: &Value,
    nulls: Nulls,
    env: &Env,
    cache: &Cache,
) -> Result<Value, ExprError> {
    match value {
        Value::Str(text) if may_have_expressions(text) => resolve_typed(text, env, cache),
        Value::List(list) if may_change(value) => {
            let items = list
                .iter()
                .map(|item| expand_value(item, nulls, env, cache));
            items.collect::<Result<Vec<_>, _>>().map(Value::from)
        }
        Value::Map(map) if may_change(value) => {
            let mut expanded = Map::new();
            for (key, old) in map.iter() {
                let new = expand_value(old, nulls, env, cache)?;
                if nulls == Nulls::Drop && new.is_null() && !old.is_null() {
                    continue;
                }
                expanded.insert(key.clone(), new);
            }
            Ok(expanded.into())
        }
        _ => Ok(value.clone()),
    }
}

fn may_change(value: &Value) -> bool {
    match value {
        Value::Str(text) => may_have_expressions(text),
        Value::List(list) => list.iter().any(may_change),
        Value::Map(map) => map.values().any(may_change),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn env() -> Env {
        Env {
            data: serde_json::from_str(r#"{"app": "shop", "port": 80, "n": null, "s": "{{ x }}"}"#)
                .unwrap(),
            ..Env::default()
        }
    }

    fn inner(text: &str) -> Vec<&str> {
        let spans = scan(text).unwrap();
        spans.into_iter().map(|span| &text[span.inner]).collect()
    }

    fn string(text: &str) -> String {
        resolve_string(text, &env(), &Cache::default())
            .unwrap()
            .into_owned()
    }

    fn typed(text: &str) -> Value {
        resolve_typed(text, &env(), &Cache::default()).unwrap()
    }

    #[test]
    fn braces_close_outside_quotes() {
        for (text, expected) in [
            ("{{ a }} ${ b }", vec!["a", "b"]),
            (r#"{{ f("}}") }}"#, vec![r#"f("}}")"#]),
            (r#"{{ f("\"}}") }}"#, vec![r#"f("\"}}")"#]),
            ("{{ f(`a\\`) }}", vec!["f(`a\\`)"]),
            ("${ map(l, { # + 1 }) }", vec!["map(l, { # + 1 })"]),
            ("${{ a }}", vec!["a"]),
            ("$${ a }", vec!["a"]),
            ("{{ {'a': {'b': 1}} }}", vec!["{'a': {'b': 1"]),
            ("{{  }}", vec![""]),
            ("{{ don't }}", vec![]),
            ("{{ bad ${ a }", vec!["a"]),
            ("costs $5 {x} {", vec![]),
        ] {
            assert_eq!(inner(text), expected, "{text}");
        }
    }

    #[test]
    fn text_without_expressions_is_borrowed() {
        for text in ["", "plain", "{ a }", "$5", "{", "100% {x}"] {
            assert!(!has_expressions(text), "{text}");
            let found = resolve_string(text, &env(), &Cache::default()).unwrap();
            assert!(
                matches!(found, Cow::Borrowed(same) if same == text),
                "{text}"
            );
        }
    }

    #[test]
    fn every_expression_is_replaced_and_no_result_is_expanded_again() {
        assert_eq!(string("{{ Data.app }}:${ Data.port }!"), "shop:80!");
        assert_eq!(string("{{ Data.s }}"), "{{ x }}");
        assert_eq!(string("x={{ Data.nope }}"), "x=<nil>");
    }

    #[test]
    fn literal_text_resolves_to_itself() {
        for (text, expected) in [
            ("plain $HOME {x}", "plain $HOME {x}"),
            ("{{ unclosed", "{{ unclosed"),
            ("echo ${HOME}", "echo {{\"${\"}}HOME}"),
            ("'{{.Names}}'", "'{{\"{{\"}}.Names}}'"),
            ("{${ a }", "{{\"{${\"}} a }"),
        ] {
            assert_eq!(literal(text), expected);
            assert_eq!(string(expected), text);
        }
    }

    #[test]
    fn a_lone_expression_keeps_its_type() {
        assert_eq!(typed(" {{ Data.port }}\n"), Value::Int(80));
        assert_eq!(typed("{{ Data.n }}"), Value::Null);
        assert_eq!(typed("{{ Data.port }}!"), "80!".into());
        assert_eq!(typed(""), "".into());
    }

    #[test]
    fn only_empty_results_are_no_match() {
        for (text, matched) in [
            ("plain", true),
            ("", false),
            ("role:{{ Data.app }}", true),
            ("n:{{ Data.n }}", false),
            ("{{ '' }}:{{ 'x' }}", true),
            ("{{ 0 }}", true),
        ] {
            let found = resolve_match(text, &env(), &Cache::default()).unwrap();
            assert_eq!(found.matched, matched, "{text}");
        }
    }

    #[test]
    fn data_is_expanded_and_nulls_are_kept_or_dropped() {
        let data: Value = serde_json::from_str(
            r#"{"a": "{{ Data.port }}", "b": ["{{ Data.n }}", 1], "c": "{{ Data.n }}", "d": null, "{{ k }}": 1}"#,
        )
        .unwrap();
        let expand = |nulls| {
            expand_value(&data, nulls, &env(), &Cache::default())
                .unwrap()
                .to_string()
        };
        assert_eq!(
            expand(Nulls::Keep),
            "map[a:80 b:[<nil> 1] c:<nil> d:<nil> {{ k }}:1]"
        );
        assert_eq!(
            expand(Nulls::Drop),
            "map[a:80 b:[<nil> 1] d:<nil> {{ k }}:1]"
        );
    }

    #[test]
    fn an_expression_that_fails_is_an_error() {
        let err = resolve_string("a {{ nosuch }}", &env(), &Cache::default()).unwrap_err();
        assert!(
            err.to_string()
                .starts_with("expr compile error for 'nosuch': unknown name")
        );
    }

    #[test]
    fn text_with_too_many_unclosed_delimiters_is_refused() {
        assert_eq!(scan(&"{{".repeat(100_000)), Err(ExprError::Unclosed));
        assert_eq!(scan(&"${ ".repeat(100)), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a{}$'\"`\\\\ é]{0,40}") {
            let _ = resolve_string(&text, &env(), &Cache::default());
            let _ = resolve_typed(&text, &env(), &Cache::default());
        }

        #[test]
        fn any_text_can_be_literal(text in "[a{}$'\"`\\\\ \\né]{0,40}") {
            prop_assert_eq!(string(&literal(&text)), text);
        }

        #[test]
        fn the_fast_check_agrees_with_the_scan(text in "[a{}$ ]{0,20}") {
            prop_assert_eq!(has_expressions(&text), !scan(&text).unwrap().is_empty());
        }
    }
}
