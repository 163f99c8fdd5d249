//! Rollouts on clusters, sites and gateways, from the files in `examples/topology`, while servers are
//! killed. Every node converges, and every event is stored once.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::nats::{own_address, tool};
use crate::support::poll::{eventually, wait_for, when};

/// Number of simulated nodes.
const NODES: usize = 60;

/// The servers of a topology, at addresses of their own.
struct Topology {
    env: TestEnv,
    servers: BTreeMap<String, Server>,
    /// Names of the servers that the controller uses.
    controller: Vec<String>,
    simulation: Option<Child>,
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
            simulation: None,
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

    /// Creates the streams, starts the nodes before some servers, and stores the bundle `app`. Nodes of a
    /// site name the JetStream domain of the hub.
    fn prepare(&mut self, controller: &[&str], nodes: &[&str], domain: Option<&str>) {
        self.controller = controller.iter().map(|name| name.to_string()).collect();
        let urls = |names: &[&str]| {
            let urls: Vec<&str> = names.iter().map(|it| &*self.servers[*it].url).collect();
            urls.join(",")
        };
        let (controller, nodes) = (urls(controller), urls(nodes));
        self.env.set("NATS_URL", &controller);
        let config = self.env.at("config");
        self.env.set("XDG_CONFIG_HOME", &config);
        let _made = wait_for("the streams", || {
            let made = self.run(&["init", "--replicas", "3"]);
            when(made.code == Some(0), made)
        });
        let write_context = |url: &str| {
            let context = match domain {
                Some(domain) => json!({"url": url, "jetstream_domain": domain}),
                None => json!({"url": url}),
            };
            let file = "config/nats/context/nodes.json";
            self.env.write(file, context.to_string());
        };
        for url in nodes.split(',') {
            // A server of a site needs a moment until it has a connection to the hub.
            write_context(url);
            let _listed = wait_for("the streams behind a server", || {
                let listed = self.run(&["--context", "nodes", "rollout", "list"]);
                when(listed.code == Some(0), listed)
            });
        }
        write_context(&nodes);
        let count = NODES.to_string();
        let args = [
            "fleet",
            "--context",
            "nodes",
            "simulate",
            "--nodes",
            &count,
            "--connections",
            "2",
            "--latency",
            "1ms",
            "--beat",
            "2s",
        ];
        let (child, line) = self.env.start(&args);
        self.simulation = Some(child);
        assert!(line.contains("simulated nodes are running"), "{line:?}");
        let manifest = "ccm:\n  resources:\n    - exec:\n        - /bin/true: {}\n";
        let file = self.env.write("app/manifest.yaml", manifest);
        let directory = file.trim_end_matches("/manifest.yaml");
        self.run(&["bundle", "push", directory, "--name", "app"])
            .ok();
    }

    fn run(&self, args: &[&str]) -> crate::support::Outcome {
        let mut all = vec!["fleet"];
        all.extend(args);
        self.env.ccm(&all)
    }

    /// Starts a rollout in waves of ten.
    fn begin_rollout(&self) -> Child {
        let args = [
            "fleet",
            "rollout",
            "start",
            "app",
            "--all",
            "--wave",
            "10",
            "--bake",
            "1s",
            "--node-timeout",
            "5m",
        ];
        let mut command = self.env.command(&args);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().unwrap()
    }

    /// Waits until a wave has begun, as a server knows it.
    fn wait_for_wave(&self, wave: u64) {
        wait_for("the next wave", || {
            let listed = self.run(&["rollout", "list", "--json"]);
            let rollouts: Value = serde_json::from_str(&listed.stdout).unwrap_or_default();
            match rollouts[0]["wave"].as_u64() {
                Some(now) if now >= wave => Ok(()),
                other => Err(format!("{other:?}: {listed:?}")),
            }
        });
    }

    /// Returns the addresses of the controller's servers, which answer JetStream requests without a domain.
    fn addresses(&self) -> Vec<async_nats::ServerAddr> {
        let servers = self.controller.iter().map(|name| &self.servers[name]);
        servers.map(|it| it.url.parse().unwrap()).collect()
    }

    /// Returns the name of the server that leads a stream.
    async fn leader(&self, stream: &str) -> String {
        let urls = self.addresses();
        eventually("a leader", async || {
            let client = async_nats::connect(&urls[..]).await?;
            let jetstream = async_nats::jetstream::new(client);
            let mut stream = jetstream.get_stream(stream).await?;
            let info = stream.info().await?;
            let leader = info.cluster.clone().and_then(|it| it.leader);
            leader.ok_or_else(|| async_nats::Error::from("no leader"))
        })
        .await
    }

    /// Checks that the rollout is done, and that every node ran once.
    async fn check(&self, mut rollout: Child) {
        assert_eq!(rollout.wait().unwrap().code(), Some(0));
        let rollouts = self.run(&["rollout", "list", "--json"]).json();
        assert_eq!(rollouts[0]["state"]["name"], "done");
        let nodes = rollouts[0]["nodes"].as_object().unwrap();
        let changed = nodes.values().filter(|it| **it == json!("changed"));
        assert_eq!(changed.count(), NODES, "{nodes:?}");
        let client = async_nats::connect(&self.addresses()[..]).await.unwrap();
        let jetstream = async_nats::jetstream::new(client);
        let stream = jetstream.get_stream("CCM_EVENTS").await.unwrap();
        let filter = "ccm.v1.default.event.*.run.>";
        let mut subjects = stream.info_with_subjects(filter).await.unwrap();
        let mut counts = Vec::new();
        while let Some(found) = subjects.next().await {
            counts.push(found.unwrap().1);
        }
        assert_eq!((counts.len(), counts.iter().sum::<usize>()), (NODES, NODES));
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        let servers = self.servers.values_mut().filter_map(|it| it.child.take());
        for mut child in servers.chain(self.simulation.take()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[tokio::test]
async fn a_cluster_loses_a_server_and_the_leader() {
    let mut topology = Topology::start("cluster");
    topology.prepare(&["n1", "n2", "n3"], &["n1", "n2", "n3"], None);
    let rollout = topology.begin_rollout();
    topology.wait_for_wave(1);
    let leader = topology.leader("KV_CCM_ROLLOUTS").await;
    topology.kill(&leader);
    topology.wait_for_wave(3);
    topology.resume(&leader);
    let other = ["n1", "n2", "n3"].into_iter().find(|it| *it != leader);
    // The stream must have caught up before the next server is killed.
    topology.wait_for_wave(4);
    topology.kill(other.unwrap());
    topology.check(rollout).await;
}

#[tokio::test]
async fn a_site_is_cut_off_and_returns() {
    let mut topology = Topology::start("leaf");
    topology.prepare(&["n1", "n2", "n3"], &["site-a", "site-b"], Some("hub"));
    let rollout = topology.begin_rollout();
    topology.wait_for_wave(1);
    topology.kill("site-a");
    topology.kill("site-b");
    topology.resume("site-b");
    topology.wait_for_wave(2);
    topology.resume("site-a");
    topology.check(rollout).await;
}

#[tokio::test]
async fn nodes_behind_a_gateway_converge_while_a_server_of_each_cluster_is_killed() {
    let mut topology = Topology::start("gateway");
    topology.prepare(&["e1", "e2", "e3"], &["w1", "w2", "w3"], None);
    let rollout = topology.begin_rollout();
    topology.wait_for_wave(1);
    topology.kill("w1");
    topology.wait_for_wave(2);
    let leader = topology.leader("KV_CCM_ROLLOUTS").await;
    topology.kill(&leader);
    topology.wait_for_wave(4);
    topology.resume(&leader);
    topology.resume("w1");
    topology.check(rollout).await;
}
