//! The fleet's page in a real Chromium, which asks nobody else for anything and never complains:
//! - `access`: for people who see little, use no mouse, or want nothing to move
//! - `deeds`: what is done from the page to real agents and their rollouts
//! - `follow`: what changes on the page when something happens in the fleet
//! - `views`: every view of the demo's fleet; makes the pictures of `docs/img`

mod access;
mod deeds;
mod follow;
mod views;

use crate::support::browser::Browser;
use crate::support::web::{Page, TOKEN};

/// Fails if the page complained or asked somebody else.
fn check_quiet(browser: &Browser, url: &str) {
    assert_eq!(browser.errors, Vec::<String>::new());
    assert!(!browser.requests.is_empty());
    for asked in &browser.requests {
        assert!(asked.starts_with(url), "{asked}");
    }
}

/// Opens a view of a page that has a token, and gives it.
fn unlocked(page: &Page, hash: &str) -> Browser {
    let mut browser = Browser::start();
    browser.open(&page.url(hash));
    unlock(&mut browser, TOKEN);
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

/// Gives the token to a page that asks for it.
fn unlock(browser: &mut Browser, token: &str) {
    browser
        .wait("document.querySelector('#ask').open && document.activeElement.id === 'ask-input'");
    browser.text(token);
    browser.key("Enter");
    browser.live();
    browser.wait("document.querySelector('#token').innerText === 'Lock'");
}
