//! Service registration: whether the services of a resource are available after its event.
//!
//! A service is available if its resource was applied or checked, did not fail, and all its health
//! checks are OK. Publishing the entries is left to the sink.

use serde::{Deserialize, Serialize};

use super::{Engine, Mode, Scope};
use crate::model::event::{EventField, TransactionEvent};
use crate::model::health::HealthStatus;
use crate::model::registration::Entry;

/// Whether the services of a resource are available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Availability {
    /// The resource is in its wanted state and healthy.
    Up,
    /// The resource failed, or a health check is not OK.
    Down,
}

impl Engine<'_> {
    /// Sends the registration entries of a resource to the sink, if it has any and their availability
    /// is known.
    pub(super) fn report_services(&self, scope: &Scope, event: &TransactionEvent) {
        let entries = entries(event);
        if entries.is_empty() {
            return;
        }
        if let Some(availability) = availability(event, scope.mode) {
            self.sink.borrow_mut().services(entries, availability);
        }
    }
}

/// Returns the registration entries of an event, with resolved expressions.
fn entries(event: &TransactionEvent) -> &[Entry] {
    match &event.properties {
        EventField::Typed(resource) => &resource.common.register_when_stable,
        EventField::Raw(_) => &[],
    }
}

/// Returns the availability of a resource's services after an event; nothing if it is unknown.
fn availability(event: &TransactionEvent, mode: Mode) -> Option<Availability> {
    // A noop or skipped event does not reflect the running service.
    if mode.noop || event.noop || event.skipped {
        return None;
    }
    let mut checks = event.health_check.iter().flatten();
    let is_healthy = checks.all(|result| result.status == HealthStatus::Ok);
    let has_all = event.health_check.iter().all(Option::is_some);
    if !event.failed && is_healthy && has_all {
        Some(Availability::Up)
    } else {
        Some(Availability::Down)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use chrono::DateTime;

    use super::*;
    use crate::model::health::HealthResult;
    use crate::model::id::EventId;
    use crate::model::resource::{File, Properties, Resource};

    fn event(change: impl FnOnce(&mut TransactionEvent)) -> TransactionEvent {
        let time = DateTime::UNIX_EPOCH;
        let resource = Resource::new("/srv/motd", "present", Properties::File(File::default()));
        let id = EventId::new(time, 1);
        let mut event = TransactionEvent::begin(id, time, "posix", &Arc::new(resource));
        change(&mut event);
        event
    }

    fn checked(status: HealthStatus) -> TransactionEvent {
        event(|event| {
            event.health_check = vec![Some(HealthResult {
                status,
                tries: 1,
                output: String::new(),
            })];
        })
    }

    #[test]
    fn a_stable_changed_or_healthy_resource_is_up() {
        let mode = Mode::default();
        assert_eq!(availability(&event(|_| {}), mode), Some(Availability::Up));
        let changed = event(|event| event.changed = true);
        assert_eq!(availability(&changed, mode), Some(Availability::Up));
        let mode = Mode {
            health_check_only: true,
            ..mode
        };
        assert_eq!(
            availability(&checked(HealthStatus::Ok), mode),
            Some(Availability::Up)
        );
    }

    #[test]
    fn a_failed_or_unhealthy_resource_is_down() {
        let mode = Mode::default();
        let failed = event(|event| event.failed = true);
        assert_eq!(availability(&failed, mode), Some(Availability::Down));
        for status in [
            HealthStatus::Warning,
            HealthStatus::Critical,
            HealthStatus::Unknown,
        ] {
            assert_eq!(
                availability(&checked(status), mode),
                Some(Availability::Down)
            );
        }
        let unfinished = event(|event| event.health_check = vec![None]);
        assert_eq!(availability(&unfinished, mode), Some(Availability::Down));
    }

    #[test]
    fn noop_and_skipped_events_leave_the_availability_unknown() {
        let noop = Mode {
            noop: true,
            ..Mode::default()
        };
        assert_eq!(availability(&event(|_| {}), noop), None);
        let skipped = event(|event| event.skipped = true);
        assert_eq!(availability(&skipped, Mode::default()), None);
        let planned = event(|event| event.noop = true);
        assert_eq!(availability(&planned, Mode::default()), None);
    }
}
