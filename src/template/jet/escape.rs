//! Text made safe for other languages, and Go's ideas of upper and lower case.

/// What writes its argument straight to the output, and so ends a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    Html,
    Js,
    Raw,
}

impl Writer {
    /// Returns the bytes to write for some text.
    pub fn escape(self, text: &[u8]) -> Vec<u8> {
        let Ok(utf8) = std::str::from_utf8(text) else {
            return text.to_vec();
        };
        match self {
            Self::Html => html(utf8, "\u{fffd}").into_bytes(),
            Self::Js => js(utf8).into_bytes(),
            Self::Raw => text.to_vec(),
        }
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
            '<' | '>' | '&' | '=' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04X}", u32::from(c)));
            }
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
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

/// Returns the one character that Go maps to; where Unicode has several, Go keeps or shortens.
pub(super) fn lower(c: char) -> char {
    c.to_lowercase().next().unwrap_or(c)
}

pub(super) fn upper(c: char) -> char {
    let mut mapped = c.to_uppercase();
    match (mapped.next(), mapped.next()) {
        (Some(single), None) => single,
        _ => c,
    }
}
