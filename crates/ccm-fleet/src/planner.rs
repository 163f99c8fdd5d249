//! The next step of a rollout, from what is stored of it and the time. Does nothing itself.
//!
//! A controller asks [`decide`], carries the answer out, notes it with [`note`], stores the
//! rollout and asks again. So a controller that dies between two steps is replaced by any other:
//! everything it knew is in the object.
//!
//! How failures are counted:
//! - over the whole rollout, not per wave; both bounds hold at once when both are given; without
//!   any bound the first failure halts
//! - a percentage is of the nodes that finished, and only once enough of them did (or all)
//! - a node that stays silent is unreachable, not failed, and has a bound of its own
//! - in the canary nothing may fail, and somebody must succeed
//! - with the health gate nobody may be unhealthy when the next wave begins; until then they may
//!   recover
//!
//! What somebody chose to go on with is forgiven: see [`super::controls`].

use chrono::{DateTime, TimeDelta, Utc};

use ccm_core::model::amount::Amount;
use ccm_core::model::node::NodeName;
use ccm_core::model::rollout::{Budget, Progress, Rollout, State, Tally, Wave};

/// How many nodes a reason names.
const NAMED: usize = 3;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Give these nodes the assignment and note each as assigned.
    Assign(Vec<NodeName>),
    /// These nodes stayed silent for too long.
    Unreachable(Vec<NodeName>),
    /// Nothing, until a node is heard or this time has come.
    Wait(Option<DateTime<Utc>>),
    /// The wave is finished; watch it until this time.
    Bake(DateTime<Utc>),
    /// Go on with this wave.
    NextWave(usize),
    Halt(String),
    /// Give these nodes back what they were assigned before, and note each as restored.
    Restore(Vec<NodeName>),
    /// All is done: the rollout, or the way back.
    Done,
    /// Nothing, until somebody wants something.
    Rest,
}

/// Returns what to do next.
pub fn decide(rollout: &Rollout, now: DateTime<Utc>) -> Decision {
    match rollout.state {
        State::Running => in_wave(rollout, now, None),
        State::Baking { until } => in_wave(rollout, now, Some(until)),
        State::RollingBack => way_back(rollout),
        State::Paused { .. }
        | State::Halted { .. }
        | State::Aborted { .. }
        | State::Done
        | State::RolledBack => Decision::Rest,
    }
}

/// Notes what a decision makes of the rollout itself. What was assigned or restored is noted by
/// whoever did it, node by node.
pub fn note(rollout: &mut Rollout, decision: &Decision) {
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
        Decision::Bake(until) => rollout.state = State::Baking { until: *until },
        Decision::NextWave(wave) => {
            rollout.wave = *wave;
            rollout.state = State::Running;
        }
        Decision::Halt(reason) => {
            rollout.state = State::Halted {
                reason: reason.clone(),
            }
        }
        Decision::Done => {
            rollout.state = match rollout.state {
                State::RollingBack => State::RolledBack,
                _ => State::Done,
            }
        }
        Decision::Assign(_) | Decision::Restore(_) | Decision::Wait(_) | Decision::Rest => {}
    }
}

fn way_back(rollout: &Rollout) -> Decision {
    let touched = rollout.previous.nodes();
    // One that somebody else has assigned meanwhile is passed over.
    let is_over = |node: &NodeName| {
        let progress = rollout.progress(node);
        matches!(progress, Progress::Restored | Progress::Skipped { .. })
    };
    let left = touched.filter(|node| !is_over(node));
    let left: Vec<NodeName> = left.cloned().collect();
    if left.is_empty() {
        Decision::Done
    } else {
        Decision::Restore(left)
    }
}

fn in_wave(rollout: &Rollout, now: DateTime<Utc>, baking: Option<DateTime<Utc>>) -> Decision {
    let Some(wave) = rollout.plan.waves.get(rollout.wave) else {
        return Decision::Done;
    };
    let silent = silent(rollout, wave, now);
    if !silent.is_empty() {
        return Decision::Unreachable(silent);
    }
    if let Some(reason) = overspent(rollout, wave) {
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
        let ends = wave.nodes.iter().filter_map(|node| give_up(rollout, node));
        return Decision::Wait(ends.chain(deadline).min());
    }
    let succeeded = tally.ok + tally.changed + tally.unhealthy;
    if wave.canary && succeeded == 0 && rollout.forgiven.is_none() {
        return Decision::Halt("no node of the canary could be reached".into());
    }
    match baking {
        Some(until) if now < until => {
            return Decision::Wait([Some(until), deadline].into_iter().flatten().min());
        }
        None if bakes(rollout) => return Decision::Bake(later(now, rollout.settings.bake)),
        _ => {}
    }
    if let Some(reason) = unhealthy(rollout) {
        return Decision::Halt(reason);
    }
    match next_wave(rollout) {
        Some(next) => Decision::NextWave(next),
        None => Decision::Done,
    }
}

/// Returns the nodes that were told so long ago that nothing will come.
fn silent(rollout: &Rollout, wave: &Wave, now: DateTime<Utc>) -> Vec<NodeName> {
    let is_over = |node: &&NodeName| give_up(rollout, node).is_some_and(|time| time <= now);
    wave.nodes.iter().filter(is_over).cloned().collect()
}

/// Returns when a node that was told something counts as unreachable.
fn give_up(rollout: &Rollout, node: &NodeName) -> Option<DateTime<Utc>> {
    match rollout.progress(node) {
        Progress::Assigned { at, .. } => Some(later(*at, rollout.settings.node_timeout)),
        _ => None,
    }
}

/// Returns a time plus a span; one beyond all calendars is the end of time.
fn later(time: DateTime<Utc>, span: std::time::Duration) -> DateTime<Utc> {
    TimeDelta::from_std(span)
        .ok()
        .and_then(|span| time.checked_add_signed(span))
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// Returns the nodes of a wave that can be told now.
fn ready(rollout: &Rollout, wave: &Wave) -> Vec<NodeName> {
    let count = |is: fn(&Progress) -> bool| {
        let nodes = wave.nodes.iter();
        nodes.filter(|node| is(rollout.progress(node))).count()
    };
    let under_way = count(|progress| matches!(progress, Progress::Assigned { .. }));
    let room = match rollout.settings.parallel {
        // Nobody at all would be a rollout that never ends.
        Some(most) => most.max(1).saturating_sub(under_way),
        None => usize::MAX,
    };
    let is_pending = |node: &&NodeName| *rollout.progress(node) == Progress::Pending;
    wave.nodes
        .iter()
        .filter(is_pending)
        .take(room)
        .cloned()
        .collect()
}

/// Returns why no more may be begun, if so much went wrong.
fn overspent(rollout: &Rollout, wave: &Wave) -> Option<String> {
    let tally = fresh(rollout);
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
    let most = match (max_failures, max_failures_percent) {
        (None, None) => Some(0),
        (most, _) => most,
    };
    if let Some(most) = most.filter(|most| failed > *most) {
        let names = failures(rollout);
        return Some(format!("{failed} failed, {most} allowed: {names}"));
    }
    let finished = tally.finished();
    if let Some(most) = max_failures_percent
        && is_enough(finished)
        && most.is_exceeded(failed, finished)
    {
        let names = failures(rollout);
        return Some(format!(
            "{failed} of {finished} failed, {most} allowed: {names}"
        ));
    }
    let silent = tally.unreachable;
    let tried = finished + silent;
    let is_over = match max_unreachable? {
        Amount::Count(most) => silent > most,
        Amount::Percent(most) => is_enough(tried) && most.is_exceeded(silent, tried),
    };
    is_over.then(|| {
        let most = max_unreachable.map_or_else(String::new, |most| most.to_string());
        let names = named(rollout, |progress| match progress {
            Progress::Unreachable { .. } => Some(""),
            _ => None,
        });
        format!("{silent} of {tried} unreachable, {most} allowed: {names}")
    })
}

/// Counts what is not forgiven.
fn fresh(rollout: &Rollout) -> Tally {
    let tally = rollout.tally();
    match &rollout.forgiven {
        Some(forgiven) => tally.beyond(forgiven),
        None => tally,
    }
}

fn failures(rollout: &Rollout) -> String {
    named(rollout, |progress| match progress {
        Progress::Failed { reason } => Some(reason),
        _ => None,
    })
}

/// Returns the first nodes that something is true of, with why.
fn named(rollout: &Rollout, why: impl Fn(&Progress) -> Option<&str>) -> String {
    let mut found = rollout
        .nodes
        .iter()
        .filter_map(|(node, progress)| Some((node, why(progress)?)));
    let mut text: Vec<String> = found
        .by_ref()
        .take(NAMED)
        .map(|(node, reason)| match reason {
            "" => node.to_string(),
            reason => format!("{node} ({reason})"),
        })
        .collect();
    match found.count() {
        0 => {}
        more => text.push(format!("{more} more")),
    }
    text.join(", ")
}

/// Reports whether a finished wave is watched. After the last one only health can still say no.
fn bakes(rollout: &Rollout) -> bool {
    let is_watched = rollout.settings.health_gate || next_wave(rollout).is_some();
    is_watched && !rollout.settings.bake.is_zero()
}

fn unhealthy(rollout: &Rollout) -> Option<String> {
    let count = fresh(rollout).unhealthy;
    if !rollout.settings.health_gate || count == 0 {
        return None;
    }
    let names = named(rollout, |progress| match progress {
        Progress::Unhealthy { reason } => Some(reason),
        _ => None,
    });
    Some(format!("{count} unhealthy: {names}"))
}

/// Returns the next wave with anything to do in it.
fn next_wave(rollout: &Rollout) -> Option<usize> {
    let has_work = |wave: &Wave| {
        let mut nodes = wave.nodes.iter();
        nodes.any(|node| *rollout.progress(node) == Progress::Pending)
    };
    let waves = rollout.plan.waves.iter().enumerate();
    let mut later = waves.skip(rollout.wave.saturating_add(1));
    later.find(|(_, wave)| has_work(wave)).map(|(at, _)| at)
}

#[cfg(test)]
mod tests;
