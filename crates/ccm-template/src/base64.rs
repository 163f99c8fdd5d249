//! Base64 decoder with the behaviour of Go's: line breaks are skipped, unused trailing bits are
//! ignored, and an error names the byte offset where Go's decoder stops. Encoding is done by
//! `data-encoding` directly.

use data_encoding::{BASE64_NOPAD, Encoding};

/// Invalid base64, with the byte offset of the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("illegal base64 data at input byte {0}")]
pub(crate) struct Base64Error(usize);

/// Decodes base64 text; an error holds the offset of the first invalid byte.
pub(crate) fn decode(text: &str) -> Result<Vec<u8>, Base64Error> {
    let plain = text.replace(['\r', '\n'], "");
    let body = plain.trim_end_matches('=');
    let decoded = match error_offset(&plain) {
        None => lenient()
            .decode(body.as_bytes())
            .map_err(|err| err.position),
        Some(at) => Err(at),
    };
    decoded.map_err(|at| {
        let is_kept = |(_, byte): &(usize, u8)| !matches!(byte, b'\r' | b'\n');
        let byte = text.bytes().enumerate().filter(is_kept).nth(at);
        Base64Error(byte.map_or(text.len(), |(at, _)| at))
    })
}

/// Returns the encoding without padding that accepts any trailing bits.
fn lenient() -> Encoding {
    let mut specification = BASE64_NOPAD.specification();
    specification.check_trailing_bits = false;
    specification.encoding().unwrap_or(BASE64_NOPAD)
}

/// Returns the offset of the first invalid byte in text without line breaks.
fn error_offset(text: &str) -> Option<usize> {
    let len = text
        .bytes()
        .take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'))
        .count();
    let rest = text.get(len..).unwrap_or_default();
    match (len % 4, rest) {
        (0, "") | (2, "==") | (3, "=") => None,
        // An incomplete group of four; Go reports its start.
        (over, "") => Some(len - over),
        (2, "=") => Some(len + 1),
        (2, rest) if rest.starts_with("==") => Some(len + 2),
        (3, rest) if rest.starts_with('=') => Some(len + 1),
        _ => Some(len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_breaks_and_trailing_bits_are_ignored() {
        assert_eq!(decode("aGVs\r\nbG8=\n"), Ok(b"hello".to_vec()));
        assert_eq!(decode("YR=="), Ok(b"a".to_vec()));
        assert_eq!(decode(""), Ok(Vec::new()));
    }

    #[test]
    fn errors_name_the_byte_where_go_stops() {
        for (text, at) in [
            ("!", 0),
            ("YWJj%", 4),
            ("YWJj\n%", 5),
            ("YQ", 0),
            ("YWJjYQ", 4),
            ("YQ=", 3),
            ("Y===", 1),
            ("YQ==YQ==", 4),
            ("YQ=a", 2),
            ("é", 0),
        ] {
            assert_eq!(decode(text), Err(Base64Error(at)), "{text}");
        }
    }
}
