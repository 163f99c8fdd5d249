//! Actions of the page on real agents: a rollout that is under way is paused and resumed, one that
//! halted is retried and rolled back, resources are ensured and nodes paused by selection.
//!
//! Every bundle here appends a line to a file of each node, so a file shows how often its node
//! really ran what.

use std::os::unix::fs::PermissionsExt as _;

use super::{becomes, check_quiet, unlocked};
use crate::support::browser::Browser;
use crate::support::fleet::Fleet;
use crate::support::web::Page;

/// Stores a bundle that runs `first` on each node and then notes the bundle's name.
fn push(fleet: &Fleet, name: &str, first: &str) {
    let log = fleet.env.at("{{ Facts.node }}.log");
    let manifest = format!(
        "ccm:\n  resources:\n    - exec:\n        - run:\n            provider: shell\n            \
         command: \"{first} && echo {name} >> {log}\"\n"
    );
    let file = fleet.env.write(&format!("{name}/manifest.yaml"), manifest);
    let directory = file.trim_end_matches("/manifest.yaml");
    fleet
        .run(&["bundle", "push", directory, "--name", name])
        .ok();
}

/// Returns what a node ran, in order.
fn ran(fleet: &Fleet, node: &str) -> String {
    match fleet.env.exists(&format!("{node}.log")) {
        true => fleet.env.read(&format!("{node}.log")),
        false => String::new(),
    }
}

/// Opens the newest rollout, whatever the page has read so far.
fn open_newest(browser: &mut Browser, fleet: &Fleet) {
    let all = fleet.run(&["rollout", "list", "--json"]).json();
    let newest = all.as_array().unwrap().last().unwrap();
    let id = newest["id"].as_str().unwrap();
    browser.click(&format!("a.rollout[data-rollout='{id}']"));
}

/// Presses a button and says yes.
fn do_it(browser: &mut Browser, verb: &str, reason: &str) {
    browser.click(&format!("[data-act={verb}]"));
    browser.wait("document.querySelector('#ask').open");
    browser.text(reason);
    browser.click("#ask-yes");
}

#[test]
fn a_rollout_under_way_is_paused_resumed_and_followed_to_its_end() {
    let fleet = Fleet::of_three();
    let page = Page::serve_actions(&fleet.server).settled();
    // The node of the first wave goes through, the others wait.
    let (taken, go) = (fleet.env.at("taken"), fleet.env.at("go"));
    let wait = format!("until [ -e {go} ]; do sleep 0.05; done");
    push(
        &fleet,
        "app",
        &format!("(mkdir {taken} 2>/dev/null || {wait})"),
    );
    let mut browser = unlocked(&page, "#/rollouts");
    let args = ["rollout", "start", "app", "--all", "--wave", "1"];
    let mut controller = fleet.begin(&args);
    browser.click("a.rollout");
    browser.wait("document.querySelector('.dots a.changed')");
    do_it(&mut browser, "pause", "lunch");
    becomes(&mut browser, "paused");
    browser.wait("document.querySelector('.reason').innerText.includes('lunch')");
    fleet.env.write("go", "");
    // The node that was under way ends, and no other begins.
    browser.wait("document.querySelectorAll('.dots a.changed').length === 2");
    browser.wait("document.querySelectorAll('.dots a.pending').length === 1");
    let nodes = ["db1", "web1", "web2"];
    let done = nodes.iter().filter(|node| !ran(&fleet, node).is_empty());
    assert!(done.count() < 3, "it went on while it was paused");
    do_it(&mut browser, "resume", "");
    becomes(&mut browser, "done");
    browser.wait("document.querySelectorAll('.dots a.changed').length === 3");
    for node in nodes {
        assert_eq!(ran(&fleet, node), "app\n", "{node}");
    }
    controller.wait().unwrap();
    check_quiet(&browser, &page.url(""));
}

#[test]
fn a_rollout_that_halted_is_retried_and_rolled_back() {
    let fleet = Fleet::of_three();
    let page = Page::serve_actions(&fleet.server).settled();
    push(&fleet, "old", "true");
    fleet.run(&["rollout", "start", "old", "--all"]).ok();
    let broken = fleet.env.write("broken", "");
    push(&fleet, "new", &format!("test ! -e {broken}"));
    let halted = fleet.run(&["rollout", "start", "new", "--all", "--canary", "1"]);
    assert_eq!(halted.code, Some(3), "{halted:?}");
    let mut browser = unlocked(&page, "#/rollouts");
    open_newest(&mut browser, &fleet);
    becomes(&mut browser, "halted");
    browser.wait("document.querySelector('[aria-label=Problems]').innerText.includes('db1')");
    browser.wait("document.querySelectorAll('.dots a.pending').length === 2");
    std::fs::remove_file(&broken).unwrap();
    do_it(&mut browser, "retry", "");
    becomes(&mut browser, "done");
    browser.wait("document.querySelectorAll('.dots a.changed').length === 3");
    assert_eq!(ran(&fleet, "web1"), "old\nnew\n");
    do_it(&mut browser, "rollback", "");
    becomes(&mut browser, "rolled back");
    browser.wait("document.querySelectorAll('.dots a.restored').length === 3");
    for node in ["db1", "web1", "web2"] {
        page.until(&format!("/api/nodes/{node}"), |answer| {
            answer.json()["assignment"]["manifests"][0]["name"] == "old"
        });
    }
    check_quiet(&browser, &page.url(""));
}

/// Returns the colour of the state in the head of the view, by the node state that it stands for.
fn colour(browser: &mut Browser) -> String {
    let colour = browser.eval("document.querySelector('.head .badge').dataset.state");
    colour.as_str().unwrap().to_owned()
}

#[test]
fn a_rollout_and_a_rollback_with_failures_are_shown_as_such() {
    let fleet = Fleet::of_three();
    let page = Page::serve_actions(&fleet.server).settled();
    let broken = fleet.env.at("broken-{{ Facts.node }}");
    push(&fleet, "old", &format!("test ! -e {broken}"));
    fleet.run(&["rollout", "start", "old", "--all"]).ok();
    push(&fleet, "new", "case {{ Facts.node }} in db1) exit 1;; esac");
    let args = ["rollout", "start", "new", "--all", "--max-failures", "1"];
    let outcome = fleet.run(&args);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let mut browser = unlocked(&page, "#/rollouts");
    open_newest(&mut browser, &fleet);
    becomes(&mut browser, "done with failures");
    assert_eq!(colour(&mut browser), "failed");
    fleet.env.write("broken-web1", "");
    do_it(&mut browser, "rollback", "");
    becomes(&mut browser, "rolled back with failures");
    assert_eq!(colour(&mut browser), "failed");
    browser.wait("document.querySelectorAll('.dots a.restored').length === 2");
    browser.wait("document.querySelector('[aria-label=Problems]').innerText.includes('web1')");
    browser.wait("document.querySelector('.wave .done').innerText === '3 / 3'");
    std::fs::remove_file(fleet.env.path("broken-web1")).unwrap();
    do_it(&mut browser, "retry", "");
    becomes(&mut browser, "rolled back");
    assert_eq!(colour(&mut browser), "drifted");
    browser.wait("document.querySelectorAll('.dots a.restored').length === 3");
    for node in ["db1", "web1", "web2"] {
        assert!(ran(&fleet, node).ends_with("old\n"), "{node}");
    }
    check_quiet(&browser, &page.url(""));
}

/// Selects the first two nodes of the table with the keyboard.
fn select_two(browser: &mut Browser) {
    browser.wait("document.querySelectorAll('.tr').length === 3");
    browser.eval("document.querySelector('.virtual').focus()");
    for key in ["ArrowDown", " ", "ArrowDown", " "] {
        browser.key(key);
    }
    browser.wait("document.querySelector('.selection').innerText.includes('2 nodes selected')");
}

#[test]
fn a_resource_is_looked_at_first_and_then_ensured_on_a_selection() {
    let fleet = Fleet::of_three();
    let page = Page::serve_actions(&fleet.server).settled();
    let mut browser = unlocked(&page, "#/nodes");
    select_two(&mut browser);
    browser.click("[data-act=ensure]");
    browser.eval("document.querySelector('#action-name').focus()");
    browser.text(&fleet.env.at("motd"));
    assert_eq!(
        browser.eval("document.querySelector('[data-act=apply]').disabled"),
        true
    );
    browser.click("[data-act=preview]");
    browser.wait("document.querySelector('.replies .diff').innerText.includes('+hello')");
    let output = browser.eval("document.querySelector('.replies').innerText");
    let output = output.as_str().unwrap().replace('\n', " ");
    assert!(output.starts_with("would change db1, web1"), "{output}");
    assert!(!fleet.env.exists("motd"), "it was only looked at");
    // What was looked at is not what would be done now.
    browser.eval("document.querySelector('#action-properties').focus()");
    browser.text("\nmode: 0600\n");
    assert_eq!(
        browser.eval("document.querySelector('[data-act=apply]').disabled"),
        true
    );
    browser.click("[data-act=preview]");
    browser.wait("document.querySelector('[data-act=apply]').disabled === false");
    browser.click("[data-act=apply]");
    browser.wait("document.querySelector('dialog h3').innerText === 'Done'");
    assert_eq!(fleet.env.read("motd"), "hello\n");
    let mode = fleet.env.path("motd").metadata().unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    check_quiet(&browser, &page.url(""));
}

#[test]
fn what_no_node_can_read_is_said_and_nothing_can_be_done() {
    let fleet = Fleet::start(&[("web1", &[])]);
    let page = Page::serve_actions(&fleet.server).settled();
    let mut browser = unlocked(&page, "#/nodes/web1");
    browser.click("[data-act=ensure]");
    browser.eval("document.querySelector('#action-name').focus()");
    browser.text("/srv/motd");
    browser.eval("document.querySelector('#action-properties').value = 'colour'");
    browser.click("[data-act=preview]");
    browser.wait("document.querySelector('.bad').innerText === 'line 1: expected \"name: value\"'");
    browser.eval("document.querySelector('#action-properties').value = 'colour: red'");
    browser.click("[data-act=preview]");
    browser.wait("document.querySelector('.replies').innerText.includes('colour')");
    browser.wait("document.querySelector('.replies .outcome').innerText === 'failed'");
    check_quiet(&browser, &page.url(""));
}

#[test]
fn nodes_are_paused_by_selection_and_resumed_one_by_one() {
    let fleet = Fleet::of_three();
    let page = Page::serve_actions(&fleet.server).settled();
    let mut browser = unlocked(&page, "#/nodes");
    select_two(&mut browser);
    do_it(&mut browser, "pause", "disk swap");
    browser.wait("document.querySelectorAll('.tr .badge[data-state=paused]').length === 2");
    browser.wait("document.querySelector('.virtual').innerText.includes('disk swap')");
    browser.eval("location.hash = '#/nodes/db1'");
    becomes(&mut browser, "paused");
    browser.click("[data-act=resume]");
    becomes(&mut browser, "stable");
    page.until_state("web1", "paused");
    check_quiet(&browser, &page.url(""));
}
