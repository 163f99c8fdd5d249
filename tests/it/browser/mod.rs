//! The fleet page in a real Chromium. Every test checks that the page sends requests only to its own
//! server and logs no error:
//! - `access`: tokens and their roles
//! - `accessibility`: screen readers, keyboard, contrast and reduced motion
//! - `actions`: actions of the page on real agents and their rollouts
//! - `bundles`: bundles, their differences, and the start of a rollout
//! - `history`: the node table, runs with their events and outputs, statistics, labels, long texts
//! - `live_updates`: what changes on the page when something happens in the fleet
//! - `node`: the view of one node, with the status of a real agent
//! - `views`: every view of the demo's fleet; makes the pictures of `docs/img`

mod access;
mod accessibility;
mod actions;
mod bundles;
mod history;
mod live_updates;
mod node;
mod views;

use crate::support::browser::Browser;
use crate::support::web::{Page, TOKEN};

/// Fails if the page logged an error or sent a request to another server.
fn check_quiet(browser: &Browser, url: &str) {
    assert_eq!(browser.errors, Vec::<String>::new());
    assert!(!browser.requests.is_empty());
    for request in &browser.requests {
        assert!(request.starts_with(url), "{request}");
    }
}

/// Waits until the head of the view has a word for the state.
fn becomes(browser: &mut Browser, word: &str) {
    browser.wait(&format!(
        "document.querySelector('.head .badge').innerText === {word:?}"
    ));
}

/// Opens a view of a page that has a token, and gives it.
fn unlocked(page: &Page, hash: &str) -> Browser {
    unlocked_with(page, hash, TOKEN)
}

/// Opens a view of a page with named tokens, and gives one of them.
fn unlocked_with(page: &Page, hash: &str, token: &str) -> Browser {
    let mut browser = Browser::start();
    browser.open(&page.url(hash));
    unlock(&mut browser, token);
    browser
}

/// Opens a view of a page that has a token and was given it before, so that nothing has had the focus.
fn reopened(page: &Page, hash: &str) -> Browser {
    let mut browser = unlocked(page, hash);
    browser.eval("window.isOld = true");
    browser.command("Page.reload", serde_json::json!({}));
    browser.wait("!window.isOld");
    browser.live();
    browser
}

/// Enters the token in the dialog of the page.
fn unlock(browser: &mut Browser, token: &str) {
    browser
        .wait("document.querySelector('#ask').open && document.activeElement.id === 'ask-input'");
    browser.text(token);
    browser.key("Enter");
    browser.live();
    browser.wait("document.querySelector('#token').innerText === 'Lock'");
}
