//! Rollouts on the topologies of `examples/topology`, started by `scripts/topology` in a network of their own.
//!
//! The nodes are connected as users would connect them: to any server of the cluster, to the server of their
//! site, or to the other cluster. Nothing is killed here; tests do that with fewer nodes.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::server::Process;
use super::{LIMIT, ccm, fleet_command, print_simulation, push_bundle, roll_out, simulate};

/// Environment variable with the name of a topology.
pub const VARIABLE: &str = "CCM_BENCH_TOPOLOGY";

/// Where the servers listen.
const NETWORK: &str = "127.77.0";

/// Last parts of the addresses of the controller's servers, and of those of each group of nodes.
type Places = (&'static [u8], &'static [&'static [u8]]);

/// Measures a topology, or all.
pub fn measure(name: &str, nodes: usize, connections: usize) {
    for one in ["cluster", "leaf", "gateway"] {
        if name == one || name == "all" {
            measure_one(one, nodes, connections);
        }
    }
    let known = ["cluster", "leaf", "gateway", "all"];
    assert!(known.contains(&name), "{VARIABLE}: one of {known:?}");
}

fn measure_one(name: &str, nodes: usize, connections: usize) {
    let (controller, groups): Places = match name {
        "cluster" => (&[11, 12, 13], &[&[11, 12, 13]]),
        "leaf" => (&[11, 12, 13], &[&[21], &[22]]),
        _ => (&[31, 32, 33], &[&[41, 42, 43]]),
    };
    let dir = tempfile::tempdir().unwrap();
    let _servers = servers(name, dir.path());
    let url = urls(controller);
    let since = Instant::now();
    loop {
        let (_, _, made) = ccm(&url, &["init", "--replicas", "3"]);
        if made.status.success() {
            break;
        }
        assert!(since.elapsed() < LIMIT, "{made:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
    println!("topology {name}, {nodes} nodes");
    let each = nodes / groups.len();
    let mut simulations = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        let domain = format!("group{number}.lab");
        let command = match name {
            "leaf" => site_command(dir.path(), &urls(group)),
            _ => fleet_command(&urls(group)),
        };
        simulations.push(simulate(command, each, connections, &["--domain", &domain]));
    }
    push_bundle(&url, dir.path());
    let (what, (took, peak)) = roll_out(&url, nodes);
    println!(
        "{what}, on {name}: {took:.1?}; controller peak {:.1} MiB, {:.1} KiB per node",
        peak as f64 / 1024.0,
        peak as f64 / nodes as f64
    );
    for simulation in &simulations {
        print_simulation(simulation, each);
    }
}

/// Returns `ccm fleet` for the server of a site, whose NATS context names the JetStream domain of the hub.
fn site_command(dir: &Path, url: &str) -> Command {
    let contexts = dir.join("config/nats/context");
    std::fs::create_dir_all(&contexts).unwrap();
    let context = serde_json::json!({"url": url, "jetstream_domain": "hub"});
    std::fs::write(contexts.join("site.json"), context.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccm"));
    command
        .args(["fleet", "--context", "site"])
        .env("XDG_CONFIG_HOME", dir.join("config"));
    command
}

fn urls(addresses: &[u8]) -> String {
    let urls = addresses.iter();
    let urls = urls.map(|last| format!("nats://{NETWORK}.{last}:4222"));
    urls.collect::<Vec<_>>().join(",")
}

/// Starts the servers. They end with the script.
fn servers(name: &str, dir: &Path) -> Script {
    let mut child = Command::new("scripts/topology")
        .args([name, "--network", NETWORK, "--directory"])
        .arg(dir.join("servers"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_ready = lines.any(|line| line.unwrap().starts_with("next: "));
    assert!(is_ready, "the servers did not start");
    Script(Process(child))
}

/// The script that started the servers; a signal ends it and them.
struct Script(Process);

impl Drop for Script {
    fn drop(&mut self) {
        let id = rustix::process::Pid::from_child(&self.0.0);
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        let _ = self.0.0.wait();
    }
}
