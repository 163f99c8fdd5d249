//! YAML writer in upstream's format: two spaces of indent, list items at the level of their key,
//! text that could be read as another type in double quotes, multi-line text as blocks.

use std::fmt::Write;

use super::document::{MAX_KEY_LENGTH, float_text, reads_as_text};
use crate::value::Value;

/// Formats a document as YAML, keys in their given order, with a final newline.
pub fn print(document: &impl Document) -> String {
    let mut out = String::new();
    block(document, 0, &mut out);
    out
}

/// A document that can be printed: JSON, or a [`Value`], which also has infinities.
pub trait Document: Sized {
    fn view(&self) -> View<'_, Self>;
}

/// One level of a document.
pub enum View<'a, D> {
    Null,
    Bool(bool),
    Integer(String),
    Float(f64),
    Text(&'a str),
    List(Vec<&'a D>),
    Map(Vec<(&'a str, &'a D)>),
}

impl Document for serde_json::Value {
    fn view(&self) -> View<'_, Self> {
        match self {
            Self::Null => View::Null,
            Self::Bool(flag) => View::Bool(*flag),
            Self::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
                Some(float) => View::Float(float),
                None => View::Integer(number.to_string()),
            },
            Self::String(text) => View::Text(text),
            Self::Array(list) => View::List(list.iter().collect()),
            Self::Object(map) => View::Map(
                map.iter()
                    .map(|(key, value)| (key.as_str(), value))
                    .collect(),
            ),
        }
    }
}

impl Document for Value {
    fn view(&self) -> View<'_, Self> {
        match self {
            Self::Null => View::Null,
            Self::Bool(flag) => View::Bool(*flag),
            Self::Int(number) => View::Integer(number.to_string()),
            Self::Uint(number) => View::Integer(number.to_string()),
            Self::Float(number) => View::Float(*number),
            Self::Str(text) => View::Text(text),
            Self::List(list) => View::List(list.iter().collect()),
            Self::Map(map) => View::Map(map.iter().map(|(key, value)| (&**key, value)).collect()),
        }
    }
}

/// Writes a value on its own lines.
fn block(value: &impl Document, indent: usize, out: &mut String) {
    match value.view() {
        View::Map(map) if !map.is_empty() => entries(&map, indent, false, out),
        View::List(list) if !list.is_empty() => items(&list, indent, out),
        other => {
            pad(indent, out);
            scalar(&other, indent, out);
            out.push('\n');
        }
    }
}

fn items<D: Document>(list: &[&D], indent: usize, out: &mut String) {
    for item in list {
        pad(indent, out);
        list_item(*item, indent, out);
    }
}

/// Writes the entries of a map; the first may continue the current line.
fn entries<D: Document>(map: &[(&str, &D)], indent: usize, mut begun: bool, out: &mut String) {
    for (key, value) in map {
        if !begun {
            pad(indent, out);
        }
        begun = false;
        let start = out.len();
        text(key, 0, false, out);
        if out.len() - start > MAX_KEY_LENGTH {
            out.insert_str(start, "? ");
            out.push('\n');
            pad(indent, out);
        }
        out.push(':');
        match value.view() {
            View::Map(inner) if !inner.is_empty() => {
                out.push('\n');
                entries(&inner, indent + 2, false, out);
            }
            View::List(inner) if !inner.is_empty() => {
                out.push('\n');
                items(&inner, indent, out);
            }
            other => {
                out.push(' ');
                scalar(&other, indent, out);
                out.push('\n');
            }
        }
    }
}

fn list_item(item: &impl Document, indent: usize, out: &mut String) {
    out.push_str("- ");
    match item.view() {
        View::Map(map) if !map.is_empty() => entries(&map, indent + 2, true, out),
        View::List(list) if !list.is_empty() => {
            for (index, inner) in list.into_iter().enumerate() {
                if index > 0 {
                    pad(indent + 2, out);
                }
                list_item(inner, indent + 2, out);
            }
        }
        other => {
            scalar(&other, indent, out);
            out.push('\n');
        }
    }
}

fn pad(indent: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', indent));
}

fn scalar<D>(value: &View<'_, D>, indent: usize, out: &mut String) {
    match value {
        View::Null => out.push_str("null"),
        View::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        View::Integer(digits) => out.push_str(digits),
        View::Float(number) if number.is_nan() => out.push_str(".nan"),
        View::Float(number) if number.is_infinite() => {
            out.push_str(if *number > 0.0 { ".inf" } else { "-.inf" });
        }
        View::Float(number) => out.push_str(&float_text(*number)),
        View::Text(content) => text(content, indent, true, out),
        View::List(_) => out.push_str("[]"),
        View::Map(_) => out.push_str("{}"),
    }
}

fn text(content: &str, indent: usize, may_be_block: bool, out: &mut String) {
    if may_be_block && is_block(content) {
        return block_text(content, indent + 2, out);
    }
    if is_plain(content) {
        return out.push_str(content);
    }
    out.push('"');
    for c in content.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if (c as u32) < 0x20 || c == '\x7f' => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Returns whether text is written as a block: multi-line text that a block can represent exactly.
fn is_block(content: &str) -> bool {
    content.contains('\n')
        && !content.starts_with([' ', '\n', '\t'])
        && !content
            .chars()
            .any(|c| (c.is_control() && c != '\n' && c != '\t') || c == '\u{feff}')
}

fn block_text(content: &str, indent: usize, out: &mut String) {
    let body = content.trim_end_matches('\n');
    let ends = content.len() - body.len();
    out.push_str(match ends {
        0 => "|-",
        1 => "|",
        _ => "|+",
    });
    for line in body.split('\n') {
        out.push('\n');
        if !line.is_empty() {
            pad(indent, out);
            out.push_str(line);
        }
    }
    out.extend(std::iter::repeat_n('\n', ends.saturating_sub(1)));
}

fn is_plain(content: &str) -> bool {
    // YAML 1.1 parsers read these as booleans.
    let old_boolean = matches!(
        content.to_ascii_lowercase().as_str(),
        "y" | "n" | "yes" | "no" | "on" | "off"
    );
    !old_boolean
        && reads_as_text(content)
        && starts_plainly(content)
        && !content.ends_with([' ', ':'])
        && !content.contains(": ")
        && !content.contains(['#', '\\', '\u{2028}', '\u{2029}', '\u{feff}'])
        && !content.chars().any(char::is_control)
}

/// Returns whether the first character already rules out other types.
fn starts_plainly(content: &str) -> bool {
    let mut chars = content.chars();
    let (Some(first), second) = (chars.next(), chars.next()) else {
        return false;
    };
    match first {
        '-' | '?' | '~' => second.is_some_and(|c| c.is_alphabetic() || "/_".contains(c)),
        '0'..='9' | '.' | '+' => is_word(content),
        c => !c.is_whitespace() && !":,[]{}#&*!|>'\"%@`=<".contains(c),
    }
}

/// Returns whether text that starts with a digit is still a word, such as a version or a dotted
/// name. Dates, times and possible numbers are not.
fn is_word(content: &str) -> bool {
    if is_timestamp(content) {
        return false;
    }
    let is_version = content.split('.').count() > 2
        && content
            .split('.')
            .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    let could_be_number = content
        .bytes()
        .all(|b| b.is_ascii_hexdigit() || b"._-+:xXoO".contains(&b));
    is_version || !could_be_number
}

/// Returns whether YAML 1.1 parsers read text as a time on a day, such as `2026-05-01T10:00:00Z`.
fn is_timestamp(content: &str) -> bool {
    let Some((day, time)) = content.split_once(['T', 't', ' ', '\t']) else {
        return false;
    };
    let is_day = day.split('-').count() == 3
        && day
            .split('-')
            .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    is_day && time.trim_start().starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn maps_and_lists_are_laid_out_as_upstream_does() {
        let document = json!({
            "ccm": {
                "fail_on_error": false,
                "resources": [{"package": {"name": "zsh", "ensure": "present"}}],
                "empty": [], "none": {}
            },
            "data": {"list": ["a", ["b", "c"], {"k": 1.0}], "nil": null}
        });
        assert_eq!(
            print(&document),
            "\
ccm:
  fail_on_error: false
  resources:
  - package:
      name: zsh
      ensure: present
  empty: []
  none: {}
data:
  list:
  - a
  - - b
    - c
  - k: 1.0
  nil: null
"
        );
    }

    #[test]
    fn text_that_could_be_another_type_is_quoted() {
        let cases = [
            ("0644", "\"0644\""),
            ("yes", "\"yes\""),
            ("true", "\"true\""),
            ("5.10", "\"5.10\""),
            ("", "\"\""),
            ("a: b", "\"a: b\""),
            ("- x", "\"- x\""),
            ("1.2.3-rc1", "1.2.3-rc1"),
            ("/etc/motd", "/etc/motd"),
            ("file#/a", "\"file#/a\""),
            ("C:\\x", "\"C:\\\\x\""),
            ("1.2.3", "1.2.3"),
            ("2026-05-01", "\"2026-05-01\""),
            ("2026-05-01T10:00:00Z", "\"2026-05-01T10:00:00Z\""),
            ("2026-5-1t10:00:00.5+02:00", "\"2026-5-1t10:00:00.5+02:00\""),
            ("2026-05-01 10:00:00", "\"2026-05-01 10:00:00\""),
            ("2026-05-01-release", "2026-05-01-release"),
            ("2026-05-01 Tom", "2026-05-01 Tom"),
            ("12:30", "\"12:30\""),
            ("-dash", "-dash"),
            ("~/x", "~/x"),
        ];
        for (content, shown) in cases {
            assert_eq!(print(&json!(content)), format!("{shown}\n"), "{content}");
        }
    }

    #[test]
    fn multi_line_text_becomes_a_block() {
        let document = json!({"a": "x\n  y\n", "b": "x\ny", "c": "x\ny\n\n", "d": "one\n"});
        assert_eq!(
            print(&document),
            "a: |\n  x\n    y\nb: |-\n  x\n  y\nc: |+\n  x\n  y\n\nd: |\n  one\n"
        );
    }

    #[test]
    fn an_independent_reader_reads_back_what_was_written() {
        let document = json!({
            "t": ["yes", "0x1f", "1e3", "~", "null", " lead", "trail ", "tab\there", "a\r\nb",
                  "é\u{2028}", "#c", "x #y", "[a]", "%p", "@a", "`b`", "\"q\"", "'s'", "12:30",
                  "1_000", ".5", ".x", "-", "--- a", "key:", "=", "<<", "multi\n\nline\n", "\n",
                  "  indented\nblock\n", "2026-05-01", "+1", "0b11", "0o7", "*x", "&y", "!z"],
            "yes": 1, "8080": {"": []}, "f": 2.5, "i": -3, "b": false
        });
        let text = print(&document);
        let back: Value = serde_yaml::from_str(&text).unwrap();
        assert_eq!(back, document, "{text}");
        let ours = crate::document::parse(&text).unwrap().to_value();
        assert_eq!(serde_json::to_value(&ours).unwrap(), document, "{text}");
    }
}
