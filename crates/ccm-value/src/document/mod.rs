//! YAML and JSON documents as syntax trees: every node has its line and column, and every scalar
//! its source text.
//!
//! [`Node::to_value`] converts to data and types plain scalars (`0644` is 420); the rules are in
//! `scalar`. Deserializing a typed structure from a node gives string fields the source text
//! (`0644` stays `0644`), as properties need it; that is in `typed`. Errors have the position and,
//! for an unknown key, the nearest valid name.
//!
//! The tree is built from the events of `saphyr-parser`. `serde-saphyr` was tried instead (version 1):
//! it deserializes straight into types, so that a dynamic value has neither source text nor position,
//! and it types plain scalars differently from upstream (`0644` is 644.0, `yes` is true, a number of 30
//! digits is rounded); 6 of 104 manifests and data files of the tests and examples read differently.

mod json_marks;
mod read;
mod scalar;
mod syntax;
mod typed;

use std::fmt;
use std::sync::Arc;

pub use read::{is_json, parse, parse_message};
pub(crate) use scalar::{float_text, reads_as_text};
pub use typed::{field_names, from_entries, nearest, unknown_name};

use super::value::{Map, Value};

/// Maximum length of a simple YAML key, with some margin; a longer key needs the `?` indicator.
pub(crate) const MAX_KEY_LENGTH: usize = 1000;

/// Position in a document, counted from 1; line 0 means that it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    pub line: u32,
    pub column: u32,
}

/// One node of a document.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub mark: Mark,
    pub kind: NodeKind,
}

/// Content of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeKind {
    /// `plain` scalars are typed by their text; others are text, unless `tag` specifies another
    /// type.
    Scalar {
        text: Arc<str>,
        plain: bool,
        tag: Option<Box<str>>,
    },
    List(Vec<Node>),
    /// In document order; keys are unique.
    Map(Vec<(Node, Node)>),
}

/// Error of reading a document, with its position.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct DocumentError {
    pub mark: Mark,
    /// What is wrong, without the suggestion.
    pub message: String,
    /// Suggestion, as a clause that can follow the message after a comma.
    pub help: Option<Box<str>>,
    /// Whether the message names the property, so that outer keys are not added.
    is_named: bool,
    /// The message without the value of the document that it quotes, if it quotes one.
    without_value: Option<Box<str>>,
}

impl fmt::Display for DocumentError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mark.line > 0 {
            write!(out, "line {} column {}: ", self.mark.line, self.mark.column)?;
        }
        out.write_str(&self.text())
    }
}

impl DocumentError {
    pub fn new(mark: Mark, message: impl Into<String>) -> Self {
        Self {
            mark,
            message: message.into(),
            help: None,
            is_named: false,
            without_value: None,
        }
    }

    /// Returns the error about a value; `hidden` is the message without it.
    fn about_value(message: impl Into<String>, hidden: impl Into<Box<str>>) -> Self {
        Self {
            without_value: Some(hidden.into()),
            ..Self::new(Mark::default(), message)
        }
    }

    /// Returns the error without the value that its message quotes, for documents with secrets.
    #[must_use]
    pub fn redacted(mut self) -> Self {
        if let Some(message) = self.without_value.take() {
            self.message = message.into();
        }
        self
    }

    /// Returns the error about an unknown name; the suggestion is the nearest valid one.
    pub fn unknown_name(mark: Mark, what: &str, found: &str, known: &[&str]) -> Self {
        let help = match nearest(found, known) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("expected one of {}", known.join(", ")),
        };
        let mut error = Self::new(mark, format!("unknown {what} {found:?}")).with_help(help);
        error.is_named = true;
        error
    }

    #[must_use]
    pub fn with_help(mut self, help: impl Into<Box<str>>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Returns the message with the suggestion, on one line and without the position.
    pub fn text(&self) -> String {
        match &self.help {
            Some(help) => format!("{}, {help}", self.message),
            None => self.message.clone(),
        }
    }

    /// Returns the suggestion: the own one, or one that follows from the message.
    pub fn suggestion(&self) -> Option<String> {
        let own = self.help.as_deref();
        own.or_else(|| typed::suggestion(&self.message))
            .map(str::to_owned)
    }

    /// Adds the name of the property, unless the message has one.
    fn in_property(mut self, name: &str) -> Self {
        if !self.is_named {
            let named = |message: &str| format!("property {name:?}: {message}");
            self.message = named(&self.message);
            self.without_value = self.without_value.map(|message| named(&message).into());
            self.is_named = true;
        }
        self
    }

    /// Sets the position, unless the error already has one.
    #[must_use]
    pub fn at(mut self, mark: Mark) -> Self {
        if self.mark.line == 0 {
            self.mark = mark;
        }
        self
    }
}

impl Node {
    fn null(mark: Mark) -> Self {
        Self {
            mark,
            kind: NodeKind::Scalar {
                text: "".into(),
                plain: true,
                tag: None,
            },
        }
    }

    fn size(&self) -> usize {
        match &self.kind {
            NodeKind::Scalar { .. } => 1,
            NodeKind::List(list) => list.iter().map(Node::size).sum::<usize>() + 1,
            NodeKind::Map(map) => map.iter().map(|(_, value)| value.size() + 1).sum::<usize>() + 1,
        }
    }

    fn is_merge(&self) -> bool {
        matches!(&self.kind, NodeKind::Scalar { text, plain: true, .. } if &**text == "<<")
    }

    /// Returns the text of a scalar key of any type; null is `null`.
    fn key_text(&self) -> Option<Arc<str>> {
        match &self.kind {
            NodeKind::Scalar { .. } if self.is_null() => Some("null".into()),
            NodeKind::Scalar { text, .. } => Some(text.clone()),
            _ => None,
        }
    }

    /// Returns the source text of a scalar.
    pub fn text(&self) -> Option<&Arc<str>> {
        match &self.kind {
            NodeKind::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    pub fn is_null(&self) -> bool {
        match &self.kind {
            NodeKind::Scalar { text, plain, tag } => match tag.as_deref() {
                Some(tag) => tag == "null",
                None => *plain && scalar::is_null_text(text),
            },
            _ => false,
        }
    }

    /// Returns whether a scalar is quoted, so that it cannot be a number.
    pub fn is_quoted(&self) -> bool {
        matches!(self.kind, NodeKind::Scalar { plain: false, .. })
    }

    /// Returns the entries of a map.
    pub fn entries(&self) -> Option<&[(Node, Node)]> {
        match &self.kind {
            NodeKind::Map(entries) => Some(entries),
            _ => None,
        }
    }

    pub fn items(&self) -> Option<&[Node]> {
        match &self.kind {
            NodeKind::List(items) => Some(items),
            _ => None,
        }
    }

    /// Returns the value of a map's key.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|(_, value)| value)
    }

    /// Returns an entry of a map: the node of the key and its value.
    pub fn entry(&self, key: &str) -> Option<&(Node, Node)> {
        self.entries()?
            .iter()
            .find(|(name, _)| name.text().is_some_and(|text| &**text == key))
    }

    /// Returns the YAML name of this node's kind.
    pub fn kind_name(&self) -> &'static str {
        match &self.kind {
            NodeKind::Scalar { .. } => self.scalar_value().kind(),
            NodeKind::List(_) => "sequence",
            NodeKind::Map(_) => "mapping",
        }
    }

    /// Returns what the node is in the words of messages: `a list`, `a mapping`, `text`.
    pub fn description(&self) -> &'static str {
        describe_kind(self.kind_name())
    }

    /// Converts to data; plain scalars are typed by YAML's core rules and the additional ones of
    /// upstream's parser.
    pub fn to_value(&self) -> Value {
        match &self.kind {
            NodeKind::Scalar { .. } => self.scalar_value(),
            NodeKind::List(items) => items.iter().map(Node::to_value).collect(),
            NodeKind::Map(entries) => entries
                .iter()
                .filter_map(|(key, value)| Some((key.key_text()?, value.to_value())))
                .collect::<Map>()
                .into(),
        }
    }

    /// Formats the node as a document on one line: plain numbers are unchanged, everything else is
    /// quoted.
    pub fn to_flow(&self) -> String {
        let mut out = String::new();
        self.write_flow(&mut out);
        out
    }

    fn write_flow(&self, out: &mut String) {
        match &self.kind {
            NodeKind::Scalar { text, .. } => match self.scalar_value() {
                Value::Null => out.push_str("null"),
                Value::Str(text) => out.push_str(&serde_json::Value::from(&*text).to_string()),
                // An integer that is a float because of its tag keeps the tag.
                Value::Float(_) if matches!(scalar::plain_value(text), Value::Int(_)) => {
                    out.push_str("!!float ");
                    out.push_str(text);
                }
                _ => out.push_str(text),
            },
            NodeKind::List(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    out.push_str(if index > 0 { ", " } else { "" });
                    item.write_flow(out);
                }
                out.push(']');
            }
            NodeKind::Map(entries) => {
                out.push('{');
                for (index, (key, value)) in entries.iter().enumerate() {
                    out.push_str(if index > 0 { ", " } else { "" });
                    // A key is always written as text.
                    let key = key.key_text().unwrap_or_default();
                    let key = serde_json::Value::from(&*key).to_string();
                    out.push_str(if key.len() > MAX_KEY_LENGTH { "? " } else { "" });
                    out.push_str(&key);
                    out.push_str(": ");
                    value.write_flow(out);
                }
                out.push('}');
            }
        }
    }

    fn scalar_value(&self) -> Value {
        let NodeKind::Scalar { text, plain, tag } = &self.kind else {
            return Value::Null;
        };
        match tag.as_deref() {
            Some("null") => return Value::Null,
            Some("int" | "float" | "bool") => {}
            Some("str" | "binary") => return Value::Str(text.clone()),
            _ if !plain => return Value::Str(text.clone()),
            _ => {}
        }
        match scalar::plain_value(text) {
            Value::Int(whole) if tag.as_deref() == Some("float") => Value::Float(whole as f64),
            // Text shares the allocation of the node.
            Value::Str(_) => Value::Str(text.clone()),
            value => value,
        }
    }
}

/// Returns the words for a kind of node or value.
pub fn describe_kind(kind: &'static str) -> &'static str {
    match kind {
        "sequence" | "list" => "a list",
        "mapping" | "map" => "a mapping",
        "string" => "text",
        "null" => "nothing",
        "bool" | "boolean" => "true or false",
        "int" | "integer" | "float" | "number" => "a number",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        parse(text).unwrap().to_value()
    }

    fn error(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn nodes_have_their_line_and_column() {
        let node = parse("a:\n  - b: c\n").unwrap();
        let inner = node.get("a").unwrap().items().unwrap()[0].get("b").unwrap();
        assert_eq!(inner.mark, Mark { line: 2, column: 8 });
    }

    #[test]
    fn a_node_on_one_line_reads_as_the_node_it_was() {
        let text =
            "a: 5.10\nb: '0644'\nc: 0644\nd: [x, ~, 'two, words', {e: \"q: \\n\"}]\nf: true\ng:\n";
        let node = parse(text).unwrap();
        let flow = node.to_flow();
        assert!(
            flow.contains("\"a\": 5.10, \"b\": \"0644\", \"c\": 0644"),
            "{flow}"
        );
        assert_eq!(parse(&flow).unwrap().to_value(), node.to_value());
    }

    #[test]
    fn a_tag_is_kept_when_a_document_is_on_one_line() {
        for text in [
            "!!str 5",
            "!!int \"5\"",
            "!!float 5",
            "!!str null",
            "[!!float 5, 0x10, ~]",
        ] {
            let document = parse(text).unwrap();
            let again = parse(&document.to_flow()).unwrap();
            assert_eq!(again.to_value(), document.to_value(), "{text}");
        }
    }

    #[test]
    fn a_json_number_keeps_its_type() {
        let value = parse(r#"[5, 5.0, 1e21, 123456789012345678901, -0.5]"#)
            .unwrap()
            .to_value();
        let floats = [5.0, 1e21, 123_456_789_012_345_678_901.0, -0.5].map(Value::from);
        let all = [Value::from(5_i64)].into_iter().chain(floats);
        assert_eq!(value, all.collect::<Value>());
    }

    #[test]
    fn a_key_may_be_long_in_every_form() {
        let key = "long: ".repeat(500);
        let json = serde_json::json!({ "a": { &key: [1, {"b": &key}] }, &key: {"c": 2}, "d": "x" });
        let document = parse(&json.to_string()).unwrap();
        let printed = parse(&crate::yaml::print(&json)).unwrap();
        assert_eq!(printed.to_value(), document.to_value());
        // JSON has no numbers of this form, so this is parsed as YAML.
        let flow = parse("{a: 0x10}")
            .unwrap()
            .to_flow()
            .replace('a', &key.replace(": ", ""));
        assert!(parse(&parse(&flow).unwrap().to_flow()).is_ok());
    }

    #[test]
    fn a_long_name_has_no_suggestion() {
        let long = "content".repeat(10_000);
        assert_eq!(nearest(&long, &["content"]), None);
        assert_eq!(nearest("contents", &["content"]), Some("content"));
    }

    #[test]
    fn nested_anchors_count_as_copies() {
        let opened: String = (0..100).map(|level| format!("&a{level} [")).collect();
        let text = format!("{opened}{}{}", "1,".repeat(50_000), "]".repeat(100));
        let error = parse(&format!("x: {text}")).unwrap_err();
        assert!(error.message.contains("more than 100000 nodes"), "{error}");
    }

    #[test]
    fn anchors_aliases_and_merges_are_resolved() {
        assert_eq!(
            value("base: &b {x: 1, y: 1}\nuse: {<<: *b, y: 2}\nlist: [*b]"),
            value("{base: {x: 1, y: 1}, use: {x: 1, y: 2}, list: [{x: 1, y: 1}]}")
        );
        assert_eq!(
            value("a: &a {x: 1}\nb: &b {x: 2, z: 3}\nc: {<<: [*a, *b]}")
                .get("c")
                .unwrap(),
            &value("{x: 1, z: 3}")
        );
    }

    #[test]
    fn keys_of_any_scalar_type_are_text() {
        assert_eq!(
            value("8080: a\n~: b\ntrue: c"),
            value("{'8080': a, 'null': b, 'true': c}")
        );
    }

    #[test]
    fn invalid_documents_are_refused_with_their_position() {
        for (text, message) in [
            ("a: 1\na: 2", "line 2 column 1: duplicate key \"a\""),
            (
                "a: 1\n---\nb: 2",
                "line 2 column 1: only one document is expected in a file",
            ),
            ("? {a: b}\n: 1", "line 1 column 3: a key must be a scalar"),
            ("<<: 5", "line 1 column 5: << needs a mapping"),
        ] {
            assert_eq!(error(text), message, "{text}");
        }
        assert_eq!(error("{\"a\": [}"), "line 1 column 8: expected value");
    }

    #[test]
    fn a_redacted_error_names_the_property_and_no_value() {
        #[derive(Debug, serde::Deserialize)]
        #[expect(dead_code, reason = "only deserialized")]
        struct Settings {
            list: Vec<String>,
            number: i64,
            format: Format,
        }
        #[derive(Debug, serde::Deserialize)]
        enum Format {}
        for (text, message) in [
            (
                "list: hunter2",
                "property \"list\": expected a list, found text",
            ),
            (
                "number: hunter2",
                "property \"number\": expected a whole number, found text",
            ),
            (
                "number: 4.25",
                "property \"number\": expected a whole number, found a number",
            ),
            ("format: hunter2", "property \"format\": unknown value"),
        ] {
            let document = parse(text).unwrap();
            let error = serde::Deserialize::deserialize(&document).map(|_: Settings| ());
            assert_eq!(error.unwrap_err().redacted().message, message);
        }
    }

    #[test]
    fn hostile_documents_exceed_a_limit() {
        let deep = "[".repeat(5_000) + &"]".repeat(5_000);
        assert!(parse(&deep).is_err());
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..10 {
            let alias = format!("*a{}, ", level - 1).repeat(10);
            bomb.push_str(&format!("a{level}: &a{level} [{alias}]\n"));
        }
        assert!(error(&bomb).contains("aliases stand for more than 100000 nodes"));
    }

    #[test]
    fn json_escapes_and_tabs_are_read_as_json() {
        assert_eq!(
            value("{\n\t\"a\":\t\"\\ud83d\\ude00\"}").get("a"),
            Some(&"😀".into())
        );
    }
}
