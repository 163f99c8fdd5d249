//! Benchmark of the agent: a request against an echo service, publishing from the spool against plain
//! publishing, and memory, also as a server of Choria's network.
//!
//! Needs `nats-server` in PATH, or the one that `scripts/test` installs.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a benchmark sets up its environment directly and panics on errors"
)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ccm_agent::metrics::Metrics;
use ccm_agent::publisher::Publisher;
use ccm_agent::spool::{Class, Limits, Record, Spool};
use ccm_core::model::id::EventId;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::choria::ChoriaSeed;
use ccm_nats::streams::{self, InitOptions};
use ccm_nats::{
    Bytes, ConnectMode, Connection, Headers, Reply, Settings, Subject, Subjects, Verb, connect,
};
use ccm_value::secret::Secret;
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};

mod server;

use server::{Process, memory, server};

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
    idle_memory(dir.path(), &url);
    events(&connection, &subjects, dir.path(), &url).await;
}

async fn round_trips(connection: &Connection, subjects: &Subjects, dir: &Path, url: &str) {
    let echo = std::env::current_exe().unwrap();
    let _echo = Process(Command::new(echo).env(ECHO, url).spawn().unwrap());
    let agent = agent(dir, "bench.lab", url, "");
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
    let subjects = [
        subject("bench.echo"),
        subjects.node(&node.token(), Verb::Ensure),
    ];
    let checks: [fn(&Reply); 2] = [|_| {}, check_stable];
    let mut times = [Vec::new(), Vec::new()];
    let began = Instant::now();
    // In turn, so that other load affects both.
    for round in 0..WARM_UP + ROUNDS {
        for ((subject, check), times) in subjects.iter().zip(checks).zip(&mut times) {
            let (took, reply) = timed_request(connection, subject, &request, began).await;
            check(&reply);
            if round >= WARM_UP {
                times.push(took);
            }
        }
    }
    for times in &mut times {
        times.sort();
    }
    let [baseline, measured] = times;
    println!("ensure(file, stable) over NATS, {ROUNDS} sequential round trips:");
    for (name, part) in [("p50", 50), ("p99", 99)] {
        let (baseline, measured) = (percentile(&baseline, part), percentile(&measured, part));
        let ratio = measured.as_secs_f64() / baseline.as_secs_f64();
        println!(
            "  {name}: {measured:.1?}, {ratio:.2} x an echo of the same bytes ({baseline:.1?})"
        );
    }
    println!(
        "memory of the agent afterwards: {:.1} MiB",
        memory(agent.0.id(), "VmRSS")
    );
}

/// Prints the memory of agents that do nothing, each alone.
fn idle_memory(dir: &Path, url: &str) {
    let dir = dir.join("idle");
    std::fs::create_dir(&dir).unwrap();
    let node = "choria.lab";
    let choria = choria_server(&dir, node);
    for (what, node, more) in [
        ("an idle agent", "idle.lab", ""),
        ("an idle agent that serves Choria's clients", node, &choria),
    ] {
        let dir = dir.join(node);
        std::fs::create_dir(&dir).unwrap();
        let mut idle = agent(&dir, node, url, more);
        std::thread::sleep(Duration::from_secs(5));
        assert_eq!(idle.0.try_wait().unwrap(), None, "{what} has ended");
        // Without pages of files, which the kernel shares and drops.
        let own = memory(idle.0.id(), "RssAnon");
        let all = memory(idle.0.id(), "VmRSS");
        println!("memory of {what}: {all:.1} MiB, {own:.1} MiB of it its own");
    }
}

/// Returns the section of agent.yaml that makes a node a server of Choria's network, with a new token.
fn choria_server(dir: &Path, node: &str) -> String {
    let seed = |byte: u8| {
        let text = HEXLOWER.encode(&[byte; 32]);
        (ChoriaSeed::parse(&Secret::new(text.clone())).unwrap(), text)
    };
    let ((issuer, _), (server, text)) = (seed(1), seed(2));
    let now = SystemClock.now();
    let claims = serde_json::json!({
        "purpose": "choria_server",
        "identity": node,
        "collectives": ["mcollective"],
        "public_key": server.public_key().to_hex(),
        "ou": "choria",
        "jti": EventId::new(now, 1).as_str(),
        "iat": now.timestamp(),
        "exp": now.timestamp() + 3600,
    });
    let header = BASE64URL_NOPAD.encode(br#"{"alg":"EdDSA","typ":"JWT"}"#);
    let claims = BASE64URL_NOPAD.encode(claims.to_string().as_bytes());
    let signed = format!("{header}.{claims}");
    let signature = BASE64URL_NOPAD.encode(&issuer.sign(signed.as_bytes()));
    let (token, seed) = (dir.join("choria.jwt"), dir.join("choria.seed"));
    std::fs::write(&token, format!("{signed}.{signature}")).unwrap();
    std::fs::write(&seed, text).unwrap();
    for file in [&token, &seed] {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    format!(
        "choria: {{server: true, collectives: [mcollective], token: {token:?}, seed: {seed:?}, \
         issuers: [{{name: choria, key: {}}}]}}\n",
        issuer.public_key().to_hex()
    )
}

/// Sends a request and returns its time and reply. Until both services are subscribed it is repeated.
async fn timed_request(
    connection: &Connection,
    subject: &Subject,
    body: &Bytes,
    since: Instant,
) -> (Duration, Reply) {
    loop {
        let began = Instant::now();
        let reply = connection
            .request(subject, Headers::new(), body.clone(), LIMIT)
            .await;
        match reply {
            Ok(reply) => return (began.elapsed(), reply),
            Err(err) => assert!(since.elapsed() < LIMIT, "{err}"),
        }
    }
}

/// Refuses a reply that is an error, or that says anything but "stable".
fn check_stable(reply: &Reply) {
    let text = String::from_utf8_lossy(&reply.body);
    assert_eq!(reply.service_error(), None, "{text}");
    let response: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    let state = &response["state"];
    assert!(response["error"].is_null() && state.is_object(), "{text}");
    assert!(
        state["failed"] == false && state["changed"] == false,
        "{text}"
    );
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

fn agent(dir: &Path, node: &str, url: &str, more: &str) -> Process {
    let config = dir.join("agent.yaml");
    let text = format!(
        "identity: {node}\nstate_dir: {0}/state\ncache_dir: {0}/cache\nservers: {url}\n{more}",
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
