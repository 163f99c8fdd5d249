//! Requests, many answers, publishing into streams, lost and regained connections.

use std::time::Duration;

use async_nats::jetstream::stream;
use ccm_nats::{
    Bytes, ConnectMode, ConnectionState, Headers, NatsError, ReplyLimits, Subject, connect,
};

use crate::support::nats::{Cluster, NatsServer};
use crate::support::poll::{LIMIT, eventually, when};

fn subject(text: &str) -> Subject {
    text.parse().unwrap()
}

/// Answers every request on a subject with its own body, once.
async fn echo(server: &NatsServer, on: &str) {
    let client = server.client().await;
    let mut requests = client.subscribe(&subject(on)).await.unwrap();
    client.flush().await.unwrap();
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let reply = subject(&request.reply.unwrap());
            let sent = client.publish(&reply, Headers::new(), request.body);
            sent.await.unwrap();
        }
    });
}

#[tokio::test]
async fn a_request_gets_a_reply_or_a_no_responders_error() {
    let server = NatsServer::start();
    let connection = server.client().await;
    echo(&server, "echo").await;
    let headers = Headers::new().with("Ccm-Noop", "true").unwrap();
    let (echo, unused) = (subject("echo"), subject("nobody"));
    let reply = connection.request(&echo, headers, "hello".into(), LIMIT);
    assert_eq!(reply.await.unwrap().body, "hello");
    let request = connection.request(&unused, Headers::new(), Bytes::new(), LIMIT);
    let error = request.await.unwrap_err();
    assert!(matches!(error, NatsError::NoResponders(_)), "{error}");
}

#[tokio::test]
async fn many_answers_end_at_the_expected_count_or_in_silence() {
    let server = NatsServer::start();
    let connection = server.client().await;
    for _ in 0..3 {
        echo(&server, "all").await;
    }
    let (all, none) = (subject("all"), subject("none"));
    for (expected, silence) in [(Some(3), LIMIT), (None, Duration::from_millis(300))] {
        let stop = ReplyLimits {
            expected,
            silence,
            deadline: LIMIT,
        };
        // A reply may be late, and then silence comes first.
        eventually("three answers", async || {
            let request = connection.request_many(&all, Headers::new(), "x".into(), stop);
            let mut replies = request.await.unwrap();
            let mut count = 0;
            while replies.next().await.is_some() {
                count += 1;
            }
            assert!(!replies.has_no_responders());
            when(count == 3, count)
        })
        .await;
    }
    let stop = ReplyLimits {
        expected: Some(1),
        silence: LIMIT,
        deadline: LIMIT,
    };
    let request = connection.request_many(&none, Headers::new(), "x".into(), stop);
    let mut replies = request.await.unwrap();
    assert!(replies.next().await.is_none());
    assert!(replies.has_no_responders());
}

#[tokio::test]
async fn the_same_id_is_stored_once_and_many_are_on_their_way_at_once() {
    let server = NatsServer::start();
    let connection = server.client().await;
    let jetstream = server.jetstream().await;
    let config = stream::Config {
        name: "S".into(),
        subjects: vec!["s.>".into()],
        ..stream::Config::default()
    };
    jetstream.create_stream(config).await.unwrap();
    let (stored, other) = (subject("s.a"), subject("other"));
    let mut pending = Vec::new();
    for number in 0..100 {
        let id = (number % 50).to_string();
        let sent = connection.begin_publish_stored(&stored, &id, "x".into());
        pending.push(sent.await.unwrap());
    }
    for one in pending {
        one.wait().await.unwrap();
    }
    let mut stream = jetstream.get_stream("S").await.unwrap();
    assert_eq!(stream.info().await.unwrap().state.messages, 50);
    let error = connection.publish_stored(&other, "1", "x".into());
    let error = error.await.unwrap_err();
    assert!(matches!(error, NatsError::NotStored(_)), "{error}");
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_here() {
    let server = NatsServer::with("max_payload: 1024");
    let connection = server.client().await;
    let to = subject("a");
    let sent = connection.publish(&to, Headers::new(), vec![0; 2048].into());
    let error = sent.await.unwrap_err();
    assert!(
        matches!(error, NatsError::TooLarge { size: 2048, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn a_connection_outlives_its_server() {
    let mut server = NatsServer::start();
    let connection = server.client().await;
    let mut messages = connection.subscribe(&subject("news")).await.unwrap();
    let mut state = connection.state();
    assert_eq!(*state.borrow(), ConnectionState::Up { connects: 1 });
    server.stop();
    state.wait_for(|link| !link.is_up()).await.unwrap();
    server.resume();
    let again = state.wait_for(|link| link.is_up()).await.unwrap();
    assert_eq!(*again, ConnectionState::Up { connects: 2 });
    drop(again);
    connection
        .publish(&subject("news"), Headers::new(), "hello".into())
        .await
        .unwrap();
    let message = tokio::time::timeout(LIMIT, messages.next()).await.unwrap();
    assert_eq!(message.unwrap().body, "hello");
}

#[tokio::test]
async fn a_daemon_may_start_before_its_server() {
    let mut server = NatsServer::start();
    server.stop();
    let settings = server.settings();
    let connection = connect(&settings, ConnectMode::Forever, "test")
        .await
        .unwrap();
    assert!(!connection.is_up());
    server.resume();
    let mut state = connection.state();
    let up = tokio::time::timeout(LIMIT, state.wait_for(|link| link.is_up())).await;
    up.expect("connected").unwrap();
    let once = connect(&settings, ConnectMode::Once(LIMIT), "test").await;
    once.unwrap().drain().await;
}

#[tokio::test]
async fn a_cluster_serves_without_one_of_its_servers() {
    let mut cluster = Cluster::start();
    let connection = cluster.client().await;
    let jetstream = cluster.servers[0].jetstream().await;
    let config = stream::Config {
        name: "S".into(),
        subjects: vec!["s".into()],
        num_replicas: 3,
        ..stream::Config::default()
    };
    eventually("a stream", async || {
        jetstream.create_stream(config.clone()).await
    })
    .await;
    // A stream whose leader is not chosen yet stores nothing.
    let store = async |id: &str| {
        eventually(&format!("message {id} is stored"), async || {
            let subject = subject("s");
            connection.publish_stored(&subject, id, "x".into()).await
        })
        .await;
    };
    store("1").await;
    cluster.servers[2].stop();
    // By the two that are left.
    store("2").await;
}
