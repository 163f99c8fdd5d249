//! Goss resource types: their attributes, and how the actual values are read.
//!
//! One file per type, with its attribute table and its `inspect` function. Processes are started
//! through the runner only. Nothing is compared here. Every wait is limited by the timeout of the
//! type and by that of the check.

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

pub(super) use error::InspectError;

/// All types, sorted by key.
pub(super) const RESOURCE_TYPES: [&ResourceType; 15] = [
    &addr::RESOURCE_TYPE,
    &command::RESOURCE_TYPE,
    &dns::RESOURCE_TYPE,
    &file::RESOURCE_TYPE,
    &account::GROUP,
    &http::RESOURCE_TYPE,
    &interface::RESOURCE_TYPE,
    &kernel_param::RESOURCE_TYPE,
    &matching::RESOURCE_TYPE,
    &mount::RESOURCE_TYPE,
    &package::RESOURCE_TYPE,
    &port::RESOURCE_TYPE,
    &process::RESOURCE_TYPE,
    &service::RESOURCE_TYPE,
    &account::USER,
];

/// A goss resource type.
pub(super) struct ResourceType {
    /// Name in documents.
    pub key: &'static str,
    /// Name in findings.
    pub name: &'static str,
    /// The setting that replaces the id as target.
    pub target: &'static str,
    pub settings: &'static [(&'static str, Setting)],
    /// Attributes in the order they are tested.
    pub attributes: &'static [Attribute],
    pub first: FirstAttribute,
    pub inspect: InspectFn,
}

/// Opens a resource for reading attributes. Work that is needed once is done here.
type InspectFn =
    for<'a> fn(&'a Entry, &'a ProbeContext<'a>) -> Result<AttributeReader<'a>, InspectError>;

/// Returns the actual value of an attribute.
pub(super) type AttributeReader<'a> =
    Box<dyn FnMut(&'static str) -> Result<Value, InspectError> + 'a>;

impl ResourceType {
    /// Whether an attribute has this name.
    pub(super) fn expects(&self, name: &str) -> bool {
        self.attributes
            .iter()
            .any(|attribute| attribute.name == name || attribute.old_name == Some(name))
    }

    /// Returns the type of a setting, if there is one of that name.
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

impl fmt::Debug for ResourceType {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.key)
    }
}

/// The role of the first attribute of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstAttribute {
    /// May be omitted.
    Optional,
    /// Must be given.
    Required,
    /// Must be given; if it fails or is false, the others are skipped.
    Prerequisite,
}

/// An attribute.
#[derive(Debug)]
pub(super) struct Attribute {
    pub name: &'static str,
    /// A deprecated name.
    pub old_name: Option<&'static str>,
    /// Name in findings.
    pub property: &'static str,
    /// Whether it is multi-line text, where a list means line patterns.
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

/// The type of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    Text,
    Flag,
    Milliseconds,
    Texts,
    Data,
}

impl Setting {
    /// The `timeout` setting.
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

    /// Returns the expected type for messages.
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

/// System access and deadline of a check.
pub(super) struct ProbeContext<'a> {
    pub probes: &'a Probes<'a>,
    /// Deadline on the monotonic clock.
    deadline: Duration,
}

impl<'a> ProbeContext<'a> {
    pub(super) fn new(probes: &'a Probes<'a>, deadline: Duration) -> Self {
        Self { probes, deadline }
    }

    /// Returns the remaining time.
    fn time_left(&self) -> Duration {
        self.deadline.saturating_sub(self.probes.clock.monotonic())
    }

    pub(super) fn is_expired(&self) -> bool {
        self.time_left().is_zero()
    }

    /// Returns the time limit of an entry: its own or the default, within the remaining time.
    fn limit(&self, entry: &Entry, default: u64) -> Duration {
        let own = entry.number("timeout").unwrap_or(default);
        // Zero means no limit in some calls.
        Duration::from_millis(own)
            .min(self.time_left())
            .max(Duration::from_millis(1))
    }
}

/// Runs a call that may block forever in a thread, and returns its result if it is in time. A late
/// result is dropped.
fn run_with_timeout<T: Send + 'static>(
    limit: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let worker = std::thread::Builder::new().name("probe".into());
    // Fails if the receiver has timed out.
    let started = worker.spawn(move || drop(sender.send(call())));
    started.ok().and_then(|_| receiver.recv_timeout(limit).ok())
}

/// Refuses names that a program would take for an option.
fn check_name(what: &'static str, name: &str) -> Result<(), InspectError> {
    if name.is_empty() || name.starts_with('-') || name.contains('\0') {
        let name = name.to_owned();
        return Err(InspectError::Name { what, name });
    }
    Ok(())
}

/// Returns the error for an attribute that is in the table but not implemented.
fn not_implemented(attribute: &str) -> Result<Value, InspectError> {
    Err(InspectError::NotImplemented(attribute.to_owned()))
}
