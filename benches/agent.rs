//! The agent beside the floor it stands on: a request against an echo of the same bytes, events
//! against bare publishing, and what it weighs when it has nothing to do.
//!
//! Needs a real server: `nats-server` on PATH, or the one that `scripts/test` installs.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a benchmark arranges the world by hand and stops at the first surprise"
)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ccm_agent::metrics::Metrics;
use ccm_agent::publisher::Publisher;
use ccm_agent::spool::{Class, Limits, Record, Spool};
use ccm_nats::streams::{self, InitOptions};
use ccm_nats::{Bytes, Connection, Headers, ConnectMode, Settings, Subject, Subjects, Verb, connect};

mod server;

use server::{Process, resident, server};

const ROUNDS: usize = 5_000;
const WARM_UP: usize = 500;
const EVENTS: usize = 20_000;
const LIMIT: Duration = Duration::from_secs(10);

/// Set for the copy of this program that only echoes.
const ECHO: &str = "CCM_BENCH_ECHO";

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    match std::env::var(ECHO) {
        Ok(url) => runtime.block_on(echo(&url)),
        Err(_) => runtime.block_on(measure()),
    }
}

async fn link(url: &str) -> Connection {
    let settings = Settings::plain(url).unwrap();
    connect(&settings, ConnectMode::Once(LIMIT), "bench")
        .await
        .unwrap()
}

async fn echo(url: &str) {
    let connection = link(url).await;
    let mut asked = connection.subscribe(&subject("bench.echo")).await.unwrap();
    while let Some(message) = asked.next().await {
        let reply = message.reply.as_ref().unwrap().parse().unwrap();
        let headers = Headers::new();
        connection
            .publish(&reply, headers, message.body)
            .await
            .unwrap();
    }
}

fn subject(text: &str) -> Subject {
    text.parse().unwrap()
}

async fn measure() {
    let room = tempfile::tempdir().unwrap();
    let (_server, url) = server(room.path());
    let connection = link(&url).await;
    let subjects = Subjects::new("ccm.v1", "default".parse().unwrap()).unwrap();
    streams::init(&connection, &InitOptions::new(subjects.clone()))
        .await
        .unwrap();
    round_trips(&connection, &subjects, room.path(), &url).await;
    events(&connection, &subjects, room.path(), &url).await;
}

async fn round_trips(connection: &Connection, subjects: &Subjects, room: &Path, url: &str) {
    let echo = std::env::current_exe().unwrap();
    let _echo = Process(Command::new(echo).env(ECHO, url).spawn().unwrap());
    let agent = agent(room, url);
    let file = room.join("motd");
    std::fs::write(&file, "hello\n").unwrap();
    let request = serde_json::json!({
        "protocol": "io.choria.ccm.v1.resource.ensure.request",
        "type": "file",
        "properties": {
            "name": file, "ensure": "present", "content": "hello\n",
            "owner": "root", "group": "root", "mode": "0644",
        },
    });
    let request = Bytes::from(request.to_string());
    let node = "bench.lab"
        .parse::<ccm_core::model::node::NodeName>()
        .unwrap();
    let ensure = subjects.node(&node.token(), Verb::Ensure);
    let floor = ask(connection, &subject("bench.echo"), &request).await;
    let found = ask(connection, &ensure, &request).await;
    println!("ensure(file, stable) over NATS, {ROUNDS} round trips one at a time:");
    for (name, part) in [("p50", 50), ("p99", 99)] {
        let (floor, found) = (percentile(&floor, part), percentile(&found, part));
        let ratio = found.as_secs_f64() / floor.as_secs_f64();
        println!("  {name}: {found:.1?}, {ratio:.2} x an echo of the same bytes ({floor:.1?})");
    }
    println!("agent after that: {} resident", resident(agent.0.id()));
    let idle_room = room.join("idle");
    std::fs::create_dir(&idle_room).unwrap();
    let idle = self::agent(&idle_room, url);
    std::thread::sleep(Duration::from_secs(5));
    println!(
        "agent that was never asked: {} resident",
        resident(idle.0.id())
    );
}

async fn ask(connection: &Connection, subject: &Subject, body: &Bytes) -> Vec<Duration> {
    let since = Instant::now();
    let mut times = Vec::with_capacity(ROUNDS);
    while times.len() < ROUNDS + WARM_UP {
        let began = Instant::now();
        let reply = connection
            .request(subject, Headers::new(), body.clone(), LIMIT)
            .await;
        match reply {
            Ok(_) => times.push(began.elapsed()),
            Err(err) => assert!(since.elapsed() < LIMIT, "{err}"),
        }
    }
    let mut times = times.split_off(WARM_UP);
    times.sort();
    times
}

fn percentile(sorted: &[Duration], part: usize) -> Duration {
    sorted[sorted.len() * part / 100]
}

async fn events(connection: &Connection, subjects: &Subjects, room: &Path, url: &str) {
    let body = vec![b'x'; 1000];
    let node = "bench.lab"
        .parse::<ccm_core::model::node::NodeName>()
        .unwrap();
    let subject = subjects.event(&node.token(), "file", "changed");
    let began = Instant::now();
    let mut waiting = std::collections::VecDeque::new();
    for number in 0..EVENTS {
        if waiting.len() >= 256 {
            let first: ccm_nats::connection::Pending = waiting.pop_front().unwrap();
            first.wait().await.unwrap();
        }
        let id = format!("bare-{number}");
        let sent = connection.begin_publish_stored(&subject, &id, body.clone().into());
        waiting.push_back(sent.await.unwrap());
    }
    for sent in waiting {
        sent.wait().await.unwrap();
    }
    let bare = began.elapsed();
    let limits = Limits {
        max_bytes: 1 << 30,
        ..Limits::default()
    };
    let (spool, _) = Spool::open(&room.join("spool"), limits).unwrap();
    let spool = std::sync::Arc::new(spool);
    let began = Instant::now();
    for number in 0..EVENTS {
        let record = Record {
            id: format!("spooled-{number}"),
            subject: subject.as_str().into(),
            class: Class::Important,
            body: body.clone(),
        };
        spool.append(&record).unwrap();
    }
    spool.sync().unwrap();
    let appended = began.elapsed();
    let metrics = Metrics::new("0.0.0");
    let publisher = Publisher::new(spool.clone(), link(url).await, metrics, |_| {});
    let finished = async {
        while spool.status().pending > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let began = Instant::now();
    publisher.run(finished, LIMIT).await;
    let spooled = began.elapsed();
    let rate = |time: Duration| EVENTS as f64 / time.as_secs_f64();
    println!("{EVENTS} events of 1,000 bytes:");
    println!(
        "  bare publishing, 256 in flight: {:.0} a second",
        rate(bare)
    );
    println!(
        "  from the spool: {:.0} a second, {:.2} x the time of bare publishing",
        rate(spooled),
        spooled.as_secs_f64() / bare.as_secs_f64()
    );
    println!(
        "  into the spool, with one sync: {:.0} a second",
        rate(appended)
    );
}

fn agent(room: &Path, url: &str) -> Process {
    let config = room.join("agent.yaml");
    let text = format!(
        "identity: bench.lab\nstate_dir: {0}/state\ncache_dir: {0}/cache\nservers: {url}\n",
        room.display()
    );
    std::fs::write(&config, text).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_ccm"))
        .args(["agent", "--config"])
        .arg(&config)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Process(child.unwrap())
}
