//! Metrics in the Prometheus text format (0.0.4).
//!
//! Label values are fixed words and validated names, so nothing needs escaping. Only active
//! rollouts and the last few others have series.

use std::fmt::{self, Write as _};

use super::live_state::LiveState;
use super::rollout_row::RolloutRow;
use ccm_core::model::rollout::{RolloutState, Tally};

pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Number of finished rollouts with series.
const RECENT_ROLLOUTS: usize = 5;

/// Returns all metrics. `is_connected` is the state of the NATS connection.
pub(super) fn render(live: &LiveState, is_connected: bool) -> String {
    let mut text = String::new();
    // Writing to a string can't fail.
    let _infallible = write_all(&mut text, live, is_connected);
    text
}

fn write_all(out: &mut String, live: &LiveState, is_connected: bool) -> fmt::Result {
    let totals = live.totals();
    header(out, "ccm_fleet_nodes", "gauge", "Nodes by state.")?;
    for (state, count) in &totals.states {
        writeln!(out, "ccm_fleet_nodes{{state=\"{state}\"}} {count}")?;
    }
    for (name, kind, help, value) in [
        (
            "ccm_fleet_nodes_lagging",
            "gauge",
            "Nodes without a report about their newest assignment.",
            u64::try_from(totals.lagging).unwrap_or(u64::MAX),
        ),
        (
            "ccm_fleet_drifted_resources",
            "gauge",
            "Resources that differ from their assignment.",
            u64::try_from(totals.drifted_resources).unwrap_or(u64::MAX),
        ),
        (
            "ccm_fleet_spooled_events",
            "gauge",
            "Events spooled on the disks of nodes.",
            totals.spooled,
        ),
        (
            "ccm_fleet_dropped_events_total",
            "counter",
            "Events dropped by nodes because their spool was full, since the server started.",
            totals.dropped,
        ),
        (
            "ccm_fleet_unreadable_records_total",
            "counter",
            "Unreadable records in the fleet buckets.",
            totals.unreadable,
        ),
        (
            "ccm_fleet_connected",
            "gauge",
            "Whether the server is connected to NATS.",
            u64::from(is_connected),
        ),
        (
            "ccm_fleet_waiting_for_nats",
            "gauge",
            "Whether NATS does not reply or has no quorum, so that rollouts wait.",
            u64::from(live.nats_wait().is_some()),
        ),
    ] {
        header(out, name, kind, help)?;
        writeln!(out, "{name} {value}")?;
    }
    let help = "Nodes with a run that waits for a slot of a governor.";
    header(out, "ccm_fleet_governor_waiting_nodes", "gauge", help)?;
    for (governor, count) in &totals.waiting {
        let labels = format!("governor=\"{governor}\"");
        writeln!(out, "ccm_fleet_governor_waiting_nodes{{{labels}}} {count}")?;
    }
    let help = "Events by type and outcome since the server started.";
    header(out, "ccm_fleet_events_total", "counter", help)?;
    for (type_name, outcome, count) in live.counts() {
        let labels = format!("type=\"{type_name}\",outcome=\"{outcome}\"");
        writeln!(out, "ccm_fleet_events_total{{{labels}}} {count}")?;
    }
    write_rollouts(out, live)
}

fn write_rollouts(out: &mut String, live: &LiveState) -> fmt::Result {
    let mut finished = 0;
    let mut is_shown = |row: &RolloutRow| {
        finished += usize::from(!row.is_active());
        row.is_active() || finished <= RECENT_ROLLOUTS
    };
    let rollouts = live.rollouts();
    let shown: Vec<_> = rollouts.iter().filter(|it| is_shown(it)).collect();
    let help = "Rollouts by state.";
    header(out, "ccm_fleet_rollouts", "gauge", help)?;
    for state in RolloutState::NAMES {
        let count = rollouts.iter().filter(|it| it.state() == state).count();
        writeln!(out, "ccm_fleet_rollouts{{state=\"{state}\"}} {count}")?;
    }
    let help = "Active rollouts and the last few others, by state.";
    header(out, "ccm_fleet_rollout_state", "gauge", help)?;
    for rollout in &shown {
        let (id, state) = (rollout.id(), rollout.state());
        let labels = format!("rollout=\"{id}\",state=\"{state}\"");
        writeln!(out, "ccm_fleet_rollout_state{{{labels}}} 1")?;
    }
    let help = "Nodes of a rollout by outcome.";
    header(out, "ccm_fleet_rollout_nodes", "gauge", help)?;
    for rollout in &shown {
        for (outcome, count) in outcomes(&rollout.tally()) {
            let labels = format!("rollout=\"{}\",outcome=\"{outcome}\"", rollout.id());
            writeln!(out, "ccm_fleet_rollout_nodes{{{labels}}} {count}")?;
        }
    }
    Ok(())
}

fn header(out: &mut String, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

fn outcomes(tally: &Tally) -> [(&'static str, usize); 11] {
    [
        ("pending", tally.pending),
        ("assigned", tally.assigned),
        ("ok", tally.ok),
        ("changed", tally.changed),
        ("would change", tally.would_change),
        ("failed", tally.failed),
        ("unhealthy", tally.unhealthy),
        ("unreachable", tally.unreachable),
        ("skipped", tally.skipped),
        ("restoring", tally.restoring),
        ("restored", tally.restored),
    ]
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::super::node_record::Record;
    use super::*;
    use crate::fixture::{rollout, status};
    use crate::rollout_store::StoredRollout;

    #[test]
    fn nodes_and_rollouts_are_counted() {
        let mut live = LiveState::new(1);
        let record = Record::Presence(Box::new(status("web1")));
        live.put("web1".parse().unwrap(), record, Instant::now());
        let mut waiting = status("web2");
        waiting.current_run = serde_json::from_value(serde_json::json!({
            "run_id": "3Ouil37bUs2V3TmTG2OoEYtuLS3", "source": "site", "trigger": "request",
            "since": "2027-01-15T08:00:00Z", "waiting_for": "governor deploys",
        }))
        .unwrap();
        let record = Record::Presence(Box::new(waiting));
        live.put("web2".parse().unwrap(), record, Instant::now());
        live.put_rollout(StoredRollout::whole(rollout("r1"), 1));
        live.set_nats_wait(Some("timed out".into()));
        let text = render(&live, true);
        for line in [
            "ccm_fleet_nodes{state=\"stable\"} 1",
            "ccm_fleet_nodes{state=\"failed\"} 0",
            "ccm_fleet_governor_waiting_nodes{governor=\"deploys\"} 1",
            "ccm_fleet_connected 1",
            "ccm_fleet_waiting_for_nats 1",
            "ccm_fleet_rollouts{state=\"running\"} 1",
            "ccm_fleet_rollouts{state=\"done with failures\"} 0",
            "ccm_fleet_rollout_state{rollout=\"r1\",state=\"running\"} 1",
            "ccm_fleet_rollout_nodes{rollout=\"r1\",outcome=\"failed\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn old_rollouts_have_no_series() {
        let mut live = LiveState::new(1);
        for number in 0..RECENT_ROLLOUTS + 3 {
            let mut done = rollout(&format!("r{number}"));
            done.state = RolloutState::Done;
            live.put_rollout(StoredRollout::whole(done, 1));
        }
        let text = render(&live, true);
        let series = text.lines().filter(|line| {
            line.starts_with("ccm_fleet_rollout_state{") && line.contains("state=\"done\"")
        });
        assert_eq!(series.count(), RECENT_ROLLOUTS);
        assert!(!text.contains("rollout=\"r0\""));
    }
}
