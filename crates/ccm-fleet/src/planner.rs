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
//! - failures of a rollback do not halt it
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
    /// Restore the previous assignment of these nodes, and record each as restoring.
    Restore(Vec<NodeName>),
    /// The rollout or its rollback is complete.
    Done,
    /// Nothing to do until an operator acts.
    Rest,
}

/// The position in a wave before which no node is pending, so that a step does not look at all nodes of
/// the wave again. It belongs to one copy of a rollout.
#[derive(Clone, Debug, Default)]
pub(super) struct WavePosition {
    wave: usize,
    /// Number of times that a node had become pending again.
    resets: usize,
    first: usize,
}

impl WavePosition {
    /// Returns the first pending nodes of the current wave, at most `limit`.
    fn pending(&mut self, rollout: &Rollout, limit: usize) -> Vec<NodeName> {
        let resets = rollout.nodes.resets();
        if (self.wave, self.resets) != (rollout.wave, resets) {
            *self = Self {
                wave: rollout.wave,
                resets,
                first: 0,
            };
        }
        let wave = rollout.plan.waves.get(self.wave);
        let nodes = wave.map_or(&[][..], |wave| &wave.nodes);
        let mut pending = Vec::new();
        for node in nodes.get(self.first..).unwrap_or_default() {
            if pending.len() == limit {
                break;
            }
            if *rollout.progress(node) == Progress::Pending {
                pending.push(node.clone());
            } else if pending.is_empty() {
                self.first += 1;
            }
        }
        pending
    }
}

/// Returns the next step.
pub fn decide(rollout: &Rollout, now: DateTime<Utc>) -> Decision {
    decide_from(&mut WavePosition::default(), rollout, now, usize::MAX)
}

/// Returns the next step, with at most `limit` nodes to assign. `position` is that after the last step.
pub(super) fn decide_from(
    position: &mut WavePosition,
    rollout: &Rollout,
    now: DateTime<Utc>,
    limit: usize,
) -> Decision {
    let mut pending = |most: usize| position.pending(rollout, most.min(limit));
    match rollout.state {
        RolloutState::Running => in_wave(rollout, now, None, &mut pending),
        RolloutState::Baking { until } => in_wave(rollout, now, Some(until), &mut pending),
        RolloutState::RollingBack => rollback(rollout, now),
        RolloutState::Paused { .. }
        | RolloutState::Halted { .. }
        | RolloutState::Aborted { .. }
        | RolloutState::Done
        | RolloutState::DoneWithFailures
        | RolloutState::RolledBack
        | RolloutState::RolledBackWithFailures => Decision::Rest,
    }
}

/// Applies a decision to the rollout itself. Assigned and restored nodes are recorded one by one by
/// the executor.
pub fn record(rollout: &mut Rollout, decision: &Decision) {
    match decision {
        Decision::Unreachable(nodes) => {
            for node in nodes {
                if let Some(
                    Progress::Assigned { generation, .. } | Progress::Restoring { generation, .. },
                ) = rollout.nodes.get(node)
                {
                    let progress = Progress::unreachable(*generation, "");
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
                rolling_back: rollout.state.is_rollback(),
            }
        }
        Decision::Done => rollout.state = rollout.end_state(),
        Decision::Assign(_) | Decision::Restore(_) | Decision::Wait(_) | Decision::Rest => {}
    }
}

/// Returns the next step of a rollback: all changed nodes are restored at once, as far as the
/// limit of concurrent nodes allows, and waited for. Failures do not halt it.
fn rollback(rollout: &Rollout, now: DateTime<Utc>) -> Decision {
    let changed = with_progress(rollout, rollout.previous.nodes());
    // Failed, unreachable: during the rollback. Skipped: the node got another assignment in the
    // meantime.
    let ready = ready(rollout, &changed, |progress| match progress {
        Progress::Pending
        | Progress::Assigned { .. }
        | Progress::Ok
        | Progress::Changed
        | Progress::WouldChange
        | Progress::Unhealthy { .. } => true,
        Progress::Failed { .. }
        | Progress::Unreachable { .. }
        | Progress::Skipped { .. }
        | Progress::Restoring { .. }
        | Progress::Restored => false,
    });
    if !ready.is_empty() {
        return Decision::Restore(ready);
    }
    let timed_out = timed_out(rollout, &changed, now);
    if !timed_out.is_empty() {
        return Decision::Unreachable(timed_out);
    }
    match next_report_deadline(rollout, &changed) {
        Some(end) => Decision::Wait(Some(end)),
        None => Decision::Done,
    }
}

/// Returns the next step of a wave. `pending` returns its first pending nodes, at most a number.
fn in_wave(
    rollout: &Rollout,
    now: DateTime<Utc>,
    baking: Option<DateTime<Utc>>,
    pending: &mut dyn FnMut(usize) -> Vec<NodeName>,
) -> Decision {
    let Some(wave) = rollout.plan.waves.get(rollout.wave) else {
        return Decision::Done;
    };
    let tally = rollout.tally();
    let under_way = rollout.nodes.under_way();
    let report_time = |at: DateTime<Utc>| add(at, rollout.settings.node_timeout);
    let overdue = under_way
        .iter()
        .take_while(|(at, _)| report_time(*at) <= now);
    let overdue: Vec<NodeName> = overdue.map(|(_, node)| node.clone()).collect();
    if !overdue.is_empty() {
        return Decision::Unreachable(overdue);
    }
    if let Some(reason) = exceeded_limit(rollout, wave, tally) {
        return Decision::Halt(reason);
    }
    let deadline = rollout.settings.deadline;
    if deadline.is_some_and(|deadline| deadline <= now) {
        return Decision::Halt("the deadline has passed".into());
    }
    let ready = pending(free_slots(rollout, under_way.len()));
    if !ready.is_empty() {
        return Decision::Assign(ready);
    }
    if let Some((at, _)) = under_way.first() {
        return Decision::Wait(deadline.into_iter().chain([report_time(*at)]).min());
    }
    if wave.canary && rollout.forgiven.is_none() && !has_success(rollout, wave) {
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

/// Reports whether a node of a wave has converged.
fn has_success(rollout: &Rollout, wave: &Wave) -> bool {
    let tally = Tally::of(wave.nodes.iter().map(|node| rollout.progress(node)));
    tally.ok + tally.changed + tally.would_change + tally.unhealthy > 0
}

/// Returns nodes with their progress, so that a decision looks each of them up once.
fn with_progress<'r>(
    rollout: &'r Rollout,
    nodes: impl IntoIterator<Item = &'r NodeName>,
) -> Vec<(&'r NodeName, &'r Progress)> {
    let nodes = nodes.into_iter();
    nodes.map(|node| (node, rollout.progress(node))).collect()
}

/// Returns the nodes under way whose report is overdue.
fn timed_out(
    rollout: &Rollout,
    nodes: &[(&NodeName, &Progress)],
    now: DateTime<Utc>,
) -> Vec<NodeName> {
    let overdue = nodes
        .iter()
        .filter(|(_, progress)| report_deadline(rollout, progress).is_some_and(|time| time <= now));
    overdue.map(|(node, _)| (*node).clone()).collect()
}

/// Returns the time at which a node with this progress counts as unreachable, if it is under way.
fn report_deadline(rollout: &Rollout, progress: &Progress) -> Option<DateTime<Utc>> {
    match progress {
        Progress::Assigned { at, .. } | Progress::Restoring { at, .. } => {
            Some(add(*at, rollout.settings.node_timeout))
        }
        _ => None,
    }
}

/// Returns the first time at which one of these nodes counts as unreachable, if one is under way.
fn next_report_deadline(
    rollout: &Rollout,
    nodes: &[(&NodeName, &Progress)],
) -> Option<DateTime<Utc>> {
    let ends = nodes
        .iter()
        .filter_map(|(_, progress)| report_deadline(rollout, progress));
    ends.min()
}

/// Returns a time plus a duration, capped at the largest time.
fn add(time: DateTime<Utc>, span: std::time::Duration) -> DateTime<Utc> {
    TimeDelta::from_std(span)
        .ok()
        .and_then(|span| time.checked_add_signed(span))
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// Returns the waiting nodes to start now, as many as may be under way at once.
fn ready(
    rollout: &Rollout,
    nodes: &[(&NodeName, &Progress)],
    is_waiting: fn(&Progress) -> bool,
) -> Vec<NodeName> {
    // A node that waits for its restore may still be under way in the rollout itself.
    let is_started = |(_, progress): &&(&NodeName, &Progress)| {
        report_deadline(rollout, progress).is_some() && !is_waiting(progress)
    };
    let free_slots = free_slots(rollout, nodes.iter().filter(is_started).count());
    let waiting = nodes.iter().filter(|(_, progress)| is_waiting(progress));
    let waiting = waiting.take(free_slots);
    waiting.map(|(node, _)| (*node).clone()).collect()
}

/// Returns how many nodes may be started besides those that are under way.
fn free_slots(rollout: &Rollout, under_way: usize) -> usize {
    match rollout.settings.parallel {
        // At least 1, so that the rollout ends.
        Some(limit) => limit.max(1).saturating_sub(under_way),
        None => usize::MAX,
    }
}

/// Returns the reason to halt, if a limit is exceeded.
fn exceeded_limit(rollout: &Rollout, wave: &Wave, tally: Tally) -> Option<String> {
    let tally = countable(rollout, tally);
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

/// Returns a tally of the rollout without what a resume has forgiven.
fn countable(rollout: &Rollout, tally: Tally) -> Tally {
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
    let count = countable(rollout, rollout.tally()).unhealthy;
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
