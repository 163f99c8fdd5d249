//! `ccm fleet events` as a feed: nothing is lost, and nothing is repeated more than documented,
//! also when a process is killed, stopped, blocked or late.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Stdio};

use async_nats::jetstream::Context;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::agent::init;
use crate::support::nats::NatsServer;
use crate::support::poll::{eventually, wait_for, when};

/// The most lines that a kill may repeat: what docs/monitoring.md promises.
const BATCH: usize = 256;

const EVENTS: u64 = 10_000;

/// A server with a stream of events, and a place to read them from.
struct Bed {
    server: NatsServer,
    jetstream: Context,
    env: TestEnv,
}

impl Bed {
    async fn new() -> Self {
        let server = NatsServer::start();
        init(&server.client().await).await;
        let mut env = TestEnv::new();
        env.set("NATS_URL", &server.url());
        let jetstream = server.jetstream().await;
        Self {
            server,
            jetstream,
            env,
        }
    }

    /// Stores events, and waits until the stream has them.
    async fn store(&self, count: u64, outcome: &str) {
        let subject = format!("ccm.v1.default.event.web1.file.{outcome}");
        let before = self.last().await;
        let client = async_nats::connect(self.server.url()).await.unwrap();
        for number in 1..=count {
            let body = json!({ "number": number, "text": "x".repeat(200) }).to_string();
            client.publish(subject.clone(), body.into()).await.unwrap();
        }
        client.flush().await.unwrap();
        eventually("the events are stored", async || {
            let last = self.last().await;
            when(last >= before + count, last)
        })
        .await;
    }

    async fn last(&self) -> u64 {
        let stream = self.jetstream.get_stream("CCM_EVENTS").await.unwrap();
        stream.cached_info().state.last_sequence
    }

    /// Keeps only so many events from now on.
    async fn keep(&self, count: i64) {
        let mut stream = self.jetstream.get_stream("CCM_EVENTS").await.unwrap();
        let mut config = stream.info().await.unwrap().config.clone();
        config.max_messages = count;
        self.jetstream.update_stream(config).await.unwrap();
    }

    fn collect(&self, args: &[&str]) -> Collector {
        let mut all = vec!["fleet", "events", "--json"];
        all.extend(args);
        let mut child = self
            .env
            .command(&all)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Some(BufReader::new(child.stdout.take().unwrap()));
        Collector { child, lines }
    }

    /// Reads to the end of what there is and returns the numbers.
    fn numbers(&self, args: &[&str]) -> Vec<u64> {
        let mut all = vec!["fleet", "events", "--json"];
        all.extend(args);
        let text = self.env.ccm(&all).ok();
        text.lines().map(number).collect()
    }
}

/// A collector that reads the feed.
struct Collector {
    child: Child,
    /// Nothing once the collector has gone away.
    lines: Option<BufReader<ChildStdout>>,
}

impl Collector {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.as_mut().unwrap().read_line(&mut line).unwrap();
        line
    }

    /// Kills the program as a power cut would. Returns the whole lines that had left it.
    fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let mut rest = String::new();
        let mut lines = self.lines.take().unwrap();
        lines.read_to_string(&mut rest).unwrap();
        let whole = rest.rfind('\n').map_or("", |end| &rest[..end]);
        whole.lines().map(str::to_owned).collect()
    }

    /// Stops the program. Returns its standard error and its exit code.
    fn stop(mut self) -> (String, Option<i32>) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.end()
    }

    /// Waits for the end without reading any more lines.
    fn end(&mut self) -> (String, Option<i32>) {
        let status = wait_for("its end", || self.child.try_wait().unwrap());
        let mut output = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut output).unwrap();
        (output, status.code())
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(line: &str) -> u64 {
    let event: Value = serde_json::from_str(line).unwrap_or_else(|err| panic!("{err}: {line:?}"));
    event["seq"].as_u64().unwrap()
}

fn ascends(numbers: &[u64]) -> bool {
    numbers.windows(2).all(|pair| pair[0] < pair[1])
}

/// Kills a collector in the middle of all events, starts it again, and checks the promise.
async fn loses_nothing_to_a_kill(flags: &[&str]) {
    let bed = Bed::new().await;
    bed.store(EVENTS, "changed").await;
    let mut args = vec!["--follow", "--since", "1h"];
    args.extend(flags);
    let mut first = bed.collect(&args);
    let mut seen: Vec<u64> = (0..3_000).map(|_| number(&first.line())).collect();
    seen.extend(first.kill().iter().map(|line| number(line)));
    assert!(ascends(&seen));
    assert!(seen.len() < 9_000, "it was not killed in the middle");

    let mut second = bed.collect(&args);
    let mut again = Vec::new();
    while again.last() != Some(&EVENTS) {
        again.push(number(&second.line()));
    }
    assert_eq!(second.stop(), (String::new(), Some(0)));
    assert!(ascends(&again));
    let before: BTreeSet<u64> = seen.iter().copied().collect();
    let repeated = again.iter().filter(|it| before.contains(it)).count();
    assert!(repeated <= BATCH, "{repeated} lines were repeated");
    let all: BTreeSet<u64> = before.into_iter().chain(again).collect();
    assert!(all.into_iter().eq(1..=EVENTS));

    // Who ended in good order is repeated nothing.
    bed.store(1, "changed").await;
    let mut third = bed.collect(&args);
    assert_eq!(number(&third.line()), EVENTS + 1);
}

#[tokio::test]
async fn a_collector_that_is_killed_goes_on_under_its_name() {
    loses_nothing_to_a_kill(&["--durable", "collector"]).await;
}

#[tokio::test]
async fn a_collector_that_is_killed_goes_on_with_its_cursor_file() {
    loses_nothing_to_a_kill(&["--cursor-file", "cursor"]).await;
}

#[tokio::test]
async fn a_named_reader_loses_nothing_to_a_server_that_restarts() {
    let mut bed = Bed::new().await;
    let args = ["--follow", "--since", "1h", "--durable", "collector"];
    let mut collector = bed.collect(&args);
    for round in 0..3 {
        bed.store(300, "changed").await;
        let first = round * 300 + 1;
        let seen: Vec<u64> = (0..300).map(|_| number(&collector.line())).collect();
        assert!(seen.into_iter().eq(first..first + 300));
        bed.server.restart();
        bed.jetstream = bed.server.jetstream().await;
    }
    assert_eq!(collector.stop(), (String::new(), Some(0)));
}

#[tokio::test]
async fn a_line_has_a_number_a_time_and_the_event_of_the_node() {
    let bed = Bed::new().await;
    bed.store(1, "failed").await;
    let line = bed.collect(&["--follow", "--from-seq", "1"]).line();
    let event: Value = serde_json::from_str(&line).unwrap();
    let keys: Vec<&String> = event.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["seq", "time", "node", "type", "outcome", "event"]);
    assert_eq!(event["seq"], 1);
    assert_eq!(event["node"], "web1");
    assert_eq!(event["type"], "file");
    assert_eq!(event["outcome"], "failed");
    assert_eq!(event["event"]["number"], 1);
    assert!(event["time"].as_str().unwrap().ends_with('Z'));
}

#[tokio::test]
async fn a_number_is_where_reading_begins() {
    let bed = Bed::new().await;
    bed.store(5, "changed").await;
    assert_eq!(
        bed.numbers(&["--from-seq", "4", "--follow", "--limit", "2"]),
        [4, 5]
    );
    assert!(
        bed.numbers(&["--from-seq", "6", "--cursor-file", "c"])
            .is_empty()
    );
    let error = bed
        .env
        .ccm(&["fleet", "events", "--from-seq", "7"])
        .error(1);
    assert!(
        error.contains("event 7 is not stored, the last is 5"),
        "{error}"
    );
}

#[tokio::test]
async fn a_name_or_a_file_that_is_read_now_and_then_gets_what_is_new() {
    let bed = Bed::new().await;
    for flags in [["--durable", "hourly"], ["--cursor-file", "cursor"]] {
        let start = bed.last().await;
        bed.store(3, "changed").await;
        let mut args = flags.to_vec();
        let begin = (start + 1).to_string();
        args.extend(["--from-seq", &begin]);
        let [one, two, three] = [1, 2, 3].map(|it| start + it);
        let mut limited = args.clone();
        limited.extend(["--limit", "1"]);
        assert_eq!(bed.numbers(&limited), [one]);
        assert_eq!(bed.numbers(&args), [two, three]);
        assert!(bed.numbers(&args).is_empty());
    }
}

#[tokio::test]
async fn a_name_keeps_its_filter() {
    let bed = Bed::new().await;
    bed.store(2, "changed").await;
    bed.store(1, "failed").await;
    let failed = ["--durable", "pager", "--outcome", "failed", "--since", "1h"];
    assert_eq!(bed.numbers(&failed), [3]);
    let error = bed
        .env
        .ccm(&["fleet", "events", "--durable", "pager"])
        .error(1);
    assert!(error.contains("use another name"), "{error}");
}

#[tokio::test]
async fn events_that_expired_before_they_were_read_are_reported() {
    let bed = Bed::new().await;
    bed.store(10, "changed").await;
    for flags in [["--durable", "late"], ["--cursor-file", "late"]] {
        let mut args = vec!["--from-seq", "1"];
        args.extend(flags);
        assert_eq!(bed.numbers(&args).last(), Some(&10));
    }
    bed.store(20, "changed").await;
    bed.keep(10).await;
    for flags in [["--durable", "late"], ["--cursor-file", "late"]] {
        let mut args = vec!["fleet", "events", "--json"];
        args.extend(flags);
        let outcome = bed.env.ccm(&args);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let mut lines = outcome.stdout.lines();
        assert_eq!(lines.next(), Some(r#"{"gap":{"from":11,"to":20}}"#));
        assert!(lines.map(number).eq(21..=30));
        assert_eq!(
            outcome.stderr,
            "ccm: events 11 to 20 are no longer stored and were not read\n"
        );
    }
}

#[tokio::test]
async fn the_cursor_of_a_stream_that_was_made_anew_is_refused() {
    let bed = Bed::new().await;
    bed.store(2, "changed").await;
    assert_eq!(bed.numbers(&["--cursor-file", "cursor"]), [1, 2]);
    bed.jetstream.delete_stream("CCM_EVENTS").await.unwrap();
    init(&bed.server.client().await).await;
    bed.store(5, "changed").await;
    let args = ["fleet", "events", "--json", "--cursor-file", "cursor"];
    let error = bed.env.ccm(&args).error(1);
    assert!(error.contains("remove the file to start again"), "{error}");
}

#[tokio::test]
async fn a_reader_that_went_away_ends_the_feed_quietly() {
    let bed = Bed::new().await;
    bed.store(1, "changed").await;
    let mut collector = bed.collect(&["--follow", "--since", "1h"]);
    assert_eq!(number(&collector.line()), 1);
    collector.lines = None;
    bed.store(1, "changed").await;
    assert_eq!(collector.end(), (String::new(), Some(0)));
}

#[tokio::test]
async fn a_feed_without_a_reader_still_ends_on_a_signal() {
    let bed = Bed::new().await;
    bed.store(EVENTS, "changed").await;
    let mut collector = bed.collect(&["--follow", "--since", "1h", "--durable", "stuck"]);
    // The first line is there, and the pipe behind it is full but for less than one write.
    collector.line();
    wait_for("a full pipe", || {
        let pipe = collector.lines.as_ref().unwrap().get_ref();
        let held = rustix::io::ioctl_fionread(pipe).unwrap();
        when(held > 48 * 1024, held)
    });
    assert_eq!(collector.stop(), (String::new(), Some(0)));
}
