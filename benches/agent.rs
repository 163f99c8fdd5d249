//! Benchmark of the agent: a request against an echo service, publishing from the spool against plain
//! publishing, and memory.
//!
//! Needs `nats-server` in PATH, or the one that `scripts/test` installs.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a benchmark sets up its environment directly and panics on errors"
)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ccm_agent::metrics::Metrics;
use ccm_agent::publisher::Publisher;
use ccm_agent::spool::{Class, Limits, Record, Spool};
use ccm_nats::streams::{self, InitOptions};
use ccm_nats::{
    Bytes, ConnectMode, Connection, Headers, Settings, Subject, Subjects, Verb, connect,
};

mod server;

use server::{Process, resident, server};

const ROUNDS: usize = 5_000;
const WARM_UP: usize = 500;
const EVENTS: usize = 20_000;
const LIMIT: Duration = Duration::from_secs(10);

/// Environment variable of the process that runs the echo service: the server URL.
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

async fn connect_to(url: &str) -> Connection {
    let settings = Settings::plain(url).unwrap();
    connect(&settings, ConnectMode::Once(LIMIT), "bench")
        .await
        .unwrap()
}

async fn echo(url: &str) {
    let connection = connect_to(url).await;
    let mut requests = connection.subscribe(&subject("bench.echo")).await.unwrap();
    while let Some(message) = requests.next().await {
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
    let dir = tempfile::tempdir().unwrap();
    let (_server, url) = server(dir.path());
    let connection = connect_to(&url).await;
    let subjects = Subjects::new("ccm.v1", "default".parse().unwrap()).unwrap();
    streams::init(&connection, &InitOptions::new(subjects.clone()))
        .await
        .unwrap();
    round_trips(&connection, &subjects, dir.path(), &url).await;
    events(&connection, &subjects, dir.path(), &url).await;
}

async fn round_trips(connection: &Connection, subjects: &Subjects, dir: &Path, url: &str) {
    let echo = std::env::current_exe().unwrap();
    let _echo = Process(Command::new(echo).env(ECHO, url).spawn().unwrap());
    let agent = agent(dir, url);
    let file = dir.join("motd");
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
    let baseline = request_times(connection, &subject("bench.echo"), &request).await;
    let measured = request_times(connection, &ensure, &request).await;
    println!("ensure(file, stable) over NATS, {ROUNDS} sequential round trips:");
    for (name, part) in [("p50", 50), ("p99", 99)] {
        let (baseline, measured) = (percentile(&baseline, part), percentile(&measured, part));
        let ratio = measured.as_secs_f64() / baseline.as_secs_f64();
        println!(
            "  {name}: {measured:.1?}, {ratio:.2} x an echo of the same bytes ({baseline:.1?})"
        );
    }
    println!("memory of the agent afterwards: {}", resident(agent.0.id()));
    let idle_dir = dir.join("idle");
    std::fs::create_dir(&idle_dir).unwrap();
    let idle = self::agent(&idle_dir, url);
    std::thread::sleep(Duration::from_secs(5));
    println!("memory of an idle agent: {}", resident(idle.0.id()));
}

async fn request_times(connection: &Connection, subject: &Subject, body: &Bytes) -> Vec<Duration> {
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

async fn events(connection: &Connection, subjects: &Subjects, dir: &Path, url: &str) {
    let body = vec![b'x'; 1000];
    let node = "bench.lab"
        .parse::<ccm_core::model::node::NodeName>()
        .unwrap();
    let subject = subjects.event(&node.token(), "file", "changed");
    let began = Instant::now();
    let mut pending = std::collections::VecDeque::new();
    for number in 0..EVENTS {
        if pending.len() >= 256 {
            let first: ccm_nats::connection::PendingAck = pending.pop_front().unwrap();
            first.wait().await.unwrap();
        }
        let id = format!("plain-{number}");
        let sent = connection.begin_publish_stored(&subject, &id, body.clone().into());
        pending.push_back(sent.await.unwrap());
    }
    for sent in pending {
        sent.wait().await.unwrap();
    }
    let plain = began.elapsed();
    let limits = Limits {
        max_bytes: 1 << 30,
        ..Limits::default()
    };
    let (spool, _) = Spool::open(&dir.join("spool"), limits).unwrap();
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
    let publisher = Publisher::new(spool.clone(), connect_to(url).await, metrics, |_| {});
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
        "  plain publishing, 256 in flight: {:.0} a second",
        rate(plain)
    );
    println!(
        "  from the spool: {:.0} a second, {:.2} x the time of plain publishing",
        rate(spooled),
        spooled.as_secs_f64() / plain.as_secs_f64()
    );
    println!(
        "  into the spool, with one sync: {:.0} a second",
        rate(appended)
    );
}

fn agent(dir: &Path, url: &str) -> Process {
    let config = dir.join("agent.yaml");
    let text = format!(
        "identity: bench.lab\nstate_dir: {0}/state\ncache_dir: {0}/cache\nservers: {url}\n",
        dir.display()
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
