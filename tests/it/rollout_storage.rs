//! Storing a new rollout while NATS does not reply: the command waits and says so.

use std::process::Stdio;

use crate::support::TestEnv;
use crate::support::fleet::Fleet;
use crate::support::poll::{wait_for, when};
use crate::support::proxy::Proxy;

/// What a controller sends to store a rollout, up to its id, which begins with the year.
const STORES_ROLLOUT: &str = "PUB $KV.CCM_ROLLOUTS.default.2";

/// Returns a fleet with a node and the bundle `app`, and an operator whose connection goes through a proxy
/// that breaks it when a rollout is stored.
fn fleet() -> (Fleet, TestEnv, Proxy) {
    let fleet = Fleet::start(&[("a", &[])]);
    let manifest = "ccm:\n  resources:\n    - exec:\n        - /bin/true: {}\n";
    let file = fleet.env.write("app/manifest.yaml", manifest);
    let directory = file.trim_end_matches("/manifest.yaml");
    fleet
        .run(&["bundle", "push", directory, "--name", "app"])
        .ok();
    let proxy = Proxy::start(&fleet.server.url());
    proxy.forbid(Some(STORES_ROLLOUT));
    let mut env = TestEnv::new();
    env.set("NATS_URL", &proxy.url());
    (fleet, env, proxy)
}

#[test]
fn a_rollout_is_stored_once_nats_replies_again() {
    let (fleet, env, proxy) = fleet();
    let log = env.path("log");
    let file = std::fs::File::create(&log).unwrap();
    let args = ["rollout", "start", "app", "--all"];
    let mut controller = fleet.begin_with(&env, &args, Stdio::from(file));
    let logged = || std::fs::read_to_string(&log).unwrap();
    wait_for("a controller that waits", || {
        when(logged().contains("Waiting for NATS"), logged())
    });
    proxy.forbid(None);
    let status = wait_for("the end of the rollout", || controller.try_wait().unwrap());
    assert_eq!(status.code(), Some(0), "{}", logged());
    let rollouts = fleet.run(&["rollout", "list", "--json"]).json();
    assert_eq!(rollouts.as_array().unwrap().len(), 1, "{rollouts}");
    assert_eq!(rollouts[0]["state"]["name"], "done");
}

#[test]
fn a_rollout_that_may_have_been_stored_is_named_with_what_to_do() {
    let (_fleet, env, proxy) = fleet();
    let outcome = env.ccm(&["fleet", "rollout", "start", "app", "--all"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let text = &outcome.stderr;
    assert!(text.contains("may have been stored"), "{text}");
    assert!(text.contains("ccm fleet rollout list"), "{text}");
    let id = text.split("ccm fleet rollout drive ").nth(1);
    let id = id.unwrap().split('`').next().unwrap();
    assert!(text.contains(&format!("rollout {id} may")), "{text}");
    assert!(proxy.dropped() > 1, "it was tried again");
}
