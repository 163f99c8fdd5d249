//! Bundles with their differences from the assigned version, and rollouts that are planned and started on
//! the page, by real agents.

use super::{becomes, check_quiet, unlocked};
use crate::support::fleet::Fleet;
use crate::support::web::Page;

/// Stores a bundle whose nodes note its text.
fn push(fleet: &Fleet, page: &Page, text: &str) {
    let log = fleet.env.at("{{ Facts.node }}.log");
    let manifest = format!(
        "ccm:\n  resources:\n    - exec:\n        - run:\n            provider: shell\n            \
         command: \"echo {text} >> {log}\"\n"
    );
    page.push_manifest("shop", &manifest);
}

#[test]
fn a_new_version_is_compared_with_the_assigned_one_and_rolled_out() {
    let fleet = Fleet::of_three();
    let page = Page::serve_access(&fleet.server, "", &[]).settled();
    push(&fleet, &page, "one");
    fleet.run(&["rollout", "start", "shop", "--all"]).ok();
    push(&fleet, &page, "two");
    page.until("/api/bundles", |answer| {
        answer.json()["bundles"][1]["nodes"] == 3
    });
    let mut browser = unlocked(&page, "#/bundles");
    browser.wait("document.querySelectorAll('[aria-label=shop] tbody tr').length === 2");
    browser.shows("[aria-label=shop] tbody tr:nth-child(2)", "assigned");
    browser.shows("[aria-label=shop] tbody tr:nth-child(2)", "3 nodes");
    browser.shows("[aria-label=shop] tbody tr:nth-child(1)", "newest");
    browser.click("[aria-label=shop] tbody tr:nth-child(1) a.mono");
    browser.wait(
        "document.querySelector('#against').selectedOptions[0].innerText.endsWith('(assigned to 3 nodes)')",
    );
    browser.wait("document.querySelector('[data-file=\"manifest.yaml\"] del').innerText.includes('echo one')");
    browser.wait("document.querySelector('[data-file=\"manifest.yaml\"] ins').innerText.includes('echo two')");
    browser.click(".head [data-act=rollout]");
    // The form has the version that was looked at.
    browser.wait("document.querySelector('#form-bundle').selectedIndex === 0 && document.querySelector('#form-bundle').length === 2");
    browser.fill("#form-groups", "web");
    browser.fill("#form-canary", "1");
    assert_eq!(
        browser.eval("document.querySelector('[data-act=start]').disabled"),
        true
    );
    browser.click("[data-act=plan]");
    browser.shows("[aria-label=Plan]", "to 2 nodes in 2 waves");
    browser.shows("[data-wave=canary]", "web1");
    browser.shows("[data-wave='wave 1']", "web2");
    browser.shows("[aria-label=Plan]", "--group web");
    assert!(
        !fleet.env.read("web1.log").contains("two"),
        "it was only planned"
    );
    // Another form needs another plan.
    browser.fill("#form-max_failures", "1");
    browser.fill("#form-deadline", "2h");
    browser.fill("#form-data", "port: 8080");
    browser.wait("document.querySelector('[data-act=start]').disabled");
    browser.click("[data-act=plan]");
    browser.shows("[aria-label=Plan]", "at most 1 failure");
    browser.shows("[aria-label=Plan]", "no node starts after 20");
    browser.shows("[aria-label=Plan]", "\"port\": 8080");
    browser.wait("!document.querySelector('[data-act=start]').disabled");
    browser.click("[data-act=start]");
    browser
        .wait("/^#\\/rollouts\\/[^/]+$/.test(location.hash) && location.hash !== '#/rollouts/new'");
    becomes(&mut browser, "done");
    browser.shows("[aria-label=Plan]", "by ann via ");
    for (node, text) in [
        ("web1", "one\ntwo\n"),
        ("web2", "one\ntwo\n"),
        ("db1", "one\n"),
    ] {
        assert_eq!(fleet.env.read(&format!("{node}.log")), text, "{node}");
    }
    check_quiet(&browser, &page.url(""));
}

#[test]
fn what_the_server_may_not_roll_out_is_shown_with_the_reason_and_can_not_be_started() {
    let fleet = Fleet::start(&[("web1", &["web"]), ("db1", &["db"])]);
    let limits = "rollouts: {nodes: [\"web*\"]}\n";
    let page = Page::serve_access(&fleet.server, limits, &[]).settled();
    push(&fleet, &page, "one");
    let mut browser = unlocked(&page, "#/rollouts");
    browser.click("[data-act=new]");
    browser.wait("document.querySelector('#form-bundle').length === 1");
    browser.click("[data-act=plan]");
    browser.shows("form .bad", "no nodes selected");
    browser.click("#form-all");
    browser.click("[data-act=plan]");
    browser.shows(
        ".refusal",
        "may not roll out to node db1: it may roll out to web*",
    );
    assert_eq!(
        browser.eval("document.querySelector('[data-act=start]').disabled"),
        true
    );
    browser.fill("#form-canary", "many");
    browser.click("[data-act=plan]");
    browser.shows("form .bad", "canary: expected a number, found many");
    browser.fill("#form-canary", "0");
    browser.click("#form-all");
    browser.fill("#form-nodes", "web1, nobody");
    browser.click("[data-act=plan]");
    browser.shows("form .bad", "unknown nodes: nobody");
    assert!(!fleet.env.exists("web1.log"));
    // The refused requests are the only problems that the browser reported.
    assert!(
        browser.errors.iter().all(|it| it.contains("status of 400")),
        "{:?}",
        browser.errors
    );
}

#[test]
fn a_rollout_of_selected_nodes_starts_with_their_names_in_the_form() {
    let fleet = Fleet::of_three();
    let page = Page::serve_access(&fleet.server, "", &[]).settled();
    push(&fleet, &page, "one");
    let mut browser = unlocked(&page, "#/nodes");
    browser.wait("document.querySelectorAll('.tr').length === 3");
    for node in ["db1", "web2"] {
        browser.click(&format!("[data-node={node}] input"));
    }
    browser.click(".selection [data-act=rollout]");
    browser.wait("document.querySelector('#form-nodes').value === 'db1, web2'");
    browser.wait("document.querySelector('#form-bundle').length === 1");
    browser.click("[data-act=plan]");
    browser.shows("[aria-label=Plan]", "--node db1 --node web2");
    check_quiet(&browser, &page.url(""));
}
