//! Requests to many nodes: thousands that reply, some that never do, and some that were not expected.
//! The nodes are fake, so that they can misbehave; `fleet` has tests with real agents.

use std::sync::Arc;
use std::time::Duration;

use ccm_core::model::envelope::{Envelope, IDENTITY};
use ccm_core::model::node::NodeName;
use ccm_core::system::SystemClock;
use ccm_fleet::batches::{BatchSettings, Targets, request_in_batches};
use ccm_fleet::scatter::{NodeRequest, RawReply, Recipients, ScatterClient};
use ccm_fleet::summarize::Outcome;
use ccm_nats::connection::Message;
use ccm_nats::{Bytes, Connection, Headers, NatsError, Subject, Subjects, Verb};

use crate::support::nats::NatsServer;
use crate::support::poll::LIMIT;

fn subjects() -> Subjects {
    Subjects::new("ccm.v1", "default".parse().unwrap()).unwrap()
}

fn names(names: &[&str]) -> Vec<NodeName> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

fn node_request(verb: Verb, limit: Duration) -> NodeRequest {
    NodeRequest {
        verb,
        body: Bytes::new(),
        noop: false,
        diff: false,
        timeout: limit,
        sends_deadline: false,
    }
}

async fn scatter_client(server: &NatsServer) -> ScatterClient {
    let clock = Arc::new(SystemClock);
    ScatterClient::new(server.client().await, subjects(), "ann@laptop", clock).unwrap()
}

/// Subscribes to a subject and calls a function for each request.
async fn serve<F: Future<Output = ()> + Send>(
    server: &NatsServer,
    on: &str,
    each: impl Fn(Connection, Message) -> F + Send + 'static,
) {
    let client = server.client().await;
    let mut requests = client.subscribe(&on.parse().unwrap()).await.unwrap();
    client.flush().await.unwrap();
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            each(client.clone(), request).await;
        }
    });
}

async fn answer(client: &Connection, request: &Message, identity: &str, more: &[(&str, &str)]) {
    let reply: Subject = request.reply.as_deref().unwrap().parse().unwrap();
    let mut headers = Headers::new().with(IDENTITY, identity).unwrap();
    for (name, value) in more {
        headers.set(name, value).unwrap();
    }
    client.publish(&reply, headers, "{}".into()).await.unwrap();
}

/// Returns the word of a subject that names the node.
fn node_of(request: &Message) -> String {
    let word = request.subject.split('.').nth(4).unwrap();
    word.replace('_', ".")
}

async fn send_request(
    client: &ScatterClient,
    request: &NodeRequest,
    recipients: Recipients<'_>,
) -> Vec<RawReply> {
    let mut replies = Vec::new();
    client
        .scatter(request, recipients, |one| replies.push(one))
        .await
        .unwrap();
    replies.sort_by(|a, b| a.node.cmp(&b.node));
    replies
}

fn node_names(replies: &[RawReply]) -> Vec<NodeName> {
    replies.iter().map(|one| one.node.clone()).collect()
}

#[tokio::test]
async fn thousands_of_nodes_each_have_one_reply() {
    let server = NatsServer::start();
    let mut nodes: Vec<NodeName> = (0..3000)
        .map(|number| format!("n{number}.example.net").parse().unwrap())
        .collect();
    nodes.sort();
    serve(&server, "ccm.v1.default.node.*.ping", |client, request| {
        let node = node_of(&request);
        async move { answer(&client, &request, &node, &[]).await }
    })
    .await;
    let all = nodes.clone();
    serve(
        &server,
        "ccm.v1.default.all.ping",
        move |client, request| {
            let all = all.clone();
            async move {
                for node in all {
                    answer(&client, &request, node.as_str(), &[]).await;
                }
            }
        },
    )
    .await;
    let client = scatter_client(&server).await;
    for recipients in [Recipients::Nodes(&nodes), Recipients::Broadcast(&nodes)] {
        let replies = send_request(&client, &node_request(Verb::Ping, LIMIT), recipients).await;
        assert!(replies.iter().all(|one| one.reply.is_ok()));
        assert_eq!(node_names(&replies), nodes);
    }
}

#[tokio::test]
async fn a_dead_node_is_distinguished_from_a_silent_one() {
    let server = NatsServer::start();
    serve(
        &server,
        "ccm.v1.default.node.good.ensure",
        |client, request| async move {
            answer(&client, &request, "good", &[]).await;
        },
    )
    .await;
    serve(
        &server,
        "ccm.v1.default.all.ensure",
        |client, request| async move {
            answer(&client, &request, "good", &[]).await;
        },
    )
    .await;
    serve(&server, "ccm.v1.default.node.silent.*", |_, _| async {}).await;
    let client = scatter_client(&server).await;
    let nodes = names(&["dead", "good", "silent"]);
    // One node is silent that long; the others answer earlier, also on a busy machine.
    let limit = Duration::from_secs(10);
    for recipients in [Recipients::Nodes(&nodes), Recipients::Broadcast(&nodes)] {
        let replies = send_request(&client, &node_request(Verb::Ensure, limit), recipients).await;
        let [dead, good, silent] = replies.as_slice() else {
            panic!("{replies:?}");
        };
        assert!(
            matches!(dead.reply, Err(NatsError::NoResponders(_))),
            "{dead:?}"
        );
        assert!(good.reply.is_ok(), "{good:?}");
        assert!(
            matches!(silent.reply, Err(NatsError::NoReply { .. })),
            "{silent:?}"
        );
    }
}

#[tokio::test]
async fn a_broadcast_without_a_reply_names_all_nodes() {
    let server = NatsServer::start();
    let client = scatter_client(&server).await;
    let nodes = names(&["a", "b"]);
    let replies = send_request(
        &client,
        &node_request(Verb::Ping, LIMIT),
        Recipients::Broadcast(&nodes),
    )
    .await;
    assert_eq!(node_names(&replies), nodes);
    for one in replies {
        assert!(matches!(one.reply, Err(NatsError::NoResponders(_))));
    }
}

#[tokio::test]
async fn unexpected_nodes_are_included_and_no_node_twice() {
    let server = NatsServer::start();
    serve(
        &server,
        "ccm.v1.default.all.ping",
        |client, request| async move {
            for node in ["new", "a", "a", "Not A Name", "b"] {
                answer(&client, &request, node, &[]).await;
            }
        },
    )
    .await;
    let client = scatter_client(&server).await;
    let expected = names(&["a", "b"]);
    let replies = send_request(
        &client,
        &node_request(Verb::Ping, LIMIT),
        Recipients::Broadcast(&expected),
    )
    .await;
    assert_eq!(node_names(&replies), names(&["a", "b", "new"]));
}

#[tokio::test]
async fn a_request_has_a_caller_and_a_deadline() {
    let server = NatsServer::start();
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    serve(
        &server,
        "ccm.v1.default.node.a.ensure",
        move |client, request| {
            let envelope = Envelope::from_headers(|name| request.header(name)).unwrap();
            sender.send(envelope).unwrap();
            async move { answer(&client, &request, "a", &[]).await }
        },
    )
    .await;
    let client = scatter_client(&server).await;
    let nodes = names(&["a"]);
    let plain = node_request(Verb::Ensure, LIMIT);
    let bound = NodeRequest {
        noop: true,
        sends_deadline: true,
        ..plain.clone()
    };
    for request in [&plain, &bound] {
        send_request(&client, request, Recipients::Nodes(&nodes)).await;
        let envelope = received.recv().await.unwrap();
        assert_eq!(envelope.caller, "ann@laptop");
        assert_eq!(envelope.request_id, client.request_id().as_str());
        assert_eq!(envelope.noop, request.noop);
        assert_eq!(envelope.deadline.is_some(), request.sends_deadline);
    }
}

#[tokio::test]
async fn refusals_count_as_what_they_are_and_silence_is_no_failure() {
    let server = NatsServer::start();
    serve(
        &server,
        "ccm.v1.default.node.*.ensure",
        |client, request| async move {
            let node = node_of(&request);
            let code = match node.as_str() {
                "denied" => "403",
                "busy" => "429",
                _ => "400",
            };
            let refusal = [
                ("Nats-Service-Error", "no"),
                ("Nats-Service-Error-Code", code),
            ];
            answer(&client, &request, &node, &refusal).await;
        },
    )
    .await;
    let client = scatter_client(&server).await;
    let targets = Targets {
        nodes: names(&["busy", "denied", "failed", "spared"]),
        is_whole_fleet: true,
    };
    let pace = BatchSettings {
        batch: Some("1".parse().unwrap()),
        max_failures: Some("2".parse().unwrap()),
    };
    let mut replies = Vec::new();
    let ensure_request = node_request(Verb::Ensure, LIMIT);
    let batches = request_in_batches(&client, &ensure_request, &targets, pace, |one| {
        replies.push(one)
    });
    let ended = batches.await.unwrap();
    let outcomes: Vec<Outcome> = replies.iter().map(|one| one.outcome).collect();
    assert_eq!(outcomes, [Outcome::Busy, Outcome::Denied, Outcome::Failed]);
    assert!(ended.is_halted);
    assert_eq!(ended.not_contacted, names(&["spared"]));
    // No node listens here, and none failed.
    let status_request = node_request(Verb::Status, LIMIT);
    let batches = request_in_batches(&client, &status_request, &targets, pace, |_| {});
    let ended = batches.await.unwrap();
    assert!(!ended.is_halted);
    assert_eq!(ended.counts.exit_code(), 2);
}
