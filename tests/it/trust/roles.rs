//! Every role does all that it is documented to do, on a real server, with exactly the permissions
//! that `ccm fleet permissions` prints. The server's log shows that nothing was forbidden on the way.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use ccm_nats::{ConnectMode, Connection, Headers, Settings, Verb, connect};
use serde_json::{Value, json};

use crate::support::agent::subjects;
use crate::support::nats::NatsServer;
use crate::support::poll::{LIMIT, wait_for, when};
use crate::support::{Outcome, TestEnv};

/// The users of the server, with their inboxes. Only the first has no limits.
const USERS: [(&str, &str); 6] = [
    ("admin", "_INBOX"),
    ("web1", "_INBOX_web1_example_net"),
    ("web2", "_INBOX_web2_example_net"),
    ("operator", "_INBOX_ann"),
    ("controller", "_INBOX"),
    ("monitor", "_INBOX_MONITOR"),
];

/// A server whose users have the shipped permissions, and a world for each of them.
pub(super) struct Site {
    pub(super) server: NatsServer,
    worlds: BTreeMap<&'static str, TestEnv>,
    agents: Vec<Child>,
}

impl Site {
    /// Starts a server with the streams and buckets of a fleet.
    pub(super) fn start() -> Self {
        let site = Self::empty();
        site.fleet("controller", &["init"]).ok();
        site.ccm("controller", &["registration", "init"]).ok();
        site
    }

    /// Starts a server that holds nothing yet.
    pub(super) fn empty() -> Self {
        let env = TestEnv::new();
        let rules = |args: &[&str]| {
            let printed = env.ccm(&[&["fleet", "permissions"], args].concat()).ok();
            assert!(!printed.contains('@'), "{printed}");
            printed
        };
        let agent = |number: &str| {
            rules(&[
                "agent",
                &format!("web{number}.example.net"),
                "--group",
                "web",
                "--address",
                &format!("10.0.0.{number}"),
                "--governor",
                "deploys",
                "--object-bucket",
                "SITE",
                "--kv-bucket",
                "DATA",
                "--choria-server",
                "mcollective",
            ])
        };
        let users = [
            "{ user: admin, password: pw }".to_owned(),
            user("web1", &agent("1")),
            user("web2", &agent("2")),
            user("operator", &rules(&["operator", "ann"])),
            user("controller", &rules(&["controller"])),
            user("monitor", &rules(&["monitor"])),
        ];
        let users = users.join("\n");
        let server = NatsServer::with(&format!("authorization {{ users: [\n{users}\n] }}"));
        let worlds = USERS.map(|(name, inbox)| (name, world(&server, name, inbox)));
        Self {
            server,
            worlds: worlds.into(),
            agents: Vec::new(),
        }
    }

    pub(super) fn env(&self, user: &str) -> &TestEnv {
        &self.worlds[user]
    }

    /// Runs the program as a user.
    pub(super) fn ccm(&self, user: &str, args: &[&str]) -> Outcome {
        self.env(user).ccm(args)
    }

    pub(super) fn fleet(&self, user: &str, args: &[&str]) -> Outcome {
        self.ccm(user, &[&["fleet"], args].concat())
    }

    /// Connects as a user.
    pub(super) async fn connect(&self, user: &str) -> Connection {
        let (_, inbox) = USERS.iter().find(|(name, _)| *name == user).unwrap();
        let url = self.server.url().replace("//", &format!("//{user}:pw@"));
        let mut settings = Settings::plain(&url).unwrap();
        settings.inbox_prefix = Some((*inbox).to_owned());
        let connected = connect(&settings, ConnectMode::Once(LIMIT), "test").await;
        connected.unwrap()
    }

    /// Starts the agent of a node, and waits until it is present.
    pub(super) fn agent(&mut self, node: &str, more: &str) {
        self.agent_in(node, "[web]", more);
    }

    /// Starts the agent of a node with these groups, and waits until it is present.
    pub(super) fn agent_in(&mut self, node: &str, groups: &str, more: &str) {
        let env = self.env(node);
        let config = format!(
            "identity: {node}.example.net\ngroups: {groups}\nnats_context: {node}\nbeat: 1s\n\
             interval: 1h\nstate_dir: {}\ncache_dir: {}\n{more}",
            env.at("state"),
            env.at("cache"),
        );
        env.write("agent.yaml", config);
        let log = std::fs::File::create(env.path("log")).unwrap();
        let child = env
            .command(&["agent", "--config", &env.at("agent.yaml")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.agents.push(child);
        wait_for("presence", || {
            let nodes = self.fleet("controller", &["nodes", "--jsonl"]).ok();
            let log = self.env(node).read("log");
            match nodes.contains(&format!("{node}.example.net")) {
                true => Ok(()),
                false => Err(format!("{nodes}\n{log}")),
            }
        });
    }

    /// Returns what the server forbade.
    pub(super) fn violations(&self) -> Vec<String> {
        let log = self.server.log();
        let lines = log.lines().filter(|line| line.contains("Violation"));
        lines.map(str::to_owned).collect()
    }

    fn expect_no_violation(&self) {
        assert_eq!(self.violations(), [""; 0], "{:?}", self.server.log());
    }

    /// Waits until a file of a user's world has this content.
    fn until_file(&self, user: &str, name: &str, content: &str) {
        wait_for(content, || {
            let found = std::fs::read_to_string(self.env(user).path(name));
            let found = found.unwrap_or_default();
            match found == content {
                true => Ok(()),
                false => Err(format!("{found:?}\n{}", self.env(user).read("log"))),
            }
        });
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

fn user(name: &str, rules: &str) -> String {
    format!("{{ user: {name}, password: pw, permissions: {{\n{rules}\n}} }}")
}

/// Returns a world whose context logs in as a user.
fn world(server: &NatsServer, user: &str, inbox: &str) -> TestEnv {
    let mut env = TestEnv::new();
    env.set("XDG_CONFIG_HOME", &env.at("config"));
    let context = json!({
        "url": server.url(), "user": user, "password": "pw", "inbox_prefix": inbox,
    });
    env.write_secret(
        &format!("config/nats/context/{user}.json"),
        context.to_string(),
    );
    env.set("NATS_CONTEXT", user);
    env
}

/// Writes a bundle's directory with these resources and returns it.
fn bundle(env: &TestEnv, name: &str, resources: &str) -> String {
    let manifest = format!("ccm:\n  resources:\n{resources}");
    env.write(&format!("{name}/manifest.yaml"), manifest);
    env.at(name)
}

fn touch(path: &str) -> String {
    format!("    - exec:\n        - /bin/touch {path}: {{}}\n")
}

/// Makes what administrators make: a governor, and buckets of their own.
async fn furnish(site: &Site) {
    let client = async_nats::ConnectOptions::with_user_and_password("admin".into(), "pw".into());
    let client = client.connect(site.server.url()).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    let governor = Config {
        name: "GOVERNOR_deploys".into(),
        subjects: vec!["mcollective.governor.deploys".into()],
        max_messages: 1,
        max_age: Duration::from_secs(60),
        discard: DiscardPolicy::New,
        ..Config::default()
    };
    jetstream.create_stream(governor).await.unwrap();
    let objects = async_nats::jetstream::object_store::Config {
        bucket: "SITE".into(),
        ..Default::default()
    };
    jetstream.create_object_store(objects).await.unwrap();
    let values = async_nats::jetstream::kv::Config {
        bucket: "DATA".into(),
        ..Default::default()
    };
    let values = jetstream.create_key_value(values).await.unwrap();
    values.put("greeting", "hello".into()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_does_all_its_work() {
    let mut site = Site::start();
    furnish(&site).await;
    let target = site.env("web1").at("backends");
    let resources = |greeting: &str| {
        let content = format!(
            "{greeting} {{{{ kvGet('DATA', 'greeting') }}}} {{{{ len(registrations('prod', 'http', 'web', '*')) }}}}"
        );
        format!(
            "    - exec:\n        - web:\n            command: /bin/true\n            register_when_stable:\n              - {{cluster: prod, service: web, protocol: http, address: 10.0.0.1, port: 80, priority: 1}}\n    - file:\n        - {target}: {{ensure: present, content: \"{content}\", owner: root, group: root, mode: 0644}}\n"
        )
    };
    let store = |site: &Site, greeting: &str| {
        let directory = bundle(site.env("admin"), "site", &resources(greeting));
        let source = "obj://SITE/site.tar.gz";
        let args = [
            "bundle", "push", &directory, "--name", "site", "--source", source,
        ];
        site.fleet("admin", &args).ok();
    };
    store(&site, "first");
    site.agent(
        "web1",
        "manifests: ['obj://SITE/site.tar.gz']\nregistration: jetstream\n\
         registration_watch: true\nchoria:\n  events: true\n",
    );
    // It fetched the bundle, read data, registered its service, and saw that with its watch.
    site.until_file("web1", "backends", "first hello 1");
    let entry = json!({
        "cluster": "prod", "service": "web", "protocol": "http", "address": "10.0.0.9",
        "port": 80, "priority": 1,
    });
    let entry = serde_json::from_value(entry).unwrap();
    let operator = site.connect("operator").await;
    let stream = ccm_nats::registration::Destination::Jetstream("REGISTRATION".into());
    operator.register(&entry, &stream).await.unwrap();
    site.until_file("web1", "backends", "first hello 2");
    // A bundle that is stored again is fetched at once.
    store(&site, "second");
    wait_for("the second bundle", || {
        let found = site.env("web1").read("backends");
        when(found.starts_with("second hello"), found)
    });
    // It answers as itself, in its group, and among all.
    let token = "web1_example_net".parse().unwrap();
    let group = "web".parse().unwrap();
    for subject in [
        subjects().node(&token, Verb::Ping),
        subjects().group(&group, Verb::Ping),
        subjects().all(Verb::Ping),
        format!("$SRV.PING.ccm.{token}").parse().unwrap(),
    ] {
        let request = operator.request(&subject, Headers::new(), "".into(), LIMIT);
        request.await.unwrap();
    }
    // It follows an assignment, with a bundle of the fleet and a slot of a governor.
    let done = site.env("web1").at("assigned");
    let directory = bundle(site.env("controller"), "app", &touch(&done));
    let push = ["bundle", "push", &directory, "--name", "app"];
    site.fleet("controller", &push).ok();
    let start = ["rollout", "start", "app", "--all", "--governor", "deploys"];
    site.fleet("controller", &start).ok();
    assert!(site.env("web1").exists("assigned"));
    // Its report, its events and its presence arrived.
    wait_for("events", || {
        let events = site.fleet("monitor", &["events", "--jsonl"]).ok();
        when(events.contains("/bin/touch"), events)
    });
    let drift = site.fleet("monitor", &["drift", "--json"]);
    assert!(drift.stdout.contains("web1.example.net"), "{drift:?}");
    let bucket = operator.bucket("CCM_FACTS").await.unwrap();
    let stored = bucket.get("default.web1_example_net").await.unwrap();
    assert!(stored.is_some(), "its facts are not stored");
    site.expect_no_violation();
}

#[test]
fn an_operator_sends_requests_and_starts_rollouts_for_a_controller() {
    let mut site = Site::start();
    site.agent("web1", "");
    let operator = |args: &[&str]| site.fleet("operator", args);
    assert!(operator(&["ping", "--all"]).ok().contains("1 node"));
    let facts = operator(&["facts", "--node", "web1.example.net"]);
    assert!(facts.stdout.contains("web1.example.net"), "{facts:?}");
    let file = site.env("web1").at("f");
    operator(&["status", "file", &file, "--all"]).ok();
    operator(&["ensure", "exec", "/bin/true", "--all"]).ok();
    operator(&["label", "web1.example.net", "tier=gold"]).ok();
    assert!(operator(&["nodes", "--json"]).ok().contains("gold"));
    operator(&["pause", "web1.example.net", "--reason", "x", "--for", "1h"]).ok();
    operator(&["resume", "web1.example.net"]).ok();
    let manifest = format!(
        "ccm:\n  resources:\n{}",
        touch(&site.env("web1").at("applied"))
    );
    site.env("operator").write("manifest.yaml", manifest);
    operator(&["apply", "manifest.yaml", "--all", "--wait"]).ok();
    assert!(site.env("web1").exists("applied"));
    // A signature that is stored again replaces the one before.
    let directory = bundle(
        site.env("operator"),
        "app",
        &touch(&site.env("web1").at("app")),
    );
    site.ccm("operator", &["keys", "new", "ops.seed"]).ok();
    let push = ["bundle", "push", &directory, "--name", "app"];
    let signed = [&push[..], &["--sign-with", "ops.seed"]].concat();
    operator(&signed).ok();
    operator(&signed).ok();
    assert!(operator(&["bundle", "list"]).ok().contains("app"));
    let plan = operator(&["rollout", "plan", "app", "--all", "--noop-first"]);
    assert!(plan.stdout.contains("/bin/touch"), "{plan:?}");
    let started = operator(&["rollout", "start", "app", "--all", "--detach", "--json"]).json();
    let id = started["id"].as_str().unwrap();
    assert!(operator(&["rollout", "list"]).ok().contains(id));
    operator(&["rollout", "pause", id, "--reason", "lunch"]).ok();
    let shown = operator(&["rollout", "show", id, "--json"]).json();
    assert_eq!(shown["state"]["name"], "paused", "{shown}");
    operator(&["rollout", "resume", id, "--detach"]).ok();
    site.fleet("controller", &["rollout", "drive", id]).ok();
    assert!(site.env("web1").exists("app"));
    let watched = operator(&["rollout", "watch", id, "--json"]).json();
    assert_eq!(watched["state"]["name"], "done", "{watched}");
    let second = operator(&["rollout", "start", "app", "--all", "--detach", "--json"]).json();
    let aborted = operator(&["rollout", "abort", second["id"].as_str().unwrap()]);
    assert_eq!(aborted.code, Some(3), "{aborted:?}");
    let drift = operator(&["drift", "--json"]);
    assert!(drift.stdout.contains("web1.example.net"), "{drift:?}");
    assert!(operator(&["events", "--jsonl"]).ok().contains("/bin/touch"));
    let query = operator(&["query", "Labels.tier == 'gold'", "--csv"]).ok();
    assert!(query.contains("web1.example.net"), "{query}");
    assert!(operator(&["runs"]).ok().contains("web1.example.net"));
    operator(&["bundle", "diff", "app", "app"]).ok();
    let words = ["registration", "query"];
    site.ccm("operator", &words).ok();
    site.expect_no_violation();
}

#[test]
fn a_controller_does_all() {
    let mut site = Site::start();
    site.agent("web1", "");
    let controller = |args: &[&str]| site.fleet("controller", args);
    assert!(controller(&["init"]).ok().contains("unchanged"));
    controller(&["ping", "--all"]).ok();
    controller(&["label", "web1.example.net", "tier=gold"]).ok();
    let env = site.env("controller");
    for name in ["one", "two"] {
        let directory = bundle(env, name, &touch(&site.env("web1").at(name)));
        controller(&["bundle", "push", &directory, "--name", name]).ok();
        controller(&["rollout", "start", name, "--all"]).ok();
        assert!(site.env("web1").exists(name));
    }
    let all = controller(&["rollout", "list", "--json"]).json();
    let last = all.as_array().unwrap().last().unwrap()["id"].clone();
    controller(&["rollout", "rollback", last.as_str().unwrap()]).ok();
    assert!(controller(&["drift", "--json"]).stdout.contains("web1"));
    let events = ["events", "--durable", "pager", "--jsonl", "--since", "1h"];
    let output = controller(&events).ok();
    assert!(output.contains("/bin/touch"), "{output}");
    let removed = bundle(env, "three", &touch("/dev/null"));
    let pushed = controller(&["bundle", "push", &removed, "--name", "three", "--json"]).json();
    let digest = pushed["digest"].as_str().unwrap();
    controller(&["bundle", "rm", &format!("three@{digest}")]).ok();
    let backup = env.at("backup");
    controller(&["backup", &backup]).ok();
    controller(&["restore", &backup, "--force"]).ok();
    let forget = ["forget", "web1.example.net", "--force", "--yes"];
    controller(&forget).ok();
    site.expect_no_violation();
}

#[test]
fn a_monitor_reads_everything() {
    let mut site = Site::start();
    site.agent("web1", "");
    let directory = bundle(
        site.env("controller"),
        "app",
        &touch(&site.env("web1").at("app")),
    );
    let push = ["bundle", "push", &directory, "--name", "app"];
    site.fleet("controller", &push).ok();
    site.fleet("controller", &["rollout", "start", "app", "--all"])
        .ok();
    // A controller makes the consumer that the monitor reads from then on.
    let durable = ["events", "--durable", "wall", "--jsonl", "--since", "1h"];
    site.fleet("controller", &durable).ok();
    let monitor = |args: &[&str]| site.fleet("monitor", args);
    assert!(monitor(&["nodes"]).ok().contains("web1.example.net"));
    assert!(monitor(&["bundle", "list"]).ok().contains("app"));
    let all = monitor(&["rollout", "list", "--json"]).json();
    let id = all[0]["id"].as_str().unwrap();
    monitor(&["rollout", "show", id]).ok();
    monitor(&["rollout", "watch", id]).ok();
    assert!(monitor(&["drift", "--json"]).stdout.contains("web1"));
    assert!(monitor(&["events", "--jsonl"]).ok().contains("/bin/touch"));
    let query = monitor(&["query", "'web' in groups", "--csv"]).ok();
    assert!(query.contains("web1.example.net"), "{query}");
    assert!(monitor(&["runs"]).ok().contains("web1.example.net"));
    site.ccm("monitor", &["registration", "query"]).ok();
    let mut following = site
        .env("monitor")
        .command(&["fleet", "events", "--follow", "--limit", "1", "--jsonl"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut page, line) =
        site.env("monitor")
            .start(&["fleet", "serve", "--listen", "127.0.0.1:0"]);
    let address = line.trim().trim_start_matches("serving http://");
    let address = address.trim_end_matches('/').to_owned();
    wait_for("the page has everything", || {
        let answer = get(&address, "/healthz");
        when(answer.starts_with("HTTP/1.1 200"), answer)
    });
    // Whether it follows already can't be seen, so there is an event until it has one.
    wait_for("an event is followed", || {
        site.fleet("operator", &["ensure", "exec", "/bin/true", "--all"])
            .ok();
        following.try_wait().unwrap()
    });
    let mut stdout = String::new();
    let mut output = following.stdout.take().unwrap();
    output.read_to_string(&mut stdout).unwrap();
    let stdout: Value = serde_json::from_str(stdout.trim()).unwrap();
    assert!(stdout.is_object(), "{stdout}");
    wait_for("the event on the page", || {
        let answer = get(&address, "/api/events");
        when(answer.contains("/bin/true"), answer)
    });
    let stdout = monitor(&["events", "--durable", "wall", "--jsonl"]).ok();
    assert!(stdout.contains("/bin/true"), "{stdout}");
    page.kill().unwrap();
    page.wait().unwrap();
    site.expect_no_violation();
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
