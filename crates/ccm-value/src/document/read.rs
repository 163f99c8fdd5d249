//! Parser from text to nodes: JSON through serde_json, YAML through a parser with positions. Depth
//! and size are limited, including the nodes that aliases copy.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{DocumentError, Mark, Node, NodeKind, float_text, json_marks, syntax};

/// Maximum nesting and maximum number of nodes of a document.
const MAX_DEPTH: usize = 128;
const MAX_NODES: usize = 2_000_000;

/// Maximum number of nodes copied by anchors and aliases, because a few hundred bytes of aliases
/// can stand for millions of nodes.
const MAX_COPIES: usize = 100_000;

/// Returns whether a text looks like JSON: its first visible character opens an object or array.
pub fn is_json(text: &str) -> bool {
    text.trim_start().starts_with(['{', '['])
}

/// Parses a document as JSON if it looks like JSON, and as YAML otherwise. An empty document is
/// null.
pub fn parse(text: &str) -> Result<Node, DocumentError> {
    if !is_json(text) {
        return parse_yaml(text);
    }
    // YAML's flow style looks like JSON too; if it is neither, the JSON error is the more useful
    // one.
    parse_json(text).or_else(|err| parse_yaml(text).map_err(|_| err))
}

/// Parses a message; text that looks like JSON must be JSON.
pub fn parse_message(text: &str) -> Result<Node, DocumentError> {
    if is_json(text) {
        parse_json(text)
    } else {
        parse_yaml(text)
    }
}

fn parse_json(text: &str) -> Result<Node, DocumentError> {
    let mut node = serde_json::from_str(text).map_err(|err| {
        let mark = Mark {
            line: to_u32(err.line()),
            column: to_u32(err.column()),
        };
        syntax::explain_json(text, mark, without_position(&err.to_string()))
    })?;
    json_marks::set(&mut node, text);
    Ok(node)
}

/// Removes the position from the end of a serde_json message; [`DocumentError`] has its own.
fn without_position(message: &str) -> &str {
    message
        .rsplit_once(" at line ")
        .map_or(message, |(text, _)| text)
}

fn parse_yaml(text: &str) -> Result<Node, DocumentError> {
    build_yaml(text).map_err(|err| syntax::explain(text, err))
}

fn build_yaml(text: &str) -> Result<Node, DocumentError> {
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
    copies: usize,
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
                let node = self.anchors.get(&anchor);
                let node = node.ok_or_else(|| DocumentError::new(mark, syntax::UNKNOWN_ALIAS))?;
                // Counted before copying.
                let size = node.size();
                count_copies(&mut self.copies, size, mark)?;
                let node = node.clone();
                self.count(size, mark)?;
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
            // Each anchor is a copy, so nested anchors multiply.
            count_copies(&mut self.copies, node.size(), node.mark)?;
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            Some(open) => open.items.push(node),
            None => self.root = Some(node),
        }
        Ok(())
    }
}

/// Counts copied nodes.
fn count_copies(copies: &mut usize, nodes: usize, mark: Mark) -> Result<(), DocumentError> {
    *copies = copies.saturating_add(nodes);
    if *copies > MAX_COPIES {
        let message = format!("anchors and aliases stand for more than {MAX_COPIES} nodes");
        return Err(DocumentError::new(mark, message));
    }
    Ok(())
}

/// Pairs keys with values, refuses duplicates and resolves `<<` merges; the map's own keys take
/// precedence over merged ones.
fn pairs(items: Vec<Node>) -> Result<Vec<(Node, Node)>, DocumentError> {
    let mut own: Vec<(Node, Node)> = Vec::with_capacity(items.len() / 2);
    let mut seen = Keys::with_capacity(items.len() / 2);
    let mut merged: Vec<Node> = Vec::new();
    let mut items = items.into_iter();
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        let Some(name) = key.key_text() else {
            return Err(DocumentError::new(key.mark, syntax::KEY_NOT_SCALAR));
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

/// Keys of a map so far. Most maps are small, and for these a list is faster than a set.
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

    /// Adds a key; returns whether it is new.
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

/// Reads a node from JSON; `json_marks` adds the positions.
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
                scalar(float_text(value), true)
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
