//! The keys of a YAML text by their position, and which of them a comment belongs to.
//!
//! Position alone decides. A comment behind something on its line belongs to the key before it.
//! On a line of its own it belongs to the next key of the same map, blank lines or not; at the end
//! of a map, if it is indented at least like the map's keys, to the last of them.
//!
//! Comments are found in `comments` and understood in `annotations`.

use std::borrow::Cow;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use super::comments::{Comment, Opaque, Place};
use crate::model::document::{Mark, Node, NodeKind};

/// Deeper documents are refused by the reader of documents.
const MAX_DEPTH: usize = 128;

/// The keys and list items of a document, in its order.
#[derive(Default)]
pub(super) struct Outline<'t> {
    entries: Vec<Entry<'t>>,
    containers: Vec<Container>,
    /// The scalars that may hide what looks like a comment.
    pub(super) opaque: Vec<Opaque>,
}

/// A key of a map with its value, or an item of a list.
struct Entry<'t> {
    at: usize,
    /// The column of the key, or of the list's dashes.
    column: usize,
    container: usize,
    /// The key's own text; items of lists have none.
    key: Option<Key<'t>>,
    /// Where a value that is no list or map starts, if there is one.
    value: Option<usize>,
}

type Key<'t> = Cow<'t, str>;

/// A list or map.
struct Container {
    /// The entry whose value it is.
    owner: Option<usize>,
    column: usize,
    is_map: bool,
    /// The next scalar is a value, not a key.
    in_value: bool,
    /// Where the closing brace or bracket stands, if there is one.
    closer: Option<usize>,
}

impl<'t> Outline<'t> {
    /// Returns the outline of a text, or nothing when it is no document.
    pub(super) fn new(text: &'t str) -> Option<Self> {
        let mut outline = Self::default();
        let mut open: Vec<usize> = Vec::new();
        for event in Parser::new_from_str(text) {
            let (event, span) = event.ok()?;
            match event {
                Event::Scalar(text, style, anchor, ref tag) => {
                    let is_bare = anchor == 0 && tag.is_none();
                    outline
                        .opaque
                        .extend(Opaque::new(&text, style, is_bare, span));
                    outline.scalar(open.last().copied(), Some((text, style)), span);
                }
                Event::Alias(_) => outline.scalar(open.last().copied(), None, span),
                Event::MappingStart(..) | Event::SequenceStart(..) => {
                    if open.len() >= MAX_DEPTH {
                        return None;
                    }
                    let is_map = matches!(event, Event::MappingStart(..));
                    open.push(outline.start(open.last().copied(), is_map, span));
                }
                Event::MappingEnd | Event::SequenceEnd => {
                    let closed = open.pop();
                    if let Some(container) = closed.and_then(|at| outline.containers.get_mut(at)) {
                        // What ends by indentation ends with nothing.
                        container.closer = (!span.is_empty()).then(|| span.start.index());
                    }
                }
                _ => {}
            }
        }
        Some(outline)
    }

    /// Takes a scalar or alias: a key, a value or an item, as its container expects.
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

    /// Opens a list or map; returns its number.
    fn start(&mut self, container: Option<usize>, is_map: bool, span: Span) -> usize {
        let parent = container.and_then(|at| self.containers.get_mut(at));
        let mut is_entry = false;
        if let Some(parent) = parent {
            // A map that is a key has no name, as an item has none.
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

    /// Returns the names that lead to an entry, outermost first; nothing when a list is among
    /// what leads there.
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
        // Behind a closing brace or bracket, what was inside is over.
        while let Some(container) = self.container(current)
            && container.closer.is_some_and(|at| at < comment.at)
        {
            current = container.owner;
        }
        match comment.place {
            Place::Behind => return current,
            Place::Dash => return None,
            Place::OwnLine => {}
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

    /// Climbs from an entry to the one whose map ends with a comment in this column; nothing when
    /// that leads to the map that goes on behind the comment.
    fn last_owner(
        &self,
        mut current: Option<usize>,
        column: usize,
        goes_on: Option<usize>,
    ) -> Option<usize> {
        let upper = goes_on.and_then(|at| self.containers.get(at)?.owner);
        loop {
            let entry = self.entries.get(current?)?;
            if goes_on == Some(entry.container) || (upper.is_some() && upper == current) {
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

/// Returns the name the data has for a key: a plain null is called `null`.
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
