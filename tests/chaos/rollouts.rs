//! Rollouts whose controllers are killed while servers are killed and frozen: every node runs exactly
//! once.

use std::process::Child;
use std::time::Instant;

use serde_json::Value;

use crate::events::disturb;
use crate::random::Random;
use crate::support::fleet::Fleet;
use crate::support::nats::{Bus, Cluster};
use crate::support::poll::LIMIT;
use crate::tally::Tally;

const NODES: [&str; 4] = ["a", "b", "c", "d"];
const FAULTS: u64 = 12;

/// Controllers that drive whatever has no driver. Ended when dropped.
struct Controllers(Vec<Child>);

impl Controllers {
    fn begin(fleet: &Fleet<Cluster>) -> Child {
        fleet.begin(&["rollout", "drive", "--forever", "--lease", "2s"])
    }

    fn kill(&mut self, number: usize, fleet: &Fleet<Cluster>) {
        let mut killed = std::mem::replace(&mut self.0[number], Self::begin(fleet));
        killed.kill().unwrap();
        killed.wait().unwrap();
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) fn round(random: &mut Random) -> Tally {
    let nodes = NODES.map(|name| (name, &[][..]));
    let mut fleet = Fleet::on(Cluster::start(), &nodes);
    push(&fleet, "sleep 0.3");
    let mut controllers = Controllers((0..2).map(|_| Controllers::begin(&fleet)).collect());
    let start = [
        "rollout", "start", "app", "--all", "--wave", "1", "--detach",
    ];
    let _output = fleet.run(&start).ok();
    let mut tally = Tally::default();
    let mut last_fault = Instant::now();
    let ended = loop {
        if let Some(rollout) = ended(&fleet) {
            break Some(rollout);
        }
        std::thread::sleep(random.millis(100, 800));
        // A cluster that has lost its leaders all the time makes no progress.
        if tally.faults == FAULTS {
            if last_fault.elapsed() > LIMIT {
                break None;
            }
            continue;
        }
        last_fault = Instant::now();
        tally.faults += 1;
        match random.below(3) {
            0 => controllers.kill(random.pick(2), &fleet),
            _ => disturb(&mut fleet.server, random),
        }
    };
    count_not_once(&fleet, ended.as_ref(), &NODES, &mut tally);
    tally
}

/// Stores the bundle `app`, which appends a line to a file of each node.
pub(crate) fn push(fleet: &Fleet<impl Bus>, first: &str) {
    let log = fleet.env.at("{{ Facts.node }}.log");
    let manifest = format!(
        "ccm:\n  resources:\n    - exec:\n        - run: {{provider: shell, \
         command: \"{first} && echo app >> {log}\"}}\n"
    );
    let file = fleet.env.write("app/manifest.yaml", manifest);
    let directory = file.trim_end_matches("/manifest.yaml");
    let _output = fleet
        .run(&["bundle", "push", directory, "--name", "app"])
        .ok();
}

/// Returns the rollout once it is at rest; nothing while NATS has no answer.
fn ended(fleet: &Fleet<impl Bus>) -> Option<Value> {
    let listed = fleet.run(&["rollout", "list", "--json"]);
    let all: Value = serde_json::from_str(&listed.stdout).ok()?;
    let rollout = all.as_array()?.first()?.clone();
    let state = rollout["state"]["name"].as_str()?;
    (!["running", "baking"].contains(&state)).then_some(rollout)
}

/// Counts the nodes that did not run exactly once or whose result is another.
pub(crate) fn count_not_once(
    fleet: &Fleet<impl Bus>,
    rollout: Option<&Value>,
    nodes: &[&str],
    tally: &mut Tally,
) {
    for node in nodes {
        let log = std::fs::read_to_string(fleet.env.path(&format!("{node}.log")));
        let is_recorded = rollout.is_some_and(|it| it["nodes"][*node] == "changed");
        tally.checks += 1;
        tally.not_once += u64::from(!is_recorded || !log.is_ok_and(|log| log == "app\n"));
    }
}
