//! When the services of a resource may be found by others, and when they must not.
//!
//! Only what was applied or checked, did not fail and is healthy in every way stands. Where entries
//! go, and whether anybody wants them, is the sink's.

use serde::{Deserialize, Serialize};

use super::{Engine, Mode, Scope};
use crate::model::event::{Part, TransactionEvent};
use crate::model::health::HealthStatus;
use crate::model::registration::Entry;

/// Whether the services of a resource can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// The resource is as it should be, and healthy.
    Up,
    /// The resource failed, or a check of it found something.
    Down,
}

impl Engine<'_> {
    /// Tells the sink how the services of a resource stand, if it has any and that is known.
    pub(super) fn announce(&self, scope: &Scope, event: &TransactionEvent) {
        let entries = entries(event);
        if entries.is_empty() {
            return;
        }
        if let Some(standing) = standing(event, scope.mode) {
            self.sink.borrow_mut().services(entries, standing);
        }
    }
}

/// Returns the entries of an event, whose expressions are resolved.
fn entries(event: &TransactionEvent) -> &[Entry] {
    match &event.properties {
        Part::Typed(resource) => &resource.common.register_when_stable,
        Part::Found(_) => &[],
    }
}

/// Returns how a resource stands after an event; nothing if the event does not tell.
fn standing(event: &TransactionEvent, mode: Mode) -> Option<Standing> {
    // What was only planned or passed over says nothing about what runs.
    if mode.noop || event.noop || event.skipped {
        return None;
    }
    let mut checks = event.health_check.iter().flatten();
    let is_healthy = checks.all(|result| result.status == HealthStatus::Ok);
    let has_all = event.health_check.iter().all(Option::is_some);
    if !event.failed && is_healthy && has_all {
        Some(Standing::Up)
    } else {
        Some(Standing::Down)
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
    fn what_is_stable_changed_or_healthy_stands() {
        let mode = Mode::default();
        assert_eq!(standing(&event(|_| {}), mode), Some(Standing::Up));
        let changed = event(|event| event.changed = true);
        assert_eq!(standing(&changed, mode), Some(Standing::Up));
        let mode = Mode {
            health_check_only: true,
            ..mode
        };
        assert_eq!(
            standing(&checked(HealthStatus::Ok), mode),
            Some(Standing::Up)
        );
    }

    #[test]
    fn what_failed_or_is_not_entirely_healthy_does_not() {
        let mode = Mode::default();
        let failed = event(|event| event.failed = true);
        assert_eq!(standing(&failed, mode), Some(Standing::Down));
        for status in [
            HealthStatus::Warning,
            HealthStatus::Critical,
            HealthStatus::Unknown,
        ] {
            assert_eq!(standing(&checked(status), mode), Some(Standing::Down));
        }
        let unfinished = event(|event| event.health_check = vec![None]);
        assert_eq!(standing(&unfinished, mode), Some(Standing::Down));
    }

    #[test]
    fn what_was_planned_or_passed_over_tells_nothing() {
        let noop = Mode {
            noop: true,
            ..Mode::default()
        };
        assert_eq!(standing(&event(|_| {}), noop), None);
        let skipped = event(|event| event.skipped = true);
        assert_eq!(standing(&skipped, Mode::default()), None);
        let planned = event(|event| event.noop = true);
        assert_eq!(standing(&planned, Mode::default()), None);
    }
}
