//! Finds the comments of a YAML text and the key that each belongs to.
//!
//! A YAML reader drops comments, but it tells where every scalar stands: a `#` outside quotes and
//! blocks, at the start of a line or after a blank, starts a comment. Whose it is follows from
//! position alone. Behind something on its line, it belongs to the key before it. On a line of its
//! own it belongs to the next key of the same map, blank lines or not; at the end of a map, if it
//! is indented at least like the map's keys, to the last of them.
//!
//! Knows nothing of what comments say; see `annotations` for that.

use std::borrow::Cow;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use crate::model::document::{Mark, Node, NodeKind};

/// Deeper documents are refused by the reader of documents.
const MAX_DEPTH: usize = 128;

/// A comment.
pub(super) struct Comment<'t> {
    /// What stands behind its `#`, without blanks around it.
    pub(super) text: &'t str,
    at: usize,
    column: usize,
    place: Place,
}

/// What a comment shares its line with.
enum Place {
    /// Nothing.
    OwnLine,
    /// The dash of a list item that starts on a later line.
    Dash,
    /// A key or a value.
    Behind,
}

/// The keys and list items of a document, in its order.
#[derive(Default)]
pub(super) struct Outline<'t> {
    entries: Vec<Entry<'t>>,
    containers: Vec<Container>,
    opaque: Vec<Opaque>,
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
    is_flow: bool,
    /// The next scalar is a value, not a key.
    in_value: bool,
    /// Where the closing brace or bracket stands, if there is one.
    end: usize,
}

/// A scalar whose text may hold a `#` that starts no comment.
struct Opaque {
    start: usize,
    /// The quote that starts and ends the scalar. The parser does not tell where exactly, as it
    /// counts a comment behind the quote in.
    quote: Option<char>,
    /// Where a block ends.
    end: usize,
    /// The first line of the text; the line that opens a block may have a comment.
    line: usize,
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
                        container.end = span.start.index();
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
            column: match parent.is_map {
                true => span.start.col(),
                false => parent.column,
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
            is_flow: !span.is_empty(),
            in_value: false,
            end: usize::MAX,
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
            && container.is_flow
            && container.end < comment.at
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
        loop {
            let entry = self.entries.get(current?)?;
            let upper = goes_on.and_then(|at| self.containers.get(at)?.owner);
            if goes_on == Some(entry.container) || (goes_on.is_some() && upper == current) {
                return None;
            }
            let container = self.containers.get(entry.container)?;
            if column >= entry.column || container.is_flow {
                return current;
            }
            current = container.owner;
        }
    }

    fn container(&self, entry: Option<usize>) -> Option<&Container> {
        self.containers.get(self.entries.get(entry?)?.container)
    }

    /// Returns the comments of the text, in its order.
    pub(super) fn comments<'c>(&self, text: &'c str) -> Vec<Comment<'c>> {
        let mut comments = Vec::new();
        let mut opaque = self.opaque.iter().peekable();
        let mut hidden = 0..0;
        // Places count characters, as the parser does.
        let mut at = 0;
        let mut rest = text;
        let mut number = 0;
        while let Some((line, tail)) = split_line(rest) {
            number += 1;
            let mut previous = ' ';
            for (column, (byte, c)) in line.char_indices().enumerate() {
                let here = at + column;
                if let Some(scalar) =
                    opaque.next_if(|next| next.start <= here && next.line <= number)
                {
                    hidden = here..scalar.end(here, rest.get(byte..).unwrap_or_default());
                }
                if c == '#' && previous.is_whitespace() && !hidden.contains(&here) {
                    let (before, comment) = line.split_at(byte);
                    comments.push(Comment {
                        text: comment.strip_prefix('#').unwrap_or(comment).trim(),
                        at: here,
                        column,
                        place: Place::after(before),
                    });
                    break;
                }
                previous = c;
            }
            at += line.chars().count();
            rest = tail;
        }
        comments
    }
}

impl Opaque {
    /// Returns nothing for scalars that can hide no comment. Tags and anchors count as part of
    /// the scalar; one that has none of them is bare.
    fn new(text: &str, style: ScalarStyle, is_bare: bool, span: Span) -> Option<Self> {
        let quote = match style {
            ScalarStyle::Plain => return None,
            ScalarStyle::SingleQuoted => Some('\''),
            ScalarStyle::DoubleQuoted => Some('"'),
            ScalarStyle::Literal | ScalarStyle::Folded if text.trim().is_empty() => return None,
            ScalarStyle::Literal | ScalarStyle::Folded => None,
        };
        // A bare block starts with its text, below the line that opens it.
        let is_below = quote.is_none() && !is_bare;
        Some(Self {
            start: span.start.index(),
            quote,
            end: span.end.index(),
            line: span.start.line() + usize::from(is_below),
        })
    }

    /// Returns where the scalar ends that `text` starts with, `here`.
    fn end(&self, here: usize, text: &str) -> usize {
        let Some(quote) = self.quote else {
            return self.end;
        };
        let mut chars = text.chars().enumerate().skip_while(|(_, c)| *c != quote);
        chars.next();
        let mut chars = chars.peekable();
        while let Some((len, c)) = chars.next() {
            if c == '\\' && quote == '"' {
                chars.next();
            } else if c == quote {
                // In single quotes, two of them stand for one.
                let is_doubled = chars.next_if(|(_, next)| *next == quote && quote == '\'');
                if is_doubled.is_none() {
                    return here + len + 1;
                }
            }
        }
        self.end
    }
}

impl Place {
    fn after(before: &str) -> Self {
        match before.trim() {
            "" => Self::OwnLine,
            seen if seen.chars().all(|c| c == '-' || c.is_whitespace()) => Self::Dash,
            _ => Self::Behind,
        }
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
    match node.is_null() {
        true => "null".into(),
        false => text,
    }
}

/// Splits off a line with its break: `\n`, `\r\n` or a lone `\r`.
fn split_line(text: &str) -> Option<(&str, &str)> {
    if text.is_empty() {
        return None;
    }
    let end = text.find(['\n', '\r']).unwrap_or(text.len());
    let rest = text.get(end..)?;
    let width = match rest.starts_with("\r\n") {
        true => 2,
        false => rest.len().min(1),
    };
    text.split_at_checked(end + width)
}
