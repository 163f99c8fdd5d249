//! Quoting in the format of Go's `%q`, for errors, events and the template engines.

use std::fmt::Write as _;

/// Quotes a text like Go's `%q`.
pub fn quote(text: &str) -> String {
    enclosed(text.chars().map(Piece::Char), '"', false)
}

/// Quotes bytes like Go's `%q`: invalid UTF-8 becomes `\xff`.
pub fn quote_bytes(text: &[u8]) -> String {
    let pieces = text.utf8_chunks().flat_map(|chunk| {
        let valid = chunk.valid().chars().map(Piece::Char);
        valid.chain(chunk.invalid().iter().copied().map(Piece::Byte))
    });
    enclosed(pieces, '"', false)
}

/// Quotes a text like Go's `%+q`: everything beyond ASCII is escaped.
pub fn quote_ascii(text: &str) -> String {
    enclosed(text.chars().map(Piece::Char), '"', true)
}

/// Quotes one character like Go's `%q`, or with `ascii` like `%+q`.
pub fn quote_char(c: char, ascii: bool) -> String {
    enclosed([Piece::Char(c)], '\'', ascii)
}

#[derive(Clone, Copy)]
enum Piece {
    Char(char),
    /// A byte of invalid UTF-8.
    Byte(u8),
}

fn enclosed(pieces: impl IntoIterator<Item = Piece>, quote: char, ascii: bool) -> String {
    let mut out = String::from(quote);
    for piece in pieces {
        let c = match piece {
            Piece::Char(c) => c,
            Piece::Byte(byte) => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\x{byte:02x}");
                continue;
            }
        };
        match c {
            '\\' => out.push_str("\\\\"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            '\x07' => out.push_str("\\a"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x0b' => out.push_str("\\v"),
            c if is_printable(c) && (c.is_ascii() || !ascii) => out.push(c),
            c => {
                let code = u32::from(c);
                // Writing to a string cannot fail.
                let _ = match code {
                    0..=0x7f => write!(out, "\\x{code:02x}"),
                    0x80..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
    out
}

/// Returns whether Go considers a character printable: letters, marks, numbers, punctuation,
/// symbols and the ASCII space.
pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return matches!(c, ' '..='~');
    }
    // The standard library exposes printability only through escaping. The letter in front prevents
    // the escape of a leading combining mark.
    let probe = ['a', c];
    probe
        .iter()
        .collect::<String>()
        .escape_debug()
        .eq(probe.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of Go's `%q` and `%+q`.
    #[test]
    fn text_is_quoted_as_go_quotes_it() {
        for (text, quoted, ascii) in [
            ("", r#""""#, r#""""#),
            ("it's", r#""it's""#, r#""it's""#),
            (r#"a"b\c"#, r#""a\"b\\c""#, r#""a\"b\\c""#),
            (
                "\x07\x08\x0c\n\r\t\x0b",
                r#""\a\b\f\n\r\t\v""#,
                r#""\a\b\f\n\r\t\v""#,
            ),
            ("\0\x1b\x7f", r#""\x00\x1b\x7f""#, r#""\x00\x1b\x7f""#),
            ("é", r#""é""#, r#""\u00e9""#),
            ("日本", r#""日本""#, r#""\u65e5\u672c""#),
            ("😀", r#""😀""#, r#""\U0001f600""#),
            // A no-break space, a soft hyphen, a zero-width space and a line separator.
            (
                "\u{a0}\u{ad}\u{200b}\u{2028}",
                r#""\u00a0\u00ad\u200b\u2028""#,
                r#""\u00a0\u00ad\u200b\u2028""#,
            ),
            ("\u{85}\u{9f}", r#""\u0085\u009f""#, r#""\u0085\u009f""#),
            ("\u{feff}", r#""\ufeff""#, r#""\ufeff""#),
            ("\u{fffd}", "\"\u{fffd}\"", r#""\ufffd""#),
            ("\u{e000}", r#""\ue000""#, r#""\ue000""#),
            ("\u{10ffff}", r#""\U0010ffff""#, r#""\U0010ffff""#),
            ("e\u{301}", "\"e\u{301}\"", r#""e\u0301""#),
            ("\u{301}", "\"\u{301}\"", r#""\u0301""#),
        ] {
            assert_eq!(quote(text), quoted, "{text:?}");
            assert_eq!(quote_bytes(text.as_bytes()), quoted, "{text:?}");
            assert_eq!(quote_ascii(text), ascii, "{text:?}");
        }
    }

    #[test]
    fn invalid_utf8_is_quoted_byte_by_byte() {
        for (bytes, quoted) in [
            (b"a\xffb".as_slice(), r#""a\xffb""#),
            (b"\xc3", r#""\xc3""#),
            (b"\xe6\x97", r#""\xe6\x97""#),
            // A surrogate and an overlong form are invalid.
            (b"\xed\xa0\x80", r#""\xed\xa0\x80""#),
            (b"\xc0\xaf", r#""\xc0\xaf""#),
        ] {
            assert_eq!(quote_bytes(bytes), quoted, "{bytes:?}");
        }
    }

    #[test]
    fn a_character_is_in_single_quotes() {
        for (c, quoted) in [
            ('x', "'x'"),
            ('\'', r"'\''"),
            ('"', "'\"'"),
            ('\n', r"'\n'"),
            ('\0', r"'\x00'"),
            ('é', "'é'"),
            ('\u{a0}', r"'\u00a0'"),
        ] {
            assert_eq!(quote_char(c, false), quoted);
        }
        assert_eq!(quote_char('é', true), r"'\u00e9'");
    }
}
