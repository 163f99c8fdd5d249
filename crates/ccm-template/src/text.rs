//! Text functions with Go's behaviour: upper and lower case, and escaping for HTML, JavaScript and
//! URLs. Quoting is in `ccm_value::quote`, unquoting in `literal`.

use std::fmt::Write;

use ccm_value::quote::is_printable;

/// Returns text in upper case, character by character, as Go maps it.
pub(crate) fn upper(text: &str) -> String {
    text.chars().map(upper_char).collect()
}

/// Returns text in lower case, character by character, as Go maps it.
pub(crate) fn lower(text: &str) -> String {
    text.chars().map(lower_char).collect()
}

/// Returns the upper-case letter; one that would become two letters (`ß`) is unchanged.
pub(crate) fn upper_char(c: char) -> char {
    let mut mapped = c.to_uppercase();
    match (mapped.next(), mapped.next()) {
        (Some(single), None) => single,
        _ => c,
    }
}

/// Returns the lower-case letter; the one that would become two letters (`İ`) becomes the first.
pub(crate) fn lower_char(c: char) -> char {
    c.to_lowercase().next().unwrap_or(c)
}

/// Escapes text for HTML. Go's packages differ in the replacement of NUL, hence `nul`.
pub(crate) fn html(text: &str, nul: &str) -> String {
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

/// Escapes text for a JavaScript string.
pub(crate) fn js(text: &str) -> String {
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

/// Escapes text for a value in a URL query.
pub(crate) fn query(text: &str) -> String {
    percent(text, " ").replace(' ', "+")
}

/// Percent-encodes every byte except letters, digits, `-_.~` and those in `allowed`.
pub(crate) fn percent(text: &str, allowed: &str) -> String {
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
