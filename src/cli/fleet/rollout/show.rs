//! `ccm fleet rollout list` and `show`.

use chrono::{DateTime, Utc};

use super::super::candidates;
use super::Context;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::engine::{Level, Line};
use ccm_core::model::node::Token;
use ccm_core::model::rollout::{Progress, Rollout, RolloutState, Tally};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::bundle_store::short_name;
use ccm_fleet::decision::signer;
use ccm_value::json;
use ccm_value::text::{go_duration, to_the_second};

/// Show a rollout, its waves and the result of each node
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Rollout id
    #[arg(add = candidates::rollouts())]
    id: Token,
}

pub(super) async fn list(context: &Context<'_>) -> Result<Verdict, CliError> {
    let store = context.rollouts().await?;
    let (all, broken) = store.list().await.map_err(CliError::from)?;
    for err in broken {
        context
            .console
            .log(&Line::new(Level::Warn, err.to_string()));
    }
    if context.is_json {
        let mut rollouts = Vec::with_capacity(all.len());
        for head in all {
            let stored = store.get(&head.rollout.id).await.map_err(CliError::from)?;
            rollouts.push(stored.rollout);
        }
        let text = json::pretty(&rollouts).map_err(CliError::failed)?;
        context.console.print(&format!("{text}\n"));
        return Ok(Verdict::default());
    }
    let mut text = String::new();
    for head in all {
        let rollout = head.rollout;
        let name = format!("{:<25}", rollout.state.as_str());
        text.push_str(&format!(
            "{} {} {:<32} {}\n",
            rollout.id,
            paint_state(context.console, &rollout.state, &name),
            short_name(&rollout.bundle),
            counted(&head.tally)
        ));
    }
    context.print_text(&text);
    Ok(Verdict::default())
}

pub(super) async fn show(args: &Args, context: &Context<'_>) -> Result<Verdict, CliError> {
    let stored = context
        .rollouts()
        .await?
        .get(&args.id)
        .await
        .map_err(CliError::from)?;
    let mut rollout = stored.rollout;
    // Offline nodes may have converged since the rollout was last driven.
    context.apply_reports(&mut rollout).await?;
    context.print_json(&rollout)?;
    context.print_text(&rollout_text(&rollout, context.console));
    Ok(Verdict::default())
}

/// Returns a text about a state in the colour of the state, if the console shows colours. The page
/// uses the same colours (`rollouts.js`).
pub(super) fn paint_state(console: &Console, state: &RolloutState, text: &str) -> String {
    if console.has_colour() {
        format!("\u{1b}[{}m{text}\u{1b}[0m", colour(state))
    } else {
        text.to_owned()
    }
}

/// Returns the terminal colour of a state.
fn colour(state: &RolloutState) -> &'static str {
    const RED: &str = "31";
    const GREEN: &str = "32";
    const YELLOW: &str = "33";
    const MAGENTA: &str = "35";
    const CYAN: &str = "36";
    const GREY: &str = "90";
    match state {
        RolloutState::Done => GREEN,
        RolloutState::Halted { .. }
        | RolloutState::DoneWithFailures
        | RolloutState::RolledBackWithFailures => RED,
        RolloutState::RollingBack | RolloutState::RolledBack => YELLOW,
        RolloutState::Paused { .. } => MAGENTA,
        RolloutState::Running | RolloutState::Baking { .. } => CYAN,
        RolloutState::Aborted { .. } => GREY,
    }
}

/// Returns the number of nodes per result, without zero counts.
pub(super) fn counted(tally: &Tally) -> String {
    let Tally {
        pending,
        assigned,
        ok,
        changed,
        would_change,
        failed,
        unhealthy,
        unreachable,
        skipped,
        restoring,
        restored,
    } = *tally;
    let counts = [
        (changed, "changed"),
        (would_change, "would change"),
        (ok, "ok"),
        (failed, "failed"),
        (unhealthy, "unhealthy"),
        (unreachable, "unreachable"),
        (skipped, "skipped"),
        (restored, "restored"),
        (restoring, "restoring"),
        (assigned, "in progress"),
        (pending, "pending"),
    ];
    let some = counts.iter().filter(|(count, _)| *count > 0);
    let words: Vec<String> = some
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    if words.is_empty() {
        "no nodes".into()
    } else {
        words.join(", ")
    }
}

/// Returns a state with its reason.
pub(super) fn state_line(state: &RolloutState) -> String {
    match state {
        RolloutState::Baking { until } => format!("baking until {}", to_the_second(until)),
        RolloutState::Paused { reason, by, .. } => {
            let by = if by.is_empty() { "unknown" } else { by };
            match reason.as_str() {
                "" => format!("paused by {by}"),
                reason => format!("paused by {by}: {reason}"),
            }
        }
        RolloutState::Halted { reason, .. } => format!("halted: {reason}"),
        RolloutState::Aborted { by } if !by.is_empty() => format!("aborted by {by}"),
        other => other.as_str().into(),
    }
}

/// Returns the progress of a node, with its reason.
pub(super) fn progress_line(progress: &Progress) -> String {
    let name = progress.as_str();
    match (progress, progress.reason()) {
        (Progress::Unreachable { .. }, "") => format!("{name}: no report in time"),
        (_, "") => name.into(),
        (_, reason) => format!("{name}: {reason}"),
    }
}

/// Returns the state of a rollout with its reason, and whether nodes have converged since it ended.
fn current_state(rollout: &Rollout) -> String {
    let state = state_line(&rollout.state);
    let ended_with_failures = matches!(
        rollout.state,
        RolloutState::DoneWithFailures | RolloutState::RolledBackWithFailures
    );
    if ended_with_failures && !rollout.tally().has_failures() {
        format!("{state}; all nodes have converged since")
    } else {
        state
    }
}

fn rollout_text(rollout: &Rollout, console: &Console) -> String {
    let driver = driver(rollout, SystemClock.now());
    let signer = match signer(rollout) {
        Ok(signer) => signer.unwrap_or("none").to_owned(),
        Err(tampered) => format!("invalid signature: {tampered}"),
    };
    let mode = if rollout.noop { ", noop" } else { "" };
    let mut text = format!(
        "rollout:   {}\nbundle:    {}{mode}\nstate:     {}\nnodes:     {}\nselection: {}\n\
         created:   {} by {}\nsigned by: {signer}\ndriver:    {driver}\n",
        rollout.id,
        short_name(&rollout.bundle),
        paint_state(console, &rollout.state, &current_state(rollout)),
        counted(&rollout.tally()),
        rollout.selection.join(" "),
        to_the_second(&rollout.created),
        rollout.caller,
    );
    let settings = &rollout.settings;
    text.push_str(&format!(
        "limits:    {}\n",
        limits(settings.node_timeout, rollout)
    ));
    for control in &rollout.controls {
        let at = to_the_second(&control.at);
        text.push_str(&format!(
            "{:<10} {at} by {}\n",
            format!("{}:", control.verb),
            control.by
        ));
    }
    for (number, wave) in rollout.plan.waves.iter().enumerate() {
        let here = if number == rollout.wave { " *" } else { "" };
        let tally = Tally::of(wave.nodes.iter().map(|node| rollout.progress(node)));
        text.push_str(&format!("\n{}{here}: {}\n", wave.name, counted(&tally)));
        for node in &wave.nodes {
            let progress = progress_line(rollout.progress(node));
            text.push_str(&format!("  {node} {progress}\n"));
        }
    }
    for skipped in &rollout.plan.left_out {
        text.push_str(&format!(
            "\nskipped: {} ({})\n",
            skipped.node, skipped.reason
        ));
    }
    text
}

/// Returns the controller of a rollout. Whether it still renews its lease can only be observed: the time
/// is a hint for people.
fn driver(rollout: &Rollout, now: DateTime<Utc>) -> String {
    match &rollout.lease {
        Some(lease) if lease.until > now => lease.holder.clone(),
        Some(lease) => format!(
            "{}, its lease ended at {} by its clock; continue with `ccm fleet rollout drive`",
            lease.holder,
            to_the_second(&lease.until)
        ),
        None if rollout.state.is_active() => "none; continue with `ccm fleet rollout drive`".into(),
        None => "none".into(),
    }
}

fn limits(node_timeout: std::time::Duration, rollout: &Rollout) -> String {
    let budget = &rollout.settings.budget;
    let mut words = vec![format!("node timeout {}", go_duration(node_timeout))];
    match (budget.max_failures, budget.max_failures_percent) {
        (None, None) => words.push("no failures".into()),
        (count, percent) => {
            words.extend(count.map(|count| format!("{count} failures")));
            words.extend(percent.map(|it| format!("{it} failures of {}", budget.min_sample)));
        }
    }
    let unreachable = budget.max_unreachable;
    words.extend(unreachable.map(|amount| format!("{amount} unreachable")));
    let deadline = rollout.settings.deadline;
    words.extend(deadline.map(|time| format!("until {}", to_the_second(&time))));
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Colours of the page, by the node state that they belong to, and those of terminals.
    const COLOURS: [(&str, &str); 6] = [
        ("stable", "32"),
        ("running", "36"),
        ("drifted", "33"),
        ("failed", "31"),
        ("paused", "35"),
        ("offline", "90"),
    ];

    #[test]
    fn every_state_has_the_colour_of_the_page() {
        let page = include_str!("../../../../crates/ccm-fleet/src/web/assets/rollouts.js");
        let (_, table) = page.split_once("const COLOUR_OF = {").unwrap();
        let (table, _) = table.split_once('}').unwrap();
        let on_page = |name: &str| {
            let mut entries = table.split(',').filter_map(|entry| entry.split_once(':'));
            let is_name = |(key, _): &(&str, &str)| key.trim().trim_matches('"') == name;
            let (_, colour) = entries.find(is_name)?;
            let colour = colour.trim().trim_matches('"');
            COLOURS.iter().find(|(known, _)| *known == colour)
        };
        for name in RolloutState::NAMES {
            let state: RolloutState = serde_json::from_value(json!({
                "name": name.replace(' ', "_"), "reason": "", "until": "2027-01-15T08:00:00Z",
            }))
            .unwrap();
            let expected = on_page(name).map(|(_, code)| *code);
            assert_eq!(Some(colour(&state)), expected, "{name}");
        }
    }

    #[test]
    fn zero_counts_are_omitted() {
        let tally = Tally {
            changed: 2,
            would_change: 3,
            pending: 1,
            ..Tally::default()
        };
        assert_eq!(counted(&tally), "2 changed, 3 would change, 1 pending");
        assert_eq!(counted(&Tally::default()), "no nodes");
    }

    #[test]
    fn a_state_includes_its_reason() {
        let paused = RolloutState::Paused {
            reason: "lunch".into(),
            by: "ann".into(),
            auto: false,
        };
        assert_eq!(state_line(&paused), "paused by ann: lunch");
        assert_eq!(state_line(&RolloutState::Done), "done");
    }

    #[test]
    fn an_unreachable_node_has_a_reason() {
        for (reason, line) in [
            ("", "unreachable: no report in time"),
            ("offline", "unreachable: offline"),
        ] {
            assert_eq!(progress_line(&Progress::unreachable(1, reason)), line);
        }
        assert_eq!(progress_line(&Progress::Changed), "changed");
    }
}
