//! Controllers without NATS: they wait, say so, and go on.

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::rollout::{id, newest, push, ran, start};
use crate::support::browser::Browser;
use crate::support::fleet::Fleet;
use crate::support::nats::Cluster;
use crate::support::poll::{eventually, wait_for, when};
use crate::support::web::Page;

/// Starts a cluster with two nodes and a bundle that runs until the file `go` is there.
fn fleet_with_bundle() -> Fleet<Cluster> {
    let fleet = Fleet::on(Cluster::start(), &[("a", &[]), ("b", &[])]);
    let (begun, go) = (fleet.env.at("begun"), fleet.env.at("go"));
    let wait = format!("touch {begun}; until [ -e {go} ]; do sleep 0.05; done");
    push(&fleet, "app", &wait);
    fleet
}

/// A command of `ccm fleet` at work, with a log of its own. Ended when dropped.
struct Controller {
    log: PathBuf,
    child: Child,
}

impl Controller {
    fn begin(fleet: &Fleet<Cluster>, log: &str, args: &[&str]) -> Self {
        let log = fleet.env.path(log);
        let file = std::fs::File::create(&log).unwrap();
        Self {
            log,
            child: fleet.begin_with(&fleet.env, args, Stdio::from(file)),
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Returns what it has logged; it must not have ended.
    fn working(&mut self) -> String {
        let (ended, log) = (self.child.try_wait().unwrap(), self.log());
        assert!(ended.is_none(), "the controller has ended: {log}");
        log
    }

    /// Waits until it has logged that it waits for NATS.
    fn waits(&mut self) {
        wait_for("a controller that waits", || {
            let log = self.working();
            when(log.contains("Waiting for NATS"), log)
        });
    }

    /// Waits for its end, which must be a success.
    fn succeeds(&mut self) {
        let status = wait_for("the end of a controller", || self.child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{}", self.log());
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends two of three servers: the third has no quorum.
fn lose_quorum(fleet: &mut Fleet<Cluster>) {
    for server in &mut fleet.server.servers[1..] {
        server.stop();
    }
}

fn regain_quorum(fleet: &mut Fleet<Cluster>) {
    for server in &mut fleet.server.servers[1..] {
        server.resume();
    }
}

fn runs_once(fleet: &Fleet<Cluster>) {
    for node in ["a", "b"] {
        assert_eq!(ran(fleet, node), ["app"], "{node}");
    }
}

const START: [&str; 6] = ["rollout", "start", "app", "--all", "--wave", "1"];

#[test]
fn a_controller_goes_on_after_20_seconds_without_quorum() {
    let mut fleet = fleet_with_bundle();
    let mut controller = Controller::begin(&fleet, "log", &START);
    wait_for("the first wave", || fleet.env.exists("begun"));
    lose_quorum(&mut fleet);
    let since = Instant::now();
    controller.waits();
    wait_for("20 seconds without quorum", || {
        controller.working();
        since.elapsed() > Duration::from_secs(20)
    });
    regain_quorum(&mut fleet);
    fleet.env.write("go", "");
    controller.succeeds();
    let log = controller.log();
    assert!(log.contains("NATS is available again"), "{log}");
    runs_once(&fleet);
}

#[test]
fn drive_waits_for_buckets_that_do_not_answer_at_its_start() {
    let mut fleet = fleet_with_bundle();
    fleet.env.write("go", "");
    start(&fleet, "app", &["--detach"]).ok();
    let id = id(&newest(&fleet));
    lose_quorum(&mut fleet);
    let mut one = Controller::begin(&fleet, "one.log", &["rollout", "drive", &id]);
    let mut all = Controller::begin(&fleet, "all.log", &["rollout", "drive"]);
    one.waits();
    all.waits();
    regain_quorum(&mut fleet);
    one.succeeds();
    all.succeeds();
    runs_once(&fleet);
}

#[test]
fn watching_a_rollout_shows_an_outage() {
    let mut fleet = fleet_with_bundle();
    start(&fleet, "app", &["--detach"]).ok();
    let id = id(&newest(&fleet));
    let mut watching = Controller::begin(&fleet, "log", &["rollout", "watch", &id]);
    lose_quorum(&mut fleet);
    watching.waits();
    regain_quorum(&mut fleet);
    wait_for("the end of the outage", || {
        let log = watching.working();
        when(log.contains("NATS is available again"), log)
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_goes_on_while_the_leader_is_frozen() {
    let fleet = fleet_with_bundle();
    let cluster = &fleet.server;
    let leader = eventually("a leader", async || {
        cluster.leader("KV_CCM_ROLLOUTS", 0).await
    })
    .await;
    let mut controller = Controller::begin(&fleet, "log", &START);
    wait_for("the first wave", || fleet.env.exists("begun"));
    cluster.servers[leader].freeze();
    eventually("another leader", async || {
        let asked = (leader + 1) % 3;
        let found = cluster.leader("KV_CCM_ROLLOUTS", asked).await;
        when(found.is_some_and(|found| found != leader), found)
    })
    .await;
    cluster.servers[leader].thaw();
    fleet.env.write("go", "");
    controller.succeeds();
    runs_once(&fleet);
}

#[test]
fn the_page_and_its_metrics_show_that_nats_has_no_quorum() {
    let mut fleet = fleet_with_bundle();
    let page = Page::serve(&fleet.server);
    let wait = |page: &Page| page.get("/api/summary").json()["nats_wait"].clone();
    let metric = |page: &Page, value: &str| {
        let metrics = page.get("/metrics").body;
        metrics.contains(&format!("\nccm_fleet_waiting_for_nats {value}\n"))
    };
    let mut browser = Browser::start();
    browser.open(&page.url("#/"));
    browser.live();
    assert_eq!(wait(&page), Value::Null);
    assert!(metric(&page, "0"));
    lose_quorum(&mut fleet);
    wait_for("the reason", || when(wait(&page).is_string(), wait(&page)));
    assert!(metric(&page, "1"));
    let shown = "document.querySelector('#nats-wait').innerText";
    browser.wait(&format!("{shown}.startsWith('Waiting for NATS: ')"));
    regain_quorum(&mut fleet);
    wait_for("the end", || when(wait(&page).is_null(), wait(&page)));
    assert!(metric(&page, "0"));
    browser.wait("document.querySelector('#nats-wait').hidden");
}
