//! A simulated fleet beside the floor: asking N nodes through `ccm fleet` against a bare broadcast
//! that N plain subscribers answer, on the same server in the same run; then an ensure, and a
//! rollout in four waves.
//!
//! `CCM_BENCH_NODES=500 cargo bench --bench fleet` for a smaller fleet. Needs a real server:
//! `nats-server` on PATH, or the one that `scripts/test` installs.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a benchmark arranges the world by hand and stops at the first surprise"
)]

use std::io::BufRead as _;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use ccm_nats::{Connection, Headers, ConnectMode, Settings, ReplyLimits, Subject, connect};
use futures_util::stream::{self, StreamExt as _};

mod server;

use server::{Process, server};

const LIMIT: Duration = Duration::from_secs(60);
const ROUNDS: usize = 5;

/// Set for the copy of this program that only answers.
const BARE: &str = "CCM_BENCH_BARE";

fn main() {
    let nodes = std::env::var("CCM_BENCH_NODES").map_or(5_000, |text| text.parse().unwrap());
    ccm_core::system::raise_open_files(nodes as u64 * 2 + 500).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    match std::env::var(BARE) {
        Ok(url) => runtime.block_on(bare(&url, nodes)),
        Err(_) => runtime.block_on(measure(nodes)),
    }
}

fn subject(text: &str) -> Subject {
    text.parse().unwrap()
}

async fn link(url: &str) -> Connection {
    let settings = Settings::plain(url).unwrap();
    connect(&settings, ConnectMode::Once(LIMIT), "bench")
        .await
        .unwrap()
}

/// Answers as the plainest nodes would: a connection each, 300 bytes back.
async fn bare(url: &str, nodes: usize) {
    let links = stream::iter(0..nodes).map(|_| link(url));
    let links: Vec<Connection> = links.buffer_unordered(64).collect().await;
    for connection in links {
        let mut asked = connection.subscribe(&subject("bench.all")).await.unwrap();
        tokio::spawn(async move {
            while let Some(message) = asked.next().await {
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
    let stop = ReplyLimits {
        expected: Some(nodes),
        silence: Duration::from_secs(3),
        deadline: LIMIT,
    };
    let all = subject("bench.all");
    let asked = connection.request_many(&all, Headers::new(), "".into(), stop);
    let mut replies = asked.await.unwrap();
    let mut count = 0;
    while replies.next().await.is_some() {
        count += 1;
    }
    (began.elapsed(), count)
}

/// Starts a process and waits until it says that it is there.
fn start(mut command: Command) -> Process {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let said = child.stdout.take().unwrap();
    std::io::BufReader::new(said).read_line(&mut line).unwrap();
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
    let told = String::from_utf8_lossy(&output.stderr);
    let peak = told.lines().last().and_then(|line| line.parse().ok());
    (took, peak.unwrap_or_else(|| panic!("{told}")), output)
}

async fn measure(nodes: usize) {
    let room = tempfile::tempdir().unwrap();
    let (_server, url) = server(room.path());
    let (_, _, made) = ccm(&url, &["init"]);
    assert!(made.status.success(), "{made:?}");
    let connection = link(&url).await;

    let mut floor = Duration::MAX;
    {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .env(BARE, &url)
            .env("CCM_BENCH_NODES", nodes.to_string());
        let _bare = start(command);
        // The server learns of the last subscriptions a little later.
        let since = Instant::now();
        while gather(&connection, nodes).await.1 < nodes {
            assert!(since.elapsed() < LIMIT, "not everybody is heard");
        }
        for _ in 0..ROUNDS {
            let (took, count) = gather(&connection, nodes).await;
            assert_eq!(count, nodes, "the floor lost answers");
            floor = floor.min(took);
        }
    }
    println!("{nodes} nodes, all on this machine");
    println!("bare broadcast and gather: {floor:.1?}");

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
    let simulation = start(command);
    println!(
        "simulated nodes: started in {:.1?}, {} resident",
        began.elapsed(),
        server::resident(simulation.0.id())
    );
    let ratio = |took: Duration| took.as_secs_f64() / floor.as_secs_f64();
    let say = |what: &str, took: Duration, peak: u64| {
        let each = peak as f64 / nodes as f64;
        println!(
            "{what}: {took:.1?}, {:.1} x the bare gather; controller {:.1} MiB at its peak, {each:.1} KiB per node",
            ratio(took),
            peak as f64 / 1024.0
        );
    };
    let heard = |output: &Output| {
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let count = told["summary"]["ok"].as_u64().unwrap_or_default();
        output.status.success() && count == nodes as u64
    };
    // Presence comes with the first beat.
    let ping = ["ping", "--all", "--json"];
    let since = Instant::now();
    while !heard(&ccm(&url, &ping).2) {
        assert!(since.elapsed() < LIMIT, "not everybody is heard");
        std::thread::sleep(Duration::from_millis(500));
    }
    // The best of as many rounds as the floor had.
    let best = |args: &[&str], is_whole: &dyn Fn(&Output) -> bool| {
        let rounds = (0..ROUNDS).map(|_| ccm(&url, args));
        let rounds = rounds.inspect(|(_, _, output)| assert!(is_whole(output), "{output:?}"));
        let (took, peak, _) = rounds.min_by_key(|(took, ..)| *took).unwrap();
        (took, peak)
    };
    let (took, peak) = best(&ping, &heard);
    say("ping, all answered", took, peak);
    let args = ["ensure", "exec", "/bin/true", "--all"];
    let (took, peak) = best(&args, &|output| output.status.success());
    say("ensure, all answered", took, peak);

    let site = room.path().join("site");
    std::fs::create_dir(&site).unwrap();
    let manifest = "ccm:\n  resources:\n    - exec:\n        - /bin/true: {}\n";
    std::fs::write(site.join("manifest.yaml"), manifest).unwrap();
    let site = site.to_str().unwrap();
    let (_, _, pushed) = ccm(&url, &["bundle", "push", site, "--name", "app"]);
    assert!(pushed.status.success(), "{pushed:?}");
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
    say("rollout in four waves, all converged", took, peak);
    println!(
        "simulated nodes afterwards: {} resident",
        server::resident(simulation.0.id())
    );
}
