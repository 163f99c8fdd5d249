//! One table of cases through every entry point: the same request gives the same events, the same
//! files and the same errors.
//!
//! Manifests go through `ccm apply`, NATS `apply`, an assignment and Choria's `apply`; a case of one
//! plain resource goes through `ccm ensure`, the pipe, NATS `ensure` and Choria's `ensure` as well.
//! Choria's actions are called both ways: by the external agent, and by the server in the daemon.
//! Everything is compared with `ccm apply`. What may differ is written down in [`comparable`],
//! [`without_flag_defaults`] and [`plain_error`], and nowhere else. `parity` holds what a table can't compare: what the daemon learns of runs that others
//! make.

mod cases;
mod parity;

use std::collections::BTreeMap;
use std::path::Path;

use ccm_nats::streams::{DESIRED, MANIFESTS, REPORTED};
use ccm_nats::{Connection, Verb};
use serde_json::{Value, json};

use self::cases::{Case, cases};

use crate::choria::Server;
use crate::choria_server::{self, Call};
use crate::support::agent::{self, AgentProcess, stored_events};
use crate::support::nats::NatsServer;
use crate::support::poll::{eventually, when};
use crate::support::{http, pack};

const NODE: &str = "web1.lab";

/// What came of a case.
#[derive(Debug, PartialEq)]
struct Result {
    events: Vec<Value>,
    /// Why nothing was done.
    error: Option<String>,
    files: BTreeMap<String, String>,
}

/// Every entry point, with one daemon on one server.
struct World {
    choria: Server,
    /// A client of the Choria server in the daemon.
    choria_client: choria_server::Client,
    nats: NatsServer,
    client: Connection,
    agent: AgentProcess,
    generation: std::cell::Cell<u64>,
    /// How many stored events were compared so far.
    taken: std::cell::Cell<usize>,
}

impl World {
    async fn start() -> Self {
        Self::with("").await
    }

    /// Starts a world whose daemon has more lines in its file.
    async fn with(lines: &str) -> Self {
        let nats = NatsServer::start();
        let client = nats.client().await;
        agent::init(&client).await;
        let choria = Server::new();
        let served = choria_server::server_lines(&choria.env);
        let lines = format!("interval: 1h\n{served}{lines}");
        let agent = AgentProcess::start(&choria.env, NODE, &nats.url(), &lines);
        agent::request_json(&client, NODE, Verb::Ping, "").await;
        let world = Self {
            choria_client: choria_server::Client::connect(&nats.url()).await,
            choria,
            nats,
            client,
            agent,
            generation: 0.into(),
            taken: 0.into(),
        };
        world.configure_choria("");
        world
    }

    /// Writes the file of Choria's agent, which shares the daemon's state and server.
    fn configure_choria(&self, lines: &str) {
        let state = self.choria.env.at(&format!("{NODE}/state"));
        let url = self.nats.url();
        self.choria.configure(&format!(
            "state_dir = {state}\nnats_server = {url}\n{lines}"
        ));
    }

    /// Runs a case through one entry point, in a directory of its own, and returns what can be compared.
    async fn run(&self, entry_point: EntryPoint, case: &Case) -> Option<Result> {
        let name = format!("{entry_point:?}/{}", case.name.replace([' ', '\''], "-"));
        let directory = self.choria.env.path(&name);
        std::fs::create_dir_all(&directory).unwrap();
        (case.prepare)(&directory);
        let text = directory.to_str().unwrap();
        let (events, error) = match entry_point {
            EntryPoint::Apply => self.by_hand(case, text),
            EntryPoint::Ensure | EntryPoint::Pipe => self.one_by_hand(entry_point, case, text)?,
            EntryPoint::NatsApply => self.over_nats(case, text).await,
            EntryPoint::NatsEnsure => self.one_over_nats(case, text).await?,
            EntryPoint::Assignment => self.assigned(case, text).await,
            EntryPoint::ChoriaApply => self.by_choria(case, text).await,
            EntryPoint::ChoriaEnsure => self.one_by_choria(case, text).await?,
            EntryPoint::ChoriaServerApply => self.by_choria_server(case, text).await,
            EntryPoint::ChoriaServerEnsure => self.one_by_choria_server(case, text).await?,
        };
        let mut events: Vec<Value> = events.iter().map(|event| comparable(event, text)).collect();
        if entry_point == EntryPoint::Ensure {
            events.iter_mut().for_each(without_flag_defaults);
        }
        Some(Result {
            events,
            error: error.map(|error| plain_error(&error).replace(text, "$DIR")),
            files: files(&directory),
        })
    }

    fn by_hand(&self, case: &Case, directory: &str) -> (Vec<Value>, Option<String>) {
        let file = format!("{directory}.yaml");
        std::fs::write(&file, case.manifest(directory)).unwrap();
        let mut args = vec!["apply", &file, "--json"];
        if case.noop {
            args.push("--noop");
        }
        let outcome = self.choria.env.ccm(&args);
        match outcome.stdout.as_str() {
            "" => (
                Vec::new(),
                Some(raw(&outcome.stderr, &self.choria.env.at(""))),
            ),
            _ => {
                let document: Value = serde_json::from_str(&outcome.stdout).unwrap();
                let document = restored(&document, &self.choria.env.at(""));
                (document["events"].as_array().unwrap().clone(), None)
            }
        }
    }

    fn one_by_hand(
        &self,
        entry_point: EntryPoint,
        case: &Case,
        directory: &str,
    ) -> Option<(Vec<Value>, Option<String>)> {
        let (type_name, properties) = case.single(directory)?;
        if entry_point == EntryPoint::Pipe {
            let request = ensure_request(&type_name, &properties);
            let mut args = vec!["ensure", "api", "pipe"];
            if case.noop {
                args.push("--noop");
            }
            let response = self.choria.env.ccm_with_input(&args, &request).json();
            return Some(answered(&restored(&response, &self.choria.env.at(""))));
        }
        let mut args = flags(&type_name, &properties)?;
        args.push("--json".into());
        if case.noop {
            args.push("--noop".into());
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let outcome = self.choria.env.ccm(&args);
        let root = self.choria.env.at("");
        Some(match outcome.stdout.as_str() {
            "" => (Vec::new(), Some(raw(&outcome.stderr, &root))),
            _ => {
                let event: Value = serde_json::from_str(&outcome.stdout).unwrap();
                (vec![restored(&event, &root)], None)
            }
        })
    }

    async fn over_nats(&self, case: &Case, directory: &str) -> (Vec<Value>, Option<String>) {
        let request = json!({
            "protocol": "io.choria.ccm.v1.manifest.apply.request",
            "manifest": case.manifest(directory), "noop": case.noop, "wait": true,
        });
        let reply =
            agent::request_json(&self.client, NODE, Verb::Apply, &request.to_string()).await;
        let error = reply["run"]["error"].as_str().map(str::to_owned);
        match error {
            Some(error) => (Vec::new(), Some(error)),
            None => (self.next_events(case, directory).await, None),
        }
    }

    async fn one_over_nats(
        &self,
        case: &Case,
        directory: &str,
    ) -> Option<(Vec<Value>, Option<String>)> {
        let (type_name, properties) = case.single(directory)?;
        let request = ensure_request(&type_name, &properties);
        let mut headers = ccm_nats::Headers::new();
        if case.noop {
            headers = headers.with("Ccm-Noop", "true").unwrap();
        }
        let reply = agent::request(&self.client, NODE, Verb::Ensure, headers, &request).await;
        let (events, error) = answered(&serde_json::from_slice(&reply.body).unwrap());
        if !events.is_empty() {
            // Else it may be taken for an event of the next entry point.
            self.next_events(case, directory).await;
        }
        Some((events, error))
    }

    async fn assigned(&self, case: &Case, directory: &str) -> (Vec<Value>, Option<String>) {
        let generation = self.generation.get() + 1;
        self.generation.set(generation);
        let bundle = pack::tgz(&[("manifest.yaml", &case.manifest(directory))]);
        let digest = ccm_core::system::Digest::of(&bundle).to_string();
        let store = self.client.objects(MANIFESTS).await.unwrap();
        store.put(&format!("app/{digest}"), &bundle).await.unwrap();
        let assignment = json!({
            "protocol": "io.choria.ccm.v1.node.assignment",
            "generation": generation,
            "manifests": [{"name": "app", "digest": digest}],
            "noop": case.noop,
            "assigned": "2027-01-15T08:00:00Z",
        });
        let desired = self.client.bucket(DESIRED).await.unwrap();
        let text = assignment.to_string();
        desired.put("default.web1_lab", text.into()).await.unwrap();
        agent::request_json(&self.client, NODE, Verb::Nudge, "").await;
        let report = eventually("the report of an assignment", async || {
            let bucket = self.client.bucket(REPORTED).await.unwrap();
            let entry = bucket.get("default.web1_lab").await.unwrap();
            let entry = entry.ok_or(Value::Null)?;
            let report: Value = serde_json::from_slice(&entry.value).unwrap();
            when(report["generation"] == generation, report)
        })
        .await;
        match report["run"]["error"].as_str() {
            Some(error) => (Vec::new(), Some(error.to_owned())),
            None => (self.next_events(case, directory).await, None),
        }
    }

    async fn by_choria(&self, case: &Case, directory: &str) -> (Vec<Value>, Option<String>) {
        let data = json!({"manifest": case.manifest(directory), "noop": case.noop});
        let reply = self.choria.call("apply", data);
        let run = self.choria.wait_for(&reply.data["run_id"]);
        match run["error"].as_str().filter(|error| !error.is_empty()) {
            Some(error) => (Vec::new(), Some(error.to_owned())),
            None => (self.next_events(case, directory).await, None),
        }
    }

    async fn one_by_choria(
        &self,
        case: &Case,
        directory: &str,
    ) -> Option<(Vec<Value>, Option<String>)> {
        let (type_name, properties) = case.single(directory)?;
        let request: Value =
            serde_json::from_str(&ensure_request(&type_name, &properties)).unwrap();
        let reply = self.choria.call(
            "ensure",
            json!({"request": request, "noop": case.noop, "wait": 50}),
        );
        let event = reply.data["event"].as_object();
        if event.is_none_or(|event| event.is_empty()) {
            return Some((Vec::new(), Some(reply.message)));
        }
        Some((self.next_events(case, directory).await, None))
    }

    async fn by_choria_server(&self, case: &Case, directory: &str) -> (Vec<Value>, Option<String>) {
        let data = json!({"manifest": case.manifest(directory), "noop": case.noop, "wait": 50});
        let reply = self
            .choria_client
            .reply(&Call::rpc("ccm", "apply", data))
            .await;
        match reply["data"]["error"]
            .as_str()
            .filter(|error| !error.is_empty())
        {
            Some(error) => (Vec::new(), Some(error.to_owned())),
            None => (self.next_events(case, directory).await, None),
        }
    }

    async fn one_by_choria_server(
        &self,
        case: &Case,
        directory: &str,
    ) -> Option<(Vec<Value>, Option<String>)> {
        let (type_name, properties) = case.single(directory)?;
        let request: Value =
            serde_json::from_str(&ensure_request(&type_name, &properties)).unwrap();
        let data = json!({"request": request, "noop": case.noop, "wait": 50});
        let reply = self
            .choria_client
            .reply(&Call::rpc("ccm", "ensure", data))
            .await;
        let event = reply["data"]["event"].as_object();
        if event.is_none_or(|event| event.is_empty()) {
            let message = reply["statusmsg"].as_str().unwrap().to_owned();
            return Some((Vec::new(), Some(message)));
        }
        Some((self.next_events(case, directory).await, None))
    }

    /// Returns the events that a run of a case stored: those behind all that were taken before, without
    /// those of another directory. A failed assignment is applied again.
    async fn next_events(&self, case: &Case, directory: &str) -> Vec<Value> {
        let (before, count) = (self.taken.get(), case.outcomes.len());
        let root = self.choria.env.root().to_str().unwrap();
        let is_own = |event: &Value| {
            let text = event.to_string();
            text.contains(directory) || !text.contains(root)
        };
        let (after, events) = eventually(&format!("the events of {}", case.name), async || {
            let events = resource_events(&self.nats).await;
            let behind = events.into_iter().enumerate().skip(before);
            let own = behind.filter(|(_, event)| is_own(event)).take(count);
            let (numbers, own): (Vec<usize>, Vec<Value>) = own.unzip();
            let after = numbers.last().map_or(before, |last| last + 1);
            (own.len() == count).then_some((after, own))
        })
        .await;
        self.taken.set(after);
        events
    }
}

/// Returns the stored events of resources, in order.
async fn resource_events(nats: &NatsServer) -> Vec<Value> {
    let events = stored_events(nats).await.into_iter();
    events
        .filter(|(subject, _)| !subject.contains(".run.") && !subject.contains(".audit."))
        .map(|(_, event)| event)
        .collect()
}

fn ensure_request(type_name: &str, properties: &Value) -> String {
    json!({
        "protocol": "io.choria.ccm.v1.resource.ensure.request",
        "type": type_name,
        "properties": properties,
    })
    .to_string()
}

/// Returns the event of a response, or its error.
fn answered(response: &Value) -> (Vec<Value>, Option<String>) {
    match response["error"].as_str().filter(|error| !error.is_empty()) {
        Some(error) => (Vec::new(), Some(error.to_owned())),
        None => (vec![response["state"].clone()], None),
    }
}

/// Returns the arguments of `ccm ensure` for a resource, where every property has a flag.
fn flags(type_name: &str, properties: &Value) -> Option<Vec<String>> {
    let properties = properties.as_object()?;
    let text = |name: &str| properties.get(name).and_then(Value::as_str);
    let mut args = vec!["ensure".to_owned(), type_name.to_owned()];
    args.push(text("command").or(text("name"))?.to_owned());
    if text("command").is_some() {
        return None;
    }
    args.extend(text("ensure").map(str::to_owned));
    for (name, value) in properties {
        match name.as_str() {
            "name" | "ensure" => {}
            "source" if type_name == "file" => {
                args.extend(["--source".into(), value.as_str()?.to_owned()]);
            }
            "owner" | "group" | "mode" | "content" | "creates" | "provider" | "target"
            | "match" | "line" | "block" | "path" | "template" | "engine" | "validate"
            | "shell" | "home" => {
                args.extend([format!("--{name}"), value.as_str()?.to_owned()]);
            }
            _ => return None,
        }
    }
    // Without owner and mode the command line fills in the caller's.
    let is_complete = type_name != "file" || properties.contains_key("owner");
    is_complete.then_some(args)
}

/// Puts the scratch directory back where the test environment hides it.
fn raw(text: &str, root: &str) -> String {
    text.replace("$DIR/", root)
}

fn restored(document: &Value, root: &str) -> Value {
    serde_json::from_str(&raw(&document.to_string(), root)).unwrap()
}

/// Removes from an event what differs between two runs of the same case: ids, times, durations, and
/// the directory of the entry point.
fn comparable(event: &Value, directory: &str) -> Value {
    let text = event.to_string().replace(directory, "$DIR");
    let mut event: Value = serde_json::from_str(&text).unwrap();
    for key in ["event_id", "timestamp", "duration"] {
        event.as_object_mut().unwrap().remove(key);
    }
    if let Some(status) = event["status"].as_object_mut() {
        status.remove("timestamp");
    }
    if let Some(metadata) = event["status"]["metadata"].as_object_mut() {
        metadata.remove("mtime");
    }
    event
}

/// Removes what the flags of `ccm ensure exec` fill in, as upstream's do.
fn without_flag_defaults(event: &mut Value) {
    if event["type"] == "exec"
        && let Some(properties) = event["properties"].as_object_mut()
    {
        for (name, default) in [("returns", json!([0])), ("timeout", json!("1m"))] {
            if properties.get(name) == Some(&default) {
                properties.remove(name);
            }
        }
    }
}

/// Removes from an error where the problem is: a manifest has a file, a line and a number of the
/// resource, a request for one resource has its label or nothing. The source line and the
/// suggestion go, too.
fn plain_error(error: &str) -> String {
    let error = error.lines().next().unwrap_or_default();
    let mut error = error.trim_start_matches("ccm: error: ").trim();
    if error.ends_with(')')
        && let Some((rest, label)) = error.rsplit_once(" (")
        && (label.starts_with("file") || label.contains('#'))
    {
        error = rest;
    }
    if let Some((rest, place)) = error.rsplit_once(" (")
        && (format!(" {place}").contains(" at ")
            || place.contains("inline")
            || place.contains(".yaml"))
    {
        error = rest;
    }
    for prefix in ["invalid manifest resource 1: ", "invalid resource: "] {
        error = error.trim_start_matches(prefix);
    }
    if let Some((label, rest)) = error.split_once(": ")
        && label.contains('#')
    {
        error = rest.trim_start_matches("invalid resource: ");
    }
    // A terminal shows the expression in its line.
    error = error.trim_start_matches("invalid expression: ");
    if let Some((_, expression)) = error.split_once("expr compile error for '")
        && let Some((_, reason)) = expression.split_once("': ")
    {
        error = reason;
    }
    let error = error.split(", did you mean").next();
    error.unwrap_or_default().to_owned()
}

/// Returns the content of everything in a directory, but for what prepared it.
fn files(directory: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(&next).unwrap().flatten() {
            let path = entry.path();
            let name = path.strip_prefix(directory).unwrap();
            if let Ok(target) = std::fs::read_link(&path) {
                found.insert(name.display().to_string(), target.display().to_string());
                continue;
            }
            if path.is_dir() {
                left.push(path);
                continue;
            }
            let content = std::fs::read(&path).unwrap();
            let content = String::from_utf8_lossy(&content);
            let content = content.replace(directory.to_str().unwrap(), "$DIR");
            found.insert(name.display().to_string(), content);
        }
    }
    found
}

/// An entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryPoint {
    Apply,
    Ensure,
    Pipe,
    NatsApply,
    NatsEnsure,
    Assignment,
    ChoriaApply,
    ChoriaEnsure,
    ChoriaServerApply,
    ChoriaServerEnsure,
}

const OTHERS: [EntryPoint; 9] = [
    EntryPoint::Ensure,
    EntryPoint::Pipe,
    EntryPoint::NatsApply,
    EntryPoint::NatsEnsure,
    EntryPoint::Assignment,
    EntryPoint::ChoriaApply,
    EntryPoint::ChoriaEnsure,
    EntryPoint::ChoriaServerApply,
    EntryPoint::ChoriaServerEnsure,
];

fn outcome(event: &Value) -> &'static str {
    let is = |key: &str| event[key].as_bool().unwrap_or_default();
    let unmet = event["unmet_requirements"].as_array();
    if is("failed") {
        "failed"
    } else if unmet.is_some_and(|unmet| !unmet.is_empty()) {
        "unmet"
    } else if is("skipped") {
        "skipped"
    } else if is("refreshed") {
        "refreshed"
    } else if is("changed") {
        "changed"
    } else {
        "stable"
    }
}

#[tokio::test]
async fn every_entry_point_gives_the_same_result() {
    let world = World::start().await;
    let mut differences = Vec::new();
    let archives = http::Server::serving(pack::tgz(&[("app/README", "hello\n")]));
    for case in cases(&archives.url("/app.tar.gz")) {
        let by_hand = world.run(EntryPoint::Apply, &case).await.unwrap();
        let outcomes: Vec<&str> = by_hand.events.iter().map(outcome).collect();
        assert_eq!(outcomes, case.outcomes, "{}: {by_hand:#?}", case.name);
        assert_eq!(
            by_hand.error.is_some(),
            case.outcomes.is_empty(),
            "{}: {by_hand:#?}",
            case.name
        );
        for entry_point in OTHERS {
            let Some(result) = world.run(entry_point, &case).await else {
                continue;
            };
            if let Some(difference) = difference(&by_hand, &result) {
                differences.push(format!("{entry_point:?}, {}: {difference}", case.name));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

fn difference(by_hand: &Result, other: &Result) -> Option<String> {
    if by_hand.files != other.files {
        return Some(format!("files {:#?} and {:#?}", by_hand.files, other.files));
    }
    if by_hand.error != other.error {
        return Some(format!("errors {:?} and {:?}", by_hand.error, other.error));
    }
    if by_hand.events.len() != other.events.len() {
        return Some(format!(
            "events {:#?} and {:#?}",
            by_hand.events, other.events
        ));
    }
    let pairs = by_hand.events.iter().zip(&other.events);
    let mut lines = Vec::new();
    for (a, b) in pairs {
        let keys = a.as_object()?.keys().chain(b.as_object()?.keys());
        for key in keys.collect::<std::collections::BTreeSet<_>>() {
            if a[key] != b[key] {
                lines.push(format!("{key}: {} and {}", a[key], b[key]));
            }
        }
    }
    (!lines.is_empty()).then(|| lines.join("\n  "))
}
