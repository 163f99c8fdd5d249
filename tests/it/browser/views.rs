//! Every view of the demo's fleet, wide and narrow, light and dark. The demo itself is run, so this
//! also fails when one of its steps does.
//!
//! With `CCM_SCREENSHOTS=1` the fleet is larger and the pictures of `docs/img` are made anew.

use std::path::Path;

use serde_json::json;

use super::accessibility::COMPLAINTS;
use super::{check_quiet, unlock};
use crate::support::browser::Browser;
use crate::support::demo::Demo;

#[test]
fn every_view_of_the_demos_fleet_can_be_read_by_everyone() {
    let has_pictures = std::env::var_os("CCM_SCREENSHOTS").is_some();
    let demo = Demo::run(if has_pictures { 96 } else { 8 });
    assert!(demo.output.contains("halted: 1 failed"), "{}", demo.output);
    let mut browser = Browser::start();
    browser.open(&demo.url);
    unlock(&mut browser, &demo.token);
    let failed = "document.querySelector('.problems [data-state=failed] + a')";
    browser.wait(failed);
    let node = browser.eval(&format!("{failed}.innerText"));
    let node = node.as_str().unwrap();
    let rollout = browser.eval("document.querySelector('a.rollout').dataset.rollout");
    let rollout = format!("#/rollouts/{}", rollout.as_str().unwrap());
    let link = format!("#/nodes/{node}");
    browser.open(&format!("{}#/bundles", demo.url));
    let newest = "document.querySelector('main table a.mono')";
    browser.wait(newest);
    let bundle = browser.eval(&format!("{newest}.getAttribute('href')"));
    let bundle = bundle.as_str().unwrap();
    let title = browser.eval(&format!("{newest}.innerText"));
    let title = title.as_str().unwrap();
    let views = [
        ("overview", "#/", ".counts a", "Overview"),
        ("nodes", "#/nodes", ".virtual .tr", "Nodes"),
        ("node", link.as_str(), ".runs details", node),
        ("bundles", "#/bundles", "main table a.mono", "Bundles"),
        ("bundle", bundle, "[data-file] ins", title),
        ("rollouts", "#/rollouts", "a.rollout", "Rollouts"),
        ("rollout", rollout.as_str(), ".dots a", "shop"),
        ("events", "#/events", ".events li a", "Events"),
        (
            "statistics",
            "#/statistics",
            "#statistics-days svg",
            "Statistics",
        ),
    ];
    for scheme in ["light", "dark"] {
        browser.scheme(scheme);
        for (width, height) in [(1280, 900), (390, 844)] {
            browser.size(width, height);
            for (view, hash, sign, title) in views {
                browser.open(&format!("{}{hash}", demo.url));
                browser.wait(&format!(
                    "document.querySelector({sign:?}) && \
                     document.querySelector('h1').innerText === {title:?}"
                ));
                browser.live();
                if view == "node" {
                    browser.click(".runs summary");
                    browser.wait("document.querySelector('.runevents li')");
                }
                let complaints = browser.eval(COMPLAINTS);
                assert_eq!(complaints, json!([]), "{view} {scheme} {width}");
                // A dark one and small ones are enough beside the light and wide.
                let is_wide = width > 600;
                let is_wanted = match scheme {
                    "light" if view == "bundles" => false,
                    "light" => is_wide || !["bundle", "statistics"].contains(&view),
                    _ => view == "overview" || (view == "rollout" && is_wide),
                };
                if has_pictures && is_wanted {
                    let size = if width < 600 { "phone" } else { "wide" };
                    keep(&mut browser, &format!("{view}-{scheme}-{size}"));
                }
            }
        }
    }
    browser.scheme("light");
    browser.size(1280, 900);
    look_before_doing(&mut browser, &demo);
    if has_pictures {
        browser.eval("document.querySelector('#toast').hidden = true");
        keep(&mut browser, "ensure-light-wide");
    }
    plan_rollout(&mut browser, &demo, title);
    if has_pictures {
        keep(&mut browser, "plan-light-wide");
    }
    check_quiet(&browser, &demo.url);
}

/// Requests what a resource would change on two nodes.
fn look_before_doing(browser: &mut Browser, demo: &Demo) {
    browser.open(&format!("{}#/nodes", demo.url));
    browser.wait("document.querySelectorAll('.tr').length > 5");
    browser.eval("document.querySelector('.virtual').focus()");
    for key in ["ArrowDown", " ", "ArrowDown", " "] {
        browser.key(key);
    }
    browser.click("[data-act=ensure]");
    browser.eval("document.querySelector('#action-name').focus()");
    browser.text("/srv/welcome");
    browser.click("[data-act=preview]");
    browser.wait("document.querySelector('.replies .diff')");
    assert_eq!(browser.eval(COMPLAINTS), json!([]), "the form");
}

/// Requests the plan of a rollout, without starting it.
fn plan_rollout(browser: &mut Browser, demo: &Demo, bundle: &str) {
    browser.open(&format!("{}#/rollouts/new?bundle={bundle}", demo.url));
    browser.wait(&format!(
        "document.querySelector('#form-bundle').value === {bundle:?}"
    ));
    browser.fill("#form-groups", "web");
    browser.fill("#form-canary", "2");
    browser.fill("#form-waves", "50%, 100%");
    browser.fill("#form-max_failures", "1");
    browser.click("[data-act=plan]");
    browser.wait("document.querySelector('[data-wave=canary]')");
    assert_eq!(browser.eval(COMPLAINTS), json!([]), "the plan");
    let below_header = "document.querySelector('[aria-label^=Waves]').offsetTop - 76";
    browser.eval(&format!("scrollTo(0, {below_header})"));
}

/// Writes a picture of what is to be seen.
fn keep(browser: &mut Browser, name: &str) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/img");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join(format!("{name}.png")), browser.picture()).unwrap();
}
