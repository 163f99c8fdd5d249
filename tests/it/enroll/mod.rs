//! Enrolment of nodes, from `ccm fleet trust init` to a running agent, on a real server that runs
//! with the configuration that it wrote.

mod decisions;
mod members;
mod node_files;
mod roles;
mod signer;
mod tokens;
mod trust_dir;

pub(crate) use self::roles::connect;

use std::net::Ipv4Addr;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::support::nats::{own_address, tool};
use crate::support::poll::{wait_for, when};
use crate::support::{Outcome, TestEnv};

/// A trust directory, its server, and an approver.
pub(crate) struct Fleet {
    pub(crate) env: TestEnv,
    address: Ipv4Addr,
    processes: Vec<Child>,
}

impl Fleet {
    /// Starts server and approver.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts server and approver, with more flags for `trust init`.
    fn start_with(flags: &[&str]) -> Self {
        let mut fleet = Self::without_approver(flags);
        fleet.serve();
        fleet
    }

    /// Starts a server with streams and buckets.
    fn without_approver(flags: &[&str]) -> Self {
        Self::at(TestEnv::new(), own_address(), flags)
    }

    /// Starts server and approver in another network, on loopback.
    pub(crate) fn in_network(network: String) -> Self {
        let mut fleet = Self::at(TestEnv::in_network(network), Ipv4Addr::LOCALHOST, &[]);
        fleet.serve();
        fleet
    }

    /// Starts a server with streams and buckets at an address.
    fn at(mut env: TestEnv, address: Ipv4Addr, flags: &[&str]) -> Self {
        let listen = format!("{address}:4222");
        let directory = env.at("trust");
        let init = ["fleet", "trust", "init", &directory, "--listen", &listen];
        env.ccm(&[&init, flags].concat()).ok();
        env.set("CCM_TRUST_DIR", &directory);
        let mut fleet = Self {
            env,
            address,
            processes: Vec::new(),
        };
        fleet.start_server();
        let context = fleet.context("controller-main");
        fleet.ccm(&["fleet", "init", "--context", &context]).ok();
        fleet
    }

    fn start_server(&mut self) {
        let log = std::fs::File::create(self.env.path("server.log")).unwrap();
        let server = tool("nats-server");
        let child = self
            .env
            .program(server.to_str().unwrap())
            .args(["-c", &self.env.at("trust/nats.conf")])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.processes.push(child.unwrap());
        wait_for("a server that is ready", || {
            let log = self.env.read("server.log");
            when(log.contains("Server is ready"), log)
        });
    }

    /// Starts an approver.
    fn serve(&mut self) {
        let (child, line) = self.env.start(&["fleet", "enroll", "serve"]);
        assert_eq!(line, "serving enrolment requests\n");
        self.processes.push(child);
    }

    pub(crate) fn url(&self) -> String {
        format!("tls://{}:4222", self.address)
    }

    /// Returns the path of a context in the trust directory.
    pub(crate) fn context(&self, name: &str) -> String {
        self.env.at(&format!("trust/contexts/{name}.json"))
    }

    pub(crate) fn ccm(&self, args: &[&str]) -> Outcome {
        self.env.ccm(args)
    }

    /// Runs `ccm fleet` as the operator, with signed requests.
    pub(crate) fn operator(&self, args: &[&str]) -> Outcome {
        self.signed("operator-admin", args)
    }

    /// Runs `ccm fleet` as the controller, with signed requests.
    pub(crate) fn controller(&self, args: &[&str]) -> Outcome {
        self.signed("controller-main", args)
    }

    fn signed(&self, user: &str, args: &[&str]) -> Outcome {
        let (context, signer) = (self.context(user), self.env.at("trust/keys/signer.seed"));
        let flags = ["--context", &context, "--sign-with", &signer];
        self.ccm(&[&["fleet"], args, &flags].concat())
    }

    /// Creates a token and returns its text.
    pub(crate) fn token(&self, flags: &[&str]) -> String {
        let create = ["fleet", "enroll", "token", "create"];
        let text = self.ccm(&[&create, flags].concat()).ok();
        text.trim().to_owned()
    }

    /// Returns the arguments of an enrolment of a node below a directory.
    fn enroll_args(&self, node: &str, directory: &str, token: &str) -> Vec<String> {
        let config = self.env.at(&format!("{directory}/agent.yaml"));
        let args = ["agent", "enroll", "--name", node, "--config", &config];
        let args = args.into_iter().chain(["--token", token]);
        args.map(str::to_owned).collect()
    }

    /// Enrolls a node whose files are below a directory of its name.
    pub(crate) fn enroll(&self, node: &str, token: &str) -> Outcome {
        self.enroll_at(node, node, token, &[])
    }

    pub(crate) fn enroll_at(
        &self,
        node: &str,
        directory: &str,
        token: &str,
        flags: &[&str],
    ) -> Outcome {
        let args = self.enroll_args(node, directory, token);
        let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
        args.extend(flags);
        self.ccm(&args)
    }

    /// Starts the enrolment of a node in the background.
    pub(crate) fn start_enroll(&self, node: &str, directory: &str, token: &str) -> Child {
        let args = self.enroll_args(node, directory, token);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.env
            .command(&args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Returns requests and nodes, as `enroll list --all` shows them.
    fn listed(&self) -> Vec<Value> {
        let list = ["fleet", "enroll", "list", "--all", "--json"];
        let document = self.ccm(&list).json();
        document["nodes"].as_array().unwrap().clone()
    }

    /// Waits for a request, and returns its key.
    pub(crate) fn wait_for_request(&self, node: &str) -> String {
        wait_for("a request", || {
            let listed = self.listed();
            let is_it = |row: &&Value| row["node"] == node && row["state"] == "pending";
            let found = listed.iter().find(is_it).cloned();
            found.ok_or(listed)
        })["public_key"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Starts the agent of an enrolled node, and waits until it is present.
    pub(crate) fn agent(&mut self, node: &str) {
        let config = self.env.at(&format!("{node}/agent.yaml"));
        let log = std::fs::File::create(self.env.path(&format!("{node}/log"))).unwrap();
        let child = self
            .env
            .command(&["agent", "--config", &config])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.processes.push(child.unwrap());
        wait_for("an agent that is present", || {
            let nodes = self.operator(&["nodes", "--json"]).json();
            let is_it = |row: &&Value| row["identity"] == node && row["state"] == "idle";
            let is_present = nodes["nodes"]
                .as_array()
                .unwrap()
                .iter()
                .find(is_it)
                .is_some();
            when(is_present, nodes.to_string())
        });
    }

    /// Writes settings of a node that keep its state below its directory.
    pub(crate) fn prepare(&self, node: &str) {
        let base = self.env.at(node);
        let text = format!("state_dir: {base}/state\ncache_dir: {base}/cache\nbeat: 1s\n");
        self.env.write(&format!("{node}/agent.yaml"), text);
    }

    /// Returns the audit events of a node, oldest first.
    fn audit(&self, node: &str) -> Vec<Value> {
        let printed = self
            .operator(&["events", "--type", "audit", "--node", node, "--jsonl"])
            .ok();
        let lines = printed
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for child in &mut self.processes {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
