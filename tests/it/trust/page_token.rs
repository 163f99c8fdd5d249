//! The page's token: where one is configured, no data is served without it, not even on loopback.

use serde_json::json;

use crate::support::browser::Browser;
use crate::support::web::{TOKEN, Web};

/// Every path that can be read and says something about the fleet or its server.
const READS: [&str; 11] = [
    "/api/summary",
    "/api/nodes",
    "/api/nodes/web1",
    "/api/rollouts",
    "/api/rollouts/r1",
    "/api/events",
    "/api/stream",
    "/api/openapi.json",
    "/metrics",
    "/healthz",
    "/no/such/path",
];

/// The files of the page, which hold no data: they show the dialog for the token.
const ASSETS: [&str; 4] = ["/", "/app.js", "/style.css", "/icon.svg"];

#[tokio::test(flavor = "multi_thread")]
async fn every_request_needs_the_token_on_loopback_too() {
    for web in [Web::with_token().await, Web::with_actions().await] {
        web.presence("web1", json!({})).await;
        web.rollout("r1", json!({})).await;
        web.until_state("web1", "stable");
        web.until("/api/rollouts/r1", |answer| answer.status == 200);
        let shorter = &TOKEN[..TOKEN.len() - 1];
        let wrong = [
            None,
            Some("Bearer".to_owned()),
            Some("Bearer ".to_owned()),
            Some(format!("Bearer {shorter}")),
            Some(format!("Bearer {TOKEN}x")),
            Some(format!("Bearer {}", TOKEN.to_uppercase())),
            Some(format!("Basic {TOKEN}")),
        ];
        for path in READS {
            for given in &wrong {
                let header = given.as_deref().map(|value| ("Authorization", value));
                let refused = web.fetch("GET", path, header.as_slice(), "");
                assert_eq!(refused.status, 401, "{path} {given:?}: {}", refused.body);
                assert!(refused.head.contains("www-authenticate: bearer"), "{path}");
                assert!(!refused.body.contains("web1"), "{}", refused.body);
                let head = web.fetch("HEAD", path, header.as_slice(), "");
                assert_eq!(head.status, 401, "HEAD {path}");
            }
            // An address is kept in histories and logs: a token in it counts for nothing.
            let named = format!("{path}?token={TOKEN}");
            assert_eq!(web.fetch("GET", &named, &[], "").status, 401, "{named}");
        }
        for path in [
            "/api/pause",
            "/api/nodes/web1/pause",
            "/api/rollouts/r1/abort",
        ] {
            let refused = web.post(path, "wrong-token-0123456789", &json!({"nodes": ["web1"]}));
            assert_eq!(refused.status, 401, "{path}: {}", refused.body);
        }
        for path in ASSETS {
            let asset = web.fetch("GET", path, &[], "");
            assert_eq!(asset.status, 200, "{path}");
            assert!(!asset.body.contains("web1"), "{path}");
        }
        // Who knows it reads everything, the stream too.
        let bearer = format!("Bearer {TOKEN}");
        for path in ["/api/summary", "/api/nodes", "/metrics", "/healthz"] {
            let answer = web.fetch("GET", path, &[("Authorization", &bearer)], "");
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        }
        let stream = web.request("GET", "/api/stream", &[("Authorization", &bearer)], "");
        let mut first = String::new();
        let mut lines = std::io::BufReader::new(stream);
        std::io::BufRead::read_line(&mut lines, &mut first).unwrap();
        assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_loopback_is_read_by_everyone_as_before() {
    let web = Web::start().await;
    for path in ["/", "/api/summary", "/api/nodes", "/metrics", "/healthz"] {
        assert_eq!(web.fetch("GET", path, &[], "").status, 200, "{path}");
    }
}

/// Types a token into the dialog that is open.
fn give(browser: &mut Browser, token: &str) {
    browser.wait("document.querySelector('#ask').open");
    browser.wait("document.activeElement.id === 'ask-input'");
    browser.text(token);
    browser.key("Enter");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_prompts_for_the_token_and_rejects_a_wrong_one() {
    let web = Web::with_token().await;
    web.presence("web1", json!({})).await;
    web.until_state("web1", "stable");
    let mut browser = Browser::start();
    browser.open(&web.url("#/nodes"));
    browser.wait("document.querySelector('#ask').open");
    let dialog_text = "document.querySelector('#ask').innerText";
    assert!(
        !browser
            .eval(dialog_text)
            .as_str()
            .unwrap()
            .contains("Wrong token")
    );
    // No request was sent that would be refused.
    assert_eq!(browser.errors, Vec::<String>::new());
    give(&mut browser, "wrong-token-0123456789");
    browser.wait(&format!("{dialog_text}.includes('Wrong token')"));
    assert_eq!(browser.eval("sessionStorage.getItem('token')"), json!(null));
    // Who closes the dialog sees nothing, and finds the button.
    browser.key("Escape");
    browser.wait("!document.querySelector('#ask').open");
    let text = browser.eval("document.body.innerText").to_string();
    assert!(!text.contains("web1"), "{text}");
    browser.click("#token");
    give(&mut browser, TOKEN);
    browser.live();
    browser.wait("document.querySelector('.tr[data-node=web1]')");
    // The tab remembers it, until it is locked.
    browser.command("Page.reload", json!({}));
    browser.wait("document.querySelector('.tr[data-node=web1]')");
    browser.click("#token");
    browser.wait("document.querySelector('#ask').open");
    let text = browser.eval("document.body.innerText").to_string();
    assert!(!text.contains("web1"), "{text}");
}
