//! Scoped signing keys give each role exactly the permissions of `packaging/nats`: the same table of
//! what no role may do holds for users with JWTs.

use async_nats::{Client, ConnectOptions};
use serde_json::Value;

use crate::support::poll::LIMIT;
use crate::trust::permissions::{Forbidden, NOT_TO_PUBLISH, NOT_TO_SUBSCRIBE, client_with};

use super::Fleet;

const NODE: &str = "web1.example.net";

/// Returns a client with the credentials of a context.
pub(crate) async fn connect(fleet: &Fleet, context: &str) -> (Client, Forbidden) {
    let text = std::fs::read_to_string(context).unwrap();
    let context: Value = serde_json::from_str(&text).unwrap();
    let field = |name: &str| context[name].as_str().unwrap();
    let options = ConnectOptions::with_credentials_file(field("creds"))
        .await
        .unwrap()
        .add_root_certificates(field("ca").into())
        .require_tls(true)
        .custom_inbox_prefix(field("inbox_prefix"));
    client_with(options, &fleet.url()).await
}

/// Returns a fleet with a user for each role of the table, and their contexts.
fn users() -> (Fleet, Vec<(&'static str, String)>) {
    let fleet = Fleet::start_with(&["--registrations", "--choria-server", "mcollective"]);
    let token = fleet.token(&[
        "--group",
        "web",
        "--address",
        "10.0.0.1",
        "--governor",
        "deploys",
        "--kv-bucket",
        "DATA",
        "--object-bucket",
        "SITE",
    ]);
    fleet.enroll(NODE, &token).ok();
    fleet
        .ccm(&["fleet", "trust", "issue", "monitor", "page", "--save"])
        .ok();
    let contexts = vec![
        ("web1", fleet.env.at(&format!("{NODE}/nats-context.json"))),
        ("operator", fleet.context("operator-admin")),
        ("controller", fleet.context("controller-main")),
        ("monitor", fleet.context("monitor-page")),
    ];
    (fleet, contexts)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_role_may_publish_more_than_it_needs() {
    let (fleet, contexts) = users();
    for (user, context) in &contexts {
        let (_, _, subjects) = NOT_TO_PUBLISH.iter().find(|it| it.0 == *user).unwrap();
        let (client, mut forbidden) = connect(&fleet, context).await;
        for subject in *subjects {
            client.publish(*subject, "{}".into()).await.unwrap();
            let what = format!("publish to \"{subject}\"");
            forbidden.expect(&what).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_role_may_receive_more_than_it_needs() {
    let (fleet, contexts) = users();
    for (user, context) in &contexts {
        let (_, _, subjects) = NOT_TO_SUBSCRIBE.iter().find(|it| it.0 == *user).unwrap();
        let (client, mut forbidden) = connect(&fleet, context).await;
        let inboxes = ["_INBOX_AGENT.>", "_INBOX_OPERATOR.>", "_INBOX_ENROLL.>"];
        for subject in subjects.iter().chain(&inboxes) {
            let _listening = client.subscribe(*subject).await.unwrap();
            let what = format!("subscription to \"{subject}\"");
            forbidden.expect(&what).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_of_a_node_become_permissions() {
    let (fleet, contexts) = users();
    let (client, _) = connect(&fleet, &contexts[0].1).await;
    // A subscription that is forbidden ends; these stay until the server has replied to a ping.
    for subject in [
        "ccm.v1.default.node.web1_example_net.*",
        "ccm.v1.default.group.web.*",
        "ccm.v1.default.all.*",
        "$O.SITE.M.>",
        "choria.ccm.registration.v1.>",
        "mcollective.broadcast.agent.discovery",
        "mcollective.node.web1.example.net",
    ] {
        let _listening = client.subscribe(subject).await.unwrap();
    }
    for subject in [
        "ccm.v1.default.event.web1_example_net.file.changed",
        "mcollective.governor.deploys",
        "choria.ccm.registration.v1.prod.http.web.10_0_0_1.x",
        "$JS.API.DIRECT.GET.KV_DATA.x",
        "mcollective.reply.a.b",
        "choria.federation.eu.collective",
    ] {
        client.publish(subject, "{}".into()).await.unwrap();
    }
    client.flush().await.unwrap();
    // The server logs every violation before it answers a later request of the same connection.
    let inbox = client.new_inbox();
    let mut echo = client.subscribe(inbox.clone()).await.unwrap();
    client.publish(inbox, "".into()).await.unwrap();
    use futures_util::StreamExt as _;
    let echoed = tokio::time::timeout(LIMIT, echo.next()).await.unwrap();
    assert!(echoed.is_some());
    let log = fleet.env.read("server.log");
    assert!(!log.contains("Violation"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_permits_nothing_but_its_own_requests() {
    let fleet = Fleet::start();
    let token = fleet.token(&["--manual"]);
    let jwt = token.split(':').nth(1).unwrap();
    let options = ConnectOptions::with_jwt(jwt.to_owned(), async |_| Ok(Vec::new()))
        .add_root_certificates(fleet.env.path("trust/tls/ca.pem"))
        .require_tls(true);
    let (client, mut forbidden) = client_with(options, &fleet.url()).await;
    for subject in [
        "ccm.v1.default.enroll.other",
        "ccm.v1.default.all.ping",
        "ccm.v1.default.node.web1.ensure",
        "$JS.API.INFO",
        "$KV.CCM_ENROLL.default.token.x",
        "$JS.API.DIRECT.GET.KV_CCM_ENROLL.$KV.CCM_ENROLL.default.node.web1",
        "_INBOX_ENROLL.x",
        "$SYS.REQ.CLAIMS.UPDATE",
    ] {
        client.publish(subject, "{}".into()).await.unwrap();
        forbidden.expect(&format!("publish to \"{subject}\"")).await;
    }
    for subject in [
        "ccm.v1.default.enroll.*",
        "_INBOX_ENROLL.>",
        ">",
        "_INBOX.>",
    ] {
        let _listening = client.subscribe(subject).await.unwrap();
        let what = format!("subscription to \"{subject}\"");
        forbidden.expect(&what).await;
    }
}
