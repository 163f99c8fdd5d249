//! Events from the spool into a real stream, whoever is killed meanwhile: each of them once.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::stream::Config;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use ccm_agent::metrics::Metrics;
use ccm_agent::publisher::Publisher;
use ccm_agent::spool::{Class, Limits, Record, Spool};
use ccm_core::engine::Line;
use ccm_nats::streams::{self, InitOptions};
use ccm_nats::{ConnectMode, Settings, Subjects, connect};

use crate::support::nats::NatsServer;
use crate::support::poll::{LIMIT, eventually, when};

const GRACE: Duration = Duration::from_secs(10);

fn subjects() -> Subjects {
    Subjects::new("ccm.v1", "default".parse().unwrap()).unwrap()
}

fn record(id: impl Into<String>, body: impl Into<Vec<u8>>) -> Record {
    let node = "web1".parse().unwrap();
    Record {
        id: id.into(),
        subject: subjects().event(&node, "file", "changed").to_string(),
        class: Class::Important,
        body: body.into(),
    }
}

fn open(directory: &Path) -> Arc<Spool> {
    Arc::new(Spool::open(directory, Limits::default()).unwrap().0)
}

async fn make_streams(server: &NatsServer) {
    let options = InitOptions::new(subjects());
    streams::init(&server.client().await, &options)
        .await
        .unwrap();
}

/// A publisher at work.
struct Working {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    metrics: Metrics,
    lines: Arc<Mutex<Vec<Line>>>,
}

impl Working {
    fn published(&self) -> u64 {
        self.count("choria_ccm_agent_published_count")
    }

    fn retries(&self) -> u64 {
        self.count("choria_ccm_agent_publish_error_count")
    }

    fn count(&self, metric: &str) -> u64 {
        let text = self.metrics.print();
        let line = text.lines().find_map(|line| line.strip_prefix(metric));
        line.unwrap().trim().parse().unwrap()
    }

    async fn start(spool: &Arc<Spool>, url: &str) -> Self {
        let settings = Settings::plain(url).unwrap();
        let connection = connect(&settings, ConnectMode::Forever, "test").await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let metrics = Metrics::new("0.0.0");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&lines);
        let log = move |line: &Line| heard.lock().unwrap().push(line.clone());
        let publisher = Publisher::new(Arc::clone(spool), connection, metrics.clone(), log);
        let stopped = async {
            let _ = stopped.await;
        };
        let task = tokio::spawn(publisher.run(stopped, GRACE));
        Self {
            stop,
            task,
            metrics,
            lines,
        }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap();
    }

    fn messages(&self) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        lines.iter().map(|line| line.message.clone()).collect()
    }
}

async fn until_empty(spool: &Spool) {
    eventually("an empty spool", async || {
        let pending = spool.status().pending;
        when(pending == 0, pending)
    })
    .await;
}

/// Returns what the stream of events holds, by id, as another client sees it.
async fn stored(server: &NatsServer) -> Vec<(String, Vec<u8>)> {
    let jetstream = server.jetstream().await;
    let mut stream = jetstream.get_stream(streams::EVENTS).await.unwrap();
    let count = stream.info().await.unwrap().state.messages;
    if count == 0 {
        return Vec::new();
    }
    let consumer = stream
        .create_consumer(OrderedConfig::default())
        .await
        .unwrap();
    let messages = consumer.messages().await.unwrap();
    let messages = messages.take(usize::try_from(count).unwrap());
    let read = messages.map(|message| {
        let message = message.unwrap();
        let headers = message.headers.as_ref().unwrap();
        let id = headers.get("Nats-Msg-Id").unwrap().to_string();
        (id, message.payload.to_vec())
    });
    tokio::time::timeout(LIMIT, read.collect()).await.unwrap()
}

async fn stored_ids(server: &NatsServer) -> Vec<String> {
    let stored = stored(server).await;
    stored.into_iter().map(|(id, _)| id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_arrive_in_order_and_are_counted() {
    let server = NatsServer::start();
    make_streams(&server).await;
    let room = tempfile::tempdir().unwrap();
    let spool = open(room.path());
    let ids: Vec<String> = (0..600).map(|number| format!("event-{number}")).collect();
    for id in &ids[..300] {
        spool.append(&record(id, "{}")).unwrap();
    }
    let working = Working::start(&spool, &server.url()).await;
    for id in &ids[300..] {
        spool.append(&record(id, "{}")).unwrap();
    }
    until_empty(&spool).await;
    assert_eq!(stored_ids(&server).await, ids);
    assert_eq!((working.published(), working.retries()), (600, 0));
    assert_eq!(working.messages(), Vec::<String>::new());
    working.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_killed_among_a_thousand_events_has_each_of_them_once() {
    let mut server = NatsServer::start();
    make_streams(&server).await;
    let room = tempfile::tempdir().unwrap();
    let spool = open(room.path());
    let working = Working::start(&spool, &server.url()).await;
    let mut ids = HashSet::new();
    let mut before = 0;
    for number in 0..1000 {
        let id = format!("event-{number}");
        spool.append(&record(&id, "{}")).unwrap();
        ids.insert(id);
        if [150, 300, 850].contains(&number) {
            // It is at work, and not at its end.
            before = eventually("more is published", async || {
                let published = working.published();
                when(published > before, published)
            })
            .await;
        }
        match number {
            150 | 850 => server.restart(),
            300 => server.stop(),
            600 => server.resume(),
            _ => {}
        }
    }
    until_empty(&spool).await;
    working.stop().await;
    let stored = stored_ids(&server).await;
    assert_eq!(stored.len(), 1000);
    assert_eq!(stored.into_iter().collect::<HashSet<_>>(), ids);
    assert_eq!(spool.status().dropped, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_when_told_to_stop_is_sent_first() {
    let server = NatsServer::start();
    make_streams(&server).await;
    let room = tempfile::tempdir().unwrap();
    let spool = open(room.path());
    let working = Working::start(&spool, &server.url()).await;
    eventually("a connection", async || {
        let _ = spool.append(&record(format!("first-{}", spool.status().pending), "{}"));
        working.published() > 0
    })
    .await;
    for number in 0..500 {
        let record = record(format!("event-{number}"), "{}");
        spool.append(&record).unwrap();
    }
    working.stop().await;
    assert_eq!(spool.status().pending, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_broker_does_not_hold_up_a_stop() {
    let room = tempfile::tempdir().unwrap();
    let spool = open(room.path());
    spool.append(&record("event", "{}")).unwrap();
    let working = Working::start(&spool, "nats://127.0.0.1:1").await;
    tokio::time::timeout(GRACE / 2, working.stop())
        .await
        .unwrap();
    assert_eq!(spool.status().pending, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_stream_events_wait_and_that_is_told_once() {
    let server = NatsServer::start();
    let room = tempfile::tempdir().unwrap();
    let spool = open(room.path());
    let working = Working::start(&spool, &server.url()).await;
    for number in 0..3 {
        let record = record(format!("event-{number}"), "{}");
        spool.append(&record).unwrap();
    }
    eventually("a second try", async || working.retries() > 0).await;
    assert_eq!(spool.status().pending, 3);
    assert_eq!(working.messages(), ["events wait in the spool"]);
    make_streams(&server).await;
    until_empty(&spool).await;
    working.stop().await;
    assert_eq!(stored_ids(&server).await.len(), 3);
}

fn large(bytes: usize) -> Vec<u8> {
    let event = json!({"name": "/etc/motd", "properties": {"content": "x".repeat(bytes)}});
    serde_json::to_vec(&event).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_never_takes_holds_up_nothing() {
    let server = NatsServer::with("max_payload: 65536");
    make_streams(&server).await;
    let room = tempfile::tempdir().unwrap();
    let spool = open(room.path());
    spool.append(&record("too large", large(70_000))).unwrap();
    spool.append(&record("hopeless", vec![0; 70_000])).unwrap();
    spool.append(&record("fits", large(60_000))).unwrap();
    let mut nowhere = record("nowhere", "{}");
    nowhere.subject = "no subject".into();
    spool.append(&nowhere).unwrap();
    spool.append(&record("small", "{}")).unwrap();
    let working = Working::start(&spool, &server.url()).await;
    until_empty(&spool).await;
    assert_eq!(working.messages().len(), 3, "two given up, one trimmed");
    working.stop().await;
    assert_eq!(spool.status().dropped, 2);
    let stored = stored(&server).await;
    let ids: Vec<&str> = stored.iter().map(|(id, _)| &**id).collect();
    assert_eq!(ids, ["too large", "fits", "small"]);
    let event: Value = serde_json::from_slice(&stored[0].1).unwrap();
    assert_eq!(event["name"], "/etc/motd");
    assert!(event["trimmed"].is_string(), "{event}");
    assert_eq!(stored[1].1, large(60_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_with_a_limit_of_its_own_gets_what_it_takes() {
    let server = NatsServer::start();
    let config = Config {
        name: streams::EVENTS.into(),
        subjects: vec![subjects().event_stream().to_string()],
        max_message_size: 8192,
        ..Config::default()
    };
    let jetstream = server.jetstream().await;
    jetstream.create_stream(config).await.unwrap();
    let room = tempfile::tempdir().unwrap();
    let spool = open(room.path());
    spool.append(&record("too large", large(20_000))).unwrap();
    spool.append(&record("small", "{}")).unwrap();
    let working = Working::start(&spool, &server.url()).await;
    until_empty(&spool).await;
    working.stop().await;
    let ids: HashSet<String> = stored_ids(&server).await.into_iter().collect();
    assert_eq!(ids, HashSet::from(["too large".into(), "small".into()]));
    assert_eq!(spool.status().dropped, 0);
}

/// What the process that is to be killed is told: where its spool and server are, and its name.
const SPOOL: &str = "CCM_TEST_SPOOL";
const SERVER: &str = "CCM_TEST_SERVER";
const LIFE: &str = "CCM_TEST_LIFE";

/// How many events one life has, and how many of them between two syncs.
const EVENTS: usize = 120;
const SYNC: usize = 8;

/// Appends, syncs and publishes, and says what is synced.
async fn live(spool: &Arc<Spool>, url: &str, life: &str, say: impl Fn(&str)) -> Working {
    let working = Working::start(spool, url).await;
    for number in 0..EVENTS {
        let id = format!("{life}-{number}");
        spool.append(&record(&id, "{}")).unwrap();
        if number % SYNC == SYNC - 1 {
            spool.sync().unwrap();
            for number in number + 1 - SYNC..=number {
                say(&format!("{life}-{number}"));
            }
        }
    }
    working
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_life_publishes_all_it_synced() {
    if let Some(directory) = std::env::var_os(SPOOL) {
        // We are the one to be killed.
        let (server, life) = (std::env::var(SERVER), std::env::var(LIFE));
        let spool = open(Path::new(&directory));
        let say = |id: &str| println!("synced {id}");
        let _working = live(&spool, &server.unwrap(), &life.unwrap(), say).await;
        std::future::pending::<()>().await;
    }
    let server = NatsServer::start();
    make_streams(&server).await;
    let room = tempfile::tempdir().unwrap();
    let spool = open(room.path());
    let synced = Mutex::new(Vec::new());
    let say = |id: &str| synced.lock().unwrap().push(id.to_owned());
    let working = live(&spool, &server.url(), "whole", say).await;
    until_empty(&spool).await;
    working.stop().await;
    assert_eq!(stored_ids(&server).await, synced.into_inner().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_fifty_times_publishes_each_synced_event_once() {
    let server = NatsServer::start();
    make_streams(&server).await;
    let room = tempfile::tempdir().unwrap();
    let directory = room.path().join("spool");
    let mut synced = Vec::new();
    for life in 0..50 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "publisher::a_whole_life_publishes_all_it_synced"])
            .arg("--nocapture")
            .env(SPOOL, &directory)
            .env(SERVER, server.url())
            .env(LIFE, format!("life{life}"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Killed as soon as so many events are synced; the first one before it has any.
        let mut left = life * EVENTS / 50;
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for line in lines.map(Result::unwrap) {
            if left == 0 {
                child.kill().unwrap();
            }
            if let Some(id) = line.strip_prefix("synced ") {
                synced.push(id.to_owned());
                left = left.saturating_sub(1);
            }
        }
        child.wait().unwrap();
    }
    let spool = open(&directory);
    let working = Working::start(&spool, &server.url()).await;
    until_empty(&spool).await;
    working.stop().await;
    let stored = stored_ids(&server).await;
    let once: HashSet<&String> = stored.iter().collect();
    assert_eq!(once.len(), stored.len(), "stored twice");
    let lost: Vec<_> = synced.iter().filter(|id| !once.contains(id)).collect();
    assert_eq!(lost, Vec::<&String>::new());
    assert_eq!(spool.status().dropped, 0);
    assert!(synced.len() > EVENTS, "no life lasted: {}", synced.len());
}
