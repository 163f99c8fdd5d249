//! The fleet's page in a real Chromium: every view loads, follows the fleet, can be used with the
//! keyboard and read by everyone, and asks nobody else for anything.
//!
//! With `CCM_SCREENSHOTS=1` the pictures of `docs/img` are made anew.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::browser::Browser;
use crate::support::web::{TOKEN, Web, run};

/// Returns what is wrong with a view for people who can't see well or use no mouse: controls
/// without a name, headings out of order, pictures without words, text without contrast.
const COMPLAINTS: &str = r#"
(() => {
  const bad = [];
  const named = (el) => (el.getAttribute("aria-label") || el.innerText || el.title ||
    (el.id && document.querySelector(`label[for="${el.id}"]`)?.innerText) || "").trim();
  const seen = (el) => el.checkVisibility() && el.getClientRects().length > 0;
  for (const el of document.querySelectorAll("a, button, input, select, [role=img], [role=table], [tabindex='0']")) {
    if (seen(el) && !named(el)) bad.push(`no name: ${el.outerHTML.slice(0, 120)}`);
  }
  if (document.querySelectorAll("h1").length !== 1) bad.push("not one h1");
  for (const role of ["header", "nav[aria-label]", "main"]) {
    if (!document.querySelector(role)) bad.push(`no ${role}`);
  }
  if (!document.documentElement.lang || !document.title) bad.push("no language or title");
  for (const el of document.querySelectorAll("img")) if (!el.hasAttribute("alt")) bad.push("img without alt");
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parse = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * x + .7152 * y + .0722 * z;
  };
  const behind = (el) => {
    for (let at = el; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour[3] > .9) return colour;
    }
    return [255, 255, 255, 1];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const el = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !seen(el) || el.closest("svg, :disabled, script, noscript, .skip, .fresh")) continue;
    const [one, two] = [light(parse(getComputedStyle(el).color)), light(behind(el))].sort((a, b) => b - a);
    const ratio = (one + .05) / (two + .05);
    if (ratio < 4.5) bad.push(`contrast ${ratio.toFixed(2)}: ${walker.currentNode.data.trim().slice(0, 40)}`);
  }
  const wide = document.documentElement.scrollWidth - innerWidth;
  if (wide > 1) bad.push(`${wide} pixels too wide`);
  return [...new Set(bad)];
})()
"#;

/// Serves a fleet in which everything that can be shown happens.
async fn lively(count: usize) -> Web {
    let web = Web::with_actions().await;
    let names: Vec<String> = (1..=count).map(name).collect();
    for (index, node) in names.iter().enumerate() {
        let outcome = match index % 23 {
            5 => "failed",
            _ => "stable",
        };
        let groups = match index % 3 {
            0 => json!(["web", "eu"]),
            1 => json!(["db"]),
            _ => json!(["web", "us"]),
        };
        let mut status = json!({"groups": groups, "last_run": run(node, outcome, 1)});
        if index % 29 == 7 {
            status["pause"] = json!({
                "reason": "disk swap, ticket 4711", "by": "ann@desk",
                "since": "2026-01-15T08:00:00Z"
            });
        }
        if index % 41 == 11 {
            status["current_run"] = json!({
                "run_id": run(node, "stable", 2)["run_id"], "source": "app",
                "trigger": "interval", "since": "2026-01-15T08:00:00Z"
            });
        }
        let drift = match index % 17 {
            3 => json!([{"type": "file", "name": "/etc/ssh/sshd_config",
                         "message": "would change content", "since": "2026-01-15T08:00:00Z"}]),
            _ => json!([]),
        };
        web.report(node, json!({ "drift": drift })).await;
        if index % 31 != 19 {
            web.presence(node, status).await;
        }
        web.assign(node, 1).await;
    }
    web.until("/api/nodes?limit=1", |answer| {
        answer.json()["matched"] == count
    });
    let outcomes = [
        "changed", "stable", "changed", "stable", "failed", "changed", "skipped",
    ];
    for (number, outcome) in (0..28).zip(outcomes.into_iter().cycle()) {
        let node = &names[(number as usize * 7) % count];
        let resource = format!(
            "/etc/app/{}.conf",
            ["main", "tls", "log"][number as usize % 3]
        );
        web.event(node, &resource, outcome, number).await;
    }
    let plan = json!({"waves": [
        {"name": "canary", "canary": true, "nodes": &names[..2]},
        {"name": "wave 1", "nodes": &names[2..count / 3]},
        {"name": "wave 2", "nodes": &names[count / 3..]}
    ]});
    let mut nodes = json!({});
    for node in &names[..count / 4] {
        nodes[node.as_str()] = json!("changed");
    }
    nodes[names[4].as_str()] = json!({"failed": {"reason": "package#nginx: no candidate"}});
    nodes[names[count / 4].as_str()] =
        json!({"assigned": {"generation": 2, "at": "2026-01-15T08:00:00Z"}});
    web.rollout(
        "20270115-080000-bcdf",
        json!({"plan": plan, "nodes": nodes, "wave": 1,
               "settings": {"canary": 2, "budget": {"max_failures": 2, "min_sample": 20}}}),
    )
    .await;
    web.rollout(
        "20270114-090000-ghjk",
        json!({"state": {"name": "halted", "reason": "1 failure and none allowed"},
               "plan": {"waves": [{"name": "canary", "canary": true, "nodes": &names[..1]},
                                  {"name": "wave 1", "nodes": &names[1..9]}]},
               "nodes": {names[0].as_str(): {"failed": {"reason": "exec#migrate: exit code 3"}}}}),
    )
    .await;
    web.until("/api/rollouts", |answer| {
        answer.json()["rollouts"].as_array().unwrap().len() == 2
    });
    web.until("/api/events", |answer| {
        answer.json()["events"].as_array().unwrap().len() == 28
    });
    web
}

fn name(number: usize) -> String {
    let sort = ["web", "db", "edge"][number % 3];
    format!("{sort}{number:03}.example.net")
}

/// Fails if the page complained or asked somebody else.
fn check_quiet(browser: &Browser, web: &Web) {
    assert_eq!(browser.errors, Vec::<String>::new());
    assert!(!browser.requests.is_empty());
    for url in &browser.requests {
        assert!(url.starts_with(&web.url("")), "{url}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_view_loads_is_accessible_and_asks_nobody_else() {
    let web = lively(180).await;
    let mut browser = Browser::start();
    let node = format!("#/nodes/{}", name(29));
    let views = [
        ("overview", "#/", ".counts a", "Overview"),
        ("nodes", "#/nodes", ".virtual .tr", "Nodes"),
        ("node", node.as_str(), ".tree details", &name(29)),
        ("rollouts", "#/rollouts", "a.rollout", "Rollouts"),
        (
            "rollout",
            "#/rollouts/20270115-080000-bcdf",
            ".dots a",
            "app",
        ),
        ("events", "#/events", ".events li a", "Events"),
    ];
    for scheme in ["light", "dark"] {
        browser.scheme(scheme);
        for (width, height) in [(1280, 900), (390, 844)] {
            browser.size(width, height);
            for (view, hash, sign, title) in views {
                browser.open(&web.url(hash));
                browser.wait(&format!(
                    "document.querySelector({sign:?}) && document.querySelector('#link').dataset.link === 'live'"
                ));
                let shown = browser.eval("document.querySelector('h1').innerText");
                assert_eq!(shown, title, "{view}");
                let complaints = browser.eval(COMPLAINTS);
                assert_eq!(complaints, json!([]), "{view} {scheme} {width}");
                keep_picture(&mut browser, view, scheme, width);
            }
        }
    }
    check_quiet(&browser, &web);
}

/// Writes a picture of a view where pictures are wanted.
fn keep_picture(browser: &mut Browser, view: &str, scheme: &str, width: u32) {
    if std::env::var_os("CCM_SCREENSHOTS").is_none() {
        return;
    }
    let size = match width < 600 {
        true => "phone",
        false => "wide",
    };
    // A dark one and a small one of the overview are enough.
    let is_wanted = (scheme, size) == ("light", "wide") || view == "overview";
    if is_wanted {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/img");
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join(format!("{view}-{scheme}-{size}.png"));
        std::fs::write(file, browser.picture()).unwrap();
    }
}

/// Returns the colour of the first square of the grid.
const FIRST_SQUARE: &str = "(() => {
  const canvas = document.querySelector('canvas.grid');
  const [x, y] = [10, 10].map((at) => at * devicePixelRatio);
  return [...canvas.getContext('2d').getImageData(x, y, 1, 1).data].join(',');
})()";

#[tokio::test(flavor = "multi_thread")]
async fn a_node_changes_its_colour_when_its_run_fails_and_when_it_recovers() {
    let web = Web::start().await;
    web.presence("web1", json!({})).await;
    web.until_state("web1", "stable");
    let mut browser = Browser::start();
    browser.open(&web.url("#/"));
    browser.wait("document.querySelector('#link').dataset.link === 'live'");
    let stable = browser.eval(FIRST_SQUARE);
    assert_ne!(stable, "0,0,0,0");
    web.ran("web1", "failed", 1).await;
    browser.wait("document.querySelector('.count[data-state=failed] b').innerText === '1'");
    let failed = browser.eval(FIRST_SQUARE);
    assert_ne!(failed, stable);
    web.report("web1", json!({"run": run("web1", "changed", 2)}))
        .await;
    browser.wait("document.querySelector('.count[data-state=stable] b').innerText === '1'");
    assert_eq!(browser.eval(FIRST_SQUARE), stable);
    check_quiet(&browser, &web);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_filtered_and_opened_by_keyboard_and_links_lead_back() {
    let web = lively(60).await;
    let mut browser = Browser::start();
    browser.open(&web.url("#/nodes"));
    browser.wait("document.querySelectorAll('.tr').length > 5");
    browser.eval("document.querySelector('input[type=search]').focus()");
    browser.text("db0");
    browser.wait(
        "[...document.querySelectorAll('.tr')].every((row) => row.dataset.node.startsWith('db'))",
    );
    browser.eval("document.querySelector('.chip[data-state=stable]').click()");
    browser.wait("location.hash === '#/nodes?q=db0&state=stable'");
    let states = browser
        .eval("[...document.querySelectorAll('.tr .badge')].map((one) => one.dataset.state)");
    assert!(
        states
            .as_array()
            .unwrap()
            .iter()
            .all(|state| state == "stable"),
        "{states}"
    );
    // The address alone leads to the same rows.
    let first = browser.eval("document.querySelector('.tr').dataset.node");
    browser.open("about:blank");
    browser.open(&web.url("#/nodes?q=db0&state=stable"));
    browser.wait("document.querySelector('.tr')");
    assert_eq!(
        browser.eval("document.querySelector('.tr').dataset.node"),
        first
    );
    browser.eval("document.querySelector('.virtual').focus()");
    browser.key("ArrowDown");
    browser.key("Enter");
    browser.wait(&format!(
        "document.querySelector('h1').innerText === {first}"
    ));
    browser.wait("document.querySelector('.tree').innerText.includes('debian')");
    check_quiet(&browser, &web);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_appear_as_they_happen_and_filters_hold() {
    let web = Web::start().await;
    web.presence("web1", json!({})).await;
    web.until_state("web1", "stable");
    let mut browser = Browser::start();
    browser.open(&web.url("#/events?outcome=failed"));
    browser.wait("document.querySelector('#link').dataset.link === 'live'");
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
    check_quiet(&browser, &web);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_is_paused_from_the_page_once_it_is_unlocked() {
    let web = lively(20).await;
    let mut browser = Browser::start();
    browser.open(&web.url("#/rollouts/20270115-080000-bcdf"));
    browser.wait("document.querySelector('.dots a')");
    assert_eq!(
        browser.eval("document.querySelectorAll('[data-act]').length"),
        0
    );
    browser.eval("document.querySelector('#token').click()");
    browser.wait("document.querySelector('#ask').open");
    browser.text(TOKEN);
    browser.key("Enter");
    browser.wait("document.querySelector('[data-act=pause]')");
    browser.eval("document.querySelector('[data-act=pause]').click()");
    browser.wait("document.querySelector('#ask').open");
    browser.text("lunch");
    browser.eval("document.querySelector('#ask-yes').click()");
    browser.wait("document.querySelector('.head .badge').innerText === 'paused'");
    browser.wait("document.body.innerText.includes('lunch')");
    check_quiet(&browser, &web);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_thousands_holds_only_the_rows_in_sight() {
    let web = Web::start().await;
    let connection = web.connection.clone();
    let bucket = connection.bucket(ccm::nats::streams::LABELS).await.unwrap();
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
    check_quiet(&browser, &web);
}
