//! The view of one node, with the status of a real agent.

use ccm_nats::Verb;
use serde_json::json;

use super::check_quiet;
use crate::choria_server::{Lab, NODE};
use crate::governor::{DEPLOYS, HOUR, apply, evict, exec, make, occupy, stream};
use crate::support::agent::request_json;
use crate::support::browser::Browser;
use crate::support::nats::NatsServer;
use crate::support::setup::Setup;
use crate::support::web::Page;

/// Opens the view of [`NODE`].
fn open(server: &NatsServer) -> (Page, Browser) {
    let page = Page::serve(server).settled();
    let mut browser = Browser::start();
    browser.open(&page.url(&format!("#/nodes/{NODE}")));
    browser.live();
    (page, browser)
}

/// Returns the JavaScript for a value of the view.
fn value_of(name: &str) -> String {
    format!(
        "[...document.querySelectorAll('dt')].find((one) => one.innerText === {name:?})?.nextElementSibling.innerText"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_serves_choria_s_clients_shows_their_collectives() {
    let lab = Lab::new().await;
    let (page, mut browser) = open(&lab.setup.server);
    let choria = value_of("Choria");
    browser.wait(&format!(
        "{choria} === \"serves Choria's clients in mcollective, ops\""
    ));
    check_quiet(&browser, &page.url(""));
    lab.setup.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_waits_for_a_governor_shows_it_until_it_has_a_slot() {
    let setup = Setup::inside(NODE).await;
    make(&setup.server, stream(1, HOUR)).await;
    let slot = occupy(&setup.server).await;
    let claim = json!({"governor": {"name": DEPLOYS}, "wait": false});
    let body = apply(&exec("/bin/true"), claim);
    request_json(&setup.client, NODE, Verb::Apply, &body).await;
    let (page, mut browser) = open(&setup.server);
    let note = value_of("Note");
    browser.wait(&format!(
        "{note}?.startsWith('waiting for governor {DEPLOYS}: ')"
    ));
    browser.wait("document.querySelector('.head .badge').innerText === 'running'");
    evict(&setup.server, slot).await;
    let outcome = value_of("Outcome");
    browser.wait(&format!(
        "{outcome} === 'changed' && !{note}?.startsWith('waiting')"
    ));
    check_quiet(&browser, &page.url(""));
    setup.agent.stop().await;
}
