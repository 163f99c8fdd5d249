//! Rollouts with nodes that can't fetch their bundle or report late.

use serde_json::Value;

use crate::rollout::{fleet, id, newest, progress, push, ran, start, words};
use crate::support::fleet::Fleet;
use crate::support::poll::{wait_for, when};
use crate::support::proxy::Proxy;

fn shown(fleet: &Fleet, id: &str) -> Value {
    fleet.run(&["rollout", "show", id, "--json"]).json()
}

/// Returns a rollout as it is stored.
fn stored(fleet: &Fleet, id: &str) -> Value {
    let all = fleet.run(&["rollout", "list", "--json"]).json();
    let mut all = all.as_array().unwrap().iter();
    all.find(|it| it["id"] == id).unwrap().clone()
}

#[test]
fn a_node_that_waits_for_its_bundle_is_unreachable_and_not_failed() {
    let mut fleet = fleet(&["a"]);
    let proxy = Proxy::start(&fleet.server.url());
    fleet.add_at("b", &[], &proxy.url(), "");
    fleet.settle(2);
    push(&fleet, "app", "true");
    proxy.forbid(Some("OBJ_CCM_MANIFESTS"));
    // A failure would halt it: none is allowed. Both nodes must report before that timeout.
    let outcome = start(&fleet, "app", &["--node-timeout", "30s"]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    let rollout = newest(&fleet);
    assert_eq!(rollout["state"]["name"], "done_with_failures");
    assert_eq!(
        progress(&rollout),
        words(&[("a", "changed"), ("b", "unreachable")])
    );
    let reason = rollout["nodes"]["b"]["unreachable"]["reason"].to_string();
    assert!(reason.contains("waiting for the bundle app/"), "{reason}");
    proxy.forbid(None);
    wait_for("convergence", || {
        let rollout = shown(&fleet, &id(&rollout));
        when(rollout["nodes"]["b"] == "changed", rollout)
    });
    assert_eq!(ran(&fleet, "b"), ["app"]);
}

#[test]
fn a_server_that_is_frozen_during_a_fetch_does_not_halt_a_rollout() {
    let mut fleet = fleet(&["a"]);
    let proxy = Proxy::start(&fleet.server.url());
    fleet.add_at("b", &[], &proxy.url(), "");
    fleet.settle(2);
    push(&fleet, "app", "true");
    proxy.fault_on("OBJ_CCM_MANIFESTS", fleet.server.freezer());
    let mut controller = fleet.begin(&["rollout", "start", "app", "--all"]);
    wait_for("a fetch without a reply", || {
        let log = fleet.log("b");
        when(log.contains("Waiting for a bundle"), log)
    });
    fleet.server.thaw();
    assert_eq!(controller.wait().unwrap().code(), Some(0));
    assert_eq!(newest(&fleet)["state"]["name"], "done");
    assert_eq!(ran(&fleet, "b"), ["app"]);
}

#[test]
fn a_report_after_the_end_of_a_rollout_is_stored_in_it() {
    let mut fleet = fleet(&["a", "b"]);
    push(&fleet, "app", "true");
    fleet.stop("b");
    start(&fleet, "app", &[]).error(2);
    let id = id(&newest(&fleet));
    let mut controller = fleet.begin(&["rollout", "drive", "--forever"]);
    fleet.resume("b");
    wait_for("the report in the rollout", || {
        let rollout = stored(&fleet, &id);
        when(rollout["nodes"]["b"] == "changed", rollout)
    });
    controller.kill().unwrap();
    controller.wait().unwrap();
    assert_eq!(stored(&fleet, &id)["state"]["name"], "done_with_failures");
}

#[test]
fn a_late_report_is_stored_before_the_next_rollout_replaces_it() {
    let mut fleet = fleet(&["a", "b"]);
    push(&fleet, "one", "true");
    push(&fleet, "two", "true");
    fleet.stop("b");
    start(&fleet, "one", &[]).error(2);
    let first = id(&newest(&fleet));
    fleet.resume("b");
    wait_for("convergence", || {
        let rollout = shown(&fleet, &first);
        when(rollout["nodes"]["b"] == "changed", rollout)
    });
    start(&fleet, "two", &[]).ok();
    assert_eq!(ran(&fleet, "b"), ["one", "two"]);
    let rollout = shown(&fleet, &first);
    assert_eq!(rollout["nodes"]["b"], "changed", "{rollout}");
}
