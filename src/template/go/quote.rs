//! Text made safe for somewhere else: Go's `%q`, HTML, JavaScript and URL queries.

use std::fmt::Write;

/// Returns text between double quotes with Go's escapes; `ascii` escapes everything else too.
pub fn double(text: &str, ascii: bool) -> String {
    quoted(text, '"', ascii)
}

/// Returns a character between single quotes with Go's escapes.
pub fn single(c: char, ascii: bool) -> String {
    quoted(c.encode_utf8(&mut [0; 4]), '\'', ascii)
}

fn quoted(text: &str, quote: char, ascii: bool) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
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
            c => numbered(&mut out, c),
        }
    }
    out.push(quote);
    out
}

fn numbered(out: &mut String, c: char) {
    let code = u32::from(c);
    // Writing to a string cannot fail.
    let _ = match code {
        0..=0x7f => write!(out, "\\x{code:02x}"),
        0x80..=0xffff => write!(out, "\\u{code:04x}"),
        _ => write!(out, "\\U{code:08x}"),
    };
}

/// Returns whether Go would print a character as it is.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return matches!(c, ' '..='~');
    }
    // The standard library knows what is printable, but tells only through escaping. The letter
    // in front keeps it from escaping a combining mark for standing alone.
    let probe = format!("a{c}");
    probe.escape_debug().eq(probe.chars())
}

/// Returns text safe inside HTML.
pub fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\0' => out.push('\u{fffd}'),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c => out.push(c),
        }
    }
    out
}

/// Returns text safe inside a JavaScript string.
pub fn js(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\'' => out.push_str("\\'"),
            '"' => out.push_str("\\\""),
            '<' | '>' | '&' | '=' => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c if is_printable(c) => out.push(c),
            c => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
        }
    }
    out
}

/// Returns text safe as a value in a URL query.
pub fn query(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            b' ' => out.push('+'),
            byte => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn double_quotes_escape_what_go_cannot_print() {
        assert_eq!(
            double("a\"b\\\n\u{0}\u{a0}é\u{200b}", false),
            r#""a\"b\\\n\x00\u00a0é\u200b""#
        );
        assert_eq!(double("é", true), r#""\u00e9""#);
    }
}
