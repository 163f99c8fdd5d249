//! A small fleet: a real server or cluster, real agents, and the command line. All gone when
//! dropped.
//!
//! Agents share the machine, so whatever must differ between them goes by the fact `node`, which
//! is each one's name.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::nats::{Bus, NatsServer};
use super::poll::{wait_for, when};
use super::{Outcome, TestEnv};

/// One agent with a world of its own.
struct Agent {
    env: TestEnv,
    child: Child,
}

/// A server or cluster, agents by name, and the environment of an operator.
pub struct Fleet<S = NatsServer> {
    pub env: TestEnv,
    pub server: S,
    agents: BTreeMap<String, Agent>,
}

impl Fleet {
    /// Starts agents with their groups, and waits until all are present.
    pub fn start(nodes: &[(&str, &[&str])]) -> Self {
        Self::on(NatsServer::start(), nodes)
    }

    /// Starts three agents: two of group web, one of group db.
    pub fn of_three() -> Self {
        Self::start(&[("web1", &["web"]), ("web2", &["web"]), ("db1", &["db"])])
    }

    /// Returns everyone who ever held the lease of a rollout.
    pub async fn lease_holders(&self, id: &str) -> BTreeSet<String> {
        let history = self.lease_history(id).await;
        history
            .into_iter()
            .filter_map(|(_, holder)| holder)
            .collect()
    }

    /// Returns the takeovers of a lease of this duration that came before its end, by the clock of
    /// the server: a controller that was stopped for longer than that loses its lease rightly.
    pub async fn early_takeovers(&self, id: &str, lease: Duration) -> Vec<String> {
        let history = self.lease_history(id).await;
        let pairs = history.windows(2).filter_map(|pair| {
            let [(renewed, Some(before)), (taken, Some(after))] = pair else {
                return None;
            };
            let after_renewal = *taken - *renewed;
            let is_early = before != after && after_renewal < lease;
            is_early.then(|| format!("{after} took it from {before} after {after_renewal:?}"))
        });
        pairs.collect()
    }

    /// Returns when a rollout was written, and who held its lease then.
    async fn lease_history(&self, id: &str) -> Vec<(Duration, Option<String>)> {
        use futures_util::StreamExt as _;
        let bucket = self.server.jetstream().await;
        let bucket = bucket.get_key_value("CCM_ROLLOUTS").await.unwrap();
        let mut history = bucket.history(format!("default.{id}")).await.unwrap();
        let mut found = Vec::new();
        while let Some(entry) = history.next().await {
            let entry = entry.unwrap();
            let rollout: Value = serde_json::from_slice(&entry.value).unwrap();
            let written = entry.created.unix_timestamp_nanos();
            let written = Duration::from_nanos(u64::try_from(written).unwrap());
            let holder = rollout["lease"]["holder"].as_str().map(str::to_owned);
            found.push((written, holder));
        }
        found
    }
}

impl<S: Bus> Fleet<S> {
    /// Starts agents with their groups on a server or cluster, and waits until all are present.
    pub fn on(server: S, nodes: &[(&str, &[&str])]) -> Self {
        let mut env = TestEnv::new();
        env.set("NATS_URL", &server.urls());
        let mut fleet = Self {
            env,
            server,
            agents: BTreeMap::new(),
        };
        let replicas = fleet.server.replicas().to_string();
        // A cluster needs a moment until it has a leader.
        let _made = wait_for("the streams", || {
            let made = fleet.run(&["init", "--replicas", &replicas]);
            when(made.code == Some(0), made)
        });
        for (name, groups) in nodes {
            fleet.add(name, groups, "");
        }
        fleet.settle(nodes.len());
        fleet
    }

    /// Starts one more agent, with more lines in its file.
    pub fn add(&mut self, name: &str, groups: &[&str], more: &str) {
        self.add_at(name, groups, &self.server.urls(), more);
    }

    /// Starts one more agent that reaches NATS at this URL.
    pub fn add_at(&mut self, name: &str, groups: &[&str], url: &str, more: &str) {
        let env = TestEnv::new();
        env.write(".config/choria/ccm/facts.yaml", format!("node: {name}\n"));
        let config = format!(
            "identity: {name}\ngroups: [{}]\nservers: '{}'\nbeat: 1s\ninterval: 1h\n\
             state_dir: {}\ncache_dir: {}\n{more}",
            groups.join(", "),
            url,
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
        self.begin_with(&self.env, args, Stdio::null())
    }

    /// Starts `ccm fleet` with these arguments in this environment, does not wait for it, and writes
    /// what it logs to a file.
    pub fn begin_with(&self, env: &TestEnv, args: &[&str], log: impl Into<Stdio>) -> Child {
        let mut all = vec!["fleet"];
        all.extend(args);
        env.command(&all)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
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

    /// Puts a file in the place of an agent's state directory.
    pub fn break_state_dir(&self, name: &str) {
        let state = self.agents[name].env.path("state");
        std::fs::remove_dir_all(&state).unwrap();
        std::fs::write(&state, "").unwrap();
    }

    /// Returns what an agent has logged since it was last started.
    pub fn log(&self, name: &str) -> String {
        self.agents[name].env.read("log")
    }

    /// Returns the state directory of an agent.
    pub fn state_of(&self, name: &str) -> std::path::PathBuf {
        self.agents[name].env.path("state")
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

impl<S> Drop for Fleet<S> {
    fn drop(&mut self) {
        for agent in self.agents.values_mut() {
            let _ = agent.child.kill();
            let _ = agent.child.wait();
        }
    }
}
