//! History of health checks: Scout shows the last results of each check.
//!
//! The number of checks, results and bytes is limited, because checks come and go with manifests.

use std::collections::{HashMap, VecDeque};

use ccm_core::engine::CompletedCheck;
use ccm_core::health::Measurement;
use ccm_core::model::cloudevent::{Execution, NagiosState, PerfData};
use ccm_core::model::health::CheckFormat;
use ccm_value::secret::{REDACTED, redact_urls};

/// Most results kept per check, as in Choria.
const MAX_RESULTS: usize = 15;

/// Most checks; when there are more, the history is cleared.
const MAX_CHECKS: usize = 1_000;

/// Longest output in an event, in bytes.
const MAX_OUTPUT: usize = 16 * 1024;

/// Most measurements in an event.
const MAX_MEASUREMENTS: usize = 100;

/// History of checks, by resource and name.
#[derive(Default)]
pub(super) struct CheckHistory(HashMap<(String, String), VecDeque<Execution>>);

impl CheckHistory {
    /// Returns the state of a check that has just run, and adds it to the history.
    pub(super) fn state(&mut self, checked: &CompletedCheck<'_>) -> NagiosState {
        let CompletedCheck {
            type_name,
            name,
            sensitive,
            check,
            result,
            perfdata,
            began,
            took,
        } = checked;
        let label = format!("{type_name}#{}", redact_urls(name));
        let shown = |text: &str| {
            if *sensitive {
                REDACTED.to_owned()
            } else {
                truncate(&redact_urls(text)).to_owned()
            }
        };
        let status = result.status;
        let mut state = NagiosState::new(status, *began, *took);
        state.plugin = match check.format {
            Some(CheckFormat::Goss) => "goss".into(),
            _ => shown(&check.command),
        };
        state.output = shown(&result.output);
        if !sensitive {
            let data = perfdata.iter().filter_map(measured);
            state.perfdata = data.take(MAX_MEASUREMENTS).collect();
        }
        let latest = Execution::new(*began, status, state.perfdata.clone());
        state.history = self.add_to_history((label.clone(), check.name.clone()), latest);
        state.annotations = [("resource".to_owned(), label)].into();
        state
    }

    fn add_to_history(&mut self, key: (String, String), latest: Execution) -> Vec<Execution> {
        if self.0.len() >= MAX_CHECKS && !self.0.contains_key(&key) {
            self.0.clear();
        }
        let results = self.0.entry(key).or_default();
        if results.len() >= MAX_RESULTS {
            results.pop_front();
        }
        results.push_back(latest);
        results.iter().cloned().collect()
    }
}

/// Returns a measurement that has a value.
fn measured(datum: &Measurement) -> Option<PerfData> {
    Some(PerfData {
        unit: datum.unit.clone(),
        label: datum.label.clone(),
        value: datum.value.filter(|value| value.is_finite())?,
    })
}

/// Truncates an output to its limit.
fn truncate(text: &str) -> &str {
    let end = text.floor_char_boundary(MAX_OUTPUT);
    text.get(..end).unwrap_or(text)
}
