//! Tokens of the page: a wrong one is refused in the dialog, and each role sees the actions that it may
//! do.

use serde_json::json;

use super::{check_quiet, unlock, unlocked_with};
use crate::support::browser::Browser;
use crate::support::web::{TOKENS, Web};

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_is_refused_in_the_dialog_and_opens_no_stream() {
    let web = Web::with_access().await;
    let mut browser = Browser::start();
    browser.open(&web.url("#/nodes"));
    for wrong in ["not-the-token-0123456789", "schlüssel €"] {
        browser.wait(
            "document.querySelector('#ask').open && document.activeElement.id === 'ask-input'",
        );
        browser.text(wrong);
        browser.key("Enter");
        browser.wait(
            "document.querySelector('#ask').open && document.querySelector('#ask-input').value === '' \
             && document.querySelector('#ask-problem').innerText === 'Wrong token.'",
        );
    }
    let streams = |browser: &Browser| {
        let requests = browser.requests.iter();
        requests.filter(|url| url.contains("/api/stream")).count()
    };
    assert_eq!(streams(&browser), 0);
    assert_eq!(browser.eval("sessionStorage.getItem('token')"), json!(null));
    let (name, role, token) = TOKENS[0];
    unlock(&mut browser, token);
    browser.shows("#who", &format!("{name} ({role})"));
    assert_eq!(streams(&browser), 1);
    // Only the refused request was reported, and nothing else went wrong.
    assert!(
        browser.errors.iter().all(|it| it.contains("401")),
        "{:?}",
        browser.errors
    );
}

/// Returns the actions of a view.
fn actions(browser: &mut Browser, hash: &str, sign: &str) -> Vec<String> {
    browser.eval(&format!("location.hash = {hash:?}"));
    browser.wait(&format!("document.querySelector({sign:?})"));
    let found = browser
        .eval("[...document.querySelectorAll('main [data-act]')].map((one) => one.dataset.act)");
    serde_json::from_value(found).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_sees_the_actions_that_it_may_do() {
    let web = Web::with_access().await;
    web.presence("web1", json!({})).await;
    web.rollout("r1", json!({})).await;
    web.until_state("web1", "stable");
    web.until("/api/rollouts/r1", |answer| answer.status == 200);
    let asks = ["check", "pause", "resume", "ensure"];
    let rolls_out = ["add-label"];
    for (name, role, token) in TOKENS {
        let mut browser = unlocked_with(&web, "#/", token);
        let on_node = actions(&mut browser, "#/nodes/web1", ".tree details");
        let expected: Vec<&str> = match role {
            "read" => Vec::new(),
            "ask" => asks.to_vec(),
            _ => asks.into_iter().chain(rolls_out).collect(),
        };
        assert_eq!(on_node, expected, "{name}");
        let on_rollout = actions(&mut browser, "#/rollouts/r1", ".dots a");
        let on_list = actions(&mut browser, "#/rollouts", "a.rollout");
        match role {
            "roll-out" => {
                assert_eq!(on_rollout, ["pause", "abort"]);
                assert_eq!(on_list, ["new"]);
            }
            _ => assert!(on_rollout.is_empty() && on_list.is_empty(), "{name}"),
        }
        browser.eval("location.hash = '#/rollouts/new'");
        browser.wait("document.querySelector('h1').innerText === 'Start a rollout'");
        let has_form = browser.eval("!!document.querySelector('main form')");
        assert_eq!(has_form, role == "roll-out", "{name}");
        check_quiet(&browser, &web.url(""));
    }
}
