//! Drift: the resources of a node that differ from its assignment.
//!
//! A run finds the resources that failed; a noop check, or the run of a noop assignment, also those
//! that would change. A resource whose state can't be observed is not drift: it is listed as
//! unchecked, and what the last run reported about it stays.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::TypeName;
use super::event::{EventField, TransactionEvent};
use super::output;
use super::resource::{Properties, Resource};
use super::secret::redact_urls;
use super::text::timestamp;

/// Maximum length of a message, in characters.
const MAX_MESSAGE: usize = 2000;

/// What found the drift in a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReportSource {
    /// The last run of the assignment.
    #[default]
    Run,
    /// A noop check after that run.
    Check,
}

impl ReportSource {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Check => "check",
        }
    }
}

/// Resource that differs from the assignment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drift {
    #[serde(rename = "type")]
    pub type_name: String,
    pub name: String,
    /// Change that would be made, or the error of the resource or its health check.
    pub message: String,
    /// Difference of file content and attributes; shortened, and without sensitive content.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub diff: String,
    #[serde(with = "timestamp")]
    pub since: DateTime<Utc>,
}

impl Drift {
    /// Returns the drift of a resource that failed, or would have changed in noop mode. `diff` shows
    /// the changes of files, if there are any.
    pub fn from_event(event: &TransactionEvent, noop: bool, diff: &str) -> Option<Self> {
        let message = if event.failed {
            event.errors.join(", ")
        } else if is_noop_change(event, noop) && unchecked_reason(event).is_none() {
            noop_text(event)
        } else {
            return None;
        };
        Some(Self {
            type_name: event.type_name.clone(),
            // Redacted as in stored events, so that names can be compared.
            name: redact_urls(&event.name).into_owned(),
            message: redact_urls(&message).chars().take(MAX_MESSAGE).collect(),
            diff: output::head(diff),
            since: event.timestamp,
        })
    }

    /// Reports whether both are drifts of the same resource.
    pub fn is_same_resource(&self, other: &Self) -> bool {
        self.type_name == other.type_name && self.name == other.name
    }
}

/// Resource that a noop check can't compare with the assignment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UncheckedResource {
    #[serde(rename = "type")]
    pub type_name: String,
    pub name: String,
    pub reason: String,
}

impl UncheckedResource {
    /// Returns the resource of a noop event if its state could not be observed.
    pub fn from_event(event: &TransactionEvent, noop: bool) -> Option<Self> {
        if event.failed || !is_noop_change(event, noop) {
            return None;
        }
        Some(Self {
            type_name: event.type_name.clone(),
            name: redact_urls(&event.name).into_owned(),
            reason: unchecked_reason(event)?.into(),
        })
    }

    /// Reports whether a drift is of this resource.
    pub fn is_of(&self, drift: &Drift) -> bool {
        self.type_name == drift.type_name && self.name == drift.name
    }
}

/// Reports whether a resource would have changed. The resources of a nested manifest have events of
/// their own, so the resource that names it does not count.
fn is_noop_change(event: &TransactionEvent, noop: bool) -> bool {
    event.changed && noop && event.type_name != TypeName::Apply.as_str()
}

/// Returns why the state of a resource can't be observed, if that is so.
fn unchecked_reason(event: &TransactionEvent) -> Option<&'static str> {
    let EventField::Typed(resource) = &event.properties else {
        return None;
    };
    let resource: &Resource = resource;
    match &resource.properties {
        Properties::Exec(exec) if !exec.is_guarded() => {
            Some("no creates, onlyif, unless or refreshonly")
        }
        // An upgrade is planned for every installed package; it may change nothing.
        Properties::Package(_) if resource.common.ensure == "latest" && was_present(event) => {
            Some("the newest version is known only to the upgrade")
        }
        _ => None,
    }
}

fn was_present(event: &TransactionEvent) -> bool {
    let previous = event.previous.as_ref();
    previous.is_some_and(|previous| previous.ensure != "absent")
}

/// Returns the noop message. Upstream's message for a file says "created" also if the file exists.
pub fn noop_text(event: &TransactionEvent) -> String {
    let is_file = event.type_name == TypeName::File.as_str();
    let previous = event.previous.as_ref().filter(|_| is_file);
    if previous.is_some_and(|previous| previous.ensure == event.requested_ensure) {
        return "content or attributes differ".into();
    }
    match event.noop_message.as_str() {
        "" => "would change".into(),
        message => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::id::EventId;
    use crate::model::resource::{Exec, File, Package};
    use crate::model::state::PreviousState;

    fn event(ensure: &str, properties: Properties, previous: &str) -> TransactionEvent {
        let time = DateTime::UNIX_EPOCH;
        let resource = Arc::new(Resource::new("x", ensure, properties));
        let mut event = TransactionEvent::begin(EventId::new(time, 1), time, "p", &resource);
        event.changed = true;
        event.noop = true;
        event.noop_message = "Would have created the file".into();
        event.previous = Some(PreviousState {
            ensure: previous.into(),
            ..PreviousState::default()
        });
        event
    }

    fn drift(event: &TransactionEvent) -> Option<String> {
        Drift::from_event(event, true, "").map(|drift| drift.message)
    }

    #[test]
    fn a_file_that_exists_is_not_reported_as_created() {
        let present = event("present", Properties::File(File::default()), "present");
        assert_eq!(drift(&present).unwrap(), "content or attributes differ");
        let absent = event("present", Properties::File(File::default()), "absent");
        assert_eq!(drift(&absent).unwrap(), "Would have created the file");
    }

    #[test]
    fn an_exec_without_a_guard_is_unchecked_unless_it_failed() {
        let mut open = event("present", Properties::Exec(Exec::default()), "present");
        assert_eq!(drift(&open), None);
        assert!(UncheckedResource::from_event(&open, true).is_some());
        open.failed = true;
        open.errors = vec!["exit code 1".into()];
        assert_eq!(drift(&open).unwrap(), "exit code 1");
        assert!(UncheckedResource::from_event(&open, true).is_none());
        for guarded in [
            Exec {
                creates: "/x".into(),
                ..Exec::default()
            },
            Exec {
                unless: "true".into(),
                ..Exec::default()
            },
            Exec {
                refreshonly: true,
                ..Exec::default()
            },
        ] {
            let guarded = event("present", Properties::Exec(guarded), "present");
            assert!(drift(&guarded).is_some());
        }
    }

    #[test]
    fn the_latest_version_of_an_installed_package_is_unchecked() {
        let package = || Properties::Package(Package::default());
        assert_eq!(drift(&event("latest", package(), "1.2")), None);
        assert!(drift(&event("latest", package(), "absent")).is_some());
        assert!(drift(&event("1.3", package(), "1.2")).is_some());
    }
}
