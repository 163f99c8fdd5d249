//! Stored events, read and followed: each once and in order, also when the server goes away.

use ccm_nats::event_feed::ReadOptions;
use ccm_nats::streams::{InitOptions, init};
use ccm_nats::{Connection, NatsError, Subjects};
use chrono::{DateTime, Utc};
use tokio::sync::mpsc;

use crate::support::nats::NatsServer;

fn subjects() -> Subjects {
    Subjects::new("ccm.v1", "default".parse().unwrap()).unwrap()
}

async fn store(connection: &Connection, number: u32, type_name: &str) {
    let subject = subjects().event(&"web1".parse().unwrap(), type_name, "changed");
    let id = format!("e{number}");
    let stored = connection.publish_stored(&subject, &id, number.to_string().into());
    stored.await.unwrap();
}

fn reading(since: Option<DateTime<Utc>>, follow: bool) -> ReadOptions {
    ReadOptions {
        filter: subjects().events(),
        since,
        follow,
    }
}

async fn read(connection: &Connection, reading: &ReadOptions, most: usize) -> Vec<u32> {
    let mut found = Vec::new();
    connection
        .read_events(reading, |stored| {
            found.push(String::from_utf8_lossy(&stored.body).parse().unwrap());
            found.len() < most
        })
        .await
        .unwrap();
    found
}

#[tokio::test]
async fn what_is_stored_is_read_in_order_and_as_far_as_it_is_wanted() {
    let server = NatsServer::start();
    let connection = server.client().await;
    let nothing = reading(Some(DateTime::UNIX_EPOCH), false);
    let missing = connection.read_events(&nothing, |_| true).await;
    assert!(matches!(missing, Err(NatsError::NotStored(_))));
    init(&connection, &InitOptions::new(subjects()))
        .await
        .unwrap();
    assert_eq!(read(&connection, &nothing, 9).await, [0_u32; 0]);
    for number in 1..=600 {
        store(
            &connection,
            number,
            if number % 2 == 0 { "file" } else { "exec" },
        )
        .await;
    }
    let all: Vec<u32> = (1..=600).collect();
    assert_eq!(read(&connection, &nothing, usize::MAX).await, all);
    assert_eq!(read(&connection, &nothing, 3).await, [1, 2, 3]);
    let files = ReadOptions {
        filter: subjects().events_matching(None, Some(&"file".parse().unwrap()), None),
        ..nothing
    };
    assert_eq!(read(&connection, &files, 2).await, [2, 4]);
    assert_eq!(
        read(&connection, &reading(None, false), 9).await,
        [0_u32; 0]
    );
}

#[tokio::test]
async fn a_follower_loses_nothing_to_a_server_that_restarts() {
    let mut server = NatsServer::start();
    let connection = server.client().await;
    init(&connection, &InitOptions::new(subjects()))
        .await
        .unwrap();
    let (sender, mut received) = mpsc::unbounded_channel();
    let follower = server.client().await;
    tokio::spawn(async move {
        let reading = reading(Some(DateTime::UNIX_EPOCH), true);
        let read = follower.read_events(&reading, |stored| {
            let number: u32 = String::from_utf8_lossy(&stored.body).parse().unwrap();
            sender.send(number).is_ok()
        });
        read.await.unwrap();
    });
    for number in 1..=3 {
        store(&connection, number, "file").await;
        assert_eq!(received.recv().await, Some(number));
    }
    server.restart();
    let again = server.client().await;
    for number in 4..=6 {
        store(&again, number, "file").await;
    }
    for number in 4..=6 {
        assert_eq!(received.recv().await, Some(number));
    }
}
