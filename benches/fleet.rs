//! Benchmark of a simulated fleet: ping and ensure through `ccm fleet`, against a broadcast to the same
//! number of plain subscribers; a query by fact, against a bare read of the same keys; and a rollout in
//! waves, against its bare reads and writes.
//!
//! `CCM_BENCH_NODES=500 cargo bench --bench fleet` for a smaller fleet. With `CCM_BENCH_CONNECTIONS=8`
//! the simulated nodes and the plain subscribers share connections, for more nodes than sockets. Needs
//! `nats-server` in PATH, or the one that `scripts/test` installs.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a benchmark sets up its environment directly and panics on errors"
)]

use std::io::BufRead as _;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use ccm_nats::streams::{DESIRED, FACTS, LABELS, NODES, REPORTED};
use ccm_nats::{ConnectMode, Connection, Headers, ReplyLimits, Settings, Subject, connect};
use futures_util::stream::{self, StreamExt as _};

mod server;

use server::{Process, server};

const LIMIT: Duration = Duration::from_secs(300);
const ROUNDS: usize = 5;

/// Environment variable of the process that runs the plain subscribers: the server URL.
const SUBSCRIBERS: &str = "CCM_BENCH_SUBSCRIBERS";

fn main() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let nodes = number("CCM_BENCH_NODES").unwrap_or(5_000);
    let connections = number("CCM_BENCH_CONNECTIONS");
    let files = connections.unwrap_or(nodes) as u64 * 2 + 500;
    ccm_core::system::raise_open_files(files).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    match std::env::var(SUBSCRIBERS) {
        Ok(url) => runtime.block_on(subscribers(&url, nodes, connections.unwrap_or(nodes))),
        Err(_) => runtime.block_on(measure(nodes, connections)),
    }
}

fn subject(text: &str) -> Subject {
    text.parse().unwrap()
}

async fn connect_to(url: &str) -> Connection {
    let settings = Settings::plain(url).unwrap();
    connect(&settings, ConnectMode::Once(LIMIT), "bench")
        .await
        .unwrap()
}

/// Runs the plain subscribers, evenly spread over connections: 300 bytes in reply.
async fn subscribers(url: &str, nodes: usize, connections: usize) {
    let connections = stream::iter(0..connections).map(|_| connect_to(url));
    let connections: Vec<Connection> = connections.buffer_unordered(64).collect().await;
    let spread = connections.iter().cycle().take(nodes);
    for connection in spread.cloned().collect::<Vec<_>>() {
        let mut requests = connection.subscribe(&subject("bench.all")).await.unwrap();
        tokio::spawn(async move {
            while let Some(message) = requests.next().await {
                let reply = message.reply.as_ref().unwrap().parse().unwrap();
                let body = vec![b'x'; 300].into();
                let _ = connection.publish(&reply, Headers::new(), body).await;
            }
        });
    }
    println!("ready");
    std::future::pending().await
}

async fn gather(connection: &Connection, nodes: usize) -> (Duration, usize) {
    let began = Instant::now();
    let limits = ReplyLimits {
        expected: Some(nodes),
        silence: Duration::from_secs(3),
        deadline: LIMIT,
    };
    let all = subject("bench.all");
    let request = connection.request_many(&all, Headers::new(), "".into(), limits);
    let mut replies = request.await.unwrap();
    let mut count = 0;
    while replies.next().await.is_some() {
        count += 1;
    }
    (began.elapsed(), count)
}

/// Connects and reads the keys of all nodes, as a query does, and nothing else.
async fn bare_read(url: &str) -> Duration {
    let began = Instant::now();
    let connection = connect_to(url).await;
    let read = async |name| {
        let bucket = connection.bucket(name).await.unwrap();
        bucket.entries("default.*").await.unwrap().len()
    };
    let read = tokio::join!(read(NODES), read(FACTS), read(LABELS), read(REPORTED));
    assert!(read.0 > 0 && read.1 > 0, "{read:?}");
    began.elapsed()
}

/// Makes the reads and writes of a rollout and nothing else, with another collective: the records of
/// all nodes are read, and for each node an assignment is written, read, reported, and published as two
/// events.
async fn bare_rollout(url: &str, nodes: usize) -> Duration {
    let began = Instant::now();
    let connection = &connect_to(url).await;
    bare_read(url).await;
    let bucket = async |name| connection.bucket(name).await.unwrap();
    let (desired, reported) = &(bucket(DESIRED).await, bucket(REPORTED).await);
    let each = stream::iter(0..nodes).map(|number| async move {
        let key = format!("bench.node{number:06}");
        let body = || vec![b'x'; 700].into();
        desired.create(&key, body()).await.unwrap();
        desired.get(&key).await.unwrap().unwrap();
        for kind in ["exec.changed", "run.changed"] {
            let to = subject(&format!("ccm.v1.bench.event.node{number:06}.{kind}"));
            let id = format!("bench-{kind}-{number}");
            connection.publish_stored(&to, &id, body()).await.unwrap();
        }
        reported.put(&key, body()).await.unwrap();
    });
    each.buffer_unordered(512).count().await;
    began.elapsed()
}

/// Starts a process and waits for its first line of output.
fn start(mut command: Command) -> Process {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    std::io::BufReader::new(stdout)
        .read_line(&mut line)
        .unwrap();
    assert!(!line.is_empty(), "it ended early");
    Process(child)
}

fn ccm(url: &str, args: &[&str]) -> (Duration, u64, Output) {
    let began = Instant::now();
    let output = Command::new("/usr/bin/time")
        .args([
            "-f",
            "%M",
            env!("CARGO_BIN_EXE_ccm"),
            "fleet",
            "--server",
            url,
        ])
        .args(args)
        .output()
        .unwrap();
    let took = began.elapsed();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let peak = stderr.lines().last().and_then(|line| line.parse().ok());
    (took, peak.unwrap_or_else(|| panic!("{stderr}")), output)
}

async fn measure(nodes: usize, connections: Option<usize>) {
    let dir = tempfile::tempdir().unwrap();
    let (_server, url) = server(dir.path());
    let (_, _, init) = ccm(&url, &["init"]);
    assert!(init.status.success(), "{init:?}");
    let connection = connect_to(&url).await;

    let mut baseline = Duration::MAX;
    {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .env(SUBSCRIBERS, &url)
            .env("CCM_BENCH_NODES", nodes.to_string());
        let _subscribers = start(command);
        // The server may not have processed the last subscriptions yet.
        let since = Instant::now();
        while gather(&connection, nodes).await.1 < nodes {
            assert!(since.elapsed() < LIMIT, "not all nodes replied");
        }
        for _ in 0..ROUNDS {
            let (took, count) = gather(&connection, nodes).await;
            assert_eq!(count, nodes, "the baseline lost replies");
            baseline = baseline.min(took);
        }
    }
    println!("{nodes} nodes, all on this machine");
    println!("baseline, broadcast and gather: {baseline:.1?}");

    let began = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccm"));
    command.args([
        "fleet",
        "--server",
        &url,
        "simulate",
        "--latency",
        "5ms",
        "--nodes",
    ]);
    command.arg(nodes.to_string());
    if let Some(connections) = connections {
        command.args(["--connections", &connections.to_string()]);
    }
    let simulation = start(command);
    println!(
        "simulated nodes: started in {:.1?}, memory {}",
        began.elapsed(),
        server::resident(simulation.0.id())
    );
    let ratio = |took: Duration| took.as_secs_f64() / baseline.as_secs_f64();
    let print = |what: &str, took: Duration, peak: u64| {
        let each = peak as f64 / nodes as f64;
        println!(
            "{what}: {took:.1?}, {:.1} x the baseline; controller peak {:.1} MiB, {each:.1} KiB per node",
            ratio(took),
            peak as f64 / 1024.0
        );
    };
    let all_replied = |output: &Output| {
        let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let count = reply["summary"]["ok"].as_u64().unwrap_or_default();
        output.status.success() && count == nodes as u64
    };
    // Nodes are selected once their presence records are stored.
    let ping = ["ping", "--all", "--json"];
    let since = Instant::now();
    while !all_replied(&ccm(&url, &ping).2) {
        assert!(since.elapsed() < LIMIT, "not all nodes replied");
        std::thread::sleep(Duration::from_millis(500));
    }
    // The best of as many rounds as the baseline had.
    let best = |args: &[&str], is_whole: &dyn Fn(&Output) -> bool| {
        let rounds = (0..ROUNDS).map(|_| ccm(&url, args));
        let rounds = rounds.inspect(|(_, _, output)| assert!(is_whole(output), "{output:?}"));
        let (took, peak, _) = rounds.min_by_key(|(took, ..)| *took).unwrap();
        (took, peak)
    };
    let (took, peak) = best(&["ping", "--all"], &|output| output.status.success());
    print("ping, all nodes replied", took, peak);
    let (took, peak) = best(&ping, &all_replied);
    print("ping with complete replies in JSON", took, peak);
    let (took, peak) = best(&["nodes"], &|output| output.status.success());
    print("list of nodes", took, peak);
    let expression = "Facts.host.info.platform == 'debian' && Facts.tier == 'web'";
    let args = ["query", expression, "--csv"];
    let matching = nodes.div_ceil(4);
    let (took, peak) = best(&args, &|output| {
        let lines = output.stdout.split(|byte| *byte == b'\n').count();
        output.status.success() && lines == matching + 2
    });
    let mut read = Duration::MAX;
    for _ in 0..ROUNDS {
        read = read.min(bare_read(&url).await);
    }
    println!(
        "query by fact: {took:.1?}, {:.1} x a bare read of the same keys ({read:.1?}); peak {:.1} MiB",
        took.as_secs_f64() / read.as_secs_f64(),
        peak as f64 / 1024.0
    );
    let args = ["ensure", "exec", "/bin/true", "--all"];
    let (took, peak) = best(&args, &|output| output.status.success());
    print("ensure, all nodes replied", took, peak);

    let site = dir.path().join("site");
    std::fs::create_dir(&site).unwrap();
    let manifest = "ccm:\n  resources:\n    - exec:\n        - /bin/true: {}\n";
    std::fs::write(site.join("manifest.yaml"), manifest).unwrap();
    let site = site.to_str().unwrap();
    let (_, _, pushed) = ccm(&url, &["bundle", "push", site, "--name", "app"]);
    assert!(pushed.status.success(), "{pushed:?}");
    let bare = bare_rollout(&url, nodes).await;
    let args = [
        "rollout",
        "start",
        "app",
        "--all",
        "--canary",
        "10",
        "--wave",
        "5%,25%,100%",
        "--max-unreachable",
        "1%",
    ];
    let (took, peak, output) = ccm(&url, &args);
    assert!(output.status.success(), "{output:?}");
    println!(
        "rollout in four waves, all converged: {took:.1?}, {:.1} x its bare reads and writes ({bare:.1?}); \
         controller peak {:.1} MiB, {:.1} KiB per node",
        took.as_secs_f64() / bare.as_secs_f64(),
        peak as f64 / 1024.0,
        peak as f64 / nodes as f64
    );
    println!(
        "memory of the simulated nodes afterwards: {}",
        server::resident(simulation.0.id())
    );
}
