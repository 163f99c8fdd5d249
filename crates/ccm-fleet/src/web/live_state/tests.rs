//! What readers of the live state see.

use std::time::Duration;

use super::super::fixture::{report, rollout, run, status};
use super::*;
use ccm_core::model::run::RunOutcome;

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

fn presence(identity: &str) -> Record {
    Record::Presence(Box::new(status(identity)))
}

fn live(nodes: &[&str]) -> Live {
    let mut live = Live::new(7);
    for node in nodes {
        live.put(name(node), presence(node), Instant::now());
    }
    live
}

fn told(node: &str, resource: &str, outcome: &str) -> Told {
    Told {
        happening: EventRow::example(0, node, resource, outcome),
        run: None,
    }
}

fn ran(node: &str, outcome: RunOutcome) -> Told {
    let mut happening = EventRow::example(0, node, "app", outcome.as_str());
    happening.type_name = "run".into();
    Told {
        happening,
        run: Some(run(node, outcome, 1)),
    }
}

fn names(news: &News) -> Vec<&str> {
    news.nodes.iter().map(|row| row.name.as_str()).collect()
}

#[test]
fn a_reader_hears_of_a_node_once_however_often_it_changed() {
    let mut live = live(&["web1", "web2"]);
    let mut cursor = live.cursor();
    for outcome in [RunOutcome::Failed, RunOutcome::Changed, RunOutcome::Failed] {
        live.tell(ran("web1", outcome), DateTime::UNIX_EPOCH, true);
    }
    let news = live.news(&mut cursor);
    assert_eq!(names(&news), ["web1"]);
    assert_eq!(news.nodes[0].state, NodeState::Failed);
    assert!(live.news(&mut cursor).nodes.is_empty());
}

#[test]
fn a_beat_that_shows_nothing_new_is_no_news() {
    let mut live = live(&["web1"]);
    let mut cursor = live.cursor();
    live.put(name("web1"), presence("web1"), Instant::now());
    assert!(live.news(&mut cursor).nodes.is_empty());
}

#[test]
fn a_slow_reader_hears_the_newest_events_and_how_many_it_missed() {
    let mut live = live(&["web1"]);
    let mut cursor = live.cursor();
    for number in 0..250 {
        let event = told("web1", &format!("/{number}"), "changed");
        live.tell(event, DateTime::UNIX_EPOCH, true);
    }
    let news = live.news(&mut cursor);
    assert_eq!((news.events.len(), news.skipped), (100, 150));
    assert_eq!(news.events.last().unwrap().name, "/249");
    assert!(live.news(&mut cursor).events.is_empty());
}

#[test]
fn a_failure_is_told_however_much_else_happened() {
    let mut live = live(&["web1"]);
    let mut cursor = live.cursor();
    for number in 0..250 {
        let outcome = if number == 3 { "failed" } else { "changed" };
        let event = told("web1", &format!("/{number}"), outcome);
        live.tell(event, DateTime::UNIX_EPOCH, true);
    }
    let news = live.news(&mut cursor);
    assert_eq!((news.events.len(), news.skipped), (100, 150));
    let names: Vec<&str> = news.events.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names[..2], ["/3", "/151"]);
    assert!(news.events.is_sorted_by_key(|it| it.number));
}

#[test]
fn of_failures_alone_the_newest_are_told() {
    let mut live = live(&["web1"]);
    let mut cursor = live.cursor();
    for number in 0..250 {
        let event = told("web1", &format!("/{number}"), "failed");
        live.tell(event, DateTime::UNIX_EPOCH, true);
    }
    let news = live.news(&mut cursor);
    assert_eq!((news.events.len(), news.skipped), (100, 150));
    assert_eq!(news.events[0].name, "/150");
}

#[test]
fn much_news_about_nodes_comes_in_parts_and_none_is_lost() {
    let mut live = Live::new(1);
    let mut cursor = live.cursor();
    for number in 0..MOST_ROWS_AT_ONCE + 5 {
        let node = format!("n{number}");
        live.put(name(&node), presence(&node), Instant::now());
    }
    assert_eq!(live.news(&mut cursor).nodes.len(), MOST_ROWS_AT_ONCE);
    assert_eq!(live.news(&mut cursor).nodes.len(), 5);
}

#[test]
fn a_reader_of_another_time_must_begin_anew() {
    let live = live(&["web1"]);
    let mut cursor = live.cursor_at(6, 0);
    assert!(live.news(&mut cursor).resync);
    assert!(!live.news(&mut cursor).resync);
    let mut ahead = live.cursor_at(7, 99);
    assert!(live.news(&mut ahead).resync);
}

#[test]
fn events_are_kept_in_bounded_number() {
    let mut live = live(&["web1"]);
    for _ in 0..MOST_EVENTS + 10 {
        live.tell(told("web1", "/a", "stable"), DateTime::UNIX_EPOCH, true);
    }
    assert_eq!(live.events(usize::MAX, |_| true).len(), MOST_EVENTS);
    assert_eq!(live.resources, 1);
}

#[test]
fn who_is_not_named_after_a_restart_is_offline() {
    let mut live = live(&["web1", "web2"]);
    for node in ["web1", "web2"] {
        let record = Record::Report(Box::new(report(node, 1)));
        live.put(name(node), record, Instant::now());
    }
    let mut cursor = live.cursor();
    live.restart(Source::Presence);
    live.put(name("web1"), presence("web1"), Instant::now());
    live.finish(Source::Presence, Instant::now());
    let news = live.news(&mut cursor);
    assert_eq!(names(&news), ["web2"]);
    assert_eq!(news.nodes[0].state, NodeState::Offline);
}

#[test]
fn a_node_that_no_bucket_knows_any_more_is_gone_and_readers_begin_anew() {
    let mut live = Live::new(1);
    let record = Record::Report(Box::new(report("web1", 1)));
    live.put(name("web1"), record, Instant::now());
    let mut cursor = live.cursor();
    live.remove(&name("web1"), Source::Report, Instant::now());
    assert!(live.news(&mut cursor).resync);
    assert_eq!(live.totals().nodes, 0);
}

#[test]
fn a_silent_node_goes_offline() {
    let mut live = live(&["web1"]);
    live.expire(Instant::now());
    assert_eq!(live.totals().states["offline"], 0);
    live.expire(Instant::now() + Duration::from_secs(600));
    assert_eq!(live.totals().states["offline"], 1);
}

#[test]
fn pages_follow_each_other_without_gaps() {
    let live = live(&["a1", "a2", "b1", "a3"]);
    let first = live.page(&Wish {
        text: "A",
        limit: 2,
        ..Wish::default()
    });
    let rows = |page: &Page| -> Vec<String> {
        let rows = page.rows.iter();
        rows.map(|row| row.name.to_string()).collect()
    };
    assert_eq!(rows(&first), ["a1", "a2"]);
    assert_eq!((first.matched, first.has_more), (3, true));
    let next = live.page(&Wish {
        text: "a",
        after: Some(&name("a2")),
        limit: 2,
        ..Wish::default()
    });
    assert_eq!(rows(&next), ["a3"]);
    assert!(!next.has_more);
}

#[test]
fn only_events_since_the_start_are_counted_and_by_known_words() {
    let mut live = live(&["web1"]);
    live.tell(told("web1", "/a", "changed"), DateTime::UNIX_EPOCH, false);
    live.tell(told("web1", "/a", "failed"), DateTime::UNIX_EPOCH, true);
    live.tell(told("web1", "/a", "made-up"), DateTime::UNIX_EPOCH, true);
    let counts: Vec<_> = live.counts().collect();
    assert_eq!(counts, [("file", "failed", 1), ("file", "other", 1)]);
}

#[test]
fn a_changed_rollout_is_news_and_a_removed_one_a_new_beginning() {
    let mut live = Live::new(1);
    let mut cursor = live.cursor();
    live.put_rollout(rollout("r1"));
    assert_eq!(live.news(&mut cursor).rollouts.len(), 1);
    assert!(live.news(&mut cursor).rollouts.is_empty());
    live.restart_rollouts();
    live.put_rollout(rollout("r2"));
    live.finish_rollouts();
    assert!(live.news(&mut cursor).resync);
    assert_eq!(live.rollouts().len(), 1);
}
