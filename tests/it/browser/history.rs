//! The node table, the runs of a node with their events and outputs, labels, statistics, and long texts.

use serde_json::json;

use super::{check_quiet, unlocked};
use crate::support::browser::Browser;
use crate::support::fleet::Fleet;
use crate::support::web::{Page, Web, run};

#[test]
fn the_node_table_has_version_groups_bundle_and_last_run() {
    let fleet = Fleet::of_three();
    let page = Page::serve_access(&fleet.server, "", &[]).settled();
    page.push("shop", 1);
    fleet
        .run(&["rollout", "start", "shop", "--group", "web"])
        .ok();
    let mut browser = unlocked(&page, "#/nodes");
    let headers = "[...document.querySelectorAll('.th [role=columnheader]')].map((one) => one.innerText).join()";
    browser.wait(&format!(
        "{headers} === ',Node,State,Version,Groups,Bundle,Last run,Note'"
    ));
    let row = "[data-node=web1]";
    for text in [
        env!("CARGO_PKG_VERSION"),
        "web",
        "shop@",
        "changed",
        "stable",
    ] {
        browser.shows(row, text);
    }
    browser.shows("[data-node=db1]", "never");
    // A search finds nodes by bundle, and by group.
    browser.fill("input[type=search]", "shop@");
    browser.wait("document.querySelectorAll('.tr').length === 2");
    browser.fill("input[type=search]", "db");
    browser.wait("document.querySelectorAll('.tr').length === 1");
    check_quiet(&browser, &page.url(""));
}

#[test]
fn the_runs_of_a_node_are_opened_to_their_events_and_outputs() {
    let fleet = Fleet::start(&[("web1", &["web"])]);
    let page = Page::serve_access(&fleet.server, "", &[]).settled();
    let manifest = "ccm:\n  resources:\n    - exec:\n        \
         - kernel: {provider: shell, command: \"echo first line; echo second line\", logoutput: true}\n        \
         - disk: {provider: shell, command: \"echo no space left >&2; exit 3\"}\n";
    page.push_manifest("shop", manifest);
    let mut browser = unlocked(&page, "#/nodes/web1");
    browser.shows(".runs", "No runs in the last 14 days.");
    let failed = fleet.run(&["rollout", "start", "shop", "--all", "--max-failures", "1"]);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    // The page follows: nothing is reloaded.
    browser.click(".runs details summary");
    browser.wait("document.querySelectorAll('.runevents li').length === 2");
    browser.shows(
        "[data-resource='exec#kernel'] .output",
        "first line\nsecond line",
    );
    browser.shows("[data-resource='exec#disk'] .output", "no space left");
    browser.shows("[data-resource='exec#disk'] .outcome", "failed");
    browser.shows(".runs summary", "1 changed, 1 failed, 2 resources");
    browser.wait("document.querySelector('[aria-label=\"Changes per day\"] svg').getAttribute('aria-label') === 'In the last 14 days 1 changes and 1 failures'");
    // The last event of each resource, and the list of events, show outputs as well.
    browser.shows("[aria-label=Resources] .output", "no space left");
    browser.eval("location.hash = '#/events?outcome=failed&type=exec'");
    browser.shows(".events li .output", "no space left");
    check_quiet(&browser, &page.url(""));
}

#[test]
fn an_ensured_command_shows_its_output() {
    let fleet = Fleet::start(&[("web1", &[])]);
    let page = Page::serve_access(&fleet.server, "", &[]).settled();
    let mut browser = unlocked(&page, "#/nodes/web1");
    browser.click("[data-act=ensure]");
    browser.eval("document.querySelector('#action-type').value = 'exec'");
    browser.eval("document.querySelector('#action-type').dispatchEvent(new Event('input', { bubbles: true }))");
    browser.fill("#action-name", "/bin/echo hello from the node");
    browser.fill("#action-properties", "logoutput: true");
    browser.click("[data-act=preview]");
    browser.wait("!document.querySelector('[data-act=apply]').disabled");
    browser.click("[data-act=apply]");
    browser.shows(".replies .output", "hello from the node");
    check_quiet(&browser, &page.url(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_are_edited_in_place() {
    let web = Web::with_access().await;
    web.presence("web1", json!({})).await;
    web.until_state("web1", "stable");
    let mut browser = unlocked(&web, "#/nodes/web1");
    browser.fill("[aria-label='Name of the new label']", "role");
    browser.fill("[aria-label='Value of the new label']", "web");
    browser.click("[data-act=add-label]");
    browser.wait("document.querySelector('[data-label=role] input').value === 'web'");
    browser.fill("[data-label=role] input", "db");
    browser.click("[data-label=role] [data-act=save-label]");
    web.until("/api/nodes/web1", |answer| {
        answer.json()["labels"] == json!({"role": "db"})
    });
    browser.wait("document.querySelector('[data-label=role] [data-act=save-label]').disabled");
    browser.click("[data-label=role] [data-act=remove-label]");
    browser.wait("document.querySelectorAll('[data-label]').length === 0");
    assert_eq!(web.fleet(&["label", "web1"]).ok(), "");
    check_quiet(&browser, &web.url(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn statistics_show_days_failing_nodes_versions_and_bundles() {
    let web = Web::with_access().await;
    for (node, version) in [("web1", "1.0.0"), ("web2", "1.0.0"), ("db1", "0.9.0")] {
        web.presence(node, json!({"version": version})).await;
        web.until_state(node, "stable");
    }
    web.assign("web1", 1).await;
    web.assign("web2", 1).await;
    web.ran("web2", "changed", 1).await;
    web.ran("web1", "failed", 2).await;
    web.ran("web1", "failed", 3).await;
    web.until_state("web1", "failed");
    let mut browser = unlocked(&web, "#/statistics");
    browser.wait("document.querySelector('#statistics-days svg').getAttribute('aria-label') === 'In the last 14 days 1 changes and 2 failures'");
    browser.shows("#statistics-failing tbody tr", "web1");
    browser.shows(
        "#statistics-failing tbody tr",
        "package#nginx: no candidate",
    );
    let rows = |id: &str| {
        format!(
            "[...document.querySelectorAll('#statistics-{id} tbody tr')].map((row) => row.innerText.replace(/\\s+/g, ' ').trim()).join()"
        )
    };
    browser.wait(&format!(
        "{} === '1.0.0 2 67%,0.9.0 1 33%'",
        rows("versions")
    ));
    browser.wait(&format!(
        "{} === 'app@abababababab 2 67%,none 1 33%'",
        rows("bundles")
    ));
    web.presence("db1", json!({"version": "1.0.0"})).await;
    browser.wait(&format!("{} === '1.0.0 3 100%'", rows("versions")));
    browser.click("#statistics-bundles tbody a");
    browser.wait("document.querySelectorAll('.tr').length === 2");
    check_quiet(&browser, &web.url(""));
}

/// Returns the elements whose text is wider than their card, in the cards of a view.
const TOO_WIDE: &str = "[...document.querySelectorAll('.card, .head, dialog[open]')]
  .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth + 1)
  .map((one) => `${one.getAttribute('aria-label') ?? one.className}: ${one.scrollWidth} > ${one.clientWidth}`)
  .concat(document.documentElement.scrollWidth > innerWidth + 1 ? ['the page'] : [])";

fn check_width(browser: &mut Browser, view: &str) {
    assert_eq!(browser.eval(TOO_WIDE), json!([]), "{view}");
}

#[tokio::test(flavor = "multi_thread")]
async fn long_texts_wrap_inside_their_cards() {
    let web = Web::with_access().await;
    let long = "/srv/long".repeat(40).replace("/srv/", "x");
    let mut ran = run("web1", "failed", 1);
    ran["error"] = json!(long);
    ran["source"] = json!(long);
    ran["caller"] = json!(long);
    web.presence("web1", json!({"last_run": ran, "problems": [long]}))
        .await;
    let drift = json!([{"type": "file", "name": long, "message": long, "diff": format!("+{long}"), "since": "2026-01-15T08:00:00Z"}]);
    web.report("web1", json!({"drift": drift, "error": long}))
        .await;
    web.assign("web1", 1).await;
    web.event("web1", &long, "failed", 2).await;
    web.ran("web1", "failed", 3).await;
    let nodes = json!({"web1": {"failed": {"reason": long}}});
    let state = json!({"name": "halted", "reason": long});
    web.rollout(
        "r1",
        json!({"state": state, "nodes": nodes, "caller": long, "selection": [long]}),
    )
    .await;
    web.until_state("web1", "failed");
    web.until("/api/rollouts/r1", |answer| answer.status == 200);
    web.post(
        "/api/nodes/web1/labels",
        crate::support::web::TOKEN,
        &json!({"set": {"note": long}}),
    );
    let mut browser = unlocked(&web, "#/");
    for (width, height) in [(1280, 900), (390, 844)] {
        browser.size(width, height);
        for (hash, sign) in [
            ("#/", ".problems"),
            ("#/nodes/web1", ".tree details"),
            ("#/nodes/web1", "[data-label=note]"),
            ("#/nodes/web1", ".runs details"),
            ("#/rollouts", "a.rollout"),
            ("#/rollouts/r1", ".dots a"),
            ("#/events", ".events li a"),
            ("#/statistics", "#statistics-failing td"),
            ("#/rollouts/new", "form"),
        ] {
            browser.eval(&format!("location.hash = {hash:?}"));
            browser.wait(&format!("document.querySelector({sign:?})"));
            check_width(&mut browser, &format!("{hash} {sign} {width}"));
        }
    }
    check_quiet(&browser, &web.url(""));
}
