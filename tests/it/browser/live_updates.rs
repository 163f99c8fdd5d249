//! Live updates of the page: simulated nodes that really run the bundle of a rollout, and stored
//! records where hostile texts or thousands of nodes matter.

use serde_json::{Value, json};

use super::check_quiet;
use crate::support::browser::Browser;
use crate::support::poll::wait_for;
use crate::support::simulation::Simulation;
use crate::support::web::Web;

/// Returns the colour at a place that every shape of a node covers, and the one of a state.
const SQUARE: &str = "(index, state) => {
  const canvas = document.querySelector('canvas.grid');
  const [cell, columns] = [Number(canvas.dataset.cell), Number(canvas.dataset.columns)];
  const inside = (at, part) => Math.round((2 + at * cell + (cell - 3) * part) * devicePixelRatio);
  const [x, y] = [inside(index % columns, 0.3), inside(Math.floor(index / columns), 0.6)];
  const pen = document.createElement('canvas').getContext('2d');
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(`--${state}`);
  pen.fillRect(0, 0, 1, 1);
  return [canvas.getContext('2d').getImageData(x, y, 1, 1), pen.getImageData(0, 0, 1, 1)]
    .map((one) => [...one.data].join(','));
}";

/// Waits until every node has the colour of its state, as the API reports it, and so many of them
/// the colour of this one.
fn wait_for_colours(browser: &mut Browser, web: &Web, state: &str, count: usize) {
    wait_for(&format!("{count} nodes as {state}"), || {
        let nodes = web.get("/api/nodes?limit=1000").json();
        let nodes = nodes["nodes"].as_array().unwrap();
        if nodes.iter().filter(|node| node["state"] == state).count() != count {
            return Err(json!(nodes));
        }
        for (index, node) in nodes.iter().enumerate() {
            let colours = browser.eval(&format!("({SQUARE})({index}, {})", node["state"]));
            if colours[0] != colours[1] {
                return Err(json!([node, colours]));
            }
        }
        Ok(())
    });
    browser.wait(&format!(
        "document.querySelector('.count[data-state={state}] b').innerText === '{count}'"
    ));
}

/// Returns how many nodes of a rollout have failed.
fn failures(rollout: &Value) -> usize {
    let nodes = rollout["nodes"].as_object().unwrap().values();
    nodes.filter(|node| node["failed"].is_object()).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_change_their_colour_when_their_runs_fail_and_when_they_recover() {
    const NODES: usize = 40;
    let web = Web::start().await;
    let failing = Simulation::start(
        &web.nats,
        NODES,
        &["--failure-rate", "0.1", "--latency", "1ms"],
    );
    let mut browser = Browser::start();
    browser.open(&web.url("#/"));
    browser.live();
    wait_for_colours(&mut browser, &web, "stable", NODES);
    web.push("app", 3);
    let start = ["rollout", "start", "app", "--all", "--max-failures", "40"];
    let started = web.fleet(&[&start[..], &["--json"]].concat());
    assert_eq!(started.code, Some(1), "{started:?}");
    let rollout: Value = serde_json::from_str(&started.stdout).unwrap();
    // Not what the page has read so far, which may be less.
    let failed = failures(&rollout);
    assert!((1..NODES).contains(&failed), "{failed}: {rollout}");
    wait_for_colours(&mut browser, &web, "failed", failed);
    browser.wait("document.querySelector('.problems').innerText.includes('simulated failure')");
    // The same nodes, whose runs no longer fail.
    drop(failing);
    let _well = Simulation::start(&web.nats, NODES, &["--latency", "1ms"]);
    web.fleet(&["rollout", "retry", rollout["id"].as_str().unwrap()])
        .ok();
    wait_for_colours(&mut browser, &web, "stable", NODES);
    check_quiet(&browser, &web.url(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_filtered_and_opened_by_keyboard_and_links_lead_back() {
    let web = Web::start().await;
    let _nodes = Simulation::start(&web.nats, 40, &["--in-group", "lab"]);
    let mut browser = Browser::start();
    browser.open(&web.url("#/nodes"));
    browser.wait("document.querySelector('h1 + span').innerText === '40 nodes'");
    browser.eval("document.querySelector('input[type=search]').focus()");
    browser.text("sim0002");
    browser.wait("document.querySelectorAll('.tr').length === 10");
    browser.click(".chip[data-state=stable]");
    browser.wait("location.hash === '#/nodes?q=sim0002&state=stable'");
    browser.wait("[...document.querySelectorAll('.tr .badge')].every((one) => one.dataset.state === 'stable')");
    browser.click(".chip[data-state=stable]");
    browser.click(".chip[data-state=offline]");
    browser.wait("document.querySelector('.virtual').innerText.includes('No matching nodes')");
    // The address alone leads to the same rows.
    browser.open("about:blank");
    browser.open(&web.url("#/nodes?q=sim0002&state=stable"));
    browser.wait("document.querySelectorAll('.tr').length === 10");
    browser.eval("document.querySelector('.virtual').focus()");
    browser.key("ArrowDown");
    browser.key("ArrowDown");
    browser.key("Enter");
    browser.wait("document.querySelector('h1').innerText === 'sim00021.sim.lab'");
    browser.wait("document.querySelector('.tree').innerText.includes('rack')");
    browser.eval("history.back()");
    browser.wait("location.hash === '#/nodes?q=sim0002&state=stable' && document.querySelectorAll('.tr').length === 10");
    check_quiet(&browser, &web.url(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_appear_as_they_happen_and_filters_hold() {
    let web = Web::start().await;
    web.presence("web1", json!({})).await;
    web.until_state("web1", "stable");
    let mut browser = Browser::start();
    browser.open(&web.url("#/events?outcome=failed"));
    browser.live();
    web.event("web1", "/etc/fine", "changed", 1).await;
    web.event("web1", "/etc/<b>bad</b>", "failed", 2).await;
    browser.wait("document.querySelector('.events li a')");
    let rows =
        browser.eval("[...document.querySelectorAll('.events li')].map((row) => row.innerText)");
    assert_eq!(rows.as_array().unwrap().len(), 1, "{rows}");
    let text = rows[0].as_str().unwrap();
    assert!(
        text.contains("file#/etc/<b>bad</b> failed: disk full"),
        "{text}"
    );
    assert_eq!(
        browser.eval("document.querySelectorAll('.events b').length"),
        0
    );
    check_quiet(&browser, &web.url(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_reaches_back_as_far_as_the_server_remembers() {
    let web = Web::start().await;
    web.event("web1", "/etc/long-ago", "failed", 1).await;
    web.until("/api/events?outcome=failed", |answer| {
        answer.json()["events"][0]["name"] == "/etc/long-ago"
    });
    let nodes = Simulation::start(&web.nats, 10, &["--events", "500"]);
    // The page itself reads the newest 1,000.
    web.until("/api/events?limit=10000", |answer| {
        answer.json()["events"].as_array().unwrap().len() > 1100
    });
    // Enough: the server forgets, too.
    drop(nodes);
    let mut browser = Browser::start();
    browser.open(&web.url("#/events"));
    browser.wait("document.querySelectorAll('.events li').length > 20");
    browser.eval("document.querySelector('input[type=search]').focus()");
    browser.text("long-ago");
    browser.wait("document.querySelector('.events li').innerText.includes('/etc/long-ago failed')");
    // So it does by the name of a node.
    browser.open("about:blank");
    browser.open(&web.url("#/events?q=web1"));
    browser.wait("document.querySelector('.events li').innerText.includes('/etc/long-ago failed')");
    assert_eq!(browser.errors, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn new_events_wait_while_one_of_them_has_the_focus() {
    let web = Web::start().await;
    web.event("web1", "/etc/first", "changed", 1).await;
    let mut browser = Browser::start();
    browser.open(&web.url("#/events"));
    browser.live();
    browser.wait("document.querySelector('.events a')");
    browser.eval("document.querySelector('.events a').focus()");
    web.event("web2", "/etc/second", "changed", 2).await;
    browser.wait("document.querySelector('.head').innerText.includes('paused, 1 new')");
    let first = "document.querySelector('.events li').innerText";
    let first_row = browser.eval(first);
    assert!(
        first_row.as_str().unwrap().contains("/etc/first"),
        "{first_row}"
    );
    browser.eval("document.activeElement.blur()");
    browser.wait(&format!("{first}.includes('/etc/second')"));
    browser.wait("!document.querySelector('.head').innerText.includes('paused')");
    check_quiet(&browser, &web.url(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_events_updates_only_visible_rows_until_the_user_scrolls() {
    let web = Web::start().await;
    let _nodes = Simulation::start(&web.nats, 10, &["--events", "800"]);
    let mut browser = Browser::start();
    browser.open(&web.url("#/events"));
    browser.wait("document.querySelector('h1 + span').innerText === 'the last 1,000 events'");
    let rows = "document.querySelectorAll('.events li').length";
    // No more than the lowest rows that a screen of 900 pixels can show.
    browser.wait(&format!("{rows} === 25"));
    browser.eval("window.row = document.querySelector('.events li:nth-child(9)')");
    browser.eval("window.seen = new Set()");
    browser.wait("seen.add(row.dataset.event).size > 3 && row.isConnected");
    assert_eq!(browser.eval(rows), 25);
    browser.eval("scrollTo(0, 1e9)");
    browser.wait("document.querySelector('.head').innerText.includes('paused')");
    browser.wait(&format!("{rows} >= 125"));
    let event = "document.querySelector('.events li:nth-child(20)').dataset.event";
    let read = browser.eval(event);
    browser.wait("/paused, [\\d,]+ new/.test(document.querySelector('.head').innerText)");
    assert_eq!(browser.eval(event), read);
    browser.eval("scrollTo(0, 0)");
    browser.wait(&format!(
        "{rows} === 25 && {event} !== '{}'",
        read.as_str().unwrap()
    ));
    check_quiet(&browser, &web.url(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_stays_the_same_while_the_fleet_is_busy() {
    let web = Web::start().await;
    let _nodes = Simulation::start(&web.nats, 30, &["--events", "300", "--failure-rate", "0.2"]);
    let mut browser = Browser::start();
    browser.open(&web.url("#/nodes"));
    browser.wait("document.querySelectorAll('.tr').length >= 20");
    // Every row has its first run behind it, and some have failed.
    browser.wait("Number(document.querySelector('.chip[data-state=failed] .soft').innerText) > 0");
    browser
        .eval("document.querySelector('.tr').id && (window.row = document.querySelector('.tr'))");
    browser.eval("window.seen = new Set()");
    browser.wait(
        "seen.add(document.querySelector('.virtual').innerText).size > 2 && document.querySelector('.tr') === row",
    );
    check_quiet(&browser, &web.url(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_thousands_holds_only_the_rows_in_sight() {
    let web = Web::start().await;
    let connection = web.connection.clone();
    let bucket = connection.bucket(ccm_nats::streams::LABELS).await.unwrap();
    let mut writing = tokio::task::JoinSet::new();
    for part in 0..20 {
        let bucket = bucket.clone();
        writing.spawn(async move {
            for number in 0..100 {
                let key = format!("default.n{:04}", part * 100 + number);
                let value = json!({"rack": "r1"}).to_string();
                bucket.put(&key, value.into()).await.unwrap();
            }
        });
    }
    while let Some(written) = writing.join_next().await {
        written.unwrap();
    }
    web.until("/api/nodes?limit=1", |answer| {
        answer.json()["matched"] == 2000
    });
    let mut browser = Browser::start();
    browser.open(&web.url("#/nodes"));
    browser.wait("document.querySelector('.tr')");
    browser.eval("document.querySelector('.virtual').scrollTop = 1e9");
    browser.wait("document.querySelector('[data-node=n1999]')");
    let rows: Value = browser.eval("document.querySelectorAll('.tr').length");
    assert!(rows.as_u64().unwrap() < 60, "{rows}");
    check_quiet(&browser, &web.url(""));
}
