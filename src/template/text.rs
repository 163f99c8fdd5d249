//! Text with Go's manners: its upper and lower case, its quotes, and its ways to make text safe in
//! HTML, JavaScript and URLs. Reading quoted text back is in `literal`.

use std::fmt::Write;

/// Returns text in upper case, character by character, as Go maps it.
pub fn upper(text: &str) -> String {
    text.chars().map(upper_char).collect()
}

/// Returns text in lower case, character by character, as Go maps it.
pub fn lower(text: &str) -> String {
    text.chars().map(lower_char).collect()
}

/// Returns the capital of a letter; one whose capital would be two letters (`ß`) stays.
pub fn upper_char(c: char) -> char {
    let mut mapped = c.to_uppercase();
    match (mapped.next(), mapped.next()) {
        (Some(single), None) => single,
        _ => c,
    }
}

/// Returns the small letter; the one letter that would become two (`İ`) becomes the first.
pub fn lower_char(c: char) -> char {
    c.to_lowercase().next().unwrap_or(c)
}

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

/// Returns text safe inside HTML. A NUL is not HTML; Go's packages differ in what becomes of it.
pub fn html(text: &str, nul: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\0' => out.push_str(nul),
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
            '\\' | '\'' | '"' => {
                out.push('\\');
                out.push(c);
            }
            '<' | '>' | '&' | '=' | ..' ' => numbered_js(&mut out, c),
            c if c.is_ascii() || is_printable(c) => out.push(c),
            c => numbered_js(&mut out, c),
        }
    }
    out
}

fn numbered_js(out: &mut String, c: char) {
    // Writing to a string cannot fail.
    let _ = write!(out, "\\u{:04X}", u32::from(c));
}

/// Returns text safe as a value in a URL query.
pub fn query(text: &str) -> String {
    percent(text, " ").replace(' ', "+")
}

/// Returns text with every byte escaped but letters, digits, `-_.~` and those that are `allowed`.
pub fn percent(text: &str, allowed: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || "-_.~".contains(c) || allowed.contains(c) {
            out.push(c);
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_is_mapped_one_character_to_one() {
        assert_eq!(upper("straße é"), "STRAßE É");
        assert_eq!(lower("İÉ ΑΣ"), "ié ασ");
    }

    #[test]
    fn double_quotes_escape_what_go_cannot_print() {
        assert_eq!(
            double("a\"b\\\n\u{0}\u{a0}é\u{200b}", false),
            r#""a\"b\\\n\x00\u00a0é\u200b""#
        );
        assert_eq!(double("é", true), r#""\u00e9""#);
    }

    #[test]
    fn html_escapes_five_characters_and_nul() {
        assert_eq!(
            html("<a b='c'>\"&é\0", "\u{fffd}"),
            "&lt;a b=&#39;c&#39;&gt;&#34;&amp;é\u{fffd}"
        );
    }

    #[test]
    fn js_escapes_quotes_markup_and_what_cannot_be_printed() {
        assert_eq!(
            js("a b'\"\\<=\n\u{7f}é\u{2028}\u{85}"),
            "a b\\'\\\"\\\\\\u003C\\u003D\\u000A\u{7f}é\\u2028\\u0085"
        );
    }

    #[test]
    fn a_query_keeps_only_unreserved_characters() {
        assert_eq!(query("a b/~é&+"), "a+b%2F~%C3%A9%26%2B");
    }
}
