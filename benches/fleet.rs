//! Benchmark of a simulated fleet: ping and ensure through `ccm fleet`, against a broadcast to the same
//! number of plain subscribers; a query by fact, against a bare read of the same keys; and a rollout in
//! waves, against its bare reads and writes.
//!
//! `CCM_BENCH_NODES=500 cargo bench --bench fleet` for a smaller fleet. Simulated nodes and plain subscribers
//! have a connection each; with `CCM_BENCH_CONNECTIONS=8` they share that many, for more nodes than sockets.
//! Simulated nodes have no files and threads of their own: those of an agent are on another machine. Rollouts
//! to more than 10,000 nodes have five waves, others four. Needs `nats-server` in PATH, or the one that
//! `scripts/test` installs.
//!
//! `CCM_BENCH_TOPOLOGY=cluster` (or `leaf`, `gateway`, `all`) measures only a rollout, on the servers that
//! `scripts/topology` starts; see `topology`.
//!
//! Times are the best of five rounds, memory is the highest of them.

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
mod topology;

use server::{Process, server};

const LIMIT: Duration = Duration::from_secs(300);
const ROUNDS: usize = 5;

/// Environment variable of the process that runs the plain subscribers: the server URL.
const SUBSCRIBERS: &str = "CCM_BENCH_SUBSCRIBERS";

fn main() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let nodes = number("CCM_BENCH_NODES").unwrap_or(5_000);
    let connections = number("CCM_BENCH_CONNECTIONS").unwrap_or(nodes);
    let files = connections as u64 * 2 + 500;
    ccm_core::system::raise_open_files(files).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    match std::env::var(SUBSCRIBERS) {
        Ok(url) => runtime.block_on(subscribers(&url, nodes, connections)),
        Err(_) => match std::env::var(topology::VARIABLE) {
            Ok(name) => topology::measure(&name, nodes, connections),
            Err(_) => runtime.block_on(measure(nodes, connections)),
        },
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

/// What a bare read takes of the stored facts, which a query needs of offline nodes only.
#[derive(Clone, Copy)]
enum StoredFacts {
    Keys,
    Values,
}

/// Connects and reads what a query reads, and nothing else: presence, labels and reports of all nodes, the
/// keys of assignments, and keys or values of stored facts.
async fn bare_read(url: &str, facts: StoredFacts) -> Duration {
    let began = Instant::now();
    let connection = connect_to(url).await;
    let bucket = async |name| connection.bucket(name).await.unwrap();
    let values = async |name| bucket(name).await.entries("default.*").await.unwrap().len();
    let keys = async |name| bucket(name).await.keys("default.*").await.unwrap().len();
    let stored = async {
        match facts {
            StoredFacts::Keys => keys(FACTS).await,
            StoredFacts::Values => values(FACTS).await,
        }
    };
    let read = tokio::join!(
        values(NODES),
        values(LABELS),
        values(REPORTED),
        stored,
        keys(DESIRED)
    );
    assert!(read.0 > 0 && read.3 > 0, "{read:?}");
    began.elapsed()
}

/// Makes the reads and writes of a rollout and nothing else, with another collective: the records of
/// all nodes are read, and for each node an assignment is written, read, reported, and published as two
/// events.
async fn bare_rollout(url: &str, nodes: usize) -> Duration {
    let began = Instant::now();
    let connection = &connect_to(url).await;
    bare_read(url, StoredFacts::Values).await;
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

async fn measure(nodes: usize, connections: usize) {
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

    let simulation = simulate(fleet_command(&url), nodes, connections, &[]);
    // Nodes are selected once their presence records are stored.
    let ping = ["ping", "--all", "--json"];
    let all_replied = |output: &Output| {
        let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let count = reply["summary"]["ok"].as_u64().unwrap_or_default();
        output.status.success() && count == nodes as u64
    };
    let since = Instant::now();
    while !all_replied(&ccm(&url, &ping).2) {
        assert!(since.elapsed() < LIMIT, "not all nodes replied");
        std::thread::sleep(Duration::from_millis(500));
    }
    let to_baseline = format!("the baseline ({baseline:.1?})");
    let print = |what: &str, cost: Cost| print_cost(what, cost, baseline, &to_baseline, nodes);
    let is_ok = |output: &Output| output.status.success();
    print(
        "ping, all nodes replied",
        best(&url, &["ping", "--all"], &is_ok),
    );
    print(
        "ping with complete replies in JSON",
        best(&url, &ping, &all_replied),
    );
    print("list of nodes", best(&url, &["nodes"], &is_ok));
    let expression = "Facts.host.info.platform == 'debian' && Facts.tier == 'web'";
    let args = ["query", expression, "--csv"];
    let matching = nodes.div_ceil(4);
    let queried = best(&url, &args, &|output| {
        let lines = output.stdout.split(|byte| *byte == b'\n').count();
        output.status.success() && lines == matching + 2
    });
    for (facts, what) in [
        (StoredFacts::Keys, "what it reads"),
        (StoredFacts::Values, "the values of the same keys"),
    ] {
        let mut read = Duration::MAX;
        for _ in 0..ROUNDS {
            read = read.min(bare_read(&url, facts).await);
        }
        let to_read = format!("a bare read of {what} ({read:.1?})");
        print_cost("query by fact", queried, read, &to_read, nodes);
    }
    let args = ["ensure", "exec", "/bin/true", "--all"];
    print("ensure, all nodes replied", best(&url, &args, &is_ok));

    push_bundle(&url, dir.path());
    let bare = bare_rollout(&url, nodes).await;
    let (what, cost) = roll_out(&url, nodes);
    let to_bare = format!("its bare reads and writes ({bare:.1?})");
    print_cost(&what, cost, bare, &to_bare, nodes);
    print_simulation(&simulation, nodes);
}

/// Time, and peak memory in KiB.
type Cost = (Duration, u64);

/// Returns the best time of as many rounds as the baseline had, and the highest memory.
fn best(url: &str, args: &[&str], is_whole: &dyn Fn(&Output) -> bool) -> Cost {
    let mut best = (Duration::MAX, 0);
    for _ in 0..ROUNDS {
        let (took, peak, output) = ccm(url, args);
        assert!(is_whole(&output), "{output:?}");
        best = (took.min(best.0), peak.max(best.1));
    }
    best
}

fn print_cost(what: &str, (took, peak): Cost, floor: Duration, floor_text: &str, nodes: usize) {
    println!(
        "{what}: {took:.1?}, {:.1} x {floor_text}; controller peak {:.1} MiB, {:.1} KiB per node",
        took.as_secs_f64() / floor.as_secs_f64(),
        peak as f64 / 1024.0,
        peak as f64 / nodes as f64
    );
}

/// Returns `ccm fleet` for a server.
fn fleet_command(url: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccm"));
    command.args(["fleet", "--server", url]);
    command
}

/// Starts simulated nodes by `ccm fleet`, with further flags, and returns them once all are announced.
fn simulate(mut command: Command, nodes: usize, connections: usize, flags: &[&str]) -> Process {
    let began = Instant::now();
    command
        .args(["simulate", "--latency", "5ms", "--nodes"])
        .arg(nodes.to_string())
        .args(["--connections", &connections.to_string()])
        .args(flags);
    let simulation = start(command);
    println!(
        "{nodes} simulated nodes: started in {:.1?}",
        began.elapsed()
    );
    simulation
}

fn print_simulation(simulation: &Process, nodes: usize) {
    let peak = server::memory(simulation.0.id(), "VmHWM");
    println!(
        "memory of the simulated nodes: peak {:.1} MiB, {:.1} KiB per node",
        peak,
        peak * 1024.0 / nodes as f64
    );
}

/// Stores a bundle with one resource as `app`.
fn push_bundle(url: &str, dir: &std::path::Path) {
    let site = dir.join("site");
    std::fs::create_dir(&site).unwrap();
    let manifest = "ccm:\n  resources:\n    - exec:\n        - /bin/true: {}\n";
    std::fs::write(site.join("manifest.yaml"), manifest).unwrap();
    let site = site.to_str().unwrap();
    let (_, _, pushed) = ccm(url, &["bundle", "push", site, "--name", "app"]);
    assert!(pushed.status.success(), "{pushed:?}");
}

/// Rolls `app` out to all nodes, and returns a text about it and its cost.
fn roll_out(url: &str, nodes: usize) -> (String, Cost) {
    let (count, waves) = if nodes > 10_000 {
        ("five", "1%,5%,25%,100%")
    } else {
        ("four", "5%,25%,100%")
    };
    let mut args = vec!["rollout", "start", "app", "--all", "--canary", "10"];
    args.extend(["--wave", waves, "--max-unreachable", "1%"]);
    let (took, peak, output) = ccm(url, &args);
    assert!(output.status.success(), "{output:?}");
    (
        format!("rollout in {count} waves, all converged"),
        (took, peak),
    )
}
