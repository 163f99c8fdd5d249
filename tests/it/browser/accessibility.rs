//! Accessibility: names and landmarks for screen readers, contrast in both color schemes, keyboard
//! focus, and reduced motion.

use serde_json::{Value, json};

use super::{check_quiet, reopened, unlocked};
use crate::support::browser::Browser;
use crate::support::web::{Web, run};

/// Returns what is wrong with a view for people who can't see well or use no mouse: controls
/// without a name, headings out of order, pictures without words, text without contrast.
pub(super) const COMPLAINTS: &str = r#"
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

/// Serves a few nodes in different states, to be acted on.
async fn small() -> Web {
    let web = Web::with_actions().await;
    web.presence("web1", json!({})).await;
    web.presence("web2", json!({"last_run": run("web2", "failed", 1)}))
        .await;
    web.report("db1", json!({})).await;
    web.rollout("r1", json!({})).await;
    web.event("web1", "/etc/a", "changed", 1).await;
    web.until("/api/nodes?limit=1", |answer| answer.json()["matched"] == 3);
    web.until("/api/rollouts/r1", |answer| answer.status == 200);
    web
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_can_be_used_has_a_name_and_every_view_its_landmarks() {
    let web = small().await;
    let mut browser = unlocked(&web, "#/");
    browser.command("Accessibility.enable", json!({}));
    for (hash, sign) in [
        ("#/", ".count"),
        ("#/nodes", ".tr"),
        ("#/nodes/web1", ".tree"),
        ("#/bundles", ".empty"),
        ("#/rollouts", "a.rollout"),
        ("#/rollouts/new", "form .fields"),
        ("#/rollouts/r1", ".dots a"),
        ("#/events", ".events li"),
        ("#/statistics", "#statistics-versions table"),
    ] {
        browser.eval(&format!("location.hash = {hash:?}"));
        browser.wait(&format!("document.querySelector({sign:?})"));
        let tree = browser.accessibility_tree();
        for landmark in ["banner", "navigation", "main"] {
            let found = tree.iter().filter(|it| it.role == landmark).count();
            assert_eq!(found, 1, "{landmark} in {hash}");
        }
        let nameless: Vec<_> = tree
            .iter()
            // The view itself takes the focus when it is opened; its heading names it.
            .filter(|it| it.is_focusable && !["RootWebArea", "main"].contains(&it.role.as_str()))
            .filter(|it| it.name.trim().is_empty())
            .collect();
        assert!(nameless.is_empty(), "{hash}: {nameless:?}");
    }
    check_quiet(&browser, &web.url(""));
}

/// Returns a name for what has the focus, and whether one sees that it has.
const FOCUS: &str = "(() => {
  const el = document.activeElement;
  const style = getComputedStyle(el);
  const name = el.getAttribute('aria-label') || el.innerText || el.tagName;
  return [name.trim(), style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2];
})()";

#[tokio::test(flavor = "multi_thread")]
async fn the_focus_goes_through_a_view_in_order_and_can_be_seen() {
    let web = small().await;
    let mut browser = reopened(&web, "#/nodes");
    browser.wait("document.querySelectorAll('.tr').length === 3");
    let mut way = Vec::new();
    for _ in 0..17 {
        browser.key("Tab");
        let focus = browser.eval(FOCUS);
        assert_eq!(focus[1], true, "{focus}");
        way.push(focus[0].as_str().unwrap().replace('\n', " "));
    }
    assert_eq!(
        way,
        [
            "Skip to content",
            "Fleet overview",
            "Overview",
            "Nodes",
            "Bundles",
            "Rollouts",
            "Events",
            "Statistics",
            "Lock",
            "Search nodes",
            "failed 1",
            "drifted 0",
            "offline 1",
            "paused 0",
            "running 0",
            "stable 1",
            "Nodes",
        ]
    );
    check_quiet(&browser, &web.url(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_menu_can_be_skipped() {
    let web = small().await;
    let mut browser = reopened(&web, "#/nodes");
    browser.wait("document.querySelector('.tr')");
    browser.key("Tab");
    browser.key("Enter");
    browser.wait("document.activeElement.id === 'main'");
    browser.key("Tab");
    assert_eq!(browser.eval(FOCUS)[0], "Search nodes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dialog_keeps_the_focus_and_gives_it_back() {
    let web = small().await;
    let mut browser = Browser::start();
    browser.open(&web.url("#/"));
    browser.wait("document.querySelector('#ask').open");
    browser.key("Escape");
    browser.wait("!document.querySelector('#ask').open");
    browser.eval("document.querySelector('#token').focus()");
    browser.key("Enter");
    browser
        .wait("document.querySelector('#ask').open && document.activeElement.id === 'ask-input'");
    for _ in 0..6 {
        browser.key("Tab");
        let inside =
            "document.activeElement === document.body || !!document.activeElement.closest('#ask')";
        assert_eq!(browser.eval(inside), true);
    }
    browser.key("Escape");
    browser.wait("!document.querySelector('#ask').open && document.activeElement.id === 'token'");
    check_quiet(&browser, &web.url(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_squares_are_walked_with_arrows_and_opened_with_enter() {
    let web = small().await;
    let mut browser = unlocked(&web, "#/");
    browser.eval("document.querySelector('canvas.grid').focus()");
    browser.key("ArrowRight");
    browser.wait("document.querySelector('.tip').innerText.includes('db1')");
    browser.key("ArrowRight");
    browser.wait("document.querySelector('.tip').innerText.includes('web1')");
    browser.key("Enter");
    browser.wait("document.querySelector('h1').innerText === 'web1'");
    check_quiet(&browser, &web.url(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn arrow_keys_announce_the_active_row_and_space_selects_it() {
    let web = small().await;
    let mut browser = unlocked(&web, "#/nodes");
    browser.wait("document.querySelectorAll('.tr').length === 3");
    browser.eval("document.querySelector('.virtual').focus()");
    browser.key("ArrowDown");
    browser.key("ArrowDown");
    let active_row = "document.getElementById(document.querySelector('.virtual').getAttribute('aria-activedescendant'))";
    browser.wait(&format!("{active_row}.dataset.node === 'web1'"));
    browser.key(" ");
    browser.wait(&format!(
        "{active_row}.getAttribute('aria-selected') === 'true'"
    ));
    browser.wait("document.querySelector('.selection').innerText.startsWith('1 node selected')");
    check_quiet(&browser, &web.url(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_moves_with_reduced_motion() {
    let web = small().await;
    let mut browser = unlocked(&web, "#/");
    let moving = "document.querySelector('.events li.fresh') && document.getAnimations().length";
    for (motion, moves, number) in [("no-preference", true, 10), ("reduce", false, 11)] {
        browser.prefer("prefers-reduced-motion", motion);
        browser.open("about:blank");
        browser.open(&web.url("#/events"));
        browser.live();
        browser.eval("document.addEventListener('animationstart', () => { window.moved = true; })");
        web.event("web1", &format!("/etc/{motion}"), "changed", number)
            .await;
        browser.wait("document.querySelector('.events li.fresh')");
        // Frames pass, so what would move has begun to.
        browser.eval(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))",
        );
        let moved = browser.eval(&format!("!!window.moved || ({moving}) > 0"));
        assert_eq!(moved, moves, "{motion}");
    }
    check_quiet_but_blank(&browser, &web);
}

/// Between two visits an empty page was opened, which sends no request.
fn check_quiet_but_blank(browser: &Browser, web: &Web) {
    assert_eq!(browser.errors, Vec::<String>::new());
    let strangers = browser
        .requests
        .iter()
        .filter(|url| !url.starts_with(&web.url("")) && url.as_str() != "about:blank");
    assert_eq!(strangers.count(), 0);
}

/// Returns the colours of states that are hard to tell from what is behind them.
const FAINT: &str = "(() => {
  const style = getComputedStyle(document.documentElement);
  const light = (word) => {
    const hex = style.getPropertyValue(`--${word}`).trim();
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
      .map((v) => (v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ratio = (one, other) => {
    const [high, low] = [light(one), light(other)].sort((a, b) => b - a);
    return (high + .05) / (low + .05);
  };
  const states = ['failed', 'drifted', 'offline', 'paused', 'running', 'stable'];
  return states.map((state) => [state, ratio(state, 'card')]).filter(([, found]) => !(found >= 3));
})()";

#[tokio::test(flavor = "multi_thread")]
async fn the_colours_of_states_stand_out_in_both_schemes() {
    let web = Web::start().await;
    let mut browser = Browser::start();
    browser.open(&web.url("#/"));
    browser.live();
    for scheme in ["light", "dark"] {
        browser.scheme(scheme);
        let faint: Value = browser.eval(FAINT);
        assert_eq!(faint, json!([]), "{scheme}");
    }
}
