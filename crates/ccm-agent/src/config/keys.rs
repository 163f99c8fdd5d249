//! One mapping of the agent's file, read key by key.
//!
//! Whoever reads names each key once, with where its value goes and what makes it valid; from
//! that follow which keys are unknown and what is suggested instead. A key without a value counts
//! as absent. Problems are gathered, never printed, and show no value that may hold a secret.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ccm_value::Value;
use ccm_value::document::{DocumentError, Mark, Node, unknown_name};
use ccm_value::text::{go_duration, parse_duration, quote};

/// Returns a problem whose place and key are not yet known.
pub(super) fn wrong(message: impl Display) -> DocumentError {
    DocumentError::new(Mark::default(), message.to_string())
}

/// One mapping, and what was found wrong with it so far.
pub(super) struct Keys<'n> {
    /// The name of the mapping with a dot; nothing at the top of the file.
    prefix: String,
    entries: &'n [(Node, Node)],
    known: Vec<&'static str>,
    problems: Vec<DocumentError>,
}

impl<'n> Keys<'n> {
    pub(super) fn of(prefix: &str, node: &'n Node) -> Self {
        let mut problems = Vec::new();
        if node.entries().is_none() && !node.is_null() {
            let found = node.kind_name();
            let place = match prefix.trim_end_matches('.') {
                "" => String::new(),
                name => format!("key {name:?}: "),
            };
            let message = format!("{place}expected keys and values, found {found}");
            problems.push(DocumentError::new(node.mark, message));
        }
        Self {
            prefix: prefix.into(),
            entries: node.entries().unwrap_or_default(),
            known: Vec::new(),
            problems,
        }
    }

    fn value(&self, key: &str) -> Option<&'n Node> {
        self.entries
            .iter()
            .find(|(name, _)| name.text().is_some_and(|text| &**text == key))
            .map(|(_, value)| value)
            .filter(|value| !value.is_null())
    }

    pub(super) fn holds(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// Puts the value of a key where it belongs, if it is there and right.
    pub(super) fn read<T>(
        &mut self,
        key: &'static str,
        slot: &mut T,
        read: impl FnOnce(&'n Node) -> Result<T, DocumentError>,
    ) {
        self.known.push(key);
        let Some(node) = self.value(key) else {
            return;
        };
        match read(node) {
            Ok(value) => *slot = value,
            Err(problem) => {
                let message = format!("key \"{}{key}\": {}", self.prefix, problem.message);
                let problem = DocumentError::new(problem.mark, message).at(node.mark);
                self.problems.push(problem);
            }
        }
    }

    /// Reads a key whose empty text means the same as no text at all.
    pub(super) fn read_unless_empty<T>(
        &mut self,
        key: &'static str,
        slot: &mut T,
        read: impl FnOnce(&'n Node) -> Result<T, DocumentError>,
    ) {
        let is_empty = |node: &Node| node.text().is_some_and(|text| text.is_empty());
        if self.value(key).is_some_and(is_empty) {
            self.known.push(key)
        } else {
            self.read(key, slot, read)
        }
    }

    /// Reads the mapping below a key, if it is there.
    pub(super) fn section(&mut self, key: &'static str, read: impl FnOnce(&mut Keys<'n>)) {
        self.known.push(key);
        if let Some(node) = self.value(key) {
            let mut keys = Keys::of(&format!("{}{key}.", self.prefix), node);
            read(&mut keys);
            self.problems.extend(keys.finish());
        }
    }

    /// Reads the mappings in a list below a key, if it is there.
    pub(super) fn sections(&mut self, key: &'static str, mut read: impl FnMut(&mut Keys<'n>)) {
        let mut items: &[Node] = &[];
        self.read(key, &mut items, |node| {
            node.items().ok_or_else(|| no_list(node))
        });
        for (index, node) in items.iter().enumerate() {
            let mut keys = Keys::of(&format!("{}{key}.{index}.", self.prefix), node);
            read(&mut keys);
            self.problems.extend(keys.finish());
        }
    }

    /// Notes that a key must be given and is not.
    pub(super) fn require(&mut self, key: &str) {
        if !self.holds(key) {
            let mark = self
                .entries
                .first()
                .map_or(Mark::default(), |(key, _)| key.mark);
            let message = format!("key \"{}{key}\" is required", self.prefix);
            self.problems.push(DocumentError::new(mark, message));
        }
    }

    /// Notes a problem of the mapping as a whole.
    pub(super) fn complain(&mut self, message: impl Display) {
        let mark = self
            .entries
            .first()
            .map_or(Mark::default(), |(key, _)| key.mark);
        let name = self.prefix.trim_end_matches('.');
        let message = format!("key {name:?}: {message}");
        self.problems.push(DocumentError::new(mark, message));
    }

    /// Returns everything that is wrong, also with keys that nobody read.
    pub(super) fn finish(mut self) -> Vec<DocumentError> {
        for (key, _) in self.entries {
            let name = key.text().map_or("", |text| &**text);
            if !self.known.contains(&name) {
                let message = unknown_name("key", name, &self.known);
                self.problems.push(DocumentError::new(key.mark, message));
            }
        }
        self.into_problems()
    }

    /// Returns what is wrong with the keys read so far, in the order of the file.
    pub(super) fn into_problems(mut self) -> Vec<DocumentError> {
        self.problems
            .sort_by_key(|problem| (problem.mark.line, problem.mark.column));
        self.problems
    }
}

/// Returns a text.
pub(super) fn text(node: &Node) -> Result<&str, DocumentError> {
    match node.text() {
        Some(text) if !node.is_null() => Ok(text),
        _ => Err(DocumentError::new(
            node.mark,
            format!("expected text, found {}", node.kind_name()),
        )),
    }
}

/// Returns a text that is more than nothing.
pub(super) fn filled(node: &Node) -> Result<String, DocumentError> {
    match text(node)?.trim() {
        "" => Err(wrong(
            "must not be empty: give a value, or leave the key out",
        )),
        text => Ok(text.into()),
    }
}

/// Returns what a text stands for.
pub(super) fn parsed<T>(node: &Node) -> Result<T, DocumentError>
where
    T: FromStr<Err: Display>,
{
    text(node)?
        .parse()
        .map_err(|err| DocumentError::new(node.mark, format!("{err}")))
}

/// Returns what one of a few words stands for.
pub(super) fn word<T: Copy>(node: &Node, words: &[(&str, T)]) -> Result<T, DocumentError> {
    let text = text(node)?;
    words
        .iter()
        .find(|(word, _)| *word == text)
        .map(|(_, value)| *value)
        .ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            wrong(format_args!(
                "{} is not one of {}",
                quote(text),
                words.join(", ")
            ))
        })
}

pub(super) fn flag(node: &Node) -> Result<bool, DocumentError> {
    match node.to_value() {
        Value::Bool(flag) => Ok(flag),
        _ => Err(wrong("expected true or false")),
    }
}

/// Returns a whole number within bounds.
pub(super) fn number(node: &Node, range: RangeInclusive<u64>) -> Result<u64, DocumentError> {
    let number = match node.to_value() {
        Value::Int(number) => u64::try_from(number).ok(),
        Value::Uint(number) => Some(number),
        _ => None,
    };
    number
        .filter(|number| range.contains(number))
        .ok_or_else(|| {
            let (low, high) = (range.start(), range.end());
            wrong(format_args!("expected a whole number from {low} to {high}"))
        })
}

/// Returns a length of time.
pub(super) fn duration(node: &Node) -> Result<Duration, DocumentError> {
    let text = text(node)?;
    let nanos = parse_duration(text).map_err(|err| {
        wrong(format_args!(
            "{err} {}: give numbers with units, such as 90s, 5m, 1h30m or 1d",
            quote(text)
        ))
    })?;
    u64::try_from(nanos)
        .map(Duration::from_nanos)
        .map_err(|_| wrong(format_args!("{} is negative", quote(text))))
}

/// Returns a length of time that is not too short.
pub(super) fn at_least(node: &Node, least: Duration) -> Result<Duration, DocumentError> {
    match duration(node)? {
        short if short < least => Err(wrong(format_args!(
            "{} is too short: must be at least {}",
            go_duration(short),
            go_duration(least)
        ))),
        wait => Ok(wait),
    }
}

/// Returns the path of a directory that does not depend on where we were started.
pub(super) fn directory(node: &Node) -> Result<PathBuf, DocumentError> {
    let path = PathBuf::from(filled(node)?);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(wrong("expected a path that begins with /"))
    }
}

const UNITS: [(&str, u32); 5] = [("B", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

/// Returns a number of bytes: a plain number, or one with a unit such as `256MiB`.
pub(super) fn size(node: &Node, least: u64) -> Result<u64, DocumentError> {
    let text = text(node)?.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start();
    let scale = match unit {
        "" => Some(0),
        unit => UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
            .map(|(_, scale)| *scale),
    };
    let bytes = number
        .parse::<u64>()
        .ok()
        .zip(scale)
        .and_then(|(number, scale)| number.checked_mul(1 << scale));
    match bytes {
        Some(bytes) if bytes >= least => Ok(bytes),
        Some(_) => Err(wrong(format_args!("must be at least {least} bytes"))),
        None => Err(wrong(format_args!(
            "{} is no size: give a number of bytes, or one with KiB, MiB or GiB",
            quote(text)
        ))),
    }
}

/// Returns the items of a list.
pub(super) fn list<'n, T>(
    node: &'n Node,
    mut item: impl FnMut(&'n Node) -> Result<T, DocumentError>,
) -> Result<Vec<T>, DocumentError> {
    let items = node.items().ok_or_else(|| no_list(node))?;
    items
        .iter()
        .map(|node| item(node).map_err(|err| err.at(node.mark)))
        .collect()
}

fn no_list(node: &Node) -> DocumentError {
    wrong(format_args!("expected a list, found {}", node.kind_name()))
}
