//! Tests of the live state: what readers see.

use std::time::Duration;

use super::queries::{MAX_ROWS_PER_MESSAGE, NodePage};
use super::*;
use crate::fixture::{report, rollout, run, status};
use crate::web::node_row::NodeState;
use ccm_core::model::run::RunOutcome;

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

fn presence(identity: &str) -> Record {
    Record::Presence(Box::new(status(identity)))
}

fn live(nodes: &[&str]) -> LiveState {
    let mut live = LiveState::new(7);
    for node in nodes {
        live.put(name(node), presence(node), Instant::now());
    }
    live
}

fn event(node: &str, resource: &str, outcome: &str) -> ParsedEvent {
    ParsedEvent {
        row: EventRow::example(0, node, resource, outcome),
        run: None,
    }
}

fn ran(node: &str, outcome: RunOutcome) -> ParsedEvent {
    let mut row = EventRow::example(0, node, "app", outcome.as_str());
    row.type_name = "run".into();
    ParsedEvent {
        row,
        run: Some(run(node, outcome, 1)),
    }
}

fn names(changes: &Changes) -> Vec<&str> {
    changes.nodes.iter().map(|row| row.name.as_str()).collect()
}

#[test]
fn a_changed_node_is_sent_once_however_often_it_changed() {
    let mut live = live(&["web1", "web2"]);
    let mut cursor = live.cursor();
    for outcome in [RunOutcome::Failed, RunOutcome::Changed, RunOutcome::Failed] {
        live.add_event(ran("web1", outcome), DateTime::UNIX_EPOCH, true);
    }
    let changes = live.changes(&mut cursor);
    assert_eq!(names(&changes), ["web1"]);
    assert_eq!(changes.nodes[0].state, NodeState::Failed);
    assert!(live.changes(&mut cursor).nodes.is_empty());
}

#[test]
fn a_heartbeat_without_changes_is_not_sent() {
    let mut live = live(&["web1"]);
    let mut cursor = live.cursor();
    live.put(name("web1"), presence("web1"), Instant::now());
    assert!(live.changes(&mut cursor).nodes.is_empty());
}

#[test]
fn a_slow_reader_gets_the_newest_events_and_the_number_skipped() {
    let mut live = live(&["web1"]);
    let mut cursor = live.cursor();
    for number in 0..250 {
        let changed = event("web1", &format!("/{number}"), "changed");
        live.add_event(changed, DateTime::UNIX_EPOCH, true);
    }
    let changes = live.changes(&mut cursor);
    assert_eq!((changes.events.len(), changes.skipped), (100, 150));
    assert_eq!(changes.events.last().unwrap().name, "/249");
    assert!(live.changes(&mut cursor).events.is_empty());
}

#[test]
fn failures_take_precedence_over_other_events() {
    let mut live = live(&["web1"]);
    let mut cursor = live.cursor();
    for number in 0..250 {
        let outcome = if number == 3 { "failed" } else { "changed" };
        let changed = event("web1", &format!("/{number}"), outcome);
        live.add_event(changed, DateTime::UNIX_EPOCH, true);
    }
    let changes = live.changes(&mut cursor);
    assert_eq!((changes.events.len(), changes.skipped), (100, 150));
    let names: Vec<&str> = changes.events.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names[..2], ["/3", "/151"]);
    assert!(changes.events.is_sorted_by_key(|it| it.number));
}

#[test]
fn of_many_failures_the_newest_are_sent() {
    let mut live = live(&["web1"]);
    let mut cursor = live.cursor();
    for number in 0..250 {
        let changed = event("web1", &format!("/{number}"), "failed");
        live.add_event(changed, DateTime::UNIX_EPOCH, true);
    }
    let changes = live.changes(&mut cursor);
    assert_eq!((changes.events.len(), changes.skipped), (100, 150));
    assert_eq!(changes.events[0].name, "/150");
}

#[test]
fn many_changed_nodes_are_sent_in_parts() {
    let mut live = LiveState::new(1);
    let mut cursor = live.cursor();
    for number in 0..MAX_ROWS_PER_MESSAGE + 5 {
        let node = format!("n{number}");
        live.put(name(&node), presence(&node), Instant::now());
    }
    assert_eq!(live.changes(&mut cursor).nodes.len(), MAX_ROWS_PER_MESSAGE);
    assert_eq!(live.changes(&mut cursor).nodes.len(), 5);
}

#[test]
fn a_cursor_of_another_epoch_needs_a_resync() {
    let live = live(&["web1"]);
    let mut cursor = live.cursor_at(6, 0);
    assert!(live.changes(&mut cursor).resync);
    assert!(!live.changes(&mut cursor).resync);
    let mut ahead = live.cursor_at(7, 99);
    assert!(live.changes(&mut ahead).resync);
}

#[test]
fn events_are_kept_in_bounded_number() {
    let mut live = live(&["web1"]);
    for _ in 0..MAX_EVENTS + 10 {
        live.add_event(event("web1", "/a", "stable"), DateTime::UNIX_EPOCH, true);
    }
    assert_eq!(live.events(usize::MAX, |_| true).len(), MAX_EVENTS);
    assert_eq!(live.resources, 1);
}

#[test]
fn nodes_missing_after_a_reread_are_offline() {
    let mut live = live(&["web1", "web2"]);
    for node in ["web1", "web2"] {
        let record = Record::Report(Box::new(report(node, 1)));
        live.put(name(node), record, Instant::now());
    }
    let mut cursor = live.cursor();
    live.restart(Source::Presence);
    live.put(name("web1"), presence("web1"), Instant::now());
    live.finish(Source::Presence, Instant::now());
    let changes = live.changes(&mut cursor);
    assert_eq!(names(&changes), ["web2"]);
    assert_eq!(changes.nodes[0].state, NodeState::Offline);
}

#[test]
fn a_node_without_records_is_removed_and_readers_resync() {
    let mut live = LiveState::new(1);
    let record = Record::Report(Box::new(report("web1", 1)));
    live.put(name("web1"), record, Instant::now());
    let mut cursor = live.cursor();
    live.remove(
        &name("web1"),
        Source::Report,
        Removal::Deleted,
        Instant::now(),
    );
    assert!(live.changes(&mut cursor).resync);
    assert_eq!(live.totals().nodes, 0);
}

#[test]
fn a_node_without_heartbeats_goes_offline() {
    let mut live = live(&["web1"]);
    live.expire(Instant::now());
    assert_eq!(live.totals().states["offline"], 0);
    live.expire(Instant::now() + Duration::from_secs(600));
    assert_eq!(live.totals().states["offline"], 1);
}

#[test]
fn pages_follow_each_other_without_gaps() {
    let live = live(&["a1", "a2", "b1", "a3"]);
    let first = live.page(&NodeQuery {
        text: "A",
        limit: 2,
        ..NodeQuery::default()
    });
    let rows = |page: &NodePage| -> Vec<String> {
        let rows = page.rows.iter();
        rows.map(|row| row.name.to_string()).collect()
    };
    assert_eq!(rows(&first), ["a1", "a2"]);
    assert_eq!((first.matched, first.has_more), (3, true));
    let next = live.page(&NodeQuery {
        text: "a",
        after: Some(&name("a2")),
        limit: 2,
        ..NodeQuery::default()
    });
    assert_eq!(rows(&next), ["a3"]);
    assert!(!next.has_more);
}

#[test]
fn only_new_events_are_counted_by_known_types_and_outcomes() {
    let mut live = live(&["web1"]);
    live.add_event(event("web1", "/a", "changed"), DateTime::UNIX_EPOCH, false);
    live.add_event(event("web1", "/a", "failed"), DateTime::UNIX_EPOCH, true);
    live.add_event(event("web1", "/a", "made-up"), DateTime::UNIX_EPOCH, true);
    let counts: Vec<_> = live.counts().collect();
    assert_eq!(counts, [("file", "failed", 1), ("file", "other", 1)]);
}

#[test]
fn a_changed_rollout_is_sent_and_a_removed_one_needs_a_resync() {
    let mut live = LiveState::new(1);
    let mut cursor = live.cursor();
    live.put_rollout(StoredRollout::whole(rollout("r1"), 1));
    assert_eq!(live.changes(&mut cursor).rollouts.len(), 1);
    assert!(live.changes(&mut cursor).rollouts.is_empty());
    live.restart_rollouts();
    live.put_rollout(StoredRollout::whole(rollout("r2"), 1));
    live.finish_rollouts();
    assert!(live.changes(&mut cursor).resync);
    assert_eq!(live.rollouts().len(), 1);
}

#[test]
fn dropped_events_are_counted_up_whatever_nodes_do() {
    let mut live = LiveState::new(7);
    let now = Instant::now();
    let put = |live: &mut LiveState, node: &str, dropped: u64| {
        let mut status = status(node);
        status.spool.dropped = dropped;
        live.put(name(node), Record::Presence(Box::new(status)), now);
        live.totals().dropped
    };
    // What was dropped before the start is not counted.
    assert_eq!(put(&mut live, "web1", 5), 0);
    assert_eq!(put(&mut live, "web1", 7), 2);
    assert_eq!(put(&mut live, "web2", 100), 2);
    // A node that goes and returns is counted once, also if it drops events meanwhile.
    live.remove(&name("web1"), Source::Presence, Removal::Deleted, now);
    assert_eq!(live.totals().dropped, 2);
    assert_eq!(put(&mut live, "web1", 10), 5);
    // A new spool starts at zero.
    assert_eq!(put(&mut live, "web2", 1), 6);
}
