//! A YAML or JSON document as its author wrote it: every node knows its line and column, and
//! every scalar its own text.
//!
//! Two readings leave from here. [`Node::to_value`] types plain scalars (`0644` is 420), which is
//! what data wants. Deserializing a typed structure from a node hands string fields the author's
//! text (`0644` stays `0644`), which is what properties want. Errors carry the position and, for
//! an unknown key, the nearest valid name.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};

use super::value::{Map, Value};

/// How deep a document may nest, how many aliases may multiply: more is an attack, not a manifest.
const MAX_DEPTH: usize = 128;
const MAX_NODES: usize = 2_000_000;

/// A place in a document, counted from 1; line 0 means that the place is not known.
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

/// What a node holds.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeKind {
    /// `plain` scalars are typed by their text; others are text, unless `tag` says otherwise.
    Scalar {
        text: Arc<str>,
        plain: bool,
        tag: Option<Box<str>>,
    },
    List(Vec<Node>),
    /// In the author's order; keys are unique.
    Map(Vec<(Node, Node)>),
}

/// Why a document can't be read, and where.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct DocumentError {
    pub mark: Mark,
    pub message: String,
}

impl fmt::Display for DocumentError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mark.line == 0 {
            return out.write_str(&self.message);
        }
        write!(
            out,
            "line {} column {}: {}",
            self.mark.line, self.mark.column, self.message
        )
    }
}

impl DocumentError {
    pub fn new(mark: Mark, message: impl Into<String>) -> Self {
        Self {
            mark,
            message: message.into(),
        }
    }

    /// Returns the error placed at `mark`, unless it already has a place.
    #[must_use]
    pub fn at(mut self, mark: Mark) -> Self {
        if self.mark.line == 0 {
            self.mark = mark;
        }
        self
    }
}

/// Reports whether a text is meant as JSON: its first visible character opens an object or array.
pub fn is_json(text: &str) -> bool {
    text.trim_start().starts_with(['{', '['])
}

/// Parses a document, JSON when it looks like JSON, YAML otherwise. An empty document is null.
pub fn parse(text: &str) -> Result<Node, DocumentError> {
    if !is_json(text) {
        return parse_yaml(text);
    }
    // YAML's flow style looks like JSON too; if it is neither, JSON's complaint is the better one.
    parse_json(text).or_else(|err| parse_yaml(text).map_err(|_| err))
}

/// Parses a message: what looks like JSON must be JSON.
pub fn parse_message(text: &str) -> Result<Node, DocumentError> {
    if is_json(text) {
        parse_json(text)
    } else {
        parse_yaml(text)
    }
}

fn parse_json(text: &str) -> Result<Node, DocumentError> {
    serde_json::from_str(text).map_err(|err| DocumentError {
        mark: Mark {
            line: to_u32(err.line()),
            column: to_u32(err.column()),
        },
        message: err.to_string(),
    })
}

fn parse_yaml(text: &str) -> Result<Node, DocumentError> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|err| {
            let marker = err.marker();
            DocumentError::new(
                Mark {
                    line: to_u32(marker.line()),
                    column: to_u32(marker.col() + 1),
                },
                err.info(),
            )
        })?;
        builder.take(event, span)?;
    }
    Ok(builder.root.unwrap_or_else(|| Node::null(Mark::default())))
}

fn to_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Builds the tree from parser events.
#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    root: Option<Node>,
    nodes: usize,
}

/// A list or map that is not yet closed.
struct Open {
    mark: Mark,
    anchor: usize,
    items: Vec<Node>,
    is_map: bool,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), DocumentError> {
        let mark = Mark {
            line: to_u32(span.start.line()),
            column: to_u32(span.start.col() + 1),
        };
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let node = Node {
                    mark,
                    kind: NodeKind::Scalar {
                        text: text.into(),
                        plain: style == ScalarStyle::Plain,
                        tag: tag.map(|tag| tag.suffix.clone().into()),
                    },
                };
                self.put(node, anchor)
            }
            Event::SequenceStart(anchor, _) => self.start(mark, anchor, false),
            Event::MappingStart(anchor, _) => self.start(mark, anchor, true),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => {
                let node = self
                    .anchors
                    .get(&anchor)
                    .cloned()
                    .ok_or_else(|| DocumentError::new(mark, "unknown alias"))?;
                self.count(node.size(), mark)?;
                self.put(node, 0)
            }
            Event::DocumentStart(_) if self.root.is_some() => Err(DocumentError::new(
                mark,
                "only one document is expected in a file",
            )),
            _ => Ok(()),
        }
    }

    fn count(&mut self, nodes: usize, mark: Mark) -> Result<(), DocumentError> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > MAX_NODES {
            let message = format!("the document has more than {MAX_NODES} nodes");
            return Err(DocumentError::new(mark, message));
        }
        Ok(())
    }

    fn start(&mut self, mark: Mark, anchor: usize, is_map: bool) -> Result<(), DocumentError> {
        if self.open.len() >= MAX_DEPTH {
            let message = format!("the document nests deeper than {MAX_DEPTH} levels");
            return Err(DocumentError::new(mark, message));
        }
        self.open.push(Open {
            mark,
            anchor,
            items: Vec::new(),
            is_map,
        });
        Ok(())
    }

    fn end(&mut self) -> Result<(), DocumentError> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let kind = if open.is_map {
            NodeKind::Map(pairs(open.items)?)
        } else {
            NodeKind::List(open.items)
        };
        let node = Node {
            mark: open.mark,
            kind,
        };
        self.put(node, open.anchor)
    }

    fn put(&mut self, node: Node, anchor: usize) -> Result<(), DocumentError> {
        self.count(1, node.mark)?;
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            Some(open) => open.items.push(node),
            None => self.root = Some(node),
        }
        Ok(())
    }
}

/// Pairs keys with values, refuses duplicates and folds `<<` merges in: a merged key loses to the
/// map's own.
fn pairs(items: Vec<Node>) -> Result<Vec<(Node, Node)>, DocumentError> {
    let mut own: Vec<(Node, Node)> = Vec::with_capacity(items.len() / 2);
    let mut seen = Keys::with_capacity(items.len() / 2);
    let mut merged: Vec<Node> = Vec::new();
    let mut items = items.into_iter();
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        let Some(name) = key.key_text() else {
            return Err(DocumentError::new(key.mark, "a key must be a scalar"));
        };
        if key.is_merge() {
            match value.kind {
                NodeKind::List(list) => merged.extend(list),
                _ => merged.push(value),
            }
            continue;
        }
        if !seen.insert(name.clone()) {
            let message = format!("duplicate key {name:?}");
            return Err(DocumentError::new(key.mark, message));
        }
        own.push((key, value));
    }
    for source in merged {
        let NodeKind::Map(entries) = source.kind else {
            return Err(DocumentError::new(source.mark, "<< needs a mapping"));
        };
        for (key, value) in entries {
            if key.key_text().is_some_and(|name| seen.insert(name)) {
                own.push((key, value));
            }
        }
    }
    Ok(own)
}

/// The keys of a map so far. Nearly all maps are small, and there a list is quicker than a set.
enum Keys {
    Few(Vec<Arc<str>>),
    Many(HashSet<Arc<str>>),
}

impl Keys {
    const FEW: usize = 16;

    fn with_capacity(keys: usize) -> Self {
        if keys <= Self::FEW {
            Self::Few(Vec::with_capacity(keys))
        } else {
            Self::Many(HashSet::with_capacity(keys))
        }
    }

    /// Adds a key; reports whether it is new.
    fn insert(&mut self, key: Arc<str>) -> bool {
        match self {
            Self::Many(set) => set.insert(key),
            Self::Few(list) if list.contains(&key) => false,
            Self::Few(list) => {
                list.push(key);
                if list.len() > Self::FEW {
                    *self = Self::Many(list.drain(..).collect());
                }
                true
            }
        }
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

    /// Returns the text of a key: scalars of any type by their text, null as `null`.
    fn key_text(&self) -> Option<Arc<str>> {
        match &self.kind {
            NodeKind::Scalar { .. } if self.is_null() => Some("null".into()),
            NodeKind::Scalar { text, .. } => Some(text.clone()),
            _ => None,
        }
    }

    /// Returns a scalar's own text.
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
                None => *plain && is_null_text(text),
            },
            _ => false,
        }
    }

    /// Reports whether a scalar is text by its very form, not a plain word that may be a number.
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
        self.entries()?
            .iter()
            .find(|(name, _)| name.text().is_some_and(|text| &**text == key))
            .map(|(_, value)| value)
    }

    /// Returns the word YAML has for this node's shape.
    pub fn kind_name(&self) -> &'static str {
        match &self.kind {
            NodeKind::Scalar { .. } => self.scalar_value().kind(),
            NodeKind::List(_) => "sequence",
            NodeKind::Map(_) => "mapping",
        }
    }

    /// Returns the data this node stands for, plain scalars typed by YAML's core rules and the
    /// extras upstream's reader has.
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
        match plain_value(text) {
            Value::Int(whole) if tag.as_deref() == Some("float") => Value::Float(whole as f64),
            value => value,
        }
        .or_text(text)
    }
}

impl Value {
    /// Keeps the author's allocation when a scalar turns out to be text.
    fn or_text(self, text: &Arc<str>) -> Value {
        match self {
            Value::Str(_) => Value::Str(text.clone()),
            other => other,
        }
    }
}

fn is_null_text(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// Reports whether a plain scalar of this text would be read as text.
pub fn reads_as_text(text: &str) -> bool {
    matches!(plain_value(text), Value::Str(_))
}

fn plain_value(text: &str) -> Value {
    match text {
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Value::Float(f64::INFINITY);
        }
        "-.inf" | "-.Inf" | "-.INF" => return Value::Float(f64::NEG_INFINITY),
        ".nan" | ".NaN" | ".NAN" => return Value::Float(f64::NAN),
        _ if is_null_text(text) => return Value::Null,
        _ => {}
    }
    // Nearly all scalars are words: look closer only at what starts like a number.
    if text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.'))
        && let Some(value) = whole_number(text).or_else(|| fraction(text))
    {
        return value;
    }
    Value::Str("".into())
}

fn whole_number(text: &str) -> Option<Value> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let clean: String = digits.chars().filter(|c| *c != '_').collect();
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (radix, number) = match clean.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, clean.get(2..)?),
        [b'0', b'o' | b'O', ..] => (8, clean.get(2..)?),
        [b'0', b'b' | b'B', ..] => (2, clean.get(2..)?),
        [b'0', _, ..] => (8, clean.get(1..)?),
        _ => (10, clean.as_str()),
    };
    if number.starts_with(['+', '-']) {
        return None;
    }
    let size = u64::from_str_radix(number, radix).ok()?;
    if !negative {
        return Some(size.into());
    }
    0_i64.checked_sub_unsigned(size).map(Value::Int)
}

fn fraction(text: &str) -> Option<Value> {
    if text.bytes().filter(|b| *b == b'.').count() != 1
        || !text
            .bytes()
            .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'+' | b'e' | b'E' | b'_'))
        || !text.bytes().any(|b| b.is_ascii_digit())
    {
        return None;
    }
    let clean: String = text.chars().filter(|c| *c != '_').collect();
    clean.parse().ok().map(Value::Float)
}

/// Reads a node from JSON; places are not known there.
impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct NodeVisitor;

        fn scalar<E>(text: impl Into<Arc<str>>, plain: bool) -> Result<Node, E> {
            Ok(Node {
                mark: Mark::default(),
                kind: NodeKind::Scalar {
                    text: text.into(),
                    plain,
                    tag: None,
                },
            })
        }

        impl<'de> Visitor<'de> for NodeVisitor {
            type Value = Node;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a document")
            }

            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::null(Mark::default()))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
                scalar(value.to_string(), true)
            }

            fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
                scalar(value.to_string(), true)
            }

            fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
                scalar(value.to_string(), true)
            }

            fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
                scalar(value.to_string(), true)
            }

            fn visit_str<E>(self, text: &str) -> Result<Node, E> {
                scalar(text, false)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Node {
                    mark: Mark::default(),
                    kind: NodeKind::List(items),
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some((key, value)) = map.next_entry::<Node, Node>()? {
                    items.extend([key, value]);
                }
                Ok(Node {
                    mark: Mark::default(),
                    kind: NodeKind::Map(pairs(items).map_err(de::Error::custom)?),
                })
            }
        }

        from.deserialize_any(NodeVisitor)
    }
}

impl de::Error for DocumentError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(Mark::default(), message.to_string())
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::custom(unknown_name("property", field, expected))
    }

    fn invalid_type(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::custom(format_args!("expected {expected}, found {found}"))
    }
}

/// Words the complaint about a name that does not exist, with the nearest one that does.
pub fn unknown_name(what: &str, found: &str, known: &[&str]) -> String {
    match nearest(found, known) {
        Some(near) => format!("unknown {what} {found:?}, did you mean {near:?}?"),
        None => format!(
            "unknown {what} {found:?}, expected one of {}",
            known.join(", ")
        ),
    }
}

/// Returns the known name that is most like `found`, if any is like it at all.
pub fn nearest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    let plain = |text: &str| -> String {
        text.chars()
            .filter(|c| c.is_alphanumeric())
            .flat_map(char::to_lowercase)
            .collect()
    };
    let wanted = plain(found);
    known
        .iter()
        .map(|name| (strsim::jaro_winkler(&wanted, &plain(name)), *name))
        .filter(|(score, _)| *score > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

impl<'de> IntoDeserializer<'de, DocumentError> for &'de Node {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Hands typed fields what they ask for: text stays the author's, numbers and booleans are read
/// from plain scalars, `null` is an absent option.
impl<'de> Deserializer<'de> for &'de Node {
    type Error = DocumentError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DocumentError> {
        match &self.kind {
            NodeKind::List(items) => visitor.visit_seq(Items(items.iter())),
            NodeKind::Map(entries) => visitor.visit_map(Entries {
                rest: entries.iter(),
                value: None,
            }),
            NodeKind::Scalar { text, .. } => match self.scalar_value() {
                Value::Null => visitor.visit_unit(),
                Value::Bool(value) => visitor.visit_bool(value),
                Value::Int(value) => visitor.visit_i64(value),
                Value::Uint(value) => visitor.visit_u64(value),
                Value::Float(value) => visitor.visit_f64(value),
                _ => visitor.visit_borrowed_str(text),
            },
        }
        .map_err(|err: DocumentError| err.at(self.mark))
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DocumentError> {
        match &self.kind {
            NodeKind::Scalar { text, .. } if !self.is_null() => visitor
                .visit_borrowed_str(text)
                .map_err(|err: DocumentError| err.at(self.mark)),
            _ => Err(DocumentError::new(
                self.mark,
                format!("expected text, found a {}", self.kind_name()),
            )),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DocumentError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DocumentError> {
        if self.is_null() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_identifier<V: Visitor<'de>>(
        self,
        visitor: V,
    ) -> Result<V::Value, DocumentError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DocumentError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DocumentError> {
        match self.text() {
            Some(text) => visitor
                .visit_enum(Word(text))
                .map_err(|err| err.at(self.mark)),
            None => Err(DocumentError::new(
                self.mark,
                format!("expected a word, found a {}", self.kind_name()),
            )),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char
        bytes byte_buf unit unit_struct seq tuple tuple_struct map struct ignored_any
    }
}

/// Deserializes a structure from entries gathered from several maps.
pub fn from_entries<'de, T: Deserialize<'de>>(
    entries: impl Iterator<Item = &'de (Node, Node)>,
) -> Result<T, DocumentError> {
    T::deserialize(MapAccessDeserializer::new(Entries {
        rest: entries,
        value: None,
    }))
}

/// Returns the names of a structure's fields, as its documents spell them.
pub fn field_names<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    struct Ask<'n>(&'n mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Ask<'_> {
        type Error = DocumentError;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, DocumentError> {
            Err(de::Error::custom("only structures have fields"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _name: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, DocumentError> {
            *self.0 = fields;
            self.deserialize_any(visitor)
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string
            bytes byte_buf option unit unit_struct newtype_struct seq tuple
            tuple_struct map enum identifier ignored_any
        }
    }

    let mut names: &'static [&'static str] = &[];
    // The answer is in the question: the visitor never gets a value.
    let _ = T::deserialize(Ask(&mut names));
    names
}

struct Items<'de>(std::slice::Iter<'de, Node>);

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = DocumentError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DocumentError> {
        self.0.next().map(|item| seed.deserialize(item)).transpose()
    }
}

struct Entries<'de, I> {
    rest: I,
    value: Option<(&'de Node, &'de Node)>,
}

impl<'de, I: Iterator<Item = &'de (Node, Node)>> MapAccess<'de> for Entries<'de, I> {
    type Error = DocumentError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, DocumentError> {
        let Some((key, value)) = self.rest.next() else {
            return Ok(None);
        };
        self.value = Some((key, value));
        let text = key.text().map_or("", |text| &**text);
        let text: StrDeserializer<'_, DocumentError> = text.into_deserializer();
        seed.deserialize(text)
            .map(Some)
            .map_err(|err| err.at(key.mark))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, DocumentError> {
        let Some((key, value)) = self.value.take() else {
            return Err(de::Error::custom("a value was asked for before its key"));
        };
        seed.deserialize(value).map_err(|err| {
            let name = key.text().map_or("", |text| &**text);
            // The innermost key that failed names the property; outer ones add nothing.
            if err.message.contains('"') || err.message.starts_with("property ") {
                err.at(value.mark)
            } else {
                DocumentError::new(err.mark, format!("property {name:?}: {}", err.message))
                    .at(value.mark)
            }
        })
    }
}

struct Word<'de>(&'de str);

impl<'de> EnumAccess<'de> for Word<'de> {
    type Error = DocumentError;
    type Variant = NoContent;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, NoContent), DocumentError> {
        let word: StrDeserializer<'_, DocumentError> = self.0.into_deserializer();
        Ok((seed.deserialize(word)?, NoContent))
    }
}

struct NoContent;

impl<'de> VariantAccess<'de> for NoContent {
    type Error = DocumentError;

    fn unit_variant(self) -> Result<(), DocumentError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(
        self,
        _seed: T,
    ) -> Result<T::Value, DocumentError> {
        Err(de::Error::custom("expected a single word"))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        _len: usize,
        _visitor: V,
    ) -> Result<V::Value, DocumentError> {
        Err(de::Error::custom("expected a single word"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, DocumentError> {
        Err(de::Error::custom("expected a single word"))
    }
}
