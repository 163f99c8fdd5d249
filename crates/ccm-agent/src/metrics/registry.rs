//! Metrics registry: counters, gauges and summaries, printed in the Prometheus text format 0.0.4.
//!
//! A series is stored under its printed labels, so the output is sorted and needs no formatting. A
//! summary is a count and a sum, as upstream's. The number of series and the length of labels are
//! limited; what exceeds the limit is counted under `overflow`, so that names from outside can't
//! exhaust memory.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

/// Most series of one metric.
const MAX_SERIES: usize = 5_000;

/// Longest label value in bytes.
const MAX_LABEL: usize = 256;

/// Label value of the overflow series.
const OVERFLOW: &str = "overflow";

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Summary,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Summary => "summary",
        }
    }
}

/// Value of a series: a number, or count and sum of durations.
#[derive(Debug, Default)]
struct Cell {
    value: u64,
    sum: Duration,
}

/// Printed labels of one series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Labels(String);

/// A metric with all its series.
#[derive(Debug)]
pub(super) struct Metric {
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
    series: Mutex<BTreeMap<String, Cell>>,
}

impl Metric {
    /// Returns a metric. Without labels it has one series, at zero; with labels it has none.
    pub(super) fn new(
        kind: Kind,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        let mut series = BTreeMap::new();
        if labels.is_empty() {
            series.insert(String::new(), Cell::default());
        }
        Self {
            name,
            kind,
            labels,
            help,
            series: Mutex::new(series),
        }
    }

    /// Returns the printed labels for values in order.
    pub(super) fn labels(&self, values: &[&str]) -> Labels {
        let mut text = String::new();
        for (index, (name, value)) in self.labels.iter().zip(values).enumerate() {
            text.push_str(if index > 0 { "," } else { "" });
            text.push_str(name);
            text.push_str("=\"");
            let end = value.floor_char_boundary(MAX_LABEL);
            for c in value.get(..end).unwrap_or_default().chars() {
                match c {
                    '\\' => text.push_str("\\\\"),
                    '"' => text.push_str("\\\""),
                    '\n' => text.push_str("\\n"),
                    c => text.push(c),
                }
            }
            text.push('"');
        }
        Labels(text)
    }

    /// Adds one to a series of a counter.
    pub(super) fn count(&self, labels: &Labels) {
        self.change(labels, |cell| cell.value = cell.value.saturating_add(1));
    }

    /// Sets the value of a series.
    pub(super) fn set(&self, labels: &Labels, value: u64) {
        self.change(labels, |cell| cell.value = value);
    }

    /// Adds a duration to a series of a summary.
    pub(super) fn observe(&self, labels: &Labels, duration: Duration) {
        self.change(labels, |cell| {
            cell.value = cell.value.saturating_add(1);
            cell.sum = cell.sum.saturating_add(duration);
        });
    }

    fn change(&self, labels: &Labels, change: impl FnOnce(&mut Cell)) {
        let mut series = self.series();
        if let Some(cell) = series.get_mut(&labels.0) {
            return change(cell);
        }
        let key = if series.len() < MAX_SERIES {
            labels.0.clone()
        } else {
            self.labels(&vec![OVERFLOW; self.labels.len()]).0
        };
        change(series.entry(key).or_default());
    }

    fn series(&self) -> MutexGuard<'_, BTreeMap<String, Cell>> {
        self.series.lock()
    }

    /// Prints the metric; nothing if it has no series.
    pub(super) fn print(&self, out: &mut String) {
        let series = self.series();
        if series.is_empty() {
            return;
        }
        let Self { name, help, .. } = self;
        // Writing to a `String` can't fail.
        let _ = writeln!(out, "# HELP {name} {help}");
        let _ = writeln!(out, "# TYPE {name} {}", self.kind.name());
        for (labels, cell) in series.iter() {
            let labels = match labels.as_str() {
                "" => String::new(),
                labels => format!("{{{labels}}}"),
            };
            let value = cell.value;
            let _ = match self.kind {
                Kind::Counter | Kind::Gauge => writeln!(out, "{name}{labels} {value}"),
                Kind::Summary => {
                    let sum = seconds(cell.sum);
                    writeln!(
                        out,
                        "{name}_sum{labels} {sum}\n{name}_count{labels} {value}"
                    )
                }
            };
        }
    }
}

/// Formats a duration in seconds, exactly.
fn seconds(duration: Duration) -> String {
    let text = format!("{}.{:09}", duration.as_secs(), duration.subsec_nanos());
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(metric: &Metric) -> String {
        let mut out = String::new();
        metric.print(&mut out);
        out
    }

    #[test]
    fn a_metric_without_labels_begins_at_zero() {
        let metric = Metric::new(Kind::Gauge, "g", &[], "How many.");
        assert_eq!(
            printed(&metric),
            "# HELP g How many.\n# TYPE g gauge\ng 0\n"
        );
    }

    #[test]
    fn a_metric_with_labels_begins_with_nothing() {
        let metric = Metric::new(Kind::Counter, "c", &["a"], "How often.");
        assert_eq!(printed(&metric), "");
    }

    #[test]
    fn labels_are_escaped_and_series_sorted() {
        let metric = Metric::new(Kind::Counter, "c", &["a", "b"], "How often.");
        metric.count(&metric.labels(&["z", "1"]));
        metric.count(&metric.labels(&["\"q\"\\\n", "2"]));
        metric.count(&metric.labels(&["z", "1"]));
        assert_eq!(
            printed(&metric),
            "# HELP c How often.\n# TYPE c counter\n\
             c{a=\"\\\"q\\\"\\\\\\n\",b=\"2\"} 1\nc{a=\"z\",b=\"1\"} 2\n"
        );
    }

    #[test]
    fn a_summary_has_a_sum_and_a_count() {
        let metric = Metric::new(Kind::Summary, "s", &[], "How long.");
        let labels = metric.labels(&[]);
        metric.observe(&labels, Duration::from_millis(1500));
        metric.observe(&labels, Duration::from_micros(250));
        assert_eq!(
            printed(&metric),
            "# HELP s How long.\n# TYPE s summary\ns_sum 1.50025\ns_count 2\n"
        );
    }

    #[test]
    fn seconds_are_exact_and_short() {
        for (nanos, text) in [
            (0, "0"),
            (1, "0.000000001"),
            (10_000_000_000, "10"),
            (1_200_000_000, "1.2"),
        ] {
            assert_eq!(seconds(Duration::from_nanos(nanos)), text);
        }
    }

    #[test]
    fn more_series_than_allowed_are_counted_together() {
        let metric = Metric::new(Kind::Counter, "c", &["a", "b"], "How often.");
        for number in 0..MAX_SERIES + 3 {
            metric.count(&metric.labels(&[&number.to_string(), "x"]));
        }
        metric.count(&metric.labels(&["0", "x"]));
        let text = printed(&metric);
        assert_eq!(text.lines().count(), 2 + MAX_SERIES + 1);
        assert!(text.contains("\nc{a=\"overflow\",b=\"overflow\"} 3\n"));
        assert!(text.contains("\nc{a=\"0\",b=\"x\"} 2\n"));
    }

    #[test]
    fn a_long_label_is_cut_between_characters() {
        let metric = Metric::new(Kind::Counter, "c", &["a"], "How often.");
        let labels = metric.labels(&[&"é".repeat(1000)]);
        assert_eq!(labels.0, format!("a=\"{}\"", "é".repeat(MAX_LABEL / 2)));
    }
}
