//! The permissions that we ship, on a real server: what an agent, an operator and a monitor can't do.

use std::time::Duration;

use async_nats::{Client, ConnectOptions};
use ccm::model::registration::Entry;
use ccm::nats::registration::{Destination, STREAM, StreamOptions};
use ccm::nats::{Patience, Settings, Verb, connect};
use futures_util::StreamExt as _;

use super::NODE;
use crate::support::agent::{self, ask, config};
use crate::support::nats::{LIMIT, NatsServer};

const TOKEN: &str = "web1_example_net";

fn template(name: &str) -> String {
    let file = format!("{}/packaging/nats/{name}.conf", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(file).unwrap();
    let text = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let text: Vec<&str> = text.collect();
    let text = text.join("\n").replace("COLLECTIVE", "default");
    let text = text.replace("ADDRESS", "10_0_0_1");
    text.replace("_INBOX_NODE", &format!("_INBOX_{TOKEN}"))
        .replace(".NODE", &format!(".{TOKEN}"))
}

fn server() -> NatsServer {
    let user = |name: &str| {
        let rules = template(name);
        format!("{{ user: {name}, password: pw, permissions: {{ {rules} }} }}\n")
    };
    let users = ["agent", "controller", "operator", "monitor"].map(user);
    NatsServer::with(&format!(
        "authorization {{ users: [\n{}] }}",
        users.join("")
    ))
}

fn url(server: &NatsServer, user: &str) -> String {
    server.url().replace("//", &format!("//{user}:pw@"))
}

/// Returns a client of a user, and everything the server forbids it.
async fn client(server: &NatsServer, user: &str, inbox: &str) -> (Client, Forbidden) {
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    let options = ConnectOptions::with_user_and_password(user.into(), "pw".into())
        .custom_inbox_prefix(inbox)
        .event_callback(move |event| {
            let _ = tell.send(event.to_string());
            async {}
        });
    let client = options.connect(server.url()).await.unwrap();
    (client, Forbidden(told))
}

struct Forbidden(tokio::sync::mpsc::UnboundedReceiver<String>);

impl Forbidden {
    /// Waits until the server says no to something about a subject.
    async fn expect(&mut self, subject: &str) {
        let heard = tokio::time::timeout(LIMIT, async {
            loop {
                let event = self.0.recv().await.unwrap();
                let text = event.to_lowercase();
                if text.contains("permissions violation") && text.contains(&subject.to_lowercase())
                {
                    return;
                }
            }
        });
        assert!(heard.await.is_ok(), "{subject} was not forbidden");
    }
}

#[tokio::test]
async fn an_agent_works_with_its_permissions_and_can_do_nothing_to_others() {
    let server = server();
    let controller = Settings::plain(&url(&server, "controller")).unwrap();
    let controller = connect(&controller, Patience::Once(LIMIT), "test")
        .await
        .unwrap();
    agent::init(&controller).await;
    let room = tempfile::tempdir().unwrap();
    let mut settings = Settings::plain(&url(&server, "agent")).unwrap();
    settings.inbox_prefix = Some(format!("_INBOX_{TOKEN}"));
    let log = ccm::run::log::Log::to(
        std::io::sink(),
        ccm::run::log::Style::Text,
        ccm::engine::Level::Error,
        ccm::system::SystemClock,
    );
    let metrics = ccm::agent::metrics::Metrics::new("0.0.0");
    let config = config(NODE, room.path());
    let environ = Default::default();
    let running = ccm::agent::Agent::start(&config, &settings, environ, log, metrics)
        .await
        .unwrap();
    let file = room.path().join("f");
    let body = agent::file_request(&file, "x");
    let answer = ask(&controller, NODE, Verb::Ensure, &body).await;
    assert_eq!(answer["state"]["changed"], true, "{answer}");
    let nodes = controller.bucket("CCM_NODES").await.unwrap();
    let key = agent::subjects().key(&TOKEN.parse().unwrap());
    agent::eventually("presence", async || nodes.get(&key).await.unwrap()).await;
    agent::eventually("events out of the spool", async || {
        (running.node().outbox.status().pending == 0).then_some(())
    })
    .await;

    let (thief, mut forbidden) = client(&server, "agent", &format!("_INBOX_{TOKEN}")).await;
    for subject in [
        "ccm.v1.default.node.web2.ensure",
        "ccm.v1.default.node.*.ensure",
        "ccm.v1.default.event.>",
        "ccm.v1.prod.node.web1_example_net.ensure",
        "_INBOX.>",
        "$KV.>",
        ">",
    ] {
        let _listening = thief.subscribe(subject).await.unwrap();
        forbidden
            .expect(&format!("subscription to \"{subject}\""))
            .await;
    }
    for subject in [
        "ccm.v1.default.node.web2.ensure",
        "ccm.v1.default.node.web1_example_net.ensure",
        "ccm.v1.default.all.ping",
        "ccm.v1.default.group.web.apply",
        "ccm.v1.default.event.web2.file.changed",
        "$KV.CCM_NODES.default.web2",
        "choria.ccm.registration.v1.prod.http.web.10_0_0_2.x",
        "$KV.CCM_REPORTED.default.web2",
        "$KV.CCM_DESIRED.default.web1_example_net",
        "$KV.CCM_DESIRED.default.web2",
        "$KV.CCM_ROLLOUTS.r1",
        "$O.CCM_MANIFESTS.M.x",
        "$JS.API.DIRECT.GET.KV_CCM_DESIRED.$KV.CCM_DESIRED.default.web2",
        "$JS.API.DIRECT.GET.KV_CCM_DESIRED",
        "$JS.API.STREAM.MSG.GET.KV_CCM_DESIRED",
        "$JS.API.CONSUMER.CREATE.KV_CCM_DESIRED",
        "$JS.API.STREAM.DELETE.CCM_EVENTS",
        "$JS.API.STREAM.PURGE.CCM_EVENTS",
    ] {
        thief.publish(subject, "{}".into()).await.unwrap();
        forbidden.expect(&format!("publish to \"{subject}\"")).await;
    }
    running.stop().await;
}

#[tokio::test]
async fn a_monitor_sees_events_and_can_ask_nobody_anything() {
    let server = server();
    let (monitor, mut forbidden) = client(&server, "monitor", "_INBOX_MONITOR").await;
    let mut events = monitor.subscribe("ccm.v1.default.event.>").await.unwrap();
    monitor.flush().await.unwrap();
    let (agent, _) = client(&server, "agent", &format!("_INBOX_{TOKEN}")).await;
    let subject = format!("ccm.v1.default.event.{TOKEN}.file.changed");
    agent.publish(subject, "{}".into()).await.unwrap();
    let seen = tokio::time::timeout(Duration::from_secs(10), events.next()).await;
    assert!(seen.unwrap().is_some());
    for subject in [
        "ccm.v1.default.all.ping",
        "ccm.v1.default.node.web1_example_net.apply",
        "$KV.CCM_DESIRED.default.web1_example_net",
        "ccm.v1.default.event.web1_example_net.file.changed",
        "$JS.API.STREAM.DELETE.CCM_EVENTS",
    ] {
        monitor.publish(subject, "{}".into()).await.unwrap();
        forbidden.expect(&format!("publish to \"{subject}\"")).await;
    }
}

#[tokio::test]
async fn an_operator_asks_and_can_not_assign() {
    let server = server();
    let (operator, mut forbidden) = client(&server, "operator", "_INBOX").await;
    for subject in [
        "$KV.CCM_DESIRED.default.web1_example_net",
        "$KV.CCM_NODES.default.web1_example_net",
        "ccm.v1.default.event.web1_example_net.file.changed",
        "$JS.API.STREAM.DELETE.CCM_EVENTS",
    ] {
        operator.publish(subject, "{}".into()).await.unwrap();
        forbidden.expect(&format!("publish to \"{subject}\"")).await;
    }
    operator
        .publish("ccm.v1.default.all.ping", "".into())
        .await
        .unwrap();
    operator.flush().await.unwrap();
}

#[tokio::test]
async fn an_agent_registers_its_own_services_and_finds_those_of_others() {
    let server = server();
    let login = async |user: &str, inbox: Option<String>| {
        let mut settings = Settings::plain(&url(&server, user)).unwrap();
        settings.inbox_prefix = inbox;
        let connected = connect(&settings, Patience::Once(LIMIT), "test").await;
        connected.unwrap()
    };
    let controller = login("controller", None).await;
    let options = StreamOptions::default();
    let ready = controller.init_registrations(STREAM, options).await;
    assert_eq!(ready.unwrap().replicas, 1);
    let entry = |address: &str| -> Entry {
        let entry = serde_json::json!({
            "cluster": "prod", "service": "web", "protocol": "http",
            "address": address, "port": 80, "priority": 1,
        });
        serde_json::from_value(entry).unwrap()
    };
    let destination = Destination::Jetstream(STREAM.into());
    let operator = login("operator", None).await;
    let others = operator.register(&entry("10.0.0.2"), &destination).await;
    others.unwrap();
    let agent = login("agent", Some(format!("_INBOX_{TOKEN}"))).await;
    let own = agent.register(&entry("10.0.0.1"), &destination).await;
    own.unwrap();
    let found = agent.registrations(STREAM, [""; 4]).await.unwrap();
    assert_eq!(found.entries, [entry("10.0.0.1"), entry("10.0.0.2")]);
}
