//! The external agent, driven as Choria's server does it: six variables, three arguments, a
//! temporary directory, files. Every action, every code, runs that outlive their request.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::nats::{NatsServer, python};
use crate::support::{TestEnv, http, pack};

const ACTIVATION: &str = "io.choria.mcorpc.external.v1.activation_request";
/// A manifest that always comes through.
const STABLE: &str = "ccm: {resources: [{exec: {name: /bin/true}}]}";

const RPC: &str = "io.choria.mcorpc.external.v1.rpc_request";

/// A server with one agent.
struct Server {
    env: TestEnv,
    /// What it starts, and with which arguments before its own.
    agent: (PathBuf, Vec<String>),
    facts: Value,
}

/// What the server makes of one request.
#[derive(Debug)]
#[must_use]
struct Reply {
    code: u64,
    message: String,
    data: Value,
    /// What was printed, for the server's log.
    log: String,
}

impl Reply {
    fn ok(self) -> Value {
        assert_eq!((self.code, self.message.as_str()), (0, "OK"), "{self:?}");
        assert_eq!(self.log, "", "a success prints nothing");
        self.data
    }

    /// Returns the message of a reply with this code, which is also logged.
    fn refused(self, code: u64) -> String {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.log.lines().count(), 1, "{self:?}");
        self.message
    }
}

impl Server {
    fn new() -> Self {
        let server = Self {
            env: TestEnv::new(),
            agent: (
                env!("CARGO_BIN_EXE_ccm").into(),
                vec!["choria".into(), "agent".into()],
            ),
            facts: json!({}),
        };
        server.configure("");
        server
    }

    /// Writes the agent's own file; runs are always kept in the scratch directory.
    fn configure(&self, lines: &str) {
        let state = self.env.at("state");
        self.env
            .write("plugin.d/ccm", format!("state_dir = {state}\n{lines}"));
    }

    fn runs(&self, name: &str) -> PathBuf {
        self.env.path("state/choria-runs").join(name)
    }

    /// Returns the agent, ready to be started for a request of these bytes.
    fn command(&self, protocol: &str, request: &[u8]) -> (Command, PathBuf) {
        let directory = tempfile::tempdir_in(self.env.root()).unwrap().keep();
        let at = |name: &str| directory.join(name);
        std::fs::write(at("request"), request).unwrap();
        std::fs::write(at("reply"), "").unwrap();
        let facts = match protocol {
            ACTIVATION => String::new(),
            _ => self.facts.to_string(),
        };
        std::fs::write(at("facts"), facts).unwrap();
        let mut command = Command::new(&self.agent.0);
        command
            .args(&self.agent.1)
            .args([at("request"), at("reply")])
            .arg(RPC)
            .current_dir(&directory)
            .env_clear()
            .env("CHORIA_EXTERNAL_REQUEST", at("request"))
            .env("CHORIA_EXTERNAL_REPLY", at("reply"))
            .env("CHORIA_EXTERNAL_PROTOCOL", protocol)
            .env("CHORIA_EXTERNAL_CONFIG", self.env.path("plugin.d/ccm"))
            .env("CHORIA_EXTERNAL_FACTS", at("facts"))
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
            .stdin(Stdio::null());
        (command, at("reply"))
    }

    /// Reads a reply as the server does: not before all output is closed.
    fn read(output: Output, reply: PathBuf) -> Reply {
        assert!(output.status.success(), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        let text = std::fs::read_to_string(reply).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        assert!(document["data"].is_object(), "{document:#}");
        Reply {
            code: document["statuscode"].as_u64().unwrap(),
            message: document["statusmsg"].as_str().unwrap().into(),
            data: document["data"].clone(),
            log: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn send(&self, request: &[u8]) -> Reply {
        let (mut command, reply) = self.command(RPC, request);
        Self::read(command.output().unwrap(), reply)
    }

    fn request(action: &str, data: Value) -> Vec<u8> {
        json!({
            "$schema": "https://choria.io/schemas/mcorpc/external/v1/rpc_request.json",
            "protocol": RPC,
            "agent": "ccm",
            "action": action,
            "requestid": "8d0cb5e3d9a64c5b8a8f0f3a3f5d7c11",
            "senderid": "ops1",
            "callerid": "choria=ann.mcollective",
            "collective": "mcollective",
            "ttl": 60,
            "msgtime": 1_790_000_000,
            "data": data,
        })
        .to_string()
        .into_bytes()
    }

    fn ask(&self, action: &str, data: Value) -> Reply {
        self.send(&Self::request(action, data))
    }

    /// Asks about a run until it is over.
    fn wait_for(&self, run_id: &Value) -> Value {
        for _ in 0..1200 {
            let run = self.ask("run_status", json!({ "run_id": run_id })).ok();
            if run["state"] != "running" {
                return run;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("run {run_id} does not end");
    }

    fn activate(&self) -> (Value, String) {
        let request = json!({
            "$schema": "https://choria.io/schemas/mcorpc/external/v1/activation_request.json",
            "protocol": ACTIVATION,
            "agent": "ccm",
        });
        let (mut command, reply) = self.command(ACTIVATION, request.to_string().as_bytes());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let reply = std::fs::read_to_string(reply).unwrap();
        (
            serde_json::from_str(&reply).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }

    /// Returns a manifest that is not done before `go` is there, or a minute later.
    fn patient_manifest(&self) -> String {
        let (go, done) = (self.env.at("go"), self.env.at("done"));
        format!(
            "ccm:\n  resources:\n    - exec:\n        - wait:\n            provider: shell\n            \
             command: 'for i in $(seq 1200); do test -e {go} && exec touch {done}; sleep 0.05; done'\n"
        )
    }

    /// Begins a run that goes on, and returns its id and the process behind it.
    fn begin(&self) -> (Value, String) {
        let run = self.ask("apply", json!({"manifest": self.patient_manifest()}));
        let run = run.ok();
        assert_eq!(run["state"], "running");
        let holder = std::fs::read_to_string(self.runs("lock")).unwrap();
        let pid = holder.split(' ').nth(1).unwrap().to_owned();
        (run["run_id"].clone(), pid)
    }

    fn go(&self) {
        self.env.write("go", "");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Whatever still waits ends with the test.
        let _ = std::fs::write(self.env.path("go"), "");
    }
}

fn file(path: &str, content: &str) -> Value {
    json!({"type": "file", "name": path, "ensure": "present",
           "properties": {"content": content, "owner": "root", "group": "root", "mode": "0644"}})
}

#[test]
fn the_agent_activates_unless_its_file_says_no() {
    let server = Server::new();
    assert_eq!(server.activate(), (json!({"activate": true}), "".into()));
    server.configure("activate = false\n");
    assert_eq!(server.activate(), (json!({"activate": false}), "".into()));
    std::fs::remove_file(server.env.path("plugin.d/ccm")).unwrap();
    assert_eq!(server.activate().0, json!({"activate": true}));
}

#[test]
fn an_agent_whose_file_is_wrong_does_not_activate_and_says_why() {
    let server = Server::new();
    server.configure("activte = true\n");
    let (reply, log) = server.activate();
    assert_eq!(reply, json!({"activate": false}));
    let expected = "plugin.d/ccm line 2: unknown key \"activte\", did you mean \"activate\"?\n";
    assert!(log.ends_with(expected), "{log}");
    let message = server.ask("ping", json!({})).refused(1);
    assert!(message.ends_with(expected.trim_end()), "{message}");
}

#[test]
fn ensure_changes_a_resource_once() {
    let server = Server::new();
    let path = server.env.at("motd");
    let first = server.ask("ensure", file(&path, "hi\n")).ok();
    assert_eq!(server.env.read("motd"), "hi\n");
    assert_eq!(
        (&first["state"], &first["changed"], &first["failed"]),
        (&json!("finished"), &json!(true), &json!(false))
    );
    assert_eq!(first["ensure"], "present");
    assert_eq!(
        first["event"]["protocol"],
        "io.choria.ccm.v1.transaction.event"
    );
    let second = server.ask("ensure", file(&path, "hi\n")).ok();
    assert_eq!(second["changed"], false);
    let status = server.ask("run_status", json!({"run_id": first["run_id"]}));
    assert_eq!(status.ok()["source"], format!("file#{path}"));
}

#[test]
fn ensure_takes_a_whole_request_too() {
    let server = Server::new();
    let path = server.env.at("motd");
    let request = json!({"protocol": "io.choria.ccm.v1.resource.ensure.request", "type": "file",
        "properties": {"name": path, "ensure": "present", "content": "whole",
                       "owner": "root", "group": "root", "mode": "0600"}});
    let reply = server.ask("ensure", json!({"request": request})).ok();
    assert_eq!(reply["changed"], true);
    assert_eq!(server.env.read("motd"), "whole");
}

#[test]
fn ensure_in_noop_says_what_it_would_do() {
    let server = Server::new();
    let mut data = file(&server.env.at("motd"), "hi");
    data["noop"] = json!(true);
    let reply = server.ask("ensure", data).ok();
    assert_eq!(
        (&reply["noop"], &reply["changed"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(reply["message"], "Would have created the file");
    assert!(!server.env.exists("motd"));
}

#[test]
fn a_node_that_is_noop_only_changes_nothing() {
    let server = Server::new();
    server.configure("noop = true\n");
    let reply = server
        .ask("ensure", file(&server.env.at("motd"), "hi"))
        .ok();
    assert_eq!(reply["noop"], true);
    let manifest = "ccm: {resources: [{exec: {name: /usr/bin/false}}]}";
    let reply = server.ask("apply", json!({"manifest": manifest, "wait": 10}));
    assert_eq!(reply.ok()["outcome"], "noop");
    assert!(!server.env.exists("motd"));
}

#[test]
fn a_paused_node_only_looks() {
    let server = Server::new();
    let pause = r#"{"reason":"moving house","since":"2026-01-01T00:00:00Z"}"#;
    server.env.write("state/pause.json", pause);
    let mut data = file(&server.env.at("motd"), "hi");
    let message = server.ask("ensure", data.clone()).refused(1);
    assert_eq!(message, "the node is paused: moving house");
    data["noop"] = json!(true);
    assert_eq!(server.ask("ensure", data).ok()["changed"], true);
}

#[test]
fn status_tells_the_state_of_a_resource() {
    let server = Server::new();
    let path = server.env.write("motd", "hello");
    let reply = server
        .ask("status", json!({"type": "file", "name": path}))
        .ok();
    assert_eq!(reply["ensure"], "present");
    assert_eq!(
        reply["state"]["protocol"],
        "io.choria.ccm.v1.resource.file.state"
    );
    assert_eq!(reply["state"]["metadata"]["size"], 5);
    let gone = json!({"type": "file", "name": server.env.at("gone")});
    assert_eq!(server.ask("status", gone).ok()["ensure"], "absent");
}

#[test]
fn status_of_a_scaffold_compares_it_with_its_source() {
    let server = Server::new();
    server.env.write("templates/a", "x");
    let data = json!({"type": "scaffold", "name": server.env.at("out"), "provider": "choria",
                      "properties": {"source": server.env.at("templates"), "engine": "jet"}});
    let reply = server.ask("status", data).ok();
    assert_eq!(reply["state"]["metadata"]["engine"], "jet", "{reply:#}");
}

#[test]
fn facts_are_ours_whole_or_by_path() {
    let mut server = Server::new();
    server.facts = json!({"role": "web"});
    let all = server.ask("facts", json!({})).ok();
    assert!(all["value"]["host"]["info"].is_object(), "{all:#}");
    assert!(all["value"].get("role").is_none());
    let one = server.ask("facts", json!({"query": "host.info.os"})).ok();
    assert_eq!(one["value"], "linux");
    let message = server.ask("facts", json!({"query": "nope.x"})).refused(1);
    assert_eq!(message, "no fact matches the query");
}

#[test]
fn ping_tells_who_the_node_is_and_what_it_is_doing() {
    let server = Server::new();
    let idle = server.ask("ping", json!({})).ok();
    assert_eq!(idle["version"], env!("CARGO_PKG_VERSION"));
    assert!(!idle["identity"].as_str().unwrap().is_empty());
    assert_eq!(
        (&idle["state"], &idle["current_run"]),
        (&json!("none"), &json!(""))
    );
    let (run_id, _) = server.begin();
    let busy = server.ask("ping", json!({})).ok();
    assert_eq!(busy["current_run"], run_id);
    assert_eq!(busy["state"], "running");
    server.go();
    server.wait_for(&run_id);
    let over = server.ask("ping", json!({})).ok();
    assert_eq!(
        (&over["last_run"], &over["current_run"]),
        (&run_id, &json!(""))
    );
    assert_eq!(over["summary"]["total_resources"], 1);
}

#[test]
fn an_apply_outlives_its_request_and_is_asked_about() {
    let server = Server::new();
    let (run_id, pid) = server.begin();
    // The server heard the end of our output, and the run goes on in a session of its own.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<&str> = fields.split(' ').collect();
    assert_eq!((fields[2], fields[3]), (pid.as_str(), pid.as_str()));
    let latest = server.ask("run_status", json!({})).ok();
    assert_eq!(
        (&latest["run_id"], &latest["state"]),
        (&run_id, &json!("running"))
    );
    assert!(!server.env.exists("done"));
    server.go();
    let run = server.wait_for(&run_id);
    assert_eq!(
        (&run["state"], &run["outcome"]),
        (&json!("finished"), &json!("changed"))
    );
    assert_eq!(
        (&run["total"], &run["changed"], &run["failed"]),
        (&json!(1), &json!(1), &json!(0))
    );
    assert_eq!(run["events"][0]["resource"], "exec#wait");
    assert!(server.env.exists("done"));
}

#[test]
fn a_second_run_is_refused_while_one_goes_on() {
    let server = Server::new();
    let (run_id, _) = server.begin();
    let expected = format!(
        "run {} is going on: wait for its end",
        run_id.as_str().unwrap()
    );
    let manifest = json!({"manifest": STABLE});
    assert_eq!(server.ask("apply", manifest).refused(1), expected);
    let ensure = file(&server.env.at("motd"), "hi");
    assert_eq!(server.ask("ensure", ensure).refused(1), expected);
    assert!(!server.env.exists("motd"));
    // Who only looks does not wait.
    let looked = json!({"type": "file", "name": "/etc"});
    assert_eq!(server.ask("status", looked).ok()["ensure"], "directory");
}

#[test]
fn of_many_runs_at_once_one_begins() {
    let server = Server::new();
    let request = Server::request("apply", json!({"manifest": server.patient_manifest()}));
    let started: Vec<_> = (0..6)
        .map(|_| {
            let (mut command, reply) = server.command(RPC, &request);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            (command.spawn().unwrap(), reply)
        })
        .collect();
    let mut begun = 0;
    for (child, reply) in started {
        let reply = Server::read(child.wait_with_output().unwrap(), reply);
        match reply.code {
            0 => begun += 1,
            _ => assert!(reply.refused(1).contains("is going on"), "not busy"),
        }
    }
    assert_eq!(begun, 1);
}

#[test]
fn a_run_that_is_killed_is_lost_and_the_next_one_begins() {
    let server = Server::new();
    let (run_id, pid) = server.begin();
    assert!(
        Command::new("kill")
            .args(["-9", &pid])
            .status()
            .unwrap()
            .success()
    );
    let run = server.wait_for(&run_id);
    assert_eq!(
        (&run["state"], &run["outcome"]),
        (&json!("lost"), &json!(""))
    );
    server.go();
    let next = server.ask("apply", json!({"manifest": STABLE, "wait": 10}));
    assert_eq!(next.ok()["state"], "finished");
    let ping = server.ask("ping", json!({})).ok();
    assert_eq!(ping["state"], "finished");
}

#[test]
fn an_apply_takes_a_path_data_and_choria_s_facts() {
    let mut server = Server::new();
    server.facts = json!({"role": "web", "host": {"info": {"os": "plan9"}}});
    let target = server.env.at("out");
    let manifest = server.env.write(
        "site/manifest.yaml",
        format!(
            "data:\n  greeting: hello\nccm:\n  resources:\n    - file:\n        - {target}:\n            \
             ensure: present\n            owner: root\n            group: root\n            mode: '0644'\n            \
             content: '{{{{ Data.greeting }}}} {{{{ Facts.role }}}} {{{{ Facts.host.info.os }}}}'\n"
        ),
    );
    let data = json!({"source": manifest, "data": {"greeting": "hi"}, "wait": 10});
    let run = server.ask("apply", data).ok();
    assert_eq!(
        (&run["state"], &run["source"]),
        (&json!("finished"), &json!(manifest))
    );
    assert_eq!(server.env.read("out"), "hi web linux");
}

#[test]
fn an_apply_takes_a_bundle_from_a_server_or_an_object_store() {
    let server = Server::new();
    let target = server.env.at("made");
    let manifest = format!("ccm: {{resources: [{{exec: {{name: /usr/bin/touch {target}}}}}]}}");
    let bundle = pack::tgz(&[("site/manifest.yaml", &manifest)]);
    let web = http::Server::serving(bundle.clone());
    let nats = NatsServer::start();
    let file = server.env.write("bundle.tgz", bundle);
    python("stores.py", &[&nats.url(), &file]);
    server.configure(&format!("nats_server = {}\n", nats.url()));
    let object = "obj://MANIFESTS/sites/web.tgz".to_owned();
    for source in [web.url("/site.tar.gz"), object] {
        let run = server
            .ask("apply", json!({"source": source, "wait": 10}))
            .ok();
        assert_eq!(
            (&run["state"], &run["source"]),
            (&json!("finished"), &json!(source))
        );
        std::fs::remove_file(&target).unwrap();
    }
}

#[test]
fn an_apply_in_noop_or_of_health_checks_changes_nothing() {
    let server = Server::new();
    let touched = server.env.at("touched");
    let manifest = format!(
        "ccm:\n  resources:\n    - exec:\n        - /usr/bin/touch {touched}:\n            \
         health_checks: [{{command: /bin/true}}]\n"
    );
    for (key, outcome) in [("noop", "noop"), ("health_check_only", "stable")] {
        let run = server.ask(
            "apply",
            json!({"manifest": manifest, key: true, "wait": 10}),
        );
        let run = run.ok();
        assert_eq!(run["outcome"], outcome, "{run:#}");
        assert!(!server.env.exists("touched"));
    }
}

#[test]
fn a_resource_that_fails_is_code_1_with_everything_there_is_to_tell() {
    let server = Server::new();
    let data = json!({"type": "exec", "name": "/bin/false"});
    let reply = server.ask("ensure", data);
    assert_eq!(reply.data["failed"], true);
    assert_eq!(reply.data["state"], "failed");
    assert_eq!(reply.data["event"]["failed"], true);
    let message = reply.refused(1);
    assert!(message.starts_with("exec#/bin/false failed: "), "{message}");
    let manifest =
        json!({"manifest": "ccm: {resources: [{exec: {name: /bin/false}}]}", "wait": 10});
    let reply = server.ask("apply", manifest);
    assert_eq!(reply.data["failed"], 1);
    assert_eq!(reply.data["events"][0]["outcome"], "failed");
    let run_id = reply.data["run_id"].clone();
    let _ = reply.refused(1);
    // Asking is no failure.
    let run = server.ask("run_status", json!({ "run_id": run_id })).ok();
    assert_eq!(run["state"], "failed");
}

#[test]
fn an_action_that_the_node_does_not_allow_is_code_1() {
    let server = Server::new();
    server.configure("actions = ping, status\n");
    let message = server.ask("ensure", file("/x", "y")).refused(1);
    assert_eq!(message, "ensure is not among this node's actions");
    let _ = server.ask("ping", json!({})).ok();
}

#[test]
fn an_action_that_does_not_exist_is_code_2() {
    let server = Server::new();
    let message = server.ask("aply", json!({})).refused(2);
    assert_eq!(message, "unknown action \"aply\", did you mean \"apply\"?");
}

#[test]
fn an_input_that_is_missing_is_code_3() {
    let server = Server::new();
    for (action, data, name) in [
        ("ensure", json!({"type": "file"}), "name"),
        ("ensure", json!({"name": "/x"}), "type"),
        ("status", json!({"type": "file"}), "name"),
        ("apply", json!({}), "source or manifest"),
        ("apply", Value::Null, "source or manifest"),
    ] {
        let message = server.ask(action, data).refused(3);
        assert_eq!(message, format!("{name} is required"));
    }
}

#[test]
fn an_input_that_is_wrong_is_code_4() {
    let server = Server::new();
    let unknown = "3Ouil37bUs2V3TmTG2OoEYtuLS3";
    for (action, data, text) in [
        (
            "ping",
            json!("x"),
            "the data of a request must be an object",
        ),
        (
            "apply",
            json!({"source": "/a", "manifest": "b"}),
            "source and manifest exclude each other",
        ),
        (
            "apply",
            json!({"source": "/a", "noop": true, "health_check_only": true}),
            "noop and health_check_only exclude each other",
        ),
        (
            "apply",
            json!({"source": "/a", "wait": 11}),
            "wait must be from 0 to 10 seconds",
        ),
        (
            "apply",
            json!({"source": "/a", "wait": -1}),
            "wait must be from 0 to 10 seconds",
        ),
        (
            "apply",
            json!({"sorce": "/a"}),
            "unknown input \"sorce\", did you mean \"source\"?",
        ),
        (
            "ensure",
            json!({"type": "file", "name": "/a", "properties": {"name": "/b"}}),
            "name is given twice, as an input and in properties",
        ),
        (
            "ensure",
            json!({"request": {}, "type": "file"}),
            "request and type exclude each other",
        ),
        ("ensure", json!({"request": {}}), "invalid protocol \"\""),
        (
            "ensure",
            json!({"type": "file", "name": "/a", "properties": {"contnt": "x"}}),
            "unknown property \"contnt\", did you mean \"content\"?",
        ),
        (
            "run_status",
            json!({ "run_id": unknown }),
            "run 3Ouil37bUs2V3TmTG2OoEYtuLS3 is not known",
        ),
        (
            "status",
            json!({"type": "file", "name": "a"}),
            "file name must be an absolute path, got \"a\"",
        ),
    ] {
        assert_eq!(server.ask(action, data).refused(4), text);
    }
}

#[test]
fn a_resource_or_manifest_that_can_not_be_is_code_4() {
    let server = Server::new();
    let mut data = file(&server.env.at("motd"), "x");
    data["ensure"] = json!("here");
    let reply = server.ask("ensure", data);
    assert_eq!(reply.data["failed"], true);
    let message = reply.refused(4);
    assert!(message.starts_with("invalid ensure value"), "{message}");
    let manifest = json!({"manifest": "ccm: {resources: [{nope: {}}]}", "wait": 10});
    let message = server.ask("apply", manifest).refused(4);
    assert!(message.contains("nope"), "{message}");
}

#[test]
fn a_machine_that_is_in_the_way_is_code_5() {
    let server = Server::new();
    server.env.write("state", "a file");
    let message = server.ask("ping", json!({})).refused(5);
    assert!(message.contains("choria-runs"), "{message}");
}

#[test]
fn a_request_that_is_none_gets_a_reply_all_the_same() {
    let server = Server::new();
    let huge = vec![b' '; 9 << 20];
    let other = br#"{"protocol":"x","agent":"ccm","action":"ping"}"#;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for (request, text) in [
        (&b""[..], "the request is empty"),
        (b"\xff\xfe", "the request is not UTF-8"),
        (b"hunter2", "line 1 column 1"),
        (b"{\"protocol\": 5}", "line 1 column"),
        (other, "the request must be of protocol"),
        (deep.as_bytes(), "the request is not one of protocol"),
        (&huge, "the request is longer than 8388608 bytes"),
    ] {
        let message = server.send(request).refused(4);
        assert!(
            message.contains(text) && !message.contains("hunter2"),
            "{message}"
        );
    }
    let (mut command, reply) = server.command("io.choria.nope", b"{}");
    let message = Server::read(command.output().unwrap(), reply).refused(4);
    assert!(message.starts_with("unknown protocol"), "{message}");
    let (mut command, reply) = server.command(RPC, b"");
    command.env("CHORIA_EXTERNAL_REQUEST", "/no/such/file");
    let _ = Server::read(command.output().unwrap(), reply).refused(5);
}

#[test]
fn without_a_server_there_is_no_reply_and_an_error() {
    let env = TestEnv::new();
    let error = env.ccm(&["choria", "agent"]).error(1);
    assert!(error.contains("CHORIA_EXTERNAL_REPLY"), "{error}");
}

#[test]
fn the_arguments_name_the_files_if_no_variable_does() {
    let server = Server::new();
    let (mut command, reply) = server.command(RPC, &Server::request("ping", json!({})));
    command
        .env_remove("CHORIA_EXTERNAL_REQUEST")
        .env_remove("CHORIA_EXTERNAL_REPLY");
    let _ = Server::read(command.output().unwrap(), reply).ok();
}

#[test]
fn facts_of_choria_that_can_not_be_read_stop_a_run() {
    let server = Server::new();
    let request = Server::request("ensure", file(&server.env.at("motd"), "x"));
    let (mut command, reply) = server.command(RPC, &request);
    command.env("CHORIA_EXTERNAL_FACTS", server.env.write("broken", "{"));
    let message = Server::read(command.output().unwrap(), reply).refused(1);
    assert!(
        message.starts_with("could not read Choria's facts"),
        "{message}"
    );
    assert!(!server.env.exists("motd"));
}

#[test]
fn every_request_is_audited_and_no_secret_is_kept() {
    let server = Server::new();
    server.configure("actions = apply, ensure, ping\n");
    let mut data = file(&server.env.at("motd"), "hunter2");
    data["properties"]["sensitive"] = json!(true);
    let run_id = server.ask("ensure", data).ok()["run_id"].clone();
    let url = "http://ann:hunter2@127.0.0.1:1/site.tar.gz";
    let failed = server.ask(
        "apply",
        json!({"source": url, "data": {"key": "hunter2"}, "wait": 10}),
    );
    assert!(!failed.refused(1).contains("hunter2"));
    let _ = server.ask("status", json!({})).refused(1);
    let log = std::fs::read_to_string(server.runs("audit.log")).unwrap();
    let events: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let verbs: Vec<_> = events
        .iter()
        .map(|event| (&event["verb"], &event["decision"]))
        .collect();
    assert_eq!(
        json!(verbs),
        json!([
            ["ensure", "allowed"],
            ["apply", "allowed"],
            ["status", "denied"]
        ])
    );
    assert_eq!(events[0]["run_id"], run_id);
    assert_eq!(events[0]["caller"], "choria=ann.mcollective from ops1");
    assert_eq!(events[0]["request_id"], "8d0cb5e3d9a64c5b8a8f0f3a3f5d7c11");
    for entry in std::fs::read_dir(server.runs("")).unwrap().flatten() {
        if entry.path().is_file() {
            let text = std::fs::read_to_string(entry.path()).unwrap();
            assert!(!text.contains("hunter2"), "{:?}", entry.path());
        }
    }
}

#[test]
fn what_is_kept_is_ours_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let server = Server::new();
    let _ = server
        .ask("apply", json!({"manifest": STABLE, "wait": 10}))
        .ok();
    let mode = |path: PathBuf| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(server.runs("")), 0o700);
    for entry in std::fs::read_dir(server.runs("")).unwrap().flatten() {
        let expected = if entry.path().is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode(entry.path()), expected, "{:?}", entry.path());
    }
}

#[test]
fn an_installed_agent_answers() {
    let mut server = Server::new();
    let libdir = server.env.path("plugins");
    std::fs::create_dir(&libdir).unwrap();
    let install = ["choria", "install", "--libdir", "plugins"];
    let agents = "plugins/mcollective/agent";
    let said = |word: &str| {
        format!("{agents}/ccm {word}\n{agents}/ccm.ddl {word}\n{agents}/ccm.json {word}\n")
    };
    assert_eq!(server.env.ccm(&install).ok(), said("written"));
    assert_eq!(server.env.ccm(&install).ok(), said("unchanged"));
    server.agent = (server.env.path(&format!("{agents}/ccm")), Vec::new());
    assert_eq!(server.activate().0, json!({"activate": true}));
    let path = server.env.at("motd");
    assert_eq!(server.ask("ensure", file(&path, "x")).ok()["changed"], true);
    let installed = server.env.read(&format!("{agents}/ccm.json"));
    let ddl: Value = serde_json::from_str(&installed).unwrap();
    assert_eq!(ddl["metadata"]["name"], "ccm");
}

#[test]
fn the_ddl_satisfies_the_schema_and_a_broken_one_does_not() {
    let read = |name: &str| -> Value {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name);
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let validator = jsonschema::validator_for(&read("schemas/choria_ddl.json")).unwrap();
    let ddl = read("ddl/ccm.json");
    let faults: Vec<String> = validator
        .iter_errors(&ddl)
        .map(|err| err.to_string())
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    let ensure = "/actions/1";
    for (place, key, value) in [
        ("", "metadata", json!({})),
        ("/metadata", "name", json!("Ccm")),
        ("/metadata", "version", json!("1.2.3.4")),
        ("/metadata", "timeout", json!(1)),
        ("/metadata", "timeout", json!("20")),
        (ensure, "action", json!("Ensure")),
        (ensure, "display", json!("sometimes")),
        (
            ensure,
            "aggregate",
            json!([{"function": "sum", "args": ["state"]}]),
        ),
        (
            ensure,
            "aggregate",
            json!([{"function": "summary", "args": []}]),
        ),
        ("/actions/1/input/name", "maxlength", json!(0)),
        ("/actions/1/input/name", "type", json!("text")),
        ("/actions/1/input/name", "validation", Value::Null),
        ("/actions/1/input/type", "list", json!([])),
        ("/actions/1/input/noop", "maxlength", json!(5)),
        ("/actions/1/input/noop", "optional", json!("yes")),
        ("/actions/1/output/state", "display_as", Value::Null),
        ("/actions/1/output/state", "type", json!("word")),
    ] {
        let mut broken = ddl.clone();
        let object = broken.pointer_mut(place).unwrap().as_object_mut().unwrap();
        match value {
            Value::Null => object.remove(key),
            value => object.insert(key.into(), value),
        };
        assert!(!validator.is_valid(&broken), "{place} {key}");
    }
}
