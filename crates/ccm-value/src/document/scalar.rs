//! Types of plain scalars: YAML's core types and the additional ones of upstream's parser.

use crate::value::Value;

pub(super) fn is_null_text(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// Returns whether a plain scalar with this text is text.
pub(crate) fn reads_as_text(text: &str) -> bool {
    matches!(plain_value(text), Value::Str(_))
}

/// Returns the typed value of a plain scalar; for text it is empty, because the caller has the
/// text.
pub(super) fn plain_value(text: &str) -> Value {
    match text {
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Value::Float(f64::INFINITY);
        }
        "-.inf" | "-.Inf" | "-.INF" => return Value::Float(f64::NEG_INFINITY),
        ".nan" | ".NaN" | ".NAN" => return Value::Float(f64::NAN),
        _ if is_null_text(text) => return Value::Null,
        _ => {}
    }
    // Most scalars are words; only those that start like a number are parsed.
    if text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.'))
        && let Some(value) = whole_number(text).or_else(|| fraction(text))
    {
        return value;
    }
    Value::Str("".into())
}

fn whole_number(text: &str) -> Option<Value> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let clean: String = digits.chars().filter(|c| *c != '_').collect();
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (radix, number) = match clean.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, clean.get(2..)?),
        [b'0', b'o' | b'O', ..] => (8, clean.get(2..)?),
        [b'0', b'b' | b'B', ..] => (2, clean.get(2..)?),
        [b'0', _, ..] => (8, clean.get(1..)?),
        _ => (10, clean.as_str()),
    };
    if number.starts_with(['+', '-']) {
        return None;
    }
    let size = u64::from_str_radix(number, radix).ok()?;
    if !negative {
        return Some(size.into());
    }
    0_i64.checked_sub_unsigned(size).map(Value::Int)
}

fn fraction(text: &str) -> Option<Value> {
    if text.bytes().filter(|b| *b == b'.').count() != 1
        || !text
            .bytes()
            .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'+' | b'e' | b'E' | b'_'))
        || !text.bytes().any(|b| b.is_ascii_digit())
    {
        return None;
    }
    let clean: String = text.chars().filter(|c| *c != '_').collect();
    clean.parse().ok().map(Value::Float)
}

/// Formats a float as a plain scalar, with a dot so that it is not read as text or as an integer.
pub(crate) fn float_text(value: f64) -> String {
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_are_typed_as_upstream_types_them() {
        for (text, value) in [
            ("true", Value::Bool(true)),
            ("False", Value::Bool(false)),
            ("~", Value::Null),
            ("0644", Value::Int(420)),
            ("0o17", Value::Int(15)),
            ("0x1F", Value::Int(31)),
            ("0b11", Value::Int(3)),
            ("1_000", Value::Int(1000)),
            ("-7", Value::Int(-7)),
            ("18446744073709551615", Value::Uint(u64::MAX)),
            ("1.5", Value::Float(1.5)),
            (".5", Value::Float(0.5)),
            ("1.5e3", Value::Float(1500.0)),
            (".inf", Value::Float(f64::INFINITY)),
        ] {
            assert_eq!(plain_value(text), value, "{text}");
        }
        for text in [
            "yes",
            "on",
            "y",
            "1e3",
            "1.2.3",
            "2026-05-01",
            "0x",
            "-",
            "+",
            ".",
            "089",
        ] {
            assert!(reads_as_text(text), "{text}");
        }
    }
    #[test]
    fn a_float_is_a_float_after_formatting_as_a_plain_scalar() {
        for (value, text) in [
            (5.0, "5.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e21, "1.0e21"),
            (1.5e-9, "1.5e-9"),
            (f64::MAX, "1.7976931348623157e308"),
        ] {
            assert_eq!(float_text(value), text);
            assert_eq!(plain_value(text), Value::Float(value));
        }
    }
}
