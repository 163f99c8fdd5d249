//! Positions of the keys of a YAML text, and the assignment of comments to keys.
//!
//! A comment after a key or value on the same line belongs to that key. A comment on its own line
//! belongs to the next key of the same map, across blank lines; at the end of a map, if indented at
//! least as far as the map's keys, to the last of them.
//!
//! `comments` finds comments; `annotations` parses them.

use std::borrow::Cow;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use super::comments::{Comment, LinePosition, Opaque};
use crate::model::document::{Mark, Node, NodeKind};

/// Maximum nesting depth; the document parser rejects deeper documents.
const MAX_DEPTH: usize = 128;

/// Keys and list items of a document, in order.
#[derive(Default)]
pub(super) struct KeyPositions<'t> {
    entries: Vec<Entry<'t>>,
    containers: Vec<Container>,
    /// Scalars that may contain a `#`.
    pub(super) opaque: Vec<Opaque>,
}

/// Key of a map with its value, or item of a list.
struct Entry<'t> {
    at: usize,
    /// Column of the key, or of the list's dashes.
    column: usize,
    container: usize,
    /// Text of the key; `None` for list items.
    key: Option<Key<'t>>,
    /// Start of a scalar value, if there is one.
    value: Option<usize>,
}

type Key<'t> = Cow<'t, str>;

/// List or map.
struct Container {
    /// Entry that has this container as its value.
    owner: Option<usize>,
    column: usize,
    is_map: bool,
    /// Whether the next scalar is a value, not a key.
    in_value: bool,
    /// Position of the closing brace or bracket, if there is one.
    closer: Option<usize>,
}

impl<'t> KeyPositions<'t> {
    /// Returns the positions of a text's keys, or `None` if the text is not valid YAML.
    pub(super) fn new(text: &'t str) -> Option<Self> {
        let mut positions = Self::default();
        let mut open: Vec<usize> = Vec::new();
        for event in Parser::new_from_str(text) {
            let (event, span) = event.ok()?;
            match event {
                Event::Scalar(text, style, anchor, ref tag) => {
                    let is_bare = anchor == 0 && tag.is_none();
                    positions
                        .opaque
                        .extend(Opaque::new(&text, style, is_bare, span));
                    positions.scalar(open.last().copied(), Some((text, style)), span);
                }
                Event::Alias(_) => positions.scalar(open.last().copied(), None, span),
                Event::MappingStart(..) | Event::SequenceStart(..) => {
                    if open.len() >= MAX_DEPTH {
                        return None;
                    }
                    let is_map = matches!(event, Event::MappingStart(..));
                    open.push(positions.start(open.last().copied(), is_map, span));
                }
                Event::MappingEnd | Event::SequenceEnd => {
                    let closed = open.pop();
                    if let Some(container) = closed.and_then(|at| positions.containers.get_mut(at))
                    {
                        // A container that ends by indentation has no closing character.
                        container.closer = (!span.is_empty()).then(|| span.start.index());
                    }
                }
                _ => {}
            }
        }
        Some(positions)
    }

    /// Adds a scalar or alias: a key, a value or an item, depending on its container.
    fn scalar(
        &mut self,
        container: Option<usize>,
        text: Option<(Key<'t>, ScalarStyle)>,
        span: Span,
    ) {
        let Some(at) = container else {
            return;
        };
        let Some(parent) = self.containers.get_mut(at) else {
            return;
        };
        let (is_map, is_value) = (parent.is_map, parent.in_value);
        parent.in_value = is_map && !is_value;
        if !(is_map && is_value) {
            let key = text.filter(|_| is_map);
            self.entry(at, key.map(|(text, style)| key_text(text, style)), span);
        } else if !span.is_empty()
            && let Some(entry) = self.entries.last_mut()
        {
            entry.value = Some(span.start.index());
        }
    }

    fn entry(&mut self, container: usize, key: Option<Key<'t>>, span: Span) {
        let Some(parent) = self.containers.get(container) else {
            return;
        };
        self.entries.push(Entry {
            at: span.start.index(),
            column: if parent.is_map {
                span.start.col()
            } else {
                parent.column
            },
            container,
            key,
            value: None,
        });
    }

    /// Adds a list or map; returns its index.
    fn start(&mut self, container: Option<usize>, is_map: bool, span: Span) -> usize {
        let parent = container.and_then(|at| self.containers.get_mut(at));
        let mut is_entry = false;
        if let Some(parent) = parent {
            // A map that is a key has no text, like a list item.
            is_entry = !(parent.is_map && parent.in_value);
            parent.in_value = parent.is_map && !parent.in_value;
        }
        if let Some(container) = container.filter(|_| is_entry) {
            self.entry(container, None, span);
        }
        let owner = container.and(self.entries.len().checked_sub(1));
        self.containers.push(Container {
            owner,
            column: span.start.col(),
            is_map,
            in_value: false,
            closer: None,
        });
        self.containers.len() - 1
    }

    /// Returns the keys from the root to an entry; `None` if the path contains a list.
    pub(super) fn path(&self, entry: usize) -> Option<Vec<&str>> {
        let mut path = Vec::new();
        let mut next = Some(entry);
        while let Some(entry) = next.and_then(|at| self.entries.get(at)) {
            path.push(entry.key.as_deref()?);
            next = self.containers.get(entry.container)?.owner;
        }
        path.reverse();
        Some(path)
    }

    /// Returns the entry a comment belongs to.
    pub(super) fn owner(&self, comment: &Comment<'_>) -> Option<usize> {
        let next = self.entries.partition_point(|entry| entry.at < comment.at);
        let following = self.entries.get(next);
        let mut current = next.checked_sub(1);
        // After a closing brace or bracket, continue with the owner of the container.
        while let Some(container) = self.container(current)
            && container.closer.is_some_and(|at| at < comment.at)
        {
            current = container.owner;
        }
        match comment.line_position {
            LinePosition::AfterContent => return current,
            LinePosition::AfterDash => return None,
            LinePosition::OwnLine => {}
        }
        let before = current.and_then(|at| self.entries.get(at));
        if before.is_some_and(|entry| entry.value.is_some_and(|value| value > comment.at)) {
            return current;
        }
        let Some(following) = following else {
            return self.last_owner(current, comment.column, None);
        };
        if following.column == comment.column {
            return Some(next);
        }
        self.last_owner(current, comment.column, Some(following.container))
            .or(Some(next))
    }

    /// Returns the entry, from `current` upwards, whose map ends with a comment in this column; `None`
    /// if that map continues after the comment.
    fn last_owner(
        &self,
        mut current: Option<usize>,
        column: usize,
        continued: Option<usize>,
    ) -> Option<usize> {
        let upper = continued.and_then(|at| self.containers.get(at)?.owner);
        loop {
            let entry = self.entries.get(current?)?;
            if continued == Some(entry.container) || (upper.is_some() && upper == current) {
                return None;
            }
            let container = self.containers.get(entry.container)?;
            if column >= entry.column || container.closer.is_some() {
                return current;
            }
            current = container.owner;
        }
    }

    fn container(&self, entry: Option<usize>) -> Option<&Container> {
        self.containers.get(self.entries.get(entry?)?.container)
    }
}

/// Returns the key as it is in the data: a plain null is `null`.
fn key_text(text: Key<'_>, style: ScalarStyle) -> Key<'_> {
    let node = Node {
        mark: Mark::default(),
        kind: NodeKind::Scalar {
            text: text.as_ref().into(),
            plain: style == ScalarStyle::Plain,
            tag: None,
        },
    };
    if node.is_null() { "null".into() } else { text }
}
