//! Progress output of a rollout: a bar per wave, and a line for every node that changed or failed
//! and for every state change of the rollout.
//!
//! Lines go to standard output and bars to standard error, so that the lines can be piped.

use std::collections::{BTreeMap, BTreeSet};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::show::{counted, paint_state, progress_line, state_line};
use crate::cli::output::Console;
use ccm_core::engine::Line;
use ccm_core::model::node::NodeName;
use ccm_core::model::rollout::{Progress as NodeProgress, Rollout, RolloutState, Tally};
use ccm_value::text::count_of;

/// Prints the changes of a rollout.
pub(super) struct Progress<'a> {
    console: Option<&'a Console>,
    bars: MultiProgress,
    waves: Vec<ProgressBar>,
    state: Option<RolloutState>,
    wave: Option<usize>,
    nodes: BTreeMap<NodeName, NodeProgress>,
}

impl<'a> Progress<'a> {
    /// Returns an instance that prints nothing, for JSON output.
    pub(super) fn silent() -> Self {
        Self::to(None)
    }

    pub(super) fn shown(console: &'a Console) -> Self {
        Self::to(Some(console))
    }

    /// Treats the current progress of all nodes as already printed.
    pub(super) fn since(self, rollout: &Rollout) -> Self {
        Self {
            nodes: BTreeMap::clone(&rollout.nodes),
            ..self
        }
    }

    fn to(console: Option<&'a Console>) -> Self {
        Self {
            console,
            // Draws only where standard error is a terminal.
            bars: MultiProgress::with_draw_target(ProgressDrawTarget::stderr()),
            waves: Vec::new(),
            state: None,
            wave: None,
            nodes: BTreeMap::new(),
        }
    }

    /// Prints the changes since the last update.
    pub(super) fn update(&mut self, rollout: &Rollout) {
        if self.console.is_none() {
            return;
        }
        for line in self.changes(rollout) {
            self.line(&line);
        }
        if !self.bars.is_hidden() {
            self.draw(rollout);
        }
    }

    /// Prints the final counts.
    pub(super) fn finish(&self, rollout: &Rollout) {
        self.clear();
        let tally = counted(&rollout.tally());
        self.line(&format!("rollout {}: {tally}", rollout.id));
    }

    /// Logs a line above the progress bars.
    pub(super) fn log(&self, console: &Console, line: &Line) {
        self.bars.suspend(|| console.log(line));
    }

    /// Removes the progress bars.
    pub(super) fn clear(&self) {
        for bar in &self.waves {
            bar.finish_and_clear();
        }
    }

    /// Returns a line for every change since the last call.
    fn changes(&mut self, rollout: &Rollout) -> Vec<String> {
        let mut lines = Vec::new();
        // A rollback does not go by waves.
        let new_wave = rollout
            .plan
            .waves
            .get(rollout.wave)
            .filter(|_| self.wave != Some(rollout.wave) && !rollout.state.is_rollback());
        let new_nodes: BTreeSet<&NodeName> = new_wave.iter().flat_map(|it| &it.nodes).collect();
        let mut lines_of_new_wave = Vec::new();
        let changed = rollout.nodes.changed();
        let changed: Vec<(&NodeName, &NodeProgress)> = match changed {
            Some(nodes) => {
                let nodes = nodes.iter();
                nodes
                    .filter_map(|node| rollout.nodes.get_key_value(node))
                    .collect()
            }
            None => rollout.nodes.iter().collect(),
        };
        for (node, now) in &changed {
            let now = *now;
            let is_unremarkable = matches!(
                now,
                NodeProgress::Pending
                    | NodeProgress::Assigned { .. }
                    | NodeProgress::Ok
                    | NodeProgress::Restoring { .. }
            );
            if is_unremarkable || self.nodes.get(*node) == Some(now) {
                continue;
            }
            let line = format!("  {node} {}", progress_line(now));
            if new_nodes.contains(*node) {
                lines_of_new_wave.push(line);
            } else {
                lines.push(line);
            }
        }
        if let Some(wave) = new_wave {
            let count = count_of(wave.nodes.len(), "node");
            lines.push(format!("{}: {count}", wave.name));
        }
        lines.extend(lines_of_new_wave);
        if self.state.as_ref() != Some(&rollout.state) && rollout.state != RolloutState::Running {
            lines.push(self.painted(&rollout.state));
        }
        self.wave = Some(rollout.wave);
        self.state = Some(rollout.state.clone());
        match rollout.nodes.changed() {
            Some(_) => {
                let changed = changed.into_iter();
                let changed = changed.map(|(node, now)| (node.clone(), now.clone()));
                self.nodes.extend(changed);
            }
            None => self.nodes.clone_from(&rollout.nodes),
        }
        lines
    }

    fn painted(&self, state: &RolloutState) -> String {
        let line = state_line(state);
        match self.console {
            Some(console) => paint_state(console, state, &line),
            None => line,
        }
    }

    fn line(&self, text: &str) {
        if let Some(console) = self.console {
            self.bars.suspend(|| console.print(&format!("{text}\n")));
        }
    }

    fn draw(&mut self, rollout: &Rollout) {
        let waves = &rollout.plan.waves;
        while let Some(wave) = waves.get(self.waves.len()) {
            let length = u64::try_from(wave.nodes.len()).unwrap_or(u64::MAX);
            let bar = self.bars.add(ProgressBar::new(length));
            let template = "{prefix:>10} {bar:30} {pos}/{len} {msg}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_prefix(wave.name.clone());
            self.waves.push(bar);
        }
        for (bar, wave) in self.waves.iter().zip(waves) {
            let tally = Tally::of(wave.nodes.iter().map(|node| rollout.progress(node)));
            let finished = wave.nodes.len().saturating_sub(tally.unfinished());
            bar.set_position(u64::try_from(finished).unwrap_or(u64::MAX));
            bar.set_message(if tally.has_failures() {
                counted(&tally)
            } else {
                String::new()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollout() -> Rollout {
        serde_json::from_value(serde_json::json!({
            "protocol": ccm_core::model::rollout::ROLLOUT,
            "id": "r1",
            "bundle": {"name": "app", "digest": "ab".repeat(32)},
            "created": "2027-01-15T08:00:00Z",
            "plan": {"waves": [{"name": "canary", "canary": true, "nodes": ["a"]},
                               {"name": "wave 1", "nodes": ["b", "c"]}]},
            "state": {"name": "running"}
        }))
        .unwrap()
    }

    #[test]
    fn each_change_is_printed_once() {
        let mut rollout = rollout();
        let mut progress = Progress::silent();
        assert_eq!(progress.changes(&rollout), ["canary: 1 node"]);
        rollout
            .nodes
            .insert("a".parse().unwrap(), NodeProgress::Changed);
        assert_eq!(progress.changes(&rollout), ["  a changed"]);
        rollout.wave = 1;
        rollout.nodes.insert("b".parse().unwrap(), NodeProgress::Ok);
        assert_eq!(progress.changes(&rollout), ["wave 1: 2 nodes"]);
        rollout
            .nodes
            .insert("c".parse().unwrap(), NodeProgress::failed("no"));
        rollout.state = RolloutState::Halted {
            reason: "too much".into(),
            rolling_back: false,
        };
        assert_eq!(
            progress.changes(&rollout),
            ["  c failed: no", "halted: too much"]
        );
        assert!(progress.changes(&rollout).is_empty());
    }

    #[test]
    fn a_rollback_has_no_waves() {
        let mut rollout = rollout();
        rollout.state = RolloutState::RollingBack;
        let mut progress = Progress::silent();
        assert_eq!(progress.changes(&rollout), ["rolling back"]);
        let restoring = NodeProgress::Restoring {
            generation: 2,
            at: chrono::DateTime::UNIX_EPOCH,
        };
        rollout.nodes.insert("a".parse().unwrap(), restoring);
        assert!(progress.changes(&rollout).is_empty());
        rollout
            .nodes
            .insert("a".parse().unwrap(), NodeProgress::Restored);
        assert_eq!(progress.changes(&rollout), ["  a restored"]);
    }

    #[test]
    fn a_bar_counts_at_most_the_nodes_of_its_wave() {
        let mut rollout = rollout();
        for node in ["a", "b", "c", "not planned"] {
            if let Ok(node) = node.parse() {
                rollout.nodes.insert(node, NodeProgress::Restored);
            }
        }
        let mut progress = Progress::silent();
        progress.draw(&rollout);
        let positions: Vec<_> = progress.waves.iter().map(ProgressBar::position).collect();
        assert_eq!(positions, [1, 2]);
        let restoring = NodeProgress::Restoring {
            generation: 2,
            at: chrono::DateTime::UNIX_EPOCH,
        };
        rollout.nodes.insert("b".parse().unwrap(), restoring);
        progress.draw(&rollout);
        assert_eq!(progress.waves[1].position(), 1);
    }

    #[test]
    fn the_last_changes_of_a_wave_are_printed_before_the_next_wave() {
        let mut rollout = rollout();
        let mut progress = Progress::silent();
        progress.changes(&rollout);
        rollout.wave = 1;
        for node in ["a", "b"] {
            rollout
                .nodes
                .insert(node.parse().unwrap(), NodeProgress::Changed);
        }
        assert_eq!(
            progress.changes(&rollout),
            ["  a changed", "wave 1: 2 nodes", "  b changed"]
        );
    }

    #[test]
    fn since_suppresses_earlier_changes() {
        let mut rollout = rollout();
        rollout
            .nodes
            .insert("a".parse().unwrap(), NodeProgress::Changed);
        let mut progress = Progress::silent().since(&rollout);
        rollout.wave = 1;
        rollout
            .nodes
            .insert("b".parse().unwrap(), NodeProgress::Changed);
        assert_eq!(
            progress.changes(&rollout),
            ["wave 1: 2 nodes", "  b changed"]
        );
    }
}
