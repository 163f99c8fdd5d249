//! The external agent, driven as Choria's server does it: six variables, three arguments, a
//! temporary directory, files.
//! - `actions`: activation, and the reply of each action
//! - `files`: the audit log, file modes, an installed agent, its DDL
//! - `governors`: limits on concurrent runs, of the manifest and of the request
//! - `runs`: runs that outlive their request, exclude each other, or are killed
//! - `status_codes`: every status code of the protocol, and invalid requests
//! - `with_agent`: `ccm agent` on the same node

mod actions;
mod files;
mod governors;
mod runs;
mod status_codes;
mod with_agent;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::{TestEnv, poll};

const ACTIVATION: &str = "io.choria.mcorpc.external.v1.activation_request";
/// A manifest that always comes through.
const STABLE: &str = "ccm: {resources: [{exec: {name: /bin/true}}]}";

const RPC: &str = "io.choria.mcorpc.external.v1.rpc_request";

/// A server with one agent.
pub(crate) struct Server {
    pub(crate) env: TestEnv,
    /// What it starts, and with which arguments before its own.
    agent: (PathBuf, Vec<String>),
    facts: Value,
}

/// What the server makes of one request.
#[derive(Debug)]
#[must_use]
pub(crate) struct Reply {
    pub(crate) code: u64,
    pub(crate) message: String,
    pub(crate) data: Value,
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
    pub(crate) fn new() -> Self {
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
    pub(crate) fn configure(&self, lines: &str) {
        let state = self.env.at("state");
        self.env
            .write("plugin.d/ccm", format!("state_dir = {state}\n{lines}"));
    }

    fn runs(&self, name: &str) -> PathBuf {
        self.env.path("state/choria-runs").join(name)
    }

    /// Returns the records of the audit log.
    fn audit_events(&self) -> Vec<Value> {
        let log = std::fs::read_to_string(self.runs("audit.log")).unwrap();
        let lines = log.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
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

    pub(crate) fn send(&self, request: &[u8]) -> Reply {
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

    pub(crate) fn call(&self, action: &str, data: Value) -> Reply {
        self.send(&Self::request(action, data))
    }

    /// Requests the status of a run until it has ended.
    pub(crate) fn wait_for(&self, run_id: &Value) -> Value {
        poll::wait_for("the end of a run", || {
            let run = self.call("run_status", json!({ "run_id": run_id })).ok();
            poll::when(run["state"] != "running", run)
        })
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
        let run = self.call("apply", json!({"manifest": self.patient_manifest()}));
        let run = run.ok();
        assert_eq!(run["state"], "running");
        (run["run_id"].clone(), self.holder().unwrap())
    }

    /// Returns the process that says it carries out a run.
    fn holder(&self) -> Option<String> {
        let lock = std::fs::read(self.runs("lock")).ok()?;
        let holder: Value = serde_json::from_slice(&lock).ok()?;
        Some(holder["pid"].as_u64()?.to_string())
    }

    fn go(&self) {
        self.env.write("go", "");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A run that still waits ends with the test.
        let _ = std::fs::write(self.env.path("go"), "");
        if std::thread::panicking() {
            return;
        }
        poll::wait_for("the end of what still runs", || {
            let holder = self.holder();
            holder.is_none_or(|pid| !PathBuf::from(format!("/proc/{pid}")).exists())
        });
    }
}

fn file(path: &str, content: &str) -> Value {
    json!({"type": "file", "name": path, "ensure": "present",
           "properties": {"content": content, "owner": "root", "group": "root", "mode": "0644"}})
}
