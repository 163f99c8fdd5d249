//! Constants as a template writes them: numbers, characters and quoted text.
//!
//! The syntax is Go's. Complex numbers are refused, since no data and no function has them.

use super::datum::Datum;

/// Returns the number a token spells.
pub fn number(text: &str) -> Result<Datum, String> {
    let bad = || format!("bad number syntax: {text:?}");
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.ends_with('_') || digits.starts_with('_') || digits.contains("__") {
        return Err(bad());
    }
    let plain = digits.replace('_', "").to_ascii_lowercase();
    let (radix, body) = match plain.get(..2) {
        Some("0x") => (16, plain.get(2..).unwrap_or("")),
        Some("0b") => (2, plain.get(2..).unwrap_or("")),
        Some("0o") => (8, plain.get(2..).unwrap_or("")),
        Some(_) if plain.starts_with('0') && plain.bytes().all(|b| b.is_ascii_digit()) => {
            (8, plain.as_str())
        }
        _ => (10, plain.as_str()),
    };
    if radix == 16 && body.contains(['.', 'p']) {
        return hex_float(body)
            .map(|size| Datum::Float(if negative { -size } else { size }))
            .ok_or_else(bad);
    }
    if radix == 10 && body.contains(['.', 'e']) {
        let size: f64 = body.parse().map_err(|_| bad())?;
        if !size.is_finite() {
            return Err(bad());
        }
        return Ok(Datum::Float(if negative { -size } else { size }));
    }
    if body.is_empty() || !body.chars().all(|c| c.is_digit(radix)) {
        return Err(bad());
    }
    let size = i128::from_str_radix(body, radix).unwrap_or(i128::MAX);
    let value = if negative { -size } else { size };
    i64::try_from(value)
        .map(Datum::Int)
        .map_err(|_| format!("{text} overflows int"))
}

/// Reads `1.8p3` after its `0x`.
fn hex_float(body: &str) -> Option<f64> {
    let (digits, exponent) = body.split_once('p')?;
    let exponent: i32 = exponent.parse().ok()?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut size = 0.0f64;
    for c in whole.chars() {
        size = size * 16.0 + f64::from(c.to_digit(16)?);
    }
    let mut weight = 1.0 / 16.0;
    for c in fraction.chars() {
        size += f64::from(c.to_digit(16)?) * weight;
        weight /= 16.0;
    }
    let value = size * 2f64.powi(exponent);
    value.is_finite().then_some(value)
}

/// Returns the code point of a character constant, as Go's `int`.
pub fn character(text: &str) -> Result<Datum, String> {
    let malformed = || format!("malformed character constant: {text}");
    let inner = text
        .strip_prefix('\'')
        .and_then(|rest| rest.strip_suffix('\''))
        .ok_or_else(malformed)?;
    let mut chars = inner.chars();
    let code = match chars.next() {
        Some('\\') => match escape(&mut chars, '\'').ok_or_else(malformed)? {
            Escaped::Char(c) => u32::from(c),
            Escaped::Byte(byte) => byte.into(),
        },
        Some('\'') | None => return Err(malformed()),
        Some(c) => c.into(),
    };
    if chars.next().is_some() {
        return Err(malformed());
    }
    Ok(Datum::Int(code.into()))
}

/// Returns the text inside a quoted or raw token.
pub fn unquote(token: &str) -> Result<String, String> {
    if let Some(raw) = token.strip_prefix('`') {
        // Go drops carriage returns from raw text.
        return Ok(raw.strip_suffix('`').unwrap_or(raw).replace('\r', ""));
    }
    let invalid = || format!("invalid syntax in {token}");
    let inner = token
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .ok_or_else(invalid)?;
    let mut out = Vec::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        let mut buffer = [0; 4];
        match c {
            '\\' => match escape(&mut chars, '"').ok_or_else(invalid)? {
                Escaped::Char(c) => out.extend(c.encode_utf8(&mut buffer).bytes()),
                Escaped::Byte(byte) => out.push(byte),
            },
            c => out.extend(c.encode_utf8(&mut buffer).bytes()),
        }
    }
    String::from_utf8(out).map_err(|_| format!("{token} is not valid UTF-8"))
}

enum Escaped {
    Char(char),
    Byte(u8),
}

/// Reads what follows a backslash.
fn escape(chars: &mut std::str::Chars<'_>, quote: char) -> Option<Escaped> {
    let first = chars.next()?;
    let mut code = |count: usize, radix: u32, start: u32| {
        (0..count).try_fold(start, |code, _| {
            Some(code * radix + chars.next()?.to_digit(radix)?)
        })
    };
    Some(match first {
        'a' => Escaped::Byte(7),
        'b' => Escaped::Byte(8),
        't' => Escaped::Byte(9),
        'n' => Escaped::Byte(10),
        'v' => Escaped::Byte(11),
        'f' => Escaped::Byte(12),
        'r' => Escaped::Byte(13),
        '\\' => Escaped::Char('\\'),
        c if c == quote => Escaped::Char(c),
        'x' => Escaped::Byte(u8::try_from(code(2, 16, 0)?).ok()?),
        'u' => Escaped::Char(char::from_u32(code(4, 16, 0)?)?),
        'U' => Escaped::Char(char::from_u32(code(8, 16, 0)?)?),
        '0'..='7' => Escaped::Byte(u8::try_from(code(2, 8, first.to_digit(8)?)?).ok()?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(text: &str) -> Result<String, String> {
        number(text)?.printed(&super::super::meter::Meter::default())
    }

    #[test]
    fn numbers_are_read_as_go_reads_them() {
        let cases = [
            ("12", "12"),
            ("-0x10", "-16"),
            ("0b101", "5"),
            ("017", "15"),
            ("1_000", "1000"),
            ("1e3", "1000"),
            (".5", "0.5"),
            ("0x1p-2", "0.25"),
        ];
        for (text, expected) in cases {
            assert_eq!(printed(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn numbers_that_no_int_holds_are_refused() {
        assert!(number("9223372036854775808").is_err());
        assert!(number("1e999").is_err());
        assert!(number("089").is_err());
    }

    #[test]
    fn escapes_in_quoted_text_follow_go() {
        assert_eq!(
            unquote(r#""a\t\x41\u00e9\101\"""#).as_deref(),
            Ok("a\tAéA\"")
        );
        assert!(unquote(r#""\'""#).is_err());
        assert!(unquote(r#""\xff""#).is_err());
    }

    #[test]
    fn a_character_is_its_code_point() {
        assert_eq!(
            character("'a'")
                .unwrap()
                .printed(&Default::default())
                .unwrap(),
            "97"
        );
        assert!(character("'ab'").is_err());
        assert!(character("''").is_err());
    }
}
