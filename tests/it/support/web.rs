//! `ccm fleet serve` before a real server of NATS, with nodes that are only records.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::ops::Deref;
use std::process::Child;

use ccm_core::system::Digest;
use ccm_nats::Connection;
use ccm_nats::streams::{DESIRED, NODES, REPORTED, ROLLOUTS};
use serde_json::{Value, json};

use super::agent::init;
use super::nats::{Bus, NatsServer};
use super::poll::{LIMIT, wait_for, when};
use super::{Outcome, TestEnv};

/// The token of servers that may be acted on.
pub const TOKEN: &str = "open-sesame-0123456789";

/// The tokens of servers with named tokens: name, role and token.
pub const TOKENS: [(&str, &str, &str); 3] = [
    ("vic", "read", "look-at-it-0123456789"),
    ("bob", "ask", "ask-the-nodes-0123456789"),
    ("ann", "roll-out", TOKEN),
];

/// Returns the file with [`TOKENS`], and with more lines.
pub fn access_file(more: &str) -> String {
    let tokens = TOKENS.map(|(name, role, token)| {
        let digest = Digest::of(token.as_bytes());
        format!("  - {{name: {name}, role: {role}, sha256: {digest}}}\n")
    });
    format!("tokens:\n{}{more}", tokens.concat())
}

/// A page that is being served. Gone when dropped.
pub struct Page {
    pub address: String,
    /// Whether requests need [`TOKEN`].
    has_token: bool,
    child: Child,
    env: TestEnv,
}

/// A page, the server of NATS before which it is served, and nodes that are only records.
pub struct Web {
    pub nats: NatsServer,
    pub connection: Connection,
    page: Page,
}

impl Deref for Web {
    type Target = Page;

    fn deref(&self) -> &Page {
        &self.page
    }
}

/// An answer over HTTP.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Response {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|err| panic!("{err}: {}", self.body))
    }
}

impl Page {
    /// Serves the fleet of a server, to be looked at.
    pub fn serve(nats: &impl Bus) -> Self {
        Self::with(nats, &[])
    }

    /// Serves the fleet of a server, to be acted on with [`TOKEN`].
    pub fn serve_actions(nats: &impl Bus) -> Self {
        Self::with(nats, &["--allow-actions", "--token-file", "token"])
    }

    /// Serves the fleet of a server, to be looked at with [`TOKEN`].
    pub fn serve_token(nats: &impl Bus) -> Self {
        Self::with(nats, &["--token-file", "token"])
    }

    /// Serves the fleet of a server to the owners of [`TOKENS`], with more lines in the file and
    /// further flags.
    pub fn serve_access(nats: &impl Bus, more: &str, flags: &[&str]) -> Self {
        let env = TestEnv::new();
        env.write_secret("access.yaml", access_file(more));
        Self::start(env, nats, &[&["--access", "access.yaml"], flags].concat())
    }

    /// Replaces the file with tokens of a page that is served with it.
    pub fn write_access(&self, text: &str) {
        self.env.write_secret("access.yaml", text);
    }

    fn with(nats: &impl Bus, args: &[&str]) -> Self {
        let env = TestEnv::new();
        env.write_secret("token", format!("{TOKEN}\n"));
        Self::start(env, nats, args)
    }

    fn start(mut env: TestEnv, nats: &impl Bus, args: &[&str]) -> Self {
        env.set("NATS_URL", &nats.urls());
        let mut all = vec!["fleet", "serve", "--listen", "127.0.0.1:0"];
        all.extend(args);
        let (child, line) = env.start_logging(&all, "log");
        let address = line
            .trim()
            .strip_prefix("serving http://")
            .and_then(|rest| rest.strip_suffix('/'))
            .unwrap_or_else(|| panic!("{line:?}"))
            .to_owned();
        Self {
            address,
            has_token: !args.is_empty(),
            child,
            env,
        }
    }

    /// Waits until every record has been read.
    pub fn settled(self) -> Self {
        self.until("/healthz", |answer| answer.status == 200);
        self
    }

    /// Returns what it logged.
    pub fn log(&self) -> String {
        self.env.read("log")
    }

    /// Runs `ccm fleet` beside it.
    pub fn fleet(&self, args: &[&str]) -> Outcome {
        let mut all = vec!["fleet"];
        all.extend(args);
        self.env.ccm(&all)
    }

    /// Stores a bundle of commands that succeed.
    pub fn push(&self, name: &str, commands: usize) {
        let resources: String = (0..commands)
            .map(|number| format!("        - /bin/true {number}: {{}}\n"))
            .collect();
        self.push_manifest(
            name,
            &format!("ccm:\n  resources:\n    - exec:\n{resources}"),
        );
    }

    /// Stores a bundle of a manifest.
    pub fn push_manifest(&self, name: &str, manifest: &str) {
        self.env.write("bundle/manifest.yaml", manifest);
        self.fleet(&["bundle", "push", &self.env.at("bundle"), "--name", name])
            .ok();
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// Reads with the token, where the server has one.
    pub fn get(&self, path: &str) -> Response {
        let bearer = format!("Bearer {TOKEN}");
        let headers = [("Authorization", bearer.as_str())];
        let sent = if self.has_token { &headers[..] } else { &[] };
        self.fetch("GET", path, sent, "")
    }

    pub fn post(&self, path: &str, token: &str, body: &Value) -> Response {
        let bearer = format!("Bearer {token}");
        self.fetch(
            "POST",
            path,
            &[("Authorization", &bearer)],
            &body.to_string(),
        )
    }

    /// Sends a request and returns the whole response.
    pub fn fetch(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response {
        let mut stream = self.request(method, path, headers, body);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("{text}"));
        Response {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_lowercase(),
            body: body.into(),
        }
    }

    /// Sends a request and returns the connection.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let is_named = headers.iter().any(|(name, _)| *name == "Host");
        let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !is_named {
            request.push_str(&format!("Host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    /// Sends a request until the response is as expected, and returns it.
    pub fn until(&self, path: &str, is_expected: impl Fn(&Response) -> bool) -> Response {
        wait_for(path, || {
            let answer = self.get(path);
            when(is_expected(&answer), answer)
        })
    }

    /// Waits until a node is in a state.
    pub fn until_state(&self, node: &str, state: &str) {
        self.until(&format!("/api/nodes/{node}"), |answer| {
            answer.status == 200 && answer.json()["node"]["state"] == state
        });
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Web {
    /// Serves a fleet that can be looked at.
    pub async fn start() -> Self {
        Self::of(Page::serve).await
    }

    /// Serves a fleet that can be acted on.
    pub async fn with_actions() -> Self {
        Self::of(Page::serve_actions).await
    }

    /// Serves a fleet to the owners of [`TOKENS`].
    pub async fn with_access() -> Self {
        Self::of(|nats| Page::serve_access(nats, "", &[])).await
    }

    /// Serves a fleet that can be looked at by those who know the token.
    pub async fn with_token() -> Self {
        Self::of(Page::serve_token).await
    }

    async fn of(serve: fn(&NatsServer) -> Page) -> Self {
        let nats = NatsServer::start();
        let connection = nats.client().await;
        init(&connection).await;
        Self {
            page: serve(&nats).settled(),
            nats,
            connection,
        }
    }

    async fn put(&self, bucket: &str, key: &str, value: &Value) {
        let bucket = self.connection.bucket(bucket).await.unwrap();
        bucket.put(key, value.to_string().into()).await.unwrap();
    }

    /// Lets a node say that it is there, with more entries than it must have.
    pub async fn presence(&self, node: &str, more: Value) {
        let mut status = json!({
            "protocol": "io.choria.ccm.v1.node.status", "identity": node,
            "collective": "default", "groups": [], "version": "0.1.0",
            "started": "2026-01-15T08:00:00Z", "timestamp": now(), "beat": 30,
            "facts": {"os": {"name": "debian", "version": "12"}, "memory": {"total": 4096}}
        });
        merge(&mut status, more);
        self.put(NODES, &key(node), &status).await;
    }

    /// Lets a node report what it became.
    pub async fn report(&self, node: &str, more: Value) {
        let mut report = json!({
            "protocol": "io.choria.ccm.v1.node.report", "identity": node, "generation": 1,
            "manifests": [], "timestamp": now()
        });
        merge(&mut report, more);
        self.put(REPORTED, &key(node), &report).await;
    }

    /// Assigns a bundle to a node.
    pub async fn assign(&self, node: &str, generation: u64) {
        let assignment = json!({
            "protocol": "io.choria.ccm.v1.node.assignment", "generation": generation,
            "manifests": [{"name": "app", "digest": "ab".repeat(32)}], "assigned": now()
        });
        self.put(DESIRED, &key(node), &assignment).await;
    }

    pub async fn rollout(&self, id: &str, more: Value) {
        let mut rollout = json!({
            "protocol": "io.choria.ccm.v1.rollout", "id": id, "collective": "default",
            "bundle": {"name": "app", "digest": "ab".repeat(32)}, "created": now(),
            "caller": "ann@laptop", "selection": ["--all"],
            "plan": {"waves": [{"name": "wave 1", "nodes": ["web1", "web2"]}]},
            "state": {"name": "running"}
        });
        merge(&mut rollout, more);
        self.put(ROLLOUTS, &key(id), &rollout).await;
    }

    /// Stores the event of a resource.
    pub async fn event(&self, node: &str, resource: &str, outcome: &str, number: u32) {
        let body = json!({
            "protocol": "io.choria.ccm.v1.transaction.event", "event_id": event_id(number),
            "timestamp": now(), "type": "file", "provider": "posix", "name": resource,
            "requested_ensure": "present", "final_ensure": "present", "duration": 12_000_000,
            "properties": {}, "status": null,
            "error": if outcome == "failed" { json!(["disk full"]) } else { json!([]) },
            "changed": outcome == "changed", "refreshed": false, "failed": outcome == "failed",
            "skipped": outcome == "skipped", "noop": false
        });
        self.store(node, "file", outcome, &body).await;
    }

    /// Stores the summary of a run.
    pub async fn ran(&self, node: &str, outcome: &str, number: u32) {
        self.store(node, "run", outcome, &run(node, outcome, number))
            .await;
    }

    async fn store(&self, node: &str, type_name: &str, outcome: &str, body: &Value) {
        let jetstream = self.nats.jetstream().await;
        let token = node.replace('.', "_");
        let subject = format!("ccm.v1.default.event.{token}.{type_name}.{outcome}");
        let stored = jetstream.publish(subject, body.to_string().into()).await;
        stored.unwrap().await.unwrap();
    }
}

/// Returns the summary of a run that has just ended.
pub fn run(node: &str, outcome: &str, number: u32) -> Value {
    let count = |word: &str| u32::from(outcome == word);
    json!({
        "protocol": "io.choria.ccm.v1.run.summary", "event_id": event_id(number),
        "run_id": event_id(number), "identity": node, "collective": "default", "source": "app",
        "trigger": "interval", "outcome": outcome, "timestamp": now(),
        "error": if outcome == "failed" { "package#nginx: no candidate" } else { "" },
        "summary": {
            "start_time": now(), "end_time": now(), "total_duration": 1_200_000_000,
            "total_resources": 9, "unique_resources": 9, "changed_resources": count("changed"),
            "failed_resources": count("failed"), "skipped_resources": 0, "stable_resources": 8,
            "refreshed_count": 0, "requirements_unmet_count": 0, "health_checked_count": 0,
            "health_check_ok_count": 0, "health_check_warning_count": 0,
            "health_check_critical_count": 0, "health_check_unknown_count": 0, "total_errors": 0
        }
    })
}

fn key(node: &str) -> String {
    format!("default.{}", node.replace('.', "_"))
}

fn now() -> String {
    chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Nanos, true)
}

fn event_id(number: u32) -> String {
    let now = chrono::Utc::now();
    ccm_core::model::id::EventId::new(now, u128::from(number)).to_string()
}

fn merge(base: &mut Value, more: Value) {
    for (key, value) in more.as_object().unwrap() {
        base[key] = value.clone();
    }
}
