//! The meaning of literals: numbers, characters and quoted text, all by Go's rules.
//!
//! Every number of a template is a float. Knows nothing of tokens or errors' places.

/// Returns the number that a literal means.
pub(super) fn number(text: &str) -> Result<f64, String> {
    if let Some(whole) = integer(text) {
        return Ok(whole);
    }
    let real = text.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E'));
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && real => Ok(value),
        Ok(_) if !real => Err(format!("integer overflow: {text:?}")),
        _ => Err(format!("illegal number syntax: {text:?}")),
    }
}

/// Reads a whole number of 64 bits; a leading `0` means octal, `0x` means hexadecimal. Large
/// ones lose digits, as floats do.
fn integer(text: &str) -> Option<f64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let hex = digits
        .strip_prefix("0x")
        .or_else(|| digits.strip_prefix("0X"));
    let (digits, radix) = match (hex, digits.strip_prefix('0')) {
        (Some(hex), _) => (hex, 16),
        (None, Some(octal)) if !octal.is_empty() => (octal, 8),
        _ => (digits, 10),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let size = u64::from_str_radix(digits, radix).ok()?;
    if negative {
        (size <= i64::MIN.unsigned_abs()).then_some(-(size as f64))
    } else {
        Some(size as f64)
    }
}

/// Returns the number of a character literal, given with its quotes.
pub(super) fn character(text: &[u8]) -> Result<f64, String> {
    let body = strip(text, b'\'').ok_or("invalid syntax")?;
    let mut rest = body;
    let found = unescape(&mut rest, b'\'').ok_or("invalid syntax")?;
    if !rest.is_empty() {
        let text = String::from_utf8_lossy(text);
        return Err(format!("malformed character constant: {text}"));
    }
    Ok(match found {
        Piece::Byte(byte) => f64::from(byte),
        Piece::Char(char) => f64::from(u32::from(char)),
    })
}

/// Returns the text of a `"…"` literal, given with its quotes. Escapes can make any byte.
pub(super) fn quoted(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut rest = strip(text, b'"').ok_or("invalid syntax")?;
    let mut out = Vec::with_capacity(rest.len());
    while !rest.is_empty() {
        match unescape(&mut rest, b'"').ok_or("invalid syntax")? {
            Piece::Byte(byte) => out.push(byte),
            Piece::Char(char) => {
                out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
    }
    Ok(out)
}

/// Returns the text of a back-quoted literal, given with its quotes; carriage returns vanish.
pub(super) fn raw(text: &[u8]) -> Result<Vec<u8>, String> {
    let body = strip(text, b'`').ok_or("invalid syntax")?;
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

/// Takes one character or escape from the front of `rest`, or returns nothing when it is none.
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
    fn numbers_follow_go() {
        for (text, value) in [
            ("0", 0.0),
            ("-7", -7.0),
            ("+7", 7.0),
            ("0x1F", 31.0),
            ("0644", 420.0),
            ("1.5", 1.5),
            (".5", 0.5),
            ("5.", 5.0),
            ("1e3", 1000.0),
            ("18446744073709551615", 18_446_744_073_709_551_615.0),
        ] {
            assert_eq!(number(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn numbers_that_are_none_say_why() {
        for (text, reason) in [
            ("089", "integer overflow"),
            ("99999999999999999999", "integer overflow"),
            ("1e999", "illegal number syntax"),
            ("2i", "illegal number syntax"),
            ("0x", "illegal number syntax"),
            (".", "illegal number syntax"),
        ] {
            let error = number(text).unwrap_err();
            assert!(error.starts_with(reason), "{text}: {error}");
        }
    }

    #[test]
    fn a_character_is_its_number() {
        assert_eq!(character(b"'a'"), Ok(97.0));
        assert_eq!(character(br"'\n'"), Ok(10.0));
        assert_eq!(character("'€'".as_bytes()), Ok(8364.0));
        assert_eq!(
            character(b"'ab'"),
            Err("malformed character constant: 'ab'".into())
        );
        assert!(character(b"''").is_err());
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
            assert_eq!(
                quoted(text.as_bytes()),
                Err("invalid syntax".into()),
                "{text}"
            );
        }
    }

    #[test]
    fn raw_text_keeps_everything_but_carriage_returns() {
        assert_eq!(raw(b"`a\\n\r\n\"`").unwrap(), b"a\\n\n\"");
    }
}
