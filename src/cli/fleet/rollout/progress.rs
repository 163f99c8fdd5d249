//! What is seen of a rollout on its way: a bar for each wave on a terminal, and a line for every
//! node that changed or went wrong and for every turn the rollout takes.
//!
//! Lines go to standard output and bars to standard error, so that lines can be piped on.

use std::collections::BTreeMap;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::show::{counted, progress_line, state_line};
use crate::cli::output::Console;
use ccm_core::model::node::NodeName;
use ccm_core::model::rollout::{Progress as Of, Rollout, State, Tally};
use ccm_value::text::count_of;

/// Shows a rollout as it changes.
pub(super) struct Progress<'a> {
    console: Option<&'a Console>,
    bars: MultiProgress,
    waves: Vec<ProgressBar>,
    state: Option<State>,
    wave: Option<usize>,
    nodes: BTreeMap<NodeName, Of>,
}

impl<'a> Progress<'a> {
    /// Returns one that shows nothing, where a document is wanted.
    pub(super) fn silent() -> Self {
        Self::to(None)
    }

    pub(super) fn shown(console: &'a Console) -> Self {
        Self::to(Some(console))
    }

    /// Takes that the nodes of a rollout are where people left them.
    pub(super) fn since(self, rollout: &Rollout) -> Self {
        Self {
            nodes: rollout.nodes.clone(),
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

    /// Takes the rollout as it is now.
    pub(super) fn hear(&mut self, rollout: &Rollout) {
        if self.console.is_none() {
            return;
        }
        for line in self.news(rollout) {
            self.line(&line);
        }
        self.draw(rollout);
    }

    /// Prints what it all came to.
    pub(super) fn finish(&self, rollout: &Rollout) {
        self.leave();
        let tally = counted(&rollout.tally());
        self.line(&format!("rollout {}: {tally}", rollout.id));
    }

    /// Stops showing.
    pub(super) fn leave(&self) {
        for bar in &self.waves {
            bar.finish_and_clear();
        }
    }

    /// Returns what is new since the last time, and remembers it.
    fn news(&mut self, rollout: &Rollout) -> Vec<String> {
        let mut lines = Vec::new();
        if self.wave != Some(rollout.wave)
            && let Some(wave) = rollout.plan.waves.get(rollout.wave)
        {
            lines.push(format!(
                "{}: {}",
                wave.name,
                count_of(wave.nodes.len(), "node")
            ));
        }
        for (node, now) in &rollout.nodes {
            let is_quiet = matches!(now, Of::Pending | Of::Assigned { .. } | Of::Ok);
            if !is_quiet && self.nodes.get(node) != Some(now) {
                lines.push(format!("  {node} {}", progress_line(now)));
            }
        }
        if self.state.as_ref() != Some(&rollout.state) && rollout.state != State::Running {
            lines.push(state_line(&rollout.state));
        }
        self.wave = Some(rollout.wave);
        self.state = Some(rollout.state.clone());
        self.nodes.clone_from(&rollout.nodes);
        lines
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
            let open = tally.pending + tally.assigned;
            let over = wave.nodes.len().saturating_sub(open);
            bar.set_position(u64::try_from(over).unwrap_or(u64::MAX));
            bar.set_message(match tally.failed + tally.unhealthy + tally.unreachable {
                0 => String::new(),
                _ => counted(&tally),
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
    fn each_turn_and_each_node_that_matters_has_one_line() {
        let mut rollout = rollout();
        let mut progress = Progress::silent();
        assert_eq!(progress.news(&rollout), ["canary: 1 node"]);
        rollout.nodes.insert("a".parse().unwrap(), Of::Changed);
        assert_eq!(progress.news(&rollout), ["  a changed"]);
        rollout.wave = 1;
        rollout.nodes.insert("b".parse().unwrap(), Of::Ok);
        assert_eq!(progress.news(&rollout), ["wave 1: 2 nodes"]);
        rollout.nodes.insert("c".parse().unwrap(), Of::failed("no"));
        rollout.state = State::Halted {
            reason: "too much".into(),
        };
        assert_eq!(
            progress.news(&rollout),
            ["  c failed: no", "halted: too much"]
        );
        assert!(progress.news(&rollout).is_empty());
    }

    #[test]
    fn what_goes_on_tells_only_what_comes_of_it() {
        let mut rollout = rollout();
        rollout.nodes.insert("a".parse().unwrap(), Of::Changed);
        let mut progress = Progress::silent().since(&rollout);
        rollout.wave = 1;
        rollout.nodes.insert("b".parse().unwrap(), Of::Changed);
        assert_eq!(progress.news(&rollout), ["wave 1: 2 nodes", "  b changed"]);
    }
}
