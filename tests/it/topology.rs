//! Rollouts on clusters, sites and gateways, from the files in `examples/topology`, while servers are
//! killed. Every node converges, and every event is stored once. The script that starts them for users.
//!
//! Servers are killed while a wave is in progress: the simulated nodes are frozen meanwhile, so that the wave
//! can't end before.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use futures_util::StreamExt as _;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::nats::{own_address, tool};
use crate::support::poll::{eventually, wait_for, when};

/// Number of simulated nodes.
const NODES: usize = 60;

/// Number of nodes per wave.
const WAVE: usize = 5;

/// The servers of a topology, at addresses of their own.
struct Topology {
    env: TestEnv,
    servers: BTreeMap<String, Server>,
    /// Names of the servers that the controller uses.
    controller: Vec<String>,
    simulations: Vec<Child>,
}

struct Server {
    file: String,
    url: String,
    child: Option<Child>,
}

impl Topology {
    fn start(name: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/topology");
        let mut texts = BTreeMap::new();
        for entry in std::fs::read_dir(root.join(name)).unwrap() {
            let path = entry.unwrap().path();
            let server = path.file_stem().unwrap().to_str().unwrap().to_owned();
            texts.insert(server, std::fs::read_to_string(&path).unwrap());
        }
        let listen = |text: &str| {
            let line = text.lines().find(|line| line.starts_with("listen:"));
            let address = line.unwrap().split('"').nth(1).unwrap();
            address.trim_end_matches(":4222").to_owned()
        };
        let addresses: BTreeMap<String, String> = texts
            .values()
            .map(|text| (listen(text), own_address().to_string()))
            .collect();
        let env = TestEnv::new();
        let mut servers = BTreeMap::new();
        for (server, mut text) in texts {
            let url = format!("nats://{}:4222", addresses[&listen(&text)]);
            for (from, to) in &addresses {
                text = text.replace(&format!("{from}:"), &format!("{to}:"));
            }
            let file = env.write(&format!("{server}.conf"), text);
            let child = None;
            servers.insert(server, Server { file, url, child });
        }
        let mut topology = Self {
            env,
            servers,
            controller: Vec::new(),
            simulations: Vec::new(),
        };
        let names: Vec<String> = topology.servers.keys().cloned().collect();
        for server in names {
            topology.resume(&server);
        }
        topology
    }

    fn resume(&mut self, server: &str) {
        let directory = self.env.at("");
        let server = self.servers.get_mut(server).unwrap();
        let child = Command::new(tool("nats-server"))
            .args(["-c", &server.file])
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        server.child = Some(child.unwrap());
    }

    /// Kills a server as a power cut would.
    fn kill(&mut self, server: &str) {
        if let Some(mut child) = self.servers.get_mut(server).unwrap().child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Creates the streams and stores the bundle `app`. Starts the nodes: each of these lists of servers has
    /// an equal part of them. Nodes of a site name the JetStream domain of the hub.
    fn prepare(&mut self, controller: &[&str], places: &[&[&str]], domain: Option<&str>) {
        self.controller = controller.iter().map(|name| name.to_string()).collect();
        let urls = |names: &[&str]| {
            let urls: Vec<&str> = names.iter().map(|it| &*self.servers[*it].url).collect();
            urls.join(",")
        };
        let places: Vec<(String, String)> = places
            .iter()
            .map(|names| (names[0].to_owned(), urls(names)))
            .collect();
        let controller = urls(controller);
        let config = self.env.at("config");
        self.env.set("XDG_CONFIG_HOME", &config);
        // Not NATS_URL, which overrides the servers of every context.
        self.write_context("controller", &controller, None);
        self.env.set("NATS_CONTEXT", "controller");
        let _made = wait_for("the streams", || {
            let made = self.run(&["init", "--replicas", "3"]);
            when(made.code == Some(0), made)
        });
        let manifest = "ccm:\n  resources:\n    - exec:\n        - /bin/true: {}\n";
        let file = self.env.write("app/manifest.yaml", manifest);
        let directory = file.trim_end_matches("/manifest.yaml");
        self.run(&["bundle", "push", directory, "--name", "app"])
            .ok();
        let count = (NODES / places.len()).to_string();
        for (place, urls) in places {
            for url in urls.split(',') {
                // A server of a site needs a moment until it has a connection to the hub.
                self.write_context("one-server", url, domain);
                let _listed = wait_for("the streams behind a server", || {
                    let listed = self.run(&["--context", "one-server", "rollout", "list"]);
                    when(listed.code == Some(0), listed)
                });
            }
            self.write_context(&place, &urls, domain);
            let flags = ["--connections", "2", "--latency", "1ms", "--beat", "2s"];
            let mut args = vec!["fleet", "--context", &place, "simulate", "--nodes", &count];
            let domain = format!("{place}.lab");
            args.extend(flags);
            args.extend(["--domain", &domain]);
            let (child, line) = self.env.start(&args);
            self.simulations.push(child);
            assert!(line.contains("simulated nodes are running"), "{line:?}");
        }
    }

    fn write_context(&self, name: &str, url: &str, domain: Option<&str>) {
        let context = match domain {
            Some(domain) => json!({"url": url, "jetstream_domain": domain}),
            None => json!({"url": url}),
        };
        let file = format!("config/nats/context/{name}.json");
        self.env.write(&file, context.to_string());
    }

    fn run(&self, args: &[&str]) -> crate::support::Outcome {
        let mut all = vec!["fleet"];
        all.extend(args);
        self.env.ccm(&all)
    }

    /// Starts a rollout in waves.
    fn begin_rollout(&self) -> Child {
        let args = [
            "fleet",
            "rollout",
            "start",
            "app",
            "--all",
            "--wave",
            &WAVE.to_string(),
            "--bake",
            "1s",
            "--node-timeout",
            "5m",
        ];
        let mut command = self.env.command(&args);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().unwrap()
    }

    /// Sends a signal to the simulated nodes.
    fn signal(&self, signal: Signal) {
        for simulation in &self.simulations {
            kill_process(Pid::from_child(simulation), signal).unwrap();
        }
    }

    /// Returns the rollout, as a server knows it.
    fn rollout(&self) -> Result<Value, crate::support::Outcome> {
        let listed = self.run(&["rollout", "list", "--json"]);
        let rollouts: Value = serde_json::from_str(&listed.stdout).unwrap_or_default();
        let rollout = rollouts.get(0).cloned();
        rollout.ok_or(listed)
    }

    /// Waits for a wave, and does something while nodes of a wave are still to run.
    fn during_wave<T>(&mut self, wave: u64, interrupt: impl FnOnce(&mut Self) -> T) -> T {
        wait_for("the next wave", || {
            let rollout = self.rollout().map_err(|it| format!("{it:?}"))?;
            let now = rollout["wave"].as_u64();
            when(now.is_some_and(|now| now >= wave), rollout.to_string())
        });
        self.signal(Signal::STOP);
        // A wave that had ended before is followed by the next.
        let in_progress = wait_for("a wave in progress", || {
            let rollout = self.rollout().map_err(|it| format!("{it:?}"))?;
            let now = rollout["wave"].as_u64().unwrap_or_default();
            let nodes = rollout["plan"]["waves"][now as usize]["nodes"].as_array();
            let is_over = |node: &Value| rollout["nodes"][node.as_str().unwrap()] == "changed";
            let is_running = rollout["state"]["name"] == "running";
            let is_pending = nodes.is_some_and(|it| !it.iter().all(is_over));
            match is_running && is_pending {
                true => Ok(now),
                false => Err(rollout.to_string()),
            }
        });
        let waves = (NODES / WAVE) as u64;
        assert!(in_progress + 1 < waves, "the last wave was reached");
        let done = interrupt(self);
        self.signal(Signal::CONT);
        done
    }

    /// Returns the addresses of the controller's servers, which answer JetStream requests without a domain.
    fn addresses(&self) -> Vec<async_nats::ServerAddr> {
        let servers = self.controller.iter().map(|name| &self.servers[name]);
        servers.map(|it| it.url.parse().unwrap()).collect()
    }

    /// Returns the name of the server that leads the rollouts, once all replicas are current.
    async fn leader(&self) -> String {
        let urls = self.addresses();
        eventually("a leader with current replicas", async || {
            let client = async_nats::connect(&urls[..]).await?;
            let jetstream = async_nats::jetstream::new(client);
            let mut leader = None;
            for name in [
                "KV_CCM_ROLLOUTS",
                "KV_CCM_DESIRED",
                "KV_CCM_REPORTED",
                "CCM_EVENTS",
            ] {
                let mut stream = jetstream.get_stream(name).await?;
                let cluster = stream.info().await?.cluster.clone().unwrap_or_default();
                let mut replicas = cluster.replicas.iter();
                if replicas.len() < 2 || !replicas.all(|it| it.current && !it.offline) {
                    return Err(async_nats::Error::from(format!("{name}: {cluster:?}")));
                }
                leader = leader.or(cluster.leader);
            }
            leader.ok_or_else(|| async_nats::Error::from("no leader"))
        })
        .await
    }

    /// Checks that the rollout is done, and that every node ran once.
    async fn check(&self, mut rollout: Child) {
        assert_eq!(rollout.wait().unwrap().code(), Some(0));
        // A server that leads nothing yet may not reply in time.
        let rollout = wait_for("the rollout", || {
            self.rollout().map_err(|it| format!("{it:?}"))
        });
        assert_eq!(rollout["state"]["name"], "done");
        let nodes = rollout["nodes"].as_object().unwrap();
        let changed = nodes.values().filter(|it| **it == json!("changed"));
        assert_eq!(changed.count(), NODES, "{nodes:?}");
        for kind in ["run", "exec"] {
            let counts = eventually("the events", async || self.event_counts(kind).await).await;
            let counts = (counts.len(), counts.iter().sum::<usize>());
            assert_eq!(counts, (NODES, NODES), "{kind}");
        }
    }

    /// Returns how many events of a type are stored, for each of their subjects.
    async fn event_counts(&self, kind: &str) -> Result<Vec<usize>, async_nats::Error> {
        let client = async_nats::connect(&self.addresses()[..]).await?;
        let stream = async_nats::jetstream::new(client)
            .get_stream("CCM_EVENTS")
            .await?;
        let filter = format!("ccm.v1.default.event.*.{kind}.>");
        let mut subjects = stream.info_with_subjects(filter).await?;
        let mut counts = Vec::new();
        while let Some(found) = subjects.next().await {
            counts.push(found?.1);
        }
        Ok(counts)
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        let servers = self.servers.values_mut().filter_map(|it| it.child.take());
        for mut child in servers.chain(self.simulations.drain(..)) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[tokio::test]
async fn a_cluster_loses_the_leader_and_then_another_server() {
    let mut topology = Topology::start("cluster");
    let all = ["n1", "n2", "n3"];
    topology.prepare(&all, &[&all], None);
    let rollout = topology.begin_rollout();
    let leader = topology.leader().await;
    topology.during_wave(1, |it| it.kill(&leader));
    topology.during_wave(3, |it| it.resume(&leader));
    // All servers have everything again before the next one is killed.
    let now = topology.leader().await;
    let other = all.into_iter().find(|it| *it != now && *it != leader);
    topology.during_wave(4, |it| it.kill(other.unwrap()));
    topology.check(rollout).await;
}

#[tokio::test]
async fn a_site_is_cut_off_and_the_hub_loses_its_leader() {
    let mut topology = Topology::start("leaf");
    let hub = ["n1", "n2", "n3"];
    topology.prepare(&hub, &[&["site-a"], &["site-b"]], Some("hub"));
    let rollout = topology.begin_rollout();
    topology.during_wave(1, |it| it.kill("site-a"));
    // Every wave has nodes of both sites: those of site-b run, the others can't.
    wait_for("the other site", || {
        let rollout = topology.rollout().map_err(|it| format!("{it:?}"))?;
        let wave = rollout["wave"].as_u64().unwrap_or_default() as usize;
        let nodes = rollout["plan"]["waves"][wave]["nodes"].as_array().unwrap();
        let is_done = |node: &&Value| rollout["nodes"][node.as_str().unwrap()] == "changed";
        let of = |site: &'static str| {
            let nodes = nodes.iter();
            nodes.filter(move |it| it.as_str().unwrap().contains(site))
        };
        let other = of("site-b").all(|it| is_done(&it)) && of("site-b").count() > 0;
        let cut = of("site-a").filter(|it| !is_done(it)).count();
        let state = rollout["state"]["name"].as_str().unwrap();
        assert!(["running", "baking"].contains(&state), "{rollout}");
        when(other && cut > 0, rollout.to_string())
    });
    let leader = topology.leader().await;
    topology.kill(&leader);
    topology.resume("site-a");
    topology.during_wave(4, |it| it.resume(&leader));
    topology.check(rollout).await;
}

#[tokio::test]
async fn nodes_behind_a_gateway_converge_while_a_server_of_each_cluster_is_killed() {
    let mut topology = Topology::start("gateway");
    let west = ["w1", "w2", "w3"];
    topology.prepare(&["e1", "e2", "e3"], &[&west], None);
    let rollout = topology.begin_rollout();
    topology.during_wave(1, |it| it.kill("w1"));
    let leader = topology.leader().await;
    topology.during_wave(2, |it| it.kill(&leader));
    topology.during_wave(4, |it| {
        it.resume(&leader);
        it.resume("w1");
    });
    topology.check(rollout).await;
}

/// Returns `scripts/topology NAME` with its servers in a network of its own, which is returned as well.
fn script(env: &TestEnv, name: &str) -> (Command, String) {
    let address = own_address().octets();
    let network = format!("127.{}.{}", address[1], address[2]);
    let mut command = Command::new("scripts/topology");
    let directory = env.at("servers");
    command
        .args([name, "--network", &network, "--directory", &directory])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    (command, network)
}

#[test]
fn the_script_starts_the_servers_of_a_topology_and_stops_them() {
    let mut env = TestEnv::new();
    let (mut command, network) = script(&env, "cluster");
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let last = lines.find(|it| it.as_ref().unwrap().starts_with("next: "));
    let url = format!("nats://{network}.11:4222");
    assert!(last.unwrap().unwrap().contains(&url));
    env.set("NATS_URL", &url);
    let _made = wait_for("the streams", || {
        let made = env.ccm(&["fleet", "init", "--replicas", "3"]);
        when(made.code == Some(0), made)
    });
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let status = wait_for("the end of the script", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    let listener = TcpListener::bind((format!("{network}.11"), 4222));
    assert!(listener.is_ok(), "a server still runs: {listener:?}");
}

#[test]
fn the_script_reports_a_server_that_does_not_start() {
    let env = TestEnv::new();
    let (mut command, network) = script(&env, "cluster");
    let _taken = TcpListener::bind((format!("{network}.12"), 4222)).unwrap();
    let mut child = command.spawn().unwrap();
    let status = wait_for("the end of the script", || child.try_wait().unwrap());
    let mut text = String::new();
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_to_string(&mut text).unwrap();
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("the server n2 has ended"), "{text}");
    assert!(text.contains("address already in use"), "{text}");
}
