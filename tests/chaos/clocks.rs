//! Clocks that jump by days. Those of controllers: the rollout stays with its controller, and every
//! node runs exactly once. That of an agent: every event whose reply arrived is stored once, in order.

use std::process::{Child, Stdio};
use std::time::Duration;

use ccm_nats::Verb;

use crate::events::{self, block_on};
use crate::random::Random;
use crate::rollouts::{count_not_once, push};
use crate::support::agent::{self, AgentProcess, request_json};
use crate::support::fleet::Fleet;
use crate::support::nats::NatsServer;
use crate::support::poll::wait_for;
use crate::support::{TestEnv, clock};
use crate::tally::Tally;

const JUMPS: usize = 8;
const LEASE: Duration = Duration::from_secs(2);

const NODE: &str = "n1";

/// Requests to an agent between two jumps of its clock.
const REQUESTS: usize = 4;

/// A controller with a clock of its own. Ended when dropped.
struct Controller {
    env: TestEnv,
    child: Child,
}

impl Controller {
    fn begin(fleet: &Fleet, args: &[&str]) -> Self {
        let mut env = TestEnv::new();
        env.set("NATS_URL", &fleet.server.url());
        clock::fake(&mut env);
        let lease = format!("{}s", LEASE.as_secs());
        let args = [args, &["--lease", &lease]].concat();
        let child = fleet.begin_with(&env, &args, Stdio::null());
        Self { env, child }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn round(random: &mut Random) -> Tally {
    let mut tally = Tally::default();
    controllers(random, &mut tally);
    block_on(events_of_agent(random, &mut tally));
    tally
}

/// Sets a clock to a date within a month from now.
fn jump(env: &TestEnv, random: &mut Random, tally: &mut Tally) {
    let offset = i64::try_from(random.below(60)).unwrap() - 30;
    clock::jump(env, &format!("{offset:+}d"));
    tally.faults += 1;
}

/// Sends requests to an agent whose clock jumps.
async fn events_of_agent(random: &mut Random, tally: &mut Tally) {
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    let mut env = TestEnv::new();
    clock::fake(&mut env);
    let _agent = AgentProcess::start(&env, NODE, &server.url(), "");
    request_json(&client, NODE, Verb::Ping, "").await;
    let mut replied = Vec::new();
    for _ in 0..JUMPS {
        jump(&env, random, tally);
        let file = env.path("actions");
        events::send(&client, NODE, &file, REQUESTS, &mut replied).await;
    }
    events::check(&server, &[replied], tally).await;
}

/// Two controllers of a rollout whose clocks jump.
fn controllers(random: &mut Random, tally: &mut Tally) {
    let fleet = Fleet::start(&[("a", &[])]);
    let (begun, go) = (fleet.env.at("begun"), fleet.env.at("go"));
    push(
        &fleet,
        &format!("touch {begun}; until [ -e {go} ]; do sleep 0.05; done"),
    );
    let start = ["rollout", "start", "app", "--all", "--node-timeout", "1h"];
    let first = Controller::begin(&fleet, &start);
    wait_for("the run", || fleet.env.exists("begun"));
    let listed = fleet.run(&["rollout", "list", "--json"]).json();
    let id = listed[0]["id"].as_str().unwrap().to_owned();
    let second = Controller::begin(&fleet, &["rollout", "drive", &id]);
    let mut controllers = [first, second];
    for _ in 0..JUMPS {
        jump(&controllers[random.pick(2)].env, random, tally);
        std::thread::sleep(random.millis(200, 1200));
    }
    let early = block_on(fleet.early_takeovers(&id, LEASE));
    tally.checks += 1;
    tally.not_once += u64::try_from(early.len()).unwrap();
    fleet.env.write("go", "");
    for controller in &mut controllers {
        let status = wait_for("the end", || controller.child.try_wait().unwrap());
        tally.checks += 1;
        tally.not_once += u64::from(status.code() != Some(0));
    }
    let listed = fleet.run(&["rollout", "list", "--json"]).json();
    count_not_once(&fleet, listed.get(0), &["a"], tally);
}
