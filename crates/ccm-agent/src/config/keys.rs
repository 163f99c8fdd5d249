//! Reader of one mapping of the configuration file.
//!
//! Each key is named once, with its destination and its parser; unknown keys and suggestions follow
//! from that. A key without a value counts as absent. Problems are collected, not printed, and
//! never show a value that may be a secret.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::suggestion;
use ccm_value::Value;
use ccm_value::document::{DocumentError, Mark, Node};
use ccm_value::text::{go_duration, parse_duration, quote};

/// Returns a problem whose position and key are added later.
pub(super) fn problem(message: impl Display) -> DocumentError {
    DocumentError::new(Mark::default(), message.to_string())
}

/// One mapping and its problems so far.
pub(super) struct Keys<'n> {
    /// Name of the mapping with a dot; empty at the top level.
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
            let location = match prefix.trim_end_matches('.') {
                "" => String::new(),
                name => format!("key {name:?}: "),
            };
            let message = format!("{location}expected keys and values, found {found}");
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

    pub(super) fn contains(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// Reads a key into `slot`, if it is present and valid.
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
            Err(error) => {
                let mut error = error.at(node.mark);
                error.message = format!("key \"{}{key}\": {}", self.prefix, error.message);
                self.problems.push(error);
            }
        }
    }

    /// Reads a key whose empty text counts as absent.
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

    /// Reads the mapping below a key, if present.
    pub(super) fn section(&mut self, key: &'static str, read: impl FnOnce(&mut Keys<'n>)) {
        self.known.push(key);
        if let Some(node) = self.value(key) {
            let mut keys = Keys::of(&format!("{}{key}.", self.prefix), node);
            read(&mut keys);
            self.problems.extend(keys.finish());
        }
    }

    /// Reads the list of mappings below a key, if present.
    pub(super) fn sections(&mut self, key: &'static str, mut read: impl FnMut(&mut Keys<'n>)) {
        let mut items: &[Node] = &[];
        self.read(key, &mut items, |node| {
            node.items().ok_or_else(|| not_a_list(node))
        });
        for (index, node) in items.iter().enumerate() {
            let mut keys = Keys::of(&format!("{}{key}.{index}.", self.prefix), node);
            read(&mut keys);
            self.problems.extend(keys.finish());
        }
    }

    /// Adds a problem if a required key is missing.
    pub(super) fn require(&mut self, key: &str) {
        if !self.contains(key) {
            let mark = self
                .entries
                .first()
                .map_or(Mark::default(), |(key, _)| key.mark);
            let message = format!("key \"{}{key}\" is required", self.prefix);
            self.problems.push(DocumentError::new(mark, message));
        }
    }

    /// Adds a problem of the whole mapping.
    pub(super) fn add_problem(&mut self, message: impl Display) {
        let mark = self
            .entries
            .first()
            .map_or(Mark::default(), |(key, _)| key.mark);
        let name = self.prefix.trim_end_matches('.');
        let message = format!("key {name:?}: {message}");
        self.problems.push(DocumentError::new(mark, message));
    }

    /// Returns all problems, including unknown keys.
    pub(super) fn finish(mut self) -> Vec<DocumentError> {
        for (key, _) in self.entries {
            let name = key.text().map_or("", |text| &**text);
            if !self.known.contains(&name) {
                let remedy = suggestion::of_upstream_key(name).filter(|_| self.prefix.is_empty());
                self.problems.push(match remedy {
                    Some(remedy) => {
                        let message = format!("key {name:?} of upstream is not supported");
                        DocumentError::new(key.mark, message).with_help(remedy)
                    }
                    None => DocumentError::unknown_name(key.mark, "key", name, &self.known),
                });
            }
        }
        self.into_problems()
    }

    /// Returns the problems of the keys read so far, in file order.
    pub(super) fn into_problems(mut self) -> Vec<DocumentError> {
        self.problems
            .sort_by_key(|problem| (problem.mark.line, problem.mark.column));
        self.problems
    }
}

/// Reads a text.
pub(super) fn text(node: &Node) -> Result<&str, DocumentError> {
    match node.text() {
        Some(text) if !node.is_null() => Ok(text),
        _ => Err(DocumentError::new(
            node.mark,
            format!("expected text, found {}", node.kind_name()),
        )),
    }
}

/// Reads a text that is not empty.
pub(super) fn non_empty(node: &Node) -> Result<String, DocumentError> {
    match text(node)?.trim() {
        "" => Err(problem(
            "must not be empty: give a value, or leave the key out",
        )),
        text => Ok(text.into()),
    }
}

/// Parses a text with [`FromStr`].
pub(super) fn parsed<T>(node: &Node) -> Result<T, DocumentError>
where
    T: FromStr<Err: Display>,
{
    text(node)?
        .parse()
        .map_err(|err| DocumentError::new(node.mark, format!("{err}")))
}

/// Reads one of a few keywords.
pub(super) fn keyword<T: Copy>(node: &Node, keywords: &[(&str, T)]) -> Result<T, DocumentError> {
    let text = text(node)?;
    keywords
        .iter()
        .find(|(keyword, _)| *keyword == text)
        .map(|(_, value)| *value)
        .ok_or_else(|| {
            let keywords: Vec<&str> = keywords.iter().map(|(keyword, _)| *keyword).collect();
            problem(format_args!(
                "{} is not one of {}",
                quote(text),
                keywords.join(", ")
            ))
        })
}

pub(super) fn flag(node: &Node) -> Result<bool, DocumentError> {
    match node.to_value() {
        Value::Bool(flag) => Ok(flag),
        _ => Err(problem("expected true or false")),
    }
}

/// Reads a whole number within bounds.
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
            problem(format_args!("expected a whole number from {low} to {high}"))
        })
}

/// Reads a duration.
pub(super) fn duration(node: &Node) -> Result<Duration, DocumentError> {
    let text = text(node)?;
    let nanos = parse_duration(text).map_err(|err| {
        problem(format_args!(
            "{err} {}: give numbers with units, such as 90s, 5m, 1h30m or 1d",
            quote(text)
        ))
    })?;
    u64::try_from(nanos)
        .map(Duration::from_nanos)
        .map_err(|_| problem(format_args!("{} is negative", quote(text))))
}

/// Reads a duration with a lower bound.
pub(super) fn at_least(node: &Node, least: Duration) -> Result<Duration, DocumentError> {
    match duration(node)? {
        short if short < least => Err(problem(format_args!(
            "{} is too short: must be at least {}",
            go_duration(short),
            go_duration(least)
        ))),
        wait => Ok(wait),
    }
}

/// Reads the absolute path of a directory.
pub(super) fn directory(node: &Node) -> Result<PathBuf, DocumentError> {
    let path = PathBuf::from(non_empty(node)?);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(problem("expected a path that begins with /"))
    }
}

const UNITS: [(&str, u32); 5] = [("B", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

/// Reads a number of bytes: a plain number, or one with a unit such as `256MiB`.
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
        Some(_) => Err(problem(format_args!("must be at least {least} bytes"))),
        None => Err(problem(format_args!(
            "{} is not a size: give a number of bytes, or one with KiB, MiB or GiB",
            quote(text)
        ))),
    }
}

/// Reads a list.
pub(super) fn list<'n, T>(
    node: &'n Node,
    mut item: impl FnMut(&'n Node) -> Result<T, DocumentError>,
) -> Result<Vec<T>, DocumentError> {
    let items = node.items().ok_or_else(|| not_a_list(node))?;
    items
        .iter()
        .map(|node| item(node).map_err(|err| err.at(node.mark)))
        .collect()
}

fn not_a_list(node: &Node) -> DocumentError {
    problem(format_args!("expected a list, found {}", node.kind_name()))
}
