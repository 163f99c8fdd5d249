//! Agents for tests: in this process, where many are cheap, or as the real program, where they
//! can be killed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use ccm_agent::config::{Config, SpoolConfig};
use ccm_agent::metrics::Metrics;
use ccm_agent::{Agent, ProcessParts};
use ccm_core::engine::Level;
use ccm_core::model::node::NodeName;
use ccm_core::run::executor::LocalExecutor;
use ccm_core::run::log::{Log, Style};
use ccm_core::system::SystemClock;
use ccm_nats::streams::{self, InitOptions};
use ccm_nats::{Connection, Headers, NatsError, Reply, Subject, Subjects, Verb};
use serde_json::Value;

use super::TestEnv;
use super::nats::NatsServer;
use super::poll::{LIMIT, eventually};

/// How long an answer to a ping may take; an agent that is being restarted gives none.
const ANSWER: Duration = Duration::from_secs(5);

pub fn subjects() -> Subjects {
    Subjects::new("ccm.v1", "default".parse().unwrap()).unwrap()
}

/// Makes the streams and buckets of a fleet.
pub async fn init(connection: &Connection) {
    streams::init(connection, &InitOptions::new(subjects()))
        .await
        .unwrap();
}

/// Returns the configuration of a node that keeps everything below a directory.
pub fn config(identity: &str, directory: &Path) -> Config {
    let identity: NodeName = identity.parse().unwrap();
    let state_dir = directory.join("state");
    Config {
        cache_dir: directory.join("cache"),
        spool: SpoolConfig {
            max_size: 16 << 20,
            directory: state_dir.join("spool"),
        },
        state_dir,
        beat: Duration::from_secs(1),
        ..Config::for_node(identity)
    }
}

/// Starts an agent in this process.
pub async fn start(config: &Config, server: &NatsServer) -> Agent {
    Agent::start(config, &server.settings(), process(BTreeMap::new()))
        .await
        .unwrap()
}

/// Returns what an agent in this process gets from it: no log, and no supervisors of commands, because
/// those are the real program.
pub fn process(environ: BTreeMap<String, String>) -> ProcessParts {
    ProcessParts {
        environ,
        log: Log::to(std::io::sink(), Style::Text, Level::Error, SystemClock),
        metrics: Metrics::new("0.0.0"),
        executor: LocalExecutor::default(),
    }
}

/// Sends a request to one node and returns its reply as JSON.
pub async fn request_json(connection: &Connection, node: &str, verb: Verb, body: &str) -> Value {
    let reply = request(connection, node, verb, Headers::new(), body).await;
    serde_json::from_slice(&reply.body).unwrap()
}

/// Sends a request to one node and returns its reply with its headers.
pub async fn request(
    connection: &Connection,
    node: &str,
    verb: Verb,
    headers: Headers,
    body: &str,
) -> Reply {
    let node: NodeName = node.parse().unwrap();
    send_when_there(connection, &node, verb, body, || headers.clone()).await
}

/// Sends a request and returns the answer. What may change a node is sent once: after the node has
/// answered a ping, and again only if there was no responder.
pub async fn send_when_there(
    connection: &Connection,
    node: &NodeName,
    verb: Verb,
    body: &str,
    headers: impl Fn() -> Headers,
) -> Reply {
    let send = async |verb, headers, body: &str, limit| {
        let subject: Subject = subjects().node(&node.token(), verb);
        let body = body.to_owned().into();
        connection.request(&subject, headers, body, limit).await
    };
    if verb == Verb::Ping {
        return eventually("an answer to a ping", async || {
            send(verb, headers(), body, ANSWER).await
        })
        .await;
    }
    eventually("an answer to a ping", async || {
        send(Verb::Ping, Headers::new(), "", ANSWER).await
    })
    .await;
    // In a cluster one subject may be known before another is.
    eventually("a responder", async || {
        match send(verb, headers(), body, LIMIT).await {
            Err(NatsError::NoResponders(subject)) => Err(subject),
            sent => Ok(sent.unwrap_or_else(|err| panic!("{verb}: {err}"))),
        }
    })
    .await
}

/// Returns an ensure request for a file of ours.
pub fn file_request(path: &Path, content: &str) -> String {
    serde_json::json!({
        "protocol": "io.choria.ccm.v1.resource.ensure.request",
        "type": "file",
        "properties": {
            "name": path,
            "ensure": "present",
            "content": content,
            "owner": "root",
            "group": "root",
            "mode": "0644",
        },
    })
    .to_string()
}

/// Returns the subjects and bodies of everything in the stream of events; nothing while a cluster
/// that lost its leader has no answer.
pub async fn stored_events(server: &NatsServer) -> Vec<(String, Value)> {
    read_events(server).await.unwrap_or_default()
}

async fn read_events(server: &NatsServer) -> Option<Vec<(String, Value)>> {
    use futures_util::StreamExt as _;
    let jetstream = server.jetstream().await;
    let mut stream = jetstream.get_stream("CCM_EVENTS").await.ok()?;
    let count = stream.info().await.ok()?.state.messages;
    let ordered = async_nats::jetstream::consumer::pull::OrderedConfig::default();
    let consumer = stream.create_consumer(ordered).await.ok()?;
    let mut messages = consumer.messages().await.ok()?;
    let mut events = Vec::new();
    for _ in 0..count {
        let message = messages.next().await?.ok()?;
        let body = serde_json::from_slice(&message.payload).unwrap();
        events.push((message.subject.to_string(), body));
    }
    Some(events)
}

/// The real program as an agent. It is killed when dropped.
pub struct AgentProcess {
    child: Child,
    log: PathBuf,
}

impl AgentProcess {
    /// Starts `ccm agent` with these lines in its file, beside those every test needs.
    pub fn start(env: &TestEnv, identity: &str, server: &str, lines: &str) -> Self {
        let base = env.at(identity);
        let config = format!(
            "identity: {identity}\nstate_dir: {base}/state\ncache_dir: {base}/cache\nservers: {server}\nbeat: 1s\n{lines}"
        );
        Self::with_config(env, identity, &config)
    }

    /// Starts `ccm agent` with this configuration.
    pub fn with_config(env: &TestEnv, identity: &str, config: &str) -> Self {
        let file = env.write(&format!("{identity}.yaml"), config);
        let log = env.path(&format!("{identity}.log"));
        let output = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let child = env
            .command(&["agent", "--config", &file])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .unwrap();
        Self { child, log }
    }

    /// Returns the id of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Kills the agent as a power cut would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let status = std::process::Command::new("kill")
            .args([&format!("-{signal}"), &id])
            .status();
        assert!(status.unwrap().success());
    }

    /// Waits for the end and returns the exit code.
    pub fn wait(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
