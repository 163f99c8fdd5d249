//! Clocks that jump.

use std::process::{Child, Stdio};
use std::time::Duration;

use ccm_nats::streams::NODES;
use chrono::{DateTime, TimeDelta, Utc};

use crate::agent::scheduled_runs::{content_becomes, document};
use crate::rollout::{self, fleet, newest, push, ran};
use crate::support::agent::{self, AgentProcess};
use crate::support::fleet::Fleet;
use crate::support::nats::NatsServer;
use crate::support::poll::{eventually, wait_for, when};
use crate::support::{TestEnv, clock};

#[tokio::test]
async fn a_run_survives_a_clock_that_jumps_a_day_ahead() {
    let mut env = TestEnv::new();
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    let script = format!(
        "cd {} && touch begun && until [ -e go ]; do sleep 0.05; done; printf done >result",
        env.at("")
    );
    let text = format!(
        "ccm:\n  resources:\n    - exec:\n        - waits: {{provider: shell, timeout: 10m, \
         command: '{script}'}}\n"
    );
    let file = env.write("site.yaml", text);
    clock::fake(&mut env);
    let lines = format!("manifests: [{file}]\nrun_timeout: 1h\n");
    let agent = AgentProcess::start(&env, "web1.lab", &server.url(), &lines);
    eventually("the run", async || env.exists("begun")).await;
    clock::jump(&env, "+1d");
    // Maintenance runs as often as the presence is published, once a second.
    let mut seen = std::collections::BTreeSet::new();
    eventually("several seconds of tomorrow", async || {
        let status = document(&client, NODES, "default.web1_lab").await;
        let time = status.unwrap_or_default()["timestamp"].clone();
        let time = DateTime::parse_from_rfc3339(time.as_str().unwrap_or_default()).ok();
        seen.extend(time.filter(|time| *time > Utc::now() + TimeDelta::hours(12)));
        when(seen.len() > 3, seen.len())
    })
    .await;
    env.write("go", "");
    content_becomes(&env, "result", "done").await;
    assert!(!agent.log().contains("was cancelled"), "{}", agent.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_not_unreachable_because_the_clock_of_the_controller_jumped() {
    let mut driven = Driven::start();
    clock::jump(&driven.env, "+1d");
    driven.renews().await;
    let mut controller = driven.controller.take().unwrap();
    driven.finish(&mut [&mut controller]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bake_and_a_deadline_do_not_end_because_the_clock_of_the_controller_jumped() {
    let fleet = fleet(&["a", "b"]);
    push(&fleet, "app", "true");
    let env = Driven::environment(&fleet);
    let start = ["rollout", "start", "app", "--all", "--wave", "1"];
    let limits = ["--bake", "1h", "--deadline", "2h"];
    let args = [&start[..], &limits, &LEASE].concat();
    let controller = fleet.begin_with(&env, &args, Stdio::null());
    wait_for("the bake", || {
        let listed = fleet.run(&["rollout", "list", "--json"]).json();
        when(listed[0]["state"]["name"] == "baking", listed)
    });
    let mut driven = Driven {
        id: rollout::id(&newest(&fleet)),
        fleet,
        env,
        controller: Some(controller),
    };
    clock::jump(&driven.env, "+1d");
    driven.renews().await;
    let rollout = newest(&driven.fleet);
    assert_eq!(rollout["state"]["name"], "baking", "{rollout}");
    let mut controller = driven.controller.take().unwrap();
    controller.kill().unwrap();
    controller.wait().unwrap();
}

/// A rollout whose node waits for the file `go`, with a controller that has a clock of its own.
struct Driven {
    fleet: Fleet,
    id: String,
    /// The environment of the controller.
    env: TestEnv,
    controller: Option<Child>,
}

impl Driven {
    fn start() -> Self {
        let fleet = fleet(&["a"]);
        let (begun, go) = (fleet.env.at("begun"), fleet.env.at("go"));
        let wait = format!("touch {begun}; until [ -e {go} ]; do sleep 0.05; done");
        push(&fleet, "app", &wait);
        let env = Self::environment(&fleet);
        let start = ["rollout", "start", "app", "--all", "--node-timeout", "1h"];
        let args = [&start[..], &LEASE].concat();
        let controller = fleet.begin_with(&env, &args, Stdio::null());
        wait_for("the run", || fleet.env.exists("begun"));
        Self {
            id: rollout::id(&newest(&fleet)),
            fleet,
            env,
            controller: Some(controller),
        }
    }

    /// Returns an environment with a clock of its own.
    fn environment(fleet: &Fleet) -> TestEnv {
        let mut env = TestEnv::new();
        env.set("NATS_URL", &fleet.server.url());
        clock::fake(&mut env);
        env
    }

    /// Waits until the lease was renewed several times.
    async fn renews(&self) {
        let first = self.revision().await;
        eventually("renewals", async || {
            let revision = self.revision().await;
            when(revision > first + 3, revision)
        })
        .await;
    }

    async fn revision(&self) -> u64 {
        let bucket = self.fleet.server.jetstream().await;
        let bucket = bucket.get_key_value("CCM_ROLLOUTS").await.unwrap();
        let entry = bucket.entry(format!("default.{}", self.id)).await.unwrap();
        entry.unwrap().revision
    }

    /// Ends the run of the node, and with it the rollout and its controllers.
    fn finish(&self, controllers: &mut [&mut Child]) {
        self.fleet.env.write("go", "");
        for controller in controllers {
            assert_eq!(controller.wait().unwrap().code(), Some(0));
        }
        assert_eq!(ran(&self.fleet, "a"), ["app"]);
    }
}

const LEASE: [&str; 2] = ["--lease", "2s"];
const LEASE_DURATION: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_keeps_its_lease_whatever_the_clock_of_another_says() {
    let mut driven = Driven::start();
    let env = Driven::environment(&driven.fleet);
    let id = driven.id.clone();
    let drive = [&["rollout", "drive", &id][..], &LEASE].concat();
    let mut other = driven.fleet.begin_with(&env, &drive, Stdio::null());
    for offset in ["+1d", "-1d"] {
        clock::jump(&env, offset);
        driven.renews().await;
        clock::jump(&driven.env, offset);
        driven.renews().await;
    }
    let early = driven.fleet.early_takeovers(&id, LEASE_DURATION).await;
    assert_eq!(early, [""; 0]);
    let mut controller = driven.controller.take().unwrap();
    driven.finish(&mut [&mut controller, &mut other]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_of_a_dead_controller_ends_although_its_clock_was_a_day_ahead() {
    let mut driven = Driven::start();
    clock::jump(&driven.env, "+1d");
    driven.renews().await;
    let mut controller = driven.controller.take().unwrap();
    controller.kill().unwrap();
    controller.wait().unwrap();
    let drive = [&["rollout", "drive", &driven.id][..], &LEASE].concat();
    let mut other = driven.fleet.begin(&drive);
    eventually("another driver", async || {
        let count = driven.fleet.lease_holders(&driven.id).await.len();
        when(count == 2, count)
    })
    .await;
    driven.finish(&mut [&mut other]);
}
