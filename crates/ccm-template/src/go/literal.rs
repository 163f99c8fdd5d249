//! Literals of Go templates, converted to values. The syntax is in `crate::literal`; complex
//! numbers are refused.

use super::datum::Datum;
use crate::CallError;
use crate::literal::{self, Number};

/// Parses a number.
pub(super) fn number(text: &str) -> Result<Datum, CallError> {
    match literal::number(text)? {
        Number::Int(value) => Ok(Datum::Int(value)),
        Number::Float(value) => Ok(Datum::Float(value)),
        Number::Uint(_) => Err(format!("{text} overflows int").into()),
    }
}

/// Parses a character constant to its code point, as Go's `int`.
pub(super) fn character(text: &str) -> Result<Datum, CallError> {
    let code = literal::character(text.as_bytes())?;
    Ok(Datum::Int(code.into()))
}

/// Parses a quoted or raw string.
pub(super) fn unquote(token: &str) -> Result<String, CallError> {
    let text = if token.starts_with('`') {
        literal::raw(token.as_bytes())
    } else {
        literal::quoted(token.as_bytes())
    };
    let text = text.map_err(|err| CallError::new(err).reword(|why| format!("{why} in {token}")))?;
    String::from_utf8(text).map_err(|_| format!("{token} is not valid UTF-8").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_the_range_of_int_are_refused() {
        assert_eq!(
            number("9223372036854775808").unwrap_err(),
            "9223372036854775808 overflows int".into()
        );
    }

    #[test]
    fn text_that_is_not_utf8_is_refused() {
        assert_eq!(unquote(r#""\x41""#).as_deref(), Ok("A"));
        assert!(unquote(r#""\xff""#).is_err());
    }
}
