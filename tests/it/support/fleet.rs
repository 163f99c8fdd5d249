//! A small fleet: a real server, real agents, and the command line. All gone when
//! dropped.
//!
//! Agents share the machine, so whatever must differ between them goes by the fact `node`, which
//! is each one's name.

use std::collections::BTreeMap;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::nats::NatsServer;
use super::poll::wait_for;
use super::{Outcome, TestEnv};

/// One agent with a world of its own.
struct Agent {
    env: TestEnv,
    child: Child,
}

/// A server, agents by name, and the environment of an operator.
pub struct Fleet {
    pub env: TestEnv,
    pub server: NatsServer,
    agents: BTreeMap<String, Agent>,
}

impl Fleet {
    /// Starts agents with their groups, and waits until all are present.
    pub fn start(nodes: &[(&str, &[&str])]) -> Self {
        let mut env = TestEnv::new();
        let server = NatsServer::start();
        env.set("NATS_URL", &server.url());
        let mut fleet = Self {
            env,
            server,
            agents: BTreeMap::new(),
        };
        fleet.run(&["init"]).ok();
        for (name, groups) in nodes {
            fleet.add(name, groups, "");
        }
        fleet.settle(nodes.len());
        fleet
    }

    /// Starts three agents: two of group web, one of group db.
    pub fn of_three() -> Self {
        Self::start(&[("web1", &["web"]), ("web2", &["web"]), ("db1", &["db"])])
    }

    /// Starts one more agent, with more lines in its file.
    pub fn add(&mut self, name: &str, groups: &[&str], more: &str) {
        let env = TestEnv::new();
        env.write(".config/choria/ccm/facts.yaml", format!("node: {name}\n"));
        let config = format!(
            "identity: {name}\ngroups: [{}]\nservers: ['{}']\nbeat: 1s\ninterval: 1h\n\
             state_dir: {}\ncache_dir: {}\n{more}",
            groups.join(", "),
            self.server.url(),
            env.at("state"),
            env.at("cache"),
        );
        env.write("agent.yaml", config);
        let child = run_agent(&env);
        self.agents.insert(name.into(), Agent { env, child });
    }

    /// Starts an agent again that was killed or stopped, as it was.
    pub fn resume(&mut self, name: &str) {
        let agent = self.agents.get_mut(name).unwrap();
        agent.child = run_agent(&agent.env);
    }

    /// Starts `ccm fleet` with these arguments and does not wait for it.
    pub fn begin(&self, args: &[&str]) -> Child {
        let mut all = vec!["fleet"];
        all.extend(args);
        self.env
            .command(&all)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Runs `ccm fleet` with these arguments.
    pub fn run(&self, args: &[&str]) -> Outcome {
        let mut all = vec!["fleet"];
        all.extend(args);
        self.env.ccm(&all)
    }

    /// Waits until `count` nodes are present.
    pub fn settle(&self, count: usize) {
        wait_for("presence", || {
            let present = self.run(&["nodes", "--jsonl"]).ok();
            let is_there = |line: &&str| {
                let node: Value = serde_json::from_str(line).unwrap();
                node["state"] != "offline"
            };
            match present.lines().filter(is_there).count() == count {
                true => Ok(()),
                false => Err(format!("{present}\n{}", self.logs())),
            }
        });
    }

    /// Kills an agent as a power cut would: its presence stays for a while.
    pub fn kill(&mut self, name: &str) {
        let agent = self.agents.get_mut(name).unwrap();
        agent.child.kill().unwrap();
        agent.child.wait().unwrap();
    }

    /// Stops an agent as a shutdown would: it says goodbye.
    pub fn stop(&mut self, name: &str) {
        let agent = self.agents.get_mut(name).unwrap();
        let pid = Pid::from_child(&agent.child);
        kill_process(pid, Signal::TERM).unwrap();
        agent.child.wait().unwrap();
    }

    /// Returns what an agent has logged since it was last started.
    pub fn log(&self, name: &str) -> String {
        self.agents[name].env.read("log")
    }

    fn logs(&self) -> String {
        let logs = self.agents.iter().map(|(name, agent)| {
            let log = agent.env.read("log");
            format!("{name}: {log}")
        });
        logs.collect()
    }
}

fn run_agent(env: &TestEnv) -> Child {
    let log = std::fs::File::create(env.path("log")).unwrap();
    env.command(&["agent", "--config", &env.at("agent.yaml")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for agent in self.agents.values_mut() {
            let _ = agent.child.kill();
            let _ = agent.child.wait();
        }
    }
}
