//! Probes: what each type of thing can be asked, and where the answer is found.
//!
//! One file per family, with its table on top: the names a document may use, then how to look.
//! Looking starts processes through the runner only and reads `/proc` where the kernel answers
//! there. It never compares. Every wait has an end: the family's own limit or that of the check,
//! whichever comes first.

mod account;
mod addr;
mod command;
mod dns;
mod error;
mod file;
mod http;
mod interface;
mod kernel_param;
mod matching;
mod mount;
mod package;
mod port;
mod process;
mod service;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::mpsc;
use std::time::Duration;

use super::document::Entry;
use crate::health::Probes;
use crate::model::Value;

pub(super) use error::LookError;

/// All families.
pub(super) const FAMILIES: [&Family; 15] = [
    &addr::FAMILY,
    &command::FAMILY,
    &dns::FAMILY,
    &file::FAMILY,
    &account::GROUP,
    &http::FAMILY,
    &interface::FAMILY,
    &kernel_param::FAMILY,
    &matching::FAMILY,
    &mount::FAMILY,
    &package::FAMILY,
    &port::FAMILY,
    &process::FAMILY,
    &service::FAMILY,
    &account::USER,
];

/// One type of thing.
pub(super) struct Family {
    /// What documents call it.
    pub key: &'static str,
    /// What findings call it.
    pub name: &'static str,
    /// The setting that says where to look, if not the id does.
    pub target: &'static str,
    pub settings: &'static [(&'static str, Setting)],
    /// What can be asked, in the order it is tested.
    pub attributes: &'static [Attribute],
    pub first: First,
    pub look: LookFn,
}

/// Starts looking at a thing. What is costly and asked for once is done here.
type LookFn = for<'a> fn(&'a Entry, &'a World<'a>) -> Result<Look<'a>, LookError>;

/// Tells what an attribute is, or why that can't be said.
pub(super) type Look<'a> = Box<dyn FnMut(&'static str) -> Result<Value, LookError> + 'a>;

impl Family {
    /// Tells whether a name is that of an attribute.
    pub(super) fn expects(&self, name: &str) -> bool {
        self.attributes
            .iter()
            .any(|attribute| attribute.name == name || attribute.old_name == Some(name))
    }

    /// Returns what a setting may be, if there is one of that name.
    pub(super) fn setting(&self, name: &str) -> Option<Setting> {
        if !self.target.is_empty() && name == self.target {
            return Some(Setting::Text);
        }
        let known = |(known, _): &&(&str, Setting)| *known == name;
        self.settings
            .iter()
            .find(known)
            .map(|(_, setting)| *setting)
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.key)
    }
}

/// What the first attribute of a family is to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// Nothing, and it may be left out.
    Optional,
    /// Nothing, but it must be given.
    Required,
    /// It must be given, and unless it comes out well and true the others are skipped.
    Gate,
}

/// Something that can be asked.
#[derive(Debug)]
pub(super) struct Attribute {
    pub name: &'static str,
    /// A name from earlier times.
    pub old_name: Option<&'static str>,
    /// What findings call it.
    pub property: &'static str,
    /// It is a text of many lines: a list means patterns of lines.
    pub is_stream: bool,
}

impl Attribute {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            old_name: None,
            property: name,
            is_stream: false,
        }
    }

    const fn stream(name: &'static str) -> Self {
        Self {
            is_stream: true,
            ..Self::new(name)
        }
    }

    const fn shown_as(self, property: &'static str) -> Self {
        Self { property, ..self }
    }

    const fn formerly(self, name: &'static str) -> Self {
        Self {
            old_name: Some(name),
            ..self
        }
    }
}

/// What a setting may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    Text,
    Flag,
    Milliseconds,
    Texts,
    Data,
}

impl Setting {
    /// The setting of every family that waits.
    const TIMEOUT: (&'static str, Self) = ("timeout", Self::Milliseconds);

    pub(super) fn accepts(self, value: &Value) -> bool {
        match self {
            Self::Text => !matches!(value, Value::List(_) | Value::Map(_)),
            Self::Flag => matches!(value, Value::Bool(_)),
            Self::Milliseconds => matches!(value, Value::Int(0..)),
            Self::Texts => value
                .as_list()
                .is_some_and(|list| list.iter().all(|item| Self::Text.accepts(item))),
            Self::Data => true,
        }
    }

    /// Returns what it may be, for people.
    pub(super) fn wanted(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Flag => "true or false",
            Self::Milliseconds => "a whole number of milliseconds",
            Self::Texts => "a list of texts",
            Self::Data => "data",
        }
    }
}

/// The machine, for as long as a check may take.
pub(super) struct World<'a> {
    pub probes: &'a Probes<'a>,
    /// When the check must have ended, on the monotonic clock.
    ends: Duration,
}

impl<'a> World<'a> {
    pub(super) fn new(probes: &'a Probes<'a>, ends: Duration) -> Self {
        Self { probes, ends }
    }

    /// Returns how much time is left.
    fn left(&self) -> Duration {
        self.ends.saturating_sub(self.probes.clock.monotonic())
    }

    pub(super) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// Returns how long an entry may take: what it says or what is usual, within what is left.
    fn limit(&self, entry: &Entry, usual: u64) -> Duration {
        let own = entry.number("timeout").unwrap_or(usual);
        // Nothing at all would mean no limit to some that are given it.
        Duration::from_millis(own)
            .min(self.left())
            .max(Duration::from_millis(1))
    }
}

/// Does something that may never come back, and returns what came of it in time. What comes too
/// late ends on its own, unheard.
fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (answer, wait) = mpsc::sync_channel(1);
    let worker = std::thread::Builder::new().name("probe".into());
    // Nobody may be left to hear it.
    let started = worker.spawn(move || drop(answer.send(work())));
    started.ok().and_then(|_| wait.recv_timeout(limit).ok())
}

/// Returns why a name can't be passed to a program, which would take it for an option or a path.
fn check_name(what: &'static str, name: &str) -> Result<(), LookError> {
    if name.is_empty() || name.starts_with('-') || name.contains('\0') {
        let name = name.to_owned();
        return Err(LookError::Name { what, name });
    }
    Ok(())
}

/// What a family answers for an attribute that its table has and its code has not.
fn unanswered(attribute: &str) -> Result<Value, LookError> {
    Err(LookError::Unanswered(attribute.to_owned()))
}
