//! Rollout planner: the next step of a rollout, as a pure function of the stored rollout and the
//! time.
//!
//! A controller calls [`decide`], executes the decision, applies it with [`record`], stores the
//! rollout and starts over. All state is in the stored object, so any controller can continue after
//! another one died.
//!
//! How failures are counted:
//! - over the whole rollout, not per wave; if both limits are set, both apply; without a limit the
//!   first failure halts
//! - a percentage is of finished nodes, and applies once `min_sample` nodes (or all) have finished
//! - a node that does not report in time is unreachable, not failed, and has its own limit
//! - no canary node may fail, and at least one must succeed
//! - with the health gate, no node may be unhealthy when the next wave starts; until then nodes may
//!   recover
//!
//! Failures before a manual resume are not counted again: see [`super::controls`].

use chrono::{DateTime, TimeDelta, Utc};

use ccm_core::model::amount::Amount;
use ccm_core::model::node::NodeName;
use ccm_core::model::rollout::{Budget, Progress, Rollout, RolloutState, Tally, Wave};

/// Maximum number of nodes that a halt reason names.
const MAX_NAMES: usize = 3;

/// The next step of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Assign these nodes, and record each as assigned.
    Assign(Vec<NodeName>),
    /// These nodes did not report within the node timeout.
    Unreachable(Vec<NodeName>),
    /// Wait for a report or until this time.
    Wait(Option<DateTime<Utc>>),
    /// The wave is finished; observe it until this time.
    Bake(DateTime<Utc>),
    /// Start this wave.
    NextWave(usize),
    Halt(String),
    /// Restore the previous assignment of these nodes, and record each as restored.
    Restore(Vec<NodeName>),
    /// The rollout or its rollback is complete.
    Done,
    /// Nothing to do until an operator acts.
    Rest,
}

/// Returns the next step.
pub fn decide(rollout: &Rollout, now: DateTime<Utc>) -> Decision {
    match rollout.state {
        RolloutState::Running => in_wave(rollout, now, None),
        RolloutState::Baking { until } => in_wave(rollout, now, Some(until)),
        RolloutState::RollingBack => rollback(rollout),
        RolloutState::Paused { .. }
        | RolloutState::Halted { .. }
        | RolloutState::Aborted { .. }
        | RolloutState::Done
        | RolloutState::RolledBack => Decision::Rest,
    }
}

/// Applies a decision to the rollout itself. Assigned and restored nodes are recorded one by one by
/// the executor.
pub fn record(rollout: &mut Rollout, decision: &Decision) {
    match decision {
        Decision::Unreachable(nodes) => {
            for node in nodes {
                if let Some(Progress::Assigned { generation, .. }) = rollout.nodes.get(node) {
                    let progress = Progress::Unreachable {
                        generation: *generation,
                    };
                    rollout.nodes.insert(node.clone(), progress);
                }
            }
        }
        Decision::Bake(until) => rollout.state = RolloutState::Baking { until: *until },
        Decision::NextWave(wave) => {
            rollout.wave = *wave;
            rollout.state = RolloutState::Running;
        }
        Decision::Halt(reason) => {
            rollout.state = RolloutState::Halted {
                reason: reason.clone(),
            }
        }
        Decision::Done => {
            rollout.state = match rollout.state {
                RolloutState::RollingBack => RolloutState::RolledBack,
                _ => RolloutState::Done,
            }
        }
        Decision::Assign(_) | Decision::Restore(_) | Decision::Wait(_) | Decision::Rest => {}
    }
}

fn rollback(rollout: &Rollout) -> Decision {
    let touched = rollout.previous.nodes();
    // Skipped: the node got another assignment in the meantime.
    let is_finished = |node: &NodeName| {
        let progress = rollout.progress(node);
        matches!(progress, Progress::Restored | Progress::Skipped { .. })
    };
    let remaining = touched.filter(|node| !is_finished(node));
    let remaining: Vec<NodeName> = remaining.cloned().collect();
    if remaining.is_empty() {
        Decision::Done
    } else {
        Decision::Restore(remaining)
    }
}

fn in_wave(rollout: &Rollout, now: DateTime<Utc>, baking: Option<DateTime<Utc>>) -> Decision {
    let Some(wave) = rollout.plan.waves.get(rollout.wave) else {
        return Decision::Done;
    };
    let timed_out = timed_out(rollout, wave, now);
    if !timed_out.is_empty() {
        return Decision::Unreachable(timed_out);
    }
    if let Some(reason) = exceeded_limit(rollout, wave) {
        return Decision::Halt(reason);
    }
    let deadline = rollout.settings.deadline;
    if deadline.is_some_and(|deadline| deadline <= now) {
        return Decision::Halt("the deadline has passed".into());
    }
    let ready = ready(rollout, wave);
    if !ready.is_empty() {
        return Decision::Assign(ready);
    }
    let tally = Tally::of(wave.nodes.iter().map(|node| rollout.progress(node)));
    if tally.assigned > 0 {
        let ends = wave
            .nodes
            .iter()
            .filter_map(|node| report_deadline(rollout, node));
        return Decision::Wait(ends.chain(deadline).min());
    }
    let succeeded = tally.ok + tally.changed + tally.unhealthy;
    if wave.canary && succeeded == 0 && rollout.forgiven.is_none() {
        return Decision::Halt("no canary node could be reached".into());
    }
    match baking {
        Some(until) if now < until => {
            return Decision::Wait([Some(until), deadline].into_iter().flatten().min());
        }
        None if needs_bake(rollout) => return Decision::Bake(add(now, rollout.settings.bake)),
        _ => {}
    }
    if let Some(reason) = failed_health_gate(rollout) {
        return Decision::Halt(reason);
    }
    match next_wave(rollout) {
        Some(next) => Decision::NextWave(next),
        None => Decision::Done,
    }
}

/// Returns the assigned nodes whose report is overdue.
fn timed_out(rollout: &Rollout, wave: &Wave, now: DateTime<Utc>) -> Vec<NodeName> {
    let is_overdue =
        |node: &&NodeName| report_deadline(rollout, node).is_some_and(|time| time <= now);
    wave.nodes.iter().filter(is_overdue).cloned().collect()
}

/// Returns the time at which an assigned node counts as unreachable.
fn report_deadline(rollout: &Rollout, node: &NodeName) -> Option<DateTime<Utc>> {
    match rollout.progress(node) {
        Progress::Assigned { at, .. } => Some(add(*at, rollout.settings.node_timeout)),
        _ => None,
    }
}

/// Returns a time plus a duration, capped at the largest time.
fn add(time: DateTime<Utc>, span: std::time::Duration) -> DateTime<Utc> {
    TimeDelta::from_std(span)
        .ok()
        .and_then(|span| time.checked_add_signed(span))
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// Returns the nodes of a wave to assign now.
fn ready(rollout: &Rollout, wave: &Wave) -> Vec<NodeName> {
    let count = |is: fn(&Progress) -> bool| {
        let nodes = wave.nodes.iter();
        nodes.filter(|node| is(rollout.progress(node))).count()
    };
    let assigned = count(|progress| matches!(progress, Progress::Assigned { .. }));
    let free_slots = match rollout.settings.parallel {
        // At least 1, so that the rollout ends.
        Some(limit) => limit.max(1).saturating_sub(assigned),
        None => usize::MAX,
    };
    let is_pending = |node: &&NodeName| *rollout.progress(node) == Progress::Pending;
    wave.nodes
        .iter()
        .filter(is_pending)
        .take(free_slots)
        .cloned()
        .collect()
}

/// Returns the reason to halt, if a limit is exceeded.
fn exceeded_limit(rollout: &Rollout, wave: &Wave) -> Option<String> {
    let tally = countable_tally(rollout);
    if wave.canary && tally.failed > 0 {
        return Some(format!("the canary failed: {}", failures(rollout)));
    }
    let Budget {
        max_failures,
        max_failures_percent,
        min_sample,
        max_unreachable,
    } = rollout.settings.budget;
    let all = rollout.plan.waves.iter().map(|wave| wave.nodes.len()).sum();
    let is_enough = |sample: usize| sample >= min_sample.min(all);
    let failed = tally.failed;
    let limit = match (max_failures, max_failures_percent) {
        (None, None) => Some(0),
        (limit, _) => limit,
    };
    if let Some(limit) = limit.filter(|limit| failed > *limit) {
        let names = failures(rollout);
        return Some(format!("{failed} failed, {limit} allowed: {names}"));
    }
    let finished = tally.finished();
    if let Some(limit) = max_failures_percent
        && is_enough(finished)
        && limit.is_exceeded(failed, finished)
    {
        let names = failures(rollout);
        return Some(format!(
            "{failed} of {finished} failed, {limit} allowed: {names}"
        ));
    }
    let unreachable = tally.unreachable;
    let contacted = finished + unreachable;
    let is_exceeded = match max_unreachable? {
        Amount::Count(limit) => unreachable > limit,
        Amount::Percent(limit) => is_enough(contacted) && limit.is_exceeded(unreachable, contacted),
    };
    is_exceeded.then(|| {
        let limit = max_unreachable.map_or_else(String::new, |limit| limit.to_string());
        let names = list_nodes(rollout, |progress| match progress {
            Progress::Unreachable { .. } => Some(""),
            _ => None,
        });
        format!("{unreachable} of {contacted} unreachable, {limit} allowed: {names}")
    })
}

/// Returns the tally without what a resume has forgiven.
fn countable_tally(rollout: &Rollout) -> Tally {
    let tally = rollout.tally();
    match &rollout.forgiven {
        Some(forgiven) => tally.saturating_sub(forgiven),
        None => tally,
    }
}

fn failures(rollout: &Rollout) -> String {
    list_nodes(rollout, |progress| match progress {
        Progress::Failed { reason } => Some(reason),
        _ => None,
    })
}

/// Returns the first nodes for which `why` returns a reason, as text.
fn list_nodes(rollout: &Rollout, why: impl Fn(&Progress) -> Option<&str>) -> String {
    let mut matching = rollout
        .nodes
        .iter()
        .filter_map(|(node, progress)| Some((node, why(progress)?)));
    let mut text: Vec<String> = matching
        .by_ref()
        .take(MAX_NAMES)
        .map(|(node, reason)| match reason {
            "" => node.to_string(),
            reason => format!("{node} ({reason})"),
        })
        .collect();
    match matching.count() {
        0 => {}
        more => text.push(format!("{more} more")),
    }
    text.join(", ")
}

/// Reports whether a finished wave is observed. After the last wave only the health gate can still
/// halt.
fn needs_bake(rollout: &Rollout) -> bool {
    let is_observed = rollout.settings.health_gate || next_wave(rollout).is_some();
    is_observed && !rollout.settings.bake.is_zero()
}

fn failed_health_gate(rollout: &Rollout) -> Option<String> {
    let count = countable_tally(rollout).unhealthy;
    if !rollout.settings.health_gate || count == 0 {
        return None;
    }
    let names = list_nodes(rollout, |progress| match progress {
        Progress::Unhealthy { reason } => Some(reason),
        _ => None,
    });
    Some(format!("{count} unhealthy: {names}"))
}

/// Returns the next wave with pending nodes.
fn next_wave(rollout: &Rollout) -> Option<usize> {
    let has_pending = |wave: &Wave| {
        let mut nodes = wave.nodes.iter();
        nodes.any(|node| *rollout.progress(node) == Progress::Pending)
    };
    let waves = rollout.plan.waves.iter().enumerate();
    let mut later = waves.skip(rollout.wave.saturating_add(1));
    later.find(|(_, wave)| has_pending(wave)).map(|(at, _)| at)
}

#[cfg(test)]
mod tests;
