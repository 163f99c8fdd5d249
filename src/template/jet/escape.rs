//! Text made safe for other languages, and Go's ideas of upper and lower case.

/// What writes its argument straight to the output, and so ends a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    Html,
    Js,
    Raw,
}

impl Writer {
    /// Returns the bytes to write for some text; bytes that are not UTF-8 stay as they are.
    pub fn escape(self, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len());
        for chunk in text.utf8_chunks() {
            let escaped = match self {
                Self::Html => html(chunk.valid(), "\u{fffd}"),
                Self::Js => js(chunk.valid()),
                Self::Raw => chunk.valid().into(),
            };
            out.extend_from_slice(escaped.as_bytes());
            out.extend_from_slice(chunk.invalid());
        }
        out
    }
}

pub(super) fn html(text: &str, nul: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            '\0' => out.push_str(nul),
            c => out.push(c),
        }
    }
    out
}

pub(super) fn js(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' | '\'' | '"' => {
                out.push('\\');
                out.push(c);
            }
            '<' | '>' | '&' | '=' | '\u{2028}' | '\u{2029}' | ..' ' | '\u{7f}'..='\u{9f}' => {
                out.push_str(&format!("\\u{:04X}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out
}

pub(super) fn query(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            b' ' => out.push('+'),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Returns text in lower case, character by character: where Unicode knows several, the first.
pub(super) fn lower(text: &str) -> String {
    let lower = |c: char| c.to_lowercase().next().unwrap_or(c);
    text.chars().map(lower).collect()
}

/// Returns text in upper case, character by character: where Unicode knows several (`ß`), the
/// character stays.
pub(super) fn upper(text: &str) -> String {
    let upper = |c: char| {
        let mut mapped = c.to_uppercase();
        match (mapped.next(), mapped.next()) {
            (Some(single), None) => single,
            _ => c,
        }
    };
    text.chars().map(upper).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn html_escapes_five_characters() {
        assert_eq!(
            html("<a b='c'>\"&é", "\0"),
            "&lt;a b=&#39;c&#39;&gt;&#34;&amp;é"
        );
    }

    #[test]
    fn a_query_keeps_only_unreserved_characters() {
        assert_eq!(query("a b/~é&"), "a+b%2F~%C3%A9%26");
    }

    #[test]
    fn js_escapes_quotes_markup_and_control_characters() {
        assert_eq!(js("a'\"\\<=\n"), r#"a\'\"\\\u003C\u003D\u000A"#);
    }

    #[test]
    fn case_is_mapped_one_character_to_one() {
        assert_eq!(upper("straße é"), "STRAßE É");
        assert_eq!(lower("İÉ ΑΣ"), "ié ασ");
    }

    #[test]
    fn writers_escape_around_bytes_that_are_not_utf8() {
        assert_eq!(Writer::Html.escape(b"<\xff>"), b"&lt;\xff&gt;");
    }
}
