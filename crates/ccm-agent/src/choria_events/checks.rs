//! What health checks said before: Scout shows the last few times of each.
//!
//! Bounded in every direction: checks may come and go with every manifest.

use std::collections::{HashMap, VecDeque};

use ccm_core::engine::CompletedCheck;
use ccm_core::health::Datum;
use ccm_core::model::cloudevent::{Execution, NagiosState, PerfData};
use ccm_core::model::health::CheckFormat;
use ccm_value::secret::{REDACTED, redact_urls};

/// How many times of one check are remembered, as Choria does.
const MOST_TIMES: usize = 15;

/// How many checks are remembered; one more, and all are forgotten.
const MOST_CHECKS: usize = 1_000;

/// How much of a check's output is told.
const MAX_OUTPUT: usize = 16 * 1024;

/// How many measurements are told.
const MOST_DATA: usize = 100;

/// Remembers checks by their resource and name.
#[derive(Default)]
pub(super) struct Checks(HashMap<(String, String), VecDeque<Execution>>);

impl Checks {
    /// Returns the state of a check that has just run, and remembers it.
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
                cut(&redact_urls(text)).to_owned()
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
            state.perfdata = data.take(MOST_DATA).collect();
        }
        let latest = Execution::new(*began, status, state.perfdata.clone());
        state.history = self.remember((label.clone(), check.name.clone()), latest);
        state.annotations = [("resource".to_owned(), label)].into();
        state
    }

    fn remember(&mut self, key: (String, String), latest: Execution) -> Vec<Execution> {
        if self.0.len() >= MOST_CHECKS && !self.0.contains_key(&key) {
            self.0.clear();
        }
        let times = self.0.entry(key).or_default();
        if times.len() >= MOST_TIMES {
            times.pop_front();
        }
        times.push_back(latest);
        times.iter().cloned().collect()
    }
}

/// Returns a measurement that was made.
fn measured(datum: &Datum) -> Option<PerfData> {
    Some(PerfData {
        unit: datum.unit.clone(),
        label: datum.label.clone(),
        value: datum.value.filter(|value| value.is_finite())?,
    })
}

/// Returns as much of a text as is told.
fn cut(text: &str) -> &str {
    let end = text.floor_char_boundary(MAX_OUTPUT);
    text.get(..end).unwrap_or(text)
}
