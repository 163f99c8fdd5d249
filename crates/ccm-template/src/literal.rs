//! Parser for Go literals: numbers, characters, quoted and raw text.
//!
//! Text is bytes, because escapes can produce any byte. Finding the end of a literal is left to the
//! lexers, and the type of a number to the engines. Expressions have their own literals, see
//! `expr::lexer`.

use ccm_value::quote::quote;

/// Error of an invalid literal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LiteralError {
    #[error("illegal number syntax: {}", quote(.0))]
    Number(String),
    #[error("integer overflow: {}", quote(.0))]
    Overflow(String),
    #[error("malformed character constant: {0}")]
    Character(String),
    #[error("invalid syntax")]
    Syntax,
}

/// A Go untyped numeric constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Int(i64),
    /// Larger than `i64::MAX`.
    Uint(u64),
    Float(f64),
}

/// Parses a numeric literal; a leading `0` means octal.
pub(crate) fn number(text: &str) -> Result<Number, LiteralError> {
    let illegal = || LiteralError::Number(text.into());
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') || !is_separated(digits) {
        return Err(illegal());
    }
    let plain = digits.replace('_', "").to_ascii_lowercase();
    let (body, radix) = match plain.as_bytes() {
        [b'0', b'x', ..] => (plain.get(2..), 16),
        [b'0', b'o', ..] => (plain.get(2..), 8),
        [b'0', b'b', ..] => (plain.get(2..), 2),
        [b'0', _, ..] => (plain.get(1..), 8),
        _ => (Some(plain.as_str()), 10),
    };
    let body = body.unwrap_or_default();
    if let Some(whole) = integer(body, radix, is_negative) {
        return Ok(whole);
    }
    let size = match radix {
        16 => hex_float(body),
        _ => plain.parse().ok(),
    };
    let size: f64 = size
        .filter(|size: &f64| size.is_finite())
        .ok_or_else(illegal)?;
    // An integer that did not parse as one is too large.
    if radix != 16 && !plain.contains(['.', 'e']) {
        return Err(LiteralError::Overflow(text.into()));
    }
    Ok(Number::Float(if is_negative { -size } else { size }))
}

/// Returns whether every underscore is between digits, or between a prefix and a digit.
fn is_separated(digits: &str) -> bool {
    let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = digits.as_bytes();
    bytes.iter().enumerate().all(|(at, byte)| {
        let before = at.checked_sub(1).and_then(|at| bytes.get(at));
        *byte != b'_' || is_digit(before) && is_digit(bytes.get(at + 1))
    })
}

fn integer(digits: &str, radix: u32, is_negative: bool) -> Option<Number> {
    if !digits.starts_with(|c: char| c.is_digit(radix)) {
        return None;
    }
    let size = u64::from_str_radix(digits, radix).ok()?;
    if is_negative {
        return 0_i64.checked_sub_unsigned(size).map(Number::Int);
    }
    Some(i64::try_from(size).map_or(Number::Uint(size), Number::Int))
}

/// Parses `1.8p3`, the part of a hexadecimal float after its `0x`.
fn hex_float(body: &str) -> Option<f64> {
    let (digits, exponent) = body.split_once('p')?;
    let exponent: i32 = exponent.parse().ok()?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut size = 0.0;
    for c in whole.chars() {
        size = size * 16.0 + f64::from(c.to_digit(16)?);
    }
    let mut weight = 1.0 / 16.0;
    for c in fraction.chars() {
        size += f64::from(c.to_digit(16)?) * weight;
        weight /= 16.0;
    }
    Some(size * 2_f64.powi(exponent))
}

/// Returns the code point of a character literal, given with its quotes.
pub(crate) fn character(text: &[u8]) -> Result<u32, LiteralError> {
    let mut rest = strip(text, b'\'').ok_or(LiteralError::Syntax)?;
    let found = unescape(&mut rest, b'\'').ok_or(LiteralError::Syntax)?;
    if !rest.is_empty() {
        let text = String::from_utf8_lossy(text);
        return Err(LiteralError::Character(text.into_owned()));
    }
    Ok(match found {
        Piece::Byte(byte) => byte.into(),
        Piece::Char(char) => char.into(),
    })
}

/// Returns the text of a `"…"` literal, given with its quotes.
pub(crate) fn quoted(text: &[u8]) -> Result<Vec<u8>, LiteralError> {
    let mut rest = strip(text, b'"').ok_or(LiteralError::Syntax)?;
    let mut out = Vec::with_capacity(rest.len());
    while !rest.is_empty() {
        match unescape(&mut rest, b'"').ok_or(LiteralError::Syntax)? {
            Piece::Byte(byte) => out.push(byte),
            Piece::Char(char) => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Ok(out)
}

/// Returns the text of a back-quoted literal, given with its quotes; carriage returns are dropped.
pub(crate) fn raw(text: &[u8]) -> Result<Vec<u8>, LiteralError> {
    let body = strip(text, b'`').ok_or(LiteralError::Syntax)?;
    Ok(body.iter().copied().filter(|&byte| byte != b'\r').collect())
}

fn strip(text: &[u8], quote: u8) -> Option<&[u8]> {
    match text {
        [first, body @ .., last] if *first == quote && *last == quote => Some(body),
        _ => None,
    }
}

enum Piece {
    Byte(u8),
    Char(char),
}

/// Removes one character or escape from the front of `rest`; `None` if it is invalid.
fn unescape(rest: &mut &[u8], quote: u8) -> Option<Piece> {
    let (&first, tail) = rest.split_first()?;
    if first != b'\\' {
        if first == quote {
            return None;
        }
        if first.is_ascii() {
            *rest = tail;
            return Some(Piece::Byte(first));
        }
        let window = rest.get(..rest.len().min(4))?;
        let found = window.utf8_chunks().next()?.valid().chars().next();
        let Some(found) = found else {
            *rest = tail;
            return Some(Piece::Byte(first));
        };
        *rest = rest.get(found.len_utf8()..)?;
        return Some(Piece::Char(found));
    }
    let (&escape, tail) = tail.split_first()?;
    *rest = tail;
    Some(match escape {
        b'a' => Piece::Byte(0x07),
        b'b' => Piece::Byte(0x08),
        b'f' => Piece::Byte(0x0c),
        b'n' => Piece::Byte(b'\n'),
        b'r' => Piece::Byte(b'\r'),
        b't' => Piece::Byte(b'\t'),
        b'v' => Piece::Byte(0x0b),
        b'\\' => Piece::Byte(b'\\'),
        _ if escape == quote => Piece::Byte(quote),
        b'x' => Piece::Byte(u8::try_from(digits(rest, 2, 16)?).ok()?),
        b'u' => Piece::Char(char::from_u32(digits(rest, 4, 16)?)?),
        b'U' => Piece::Char(char::from_u32(digits(rest, 8, 16)?)?),
        b'0'..=b'7' => {
            let high = u32::from(escape - b'0') * 64;
            Piece::Byte(u8::try_from(high + digits(rest, 2, 8)?).ok()?)
        }
        _ => return None,
    })
}

fn digits(rest: &mut &[u8], count: usize, radix: u32) -> Option<u32> {
    let (digits, tail) = rest.split_at_checked(count)?;
    let mut value = 0_u32;
    for &digit in digits {
        let digit = char::from(digit).to_digit(radix)?;
        value = value.checked_mul(radix)?.checked_add(digit)?;
    }
    *rest = tail;
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_go_reads_them() {
        for (text, value) in [
            ("0", Number::Int(0)),
            ("-7", Number::Int(-7)),
            ("+7", Number::Int(7)),
            ("0x1F", Number::Int(31)),
            ("-0x10", Number::Int(-16)),
            ("0644", Number::Int(420)),
            ("0o17", Number::Int(15)),
            ("0b101", Number::Int(5)),
            ("1_000", Number::Int(1000)),
            ("0x_ff", Number::Int(255)),
            ("-9223372036854775808", Number::Int(i64::MIN)),
            ("18446744073709551615", Number::Uint(u64::MAX)),
            ("1.5", Number::Float(1.5)),
            (".5", Number::Float(0.5)),
            ("5.", Number::Float(5.0)),
            ("00.5", Number::Float(0.5)),
            ("1e3", Number::Float(1000.0)),
            ("-1_0e1_0", Number::Float(-1e11)),
            ("0x1p-2", Number::Float(0.25)),
            ("0x1.8p1", Number::Float(3.0)),
        ] {
            assert_eq!(number(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn invalid_numbers_are_refused_with_their_reason() {
        for (text, reason) in [
            ("089", "integer overflow"),
            ("99999999999999999999", "integer overflow"),
            ("-9223372036854775809", "integer overflow"),
            ("1e999", "illegal number syntax"),
            ("0x1p9999", "illegal number syntax"),
            ("2i", "illegal number syntax"),
            ("0x", "illegal number syntax"),
            ("0b12", "illegal number syntax"),
            ("0x1.8", "illegal number syntax"),
            (".", "illegal number syntax"),
            ("-inf", "illegal number syntax"),
            ("1__0", "illegal number syntax"),
            ("1_", "illegal number syntax"),
            ("_1", "illegal number syntax"),
            ("1_.5", "illegal number syntax"),
            ("--1", "illegal number syntax"),
        ] {
            let error = number(text).unwrap_err();
            assert_eq!(error.to_string(), format!("{reason}: {text:?}"));
        }
    }

    #[test]
    fn a_character_is_its_code_point() {
        assert_eq!(character(b"'a'"), Ok(97));
        assert_eq!(character(br"'\n'"), Ok(10));
        assert_eq!(character("'€'".as_bytes()), Ok(8364));
        assert_eq!(
            character(b"'ab'"),
            Err(LiteralError::Character("'ab'".into()))
        );
        assert_eq!(character(b"''"), Err(LiteralError::Syntax));
    }

    #[test]
    fn escapes_of_quoted_text_make_bytes_and_characters() {
        let text = quoted(br#""a\t\"\x41\101\u00e9\U0001F600\xff""#).unwrap();
        assert_eq!(
            text,
            [b"a\t\"AA".as_slice(), "é😀".as_bytes(), b"\xff"].concat()
        );
    }

    #[test]
    fn unknown_and_broken_escapes_are_refused() {
        for text in [r#""\q""#, r#""\'""#, r#""\x4""#, r#""\ud800""#, r#""\400""#] {
            assert_eq!(quoted(text.as_bytes()), Err(LiteralError::Syntax), "{text}");
        }
    }

    #[test]
    fn raw_text_keeps_everything_but_carriage_returns() {
        assert_eq!(raw(b"`a\\n\r\n\"`").unwrap(), b"a\\n\n\"");
    }
}
