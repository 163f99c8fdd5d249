//! Clocks of controllers that jump by days: the rollout stays with its controller and ends exactly.

use std::process::{Child, Stdio};

use crate::events::block_on;
use crate::random::Random;
use crate::rollouts::{count_inexact, push};
use crate::support::fleet::Fleet;
use crate::support::poll::wait_for;
use crate::support::{TestEnv, clock};
use crate::tally::Tally;

const JUMPS: usize = 8;

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
        let args = [args, &["--lease", "2s"]].concat();
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
    let fleet = Fleet::start(&[("a", &[])]);
    let (begun, go) = (fleet.env.at("begun"), fleet.env.at("go"));
    push(
        &fleet,
        &format!("touch {begun}; until [ -e {go} ]; do sleep 0.05; done"),
    );
    // The node timeout is measured with the clock that jumps.
    let start = [
        "rollout",
        "start",
        "app",
        "--all",
        "--node-timeout",
        "10000h",
    ];
    let first = Controller::begin(&fleet, &start);
    wait_for("the run", || fleet.env.exists("begun"));
    let listed = fleet.run(&["rollout", "list", "--json"]).json();
    let id = listed[0]["id"].as_str().unwrap().to_owned();
    let second = Controller::begin(&fleet, &["rollout", "drive", &id]);
    let mut controllers = [first, second];
    let mut tally = Tally::default();
    for _ in 0..JUMPS {
        let offset = random.below(60);
        let jump = format!("{:+}d", i64::try_from(offset).unwrap() - 30);
        clock::jump(&controllers[random.pick(2)].env, &jump);
        tally.faults += 1;
        std::thread::sleep(random.millis(200, 1200));
    }
    let holders = block_on(fleet.lease_holders(&id));
    tally.checks += 1;
    tally.inexact += u64::from(holders.len() != 1);
    fleet.env.write("go", "");
    for controller in &mut controllers {
        let status = wait_for("the end", || controller.child.try_wait().unwrap());
        tally.checks += 1;
        tally.inexact += u64::from(status.code() != Some(0));
    }
    let listed = fleet.run(&["rollout", "list", "--json"]).json();
    count_inexact(&fleet, listed.get(0), &["a"], &mut tally);
    tally
}
