//! Benchmark of the web page in Chromium: frame times on each view while simulated nodes publish
//! 1,000 events a second, and memory of tab and server.
//!
//! `CCM_BENCH_NODES` (5,000), `CCM_BENCH_EVENTS` (1,000 a second) and `CCM_BENCH_SECONDS` (20 for
//! each of three views) change the defaults. The baseline is an empty page in the same browser.
//! Needs `nats-server` and `chromium`, which `scripts/test` installs.

#![expect(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a benchmark sets up its environment directly and panics on errors"
)]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

#[expect(dead_code, reason = "used by tests")]
#[path = "../tests/it/support/browser.rs"]
mod browser;
#[expect(dead_code, reason = "used by tests")]
#[path = "../tests/it/support/poll.rs"]
mod poll;
mod server;

use browser::Browser;
use server::{Process, memory, server};

/// Time limit for the start of nodes and page.
const LIMIT: Duration = Duration::from_secs(180);

/// JavaScript: records frame times and tasks of more than 50 ms for a number of seconds.
const RECORD: &str = "(seconds) => new Promise((done) => {
  const [frames, tasks] = [[], []];
  const observer = new PerformanceObserver((list) => {
    for (const task of list.getEntries()) tasks.push(task.duration);
  });
  observer.observe({ type: 'longtask' });
  let last = performance.now();
  const end = last + seconds * 1000;
  const step = () => {
    const now = performance.now();
    frames.push(now - last);
    last = now;
    if (now < end) requestAnimationFrame(step);
    else done({ frames, tasks });
  };
  requestAnimationFrame(step);
})";

/// JavaScript: scrolls the table continuously, from the start again at its end.
const SCROLL: &str = "setInterval(() => {
  const box = document.querySelector('.virtual');
  if (!box) return;
  const before = box.scrollTop;
  box.scrollTop += 60;
  if (box.scrollTop === before) box.scrollTop = 0;
}, 50) && null";

fn main() {
    let number = |name: &str, default: u32| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap())
    };
    let nodes = number("CCM_BENCH_NODES", 5_000);
    let events = number("CCM_BENCH_EVENTS", 1_000);
    let seconds = number("CCM_BENCH_SECONDS", 20);
    let dir = tempfile::tempdir().unwrap();
    let (_server, url) = server(dir.path());
    let init = ccm(&url, &["init"]).output().unwrap();
    assert!(init.status.success(), "{init:?}");
    let (_nodes, _) = start(
        ccm(&url, &["simulate", "--failure-rate", "0.02"])
            .args(["--nodes", &nodes.to_string()])
            .args(["--events", &events.to_string()]),
    );
    let (page, line) = start(&mut ccm(&url, &["serve", "--listen", "127.0.0.1:0"]));
    let address = line.trim().trim_start_matches("serving ").to_owned();
    let mut browser = Browser::start();
    browser.command("Performance.enable", json!({}));
    println!("{nodes} nodes and {events} events a second, all on this machine");
    println!("{:<24} frames   p50   p95   p99  worst  long tasks", "");
    browser.open("about:blank");
    print(&mut browser, "an empty page", 5);

    browser.open(&address);
    let since = Instant::now();
    let count = "Number(document.querySelector('h1 + span').innerText.replace(/\\D/g, ''))";
    while browser.eval(&format!(
        "document.querySelector('h1 + span') ? {count} : 0"
    )) != nodes
    {
        assert!(since.elapsed() < LIMIT, "not all nodes are shown");
        std::thread::sleep(Duration::from_millis(200));
    }
    let (received, began) = (received_events(&mut browser), Instant::now());
    println!(
        "server, all nodes known: {:.1} MiB",
        memory(page.0.id(), "VmRSS")
    );
    for (view, hash) in [
        ("overview", "#/"),
        ("nodes, scrolled", "#/nodes"),
        ("events", "#/events"),
    ] {
        browser.eval(&format!("location.hash = {hash:?}"));
        browser.live();
        if hash == "#/nodes" {
            browser.eval(SCROLL);
        }
        print(&mut browser, view, seconds);
        println!(
            "after {:.0?}: server {:.1} MiB, tab {}",
            began.elapsed(),
            memory(page.0.id(), "VmRSS"),
            tab(&mut browser)
        );
    }
    let received = received_events(&mut browser) - received;
    let rate = received / began.elapsed().as_secs_f64();
    println!("events that the server received: {rate:.0} a second");
    assert_eq!(browser.errors, Vec::<String>::new());
}

fn ccm(url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccm"));
    command.args(["fleet", "--server", url]).args(args);
    command
}

/// Starts a process and returns its first line of output.
fn start(command: &mut Command) -> (Process, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let said = child.stdout.take().unwrap();
    let process = Process(child);
    let mut line = String::new();
    BufReader::new(said).read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "it ended early");
    (process, line)
}

/// Returns the number of events that the server has received.
fn received_events(browser: &mut Browser) -> f64 {
    let text = browser.eval("fetch('/metrics').then((answer) => answer.text())");
    let lines = text.as_str().unwrap().lines();
    let counts = lines.filter(|line| line.starts_with("ccm_fleet_events_total{"));
    counts
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        .sum()
}

/// Returns the live objects of the tab, after a garbage collection.
fn tab(browser: &mut Browser) -> String {
    browser.command("HeapProfiler.collectGarbage", json!({}));
    let metrics = browser.command("Performance.getMetrics", json!({}));
    let value = |name: &str| {
        let mut metrics = metrics["metrics"].as_array().unwrap().iter();
        let found = metrics.find(|it| it["name"] == name).unwrap();
        found["value"].as_f64().unwrap()
    };
    format!(
        "{:.1} MiB of objects, {:.0} DOM nodes",
        value("JSHeapUsedSize") / 1024.0 / 1024.0,
        value("Nodes")
    )
}

/// Records frames and prints their times in milliseconds.
fn print(browser: &mut Browser, what: &str, seconds: u32) {
    let recorded = browser.eval(&format!("({RECORD})({seconds})"));
    let sorted = |value: &Value| {
        let all = value.as_array().unwrap().iter();
        let mut all: Vec<f64> = all.map(|one| one.as_f64().unwrap()).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let (frames, tasks) = (sorted(&recorded["frames"]), sorted(&recorded["tasks"]));
    let at = |part: f64| frames[((frames.len() - 1) as f64 * part) as usize];
    let longest = tasks.last().copied().unwrap_or_default();
    println!(
        "{what:<24} {:>6} {:>5.1} {:>5.1} {:>5.1} {:>6.1}  {} (longest {longest:.0})",
        frames.len(),
        at(0.5),
        at(0.95),
        at(0.99),
        at(1.0),
        tasks.len(),
    );
}
