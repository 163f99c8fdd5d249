//! Buckets and objects, and watching them through a restarted server.

use async_nats::jetstream::{kv, object_store};
use ccm_nats::kv::Change;
use ccm_nats::{NatsError, object};
use tokio::time::timeout;

use crate::support::nats::NatsServer;
use crate::support::poll::{LIMIT, eventually, when};

async fn make_bucket(server: &NatsServer) {
    let config = kv::Config {
        bucket: "B".into(),
        history: 3,
        ..kv::Config::default()
    };
    server
        .jetstream()
        .await
        .create_key_value(config)
        .await
        .unwrap();
}

async fn make_store(server: &NatsServer) {
    let config = object_store::Config {
        bucket: "O".into(),
        ..object_store::Config::default()
    };
    server
        .jetstream()
        .await
        .create_object_store(config)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_value_is_written_compared_and_removed() {
    let server = NatsServer::start();
    make_bucket(&server).await;
    let bucket = server.client().await.bucket("B").await.unwrap();
    assert_eq!(bucket.get("a.b").await.unwrap(), None);
    let first = bucket.create("a.b", "1".into()).await.unwrap();
    assert!(
        bucket
            .create("a.b", "2".into())
            .await
            .unwrap_err()
            .is_conflict()
    );
    let second = bucket.update("a.b", "2".into(), first).await.unwrap();
    assert!(
        bucket
            .update("a.b", "3".into(), first)
            .await
            .unwrap_err()
            .is_conflict()
    );
    let entry = bucket.get("a.b").await.unwrap().unwrap();
    assert_eq!((entry.value, entry.revision), ("2".into(), second));
    bucket.delete("a.b").await.unwrap();
    assert_eq!(bucket.get("a.b").await.unwrap(), None);
    bucket.create("a.b", "4".into()).await.unwrap();
    bucket.purge("a.b").await.unwrap();
    assert_eq!(bucket.get("a.b").await.unwrap(), None);
    let error = bucket.get("no key").await.unwrap_err();
    assert_eq!(error.to_string(), "invalid key \"no key\" for bucket B");
}

#[tokio::test]
async fn a_bucket_that_does_not_exist_is_named() {
    let server = NatsServer::start();
    let connection = server.client().await;
    for name in ["NONE", "a.b", "*", ""] {
        let error = connection.bucket(name).await.unwrap_err();
        assert!(error.is_not_found(), "{error}");
        let error = connection.objects(name).await.err().unwrap();
        assert!(error.is_not_found(), "{error}");
    }
}

#[tokio::test]
async fn all_live_entries_of_a_pattern_come_in_one_pass() {
    let server = NatsServer::start();
    make_bucket(&server).await;
    let bucket = server.client().await.bucket("B").await.unwrap();
    assert!(bucket.entries(">").await.unwrap().is_empty());
    for number in 0..500 {
        bucket
            .put(&format!("lab.n{number}"), number.to_string().into())
            .await
            .unwrap();
    }
    bucket.put("prod.n1", "x".into()).await.unwrap();
    bucket.delete("lab.n7").await.unwrap();
    let found = bucket.entries("lab.*").await.unwrap();
    assert_eq!(found.len(), 499);
    assert!(
        found
            .iter()
            .all(|entry| entry.key.starts_with("lab.") && entry.key != "lab.n7")
    );
    no_consumers(&server, "KV_B").await;
}

/// Waits until nobody reads a stream any more.
async fn no_consumers(server: &NatsServer, stream: &str) {
    let mut stream = server.jetstream().await.get_stream(stream).await.unwrap();
    eventually("no consumer is left behind", async || {
        let count = stream.info().await.unwrap().state.consumer_count;
        when(count == 0, count)
    })
    .await;
}

/// Returns the next change, which must come.
async fn next(watch: &mut ccm_nats::kv::Watch) -> Change {
    timeout(LIMIT, watch.next()).await.unwrap().unwrap()
}

/// Reads a watch up to the present and returns the keys and values told.
async fn present(watch: &mut ccm_nats::kv::Watch) -> Vec<(String, String)> {
    let mut told = Vec::new();
    loop {
        match next(watch).await {
            Change::Restart => told.clear(),
            Change::Put(entry) => {
                let value = String::from_utf8(entry.value.to_vec()).unwrap();
                told.push((entry.key, value));
            }
            Change::Removed { .. } => {}
            Change::Denied(denial) => panic!("{denial}"),
            Change::Current => return told,
        }
    }
}

#[tokio::test]
async fn a_watch_tells_the_present_then_news_then_after_a_restart_the_present_again() {
    let mut server = NatsServer::start();
    make_bucket(&server).await;
    let connection = server.client().await;
    let bucket = connection.bucket("B").await.unwrap();
    bucket.put("a", "1".into()).await.unwrap();
    let mut watch = bucket.watch(">").unwrap();
    assert_eq!(present(&mut watch).await, [("a".into(), "1".into())]);
    bucket.put("b", "2".into()).await.unwrap();
    assert!(matches!(next(&mut watch).await, Change::Put(entry) if entry.key == "b"));
    bucket.delete("a").await.unwrap();
    assert!(matches!(next(&mut watch).await, Change::Removed { key, .. } if key == "a"));
    server.restart();
    assert_eq!(present(&mut watch).await, [("b".into(), "2".into())]);
    bucket.put("c", "3".into()).await.unwrap();
    assert!(matches!(next(&mut watch).await, Change::Put(entry) if entry.key == "c"));
    drop(watch);
    no_consumers(&server, "KV_B").await;
}

#[tokio::test]
async fn a_watch_waits_for_a_bucket_that_does_not_exist_yet() {
    let server = NatsServer::start();
    let connection = server.client().await;
    let mut watch = connection.watch_bucket("B", "lab.*").unwrap();
    make_bucket(&server).await;
    assert_eq!(present(&mut watch).await, []);
    let bucket = connection.bucket("B").await.unwrap();
    bucket.put("prod.a", "0".into()).await.unwrap();
    bucket.put("lab.a", "1".into()).await.unwrap();
    assert!(matches!(next(&mut watch).await, Change::Put(entry) if entry.key == "lab.a"));
}

#[tokio::test]
async fn a_bucket_that_was_made_anew_is_told_anew() {
    let server = NatsServer::start();
    make_bucket(&server).await;
    let connection = server.client().await;
    let bucket = connection.bucket("B").await.unwrap();
    for _ in 0..5 {
        bucket.put("a", "old".into()).await.unwrap();
    }
    let mut watch = bucket.watch(">").unwrap();
    assert_eq!(present(&mut watch).await, [("a".into(), "old".into())]);
    server
        .jetstream()
        .await
        .delete_key_value("B")
        .await
        .unwrap();
    make_bucket(&server).await;
    bucket.put("a", "new".into()).await.unwrap();
    let told = async {
        loop {
            match watch.next().await.unwrap() {
                Change::Put(entry) if entry.value == "new" => return,
                _ => {}
            }
        }
    };
    timeout(LIMIT, told).await.expect("the new value");
}

#[tokio::test]
async fn an_object_of_many_chunks_is_read_back_and_checked() {
    let server = NatsServer::start();
    make_store(&server).await;
    let store = server.client().await.objects("O").await.unwrap();
    let content: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    let stored = store.put("site/a b", &content).await.unwrap();
    assert_eq!(store.get("site/a b", 1_000_000).await.unwrap(), content);
    let digest = ccm_core::system::Digest::of(&content).to_string();
    assert_eq!(stored.digest, Some(digest));
    assert_eq!(store.info("site/a b").await.unwrap(), Some(stored.clone()));
    assert_eq!(store.list().await.unwrap(), [stored]);
    let error = store.get("site/a b", 999_999).await.unwrap_err();
    assert!(matches!(error, NatsError::Limit { .. }), "{error}");
    store.put("empty", b"").await.unwrap();
    assert_eq!(store.get("empty", 0).await.unwrap(), "");
    store.delete("site/a b").await.unwrap();
    store.delete("site/a b").await.unwrap();
    assert!(store.get("site/a b", 10).await.unwrap_err().is_not_found());
    assert_eq!(store.list().await.unwrap().len(), 1);
    no_consumers(&server, "OBJ_O").await;
}

#[tokio::test]
async fn an_object_that_was_tampered_with_is_refused() {
    let server = NatsServer::start();
    make_store(&server).await;
    let store = server.client().await.objects("O").await.unwrap();
    store.put("a", b"good").await.unwrap();
    let jetstream = server.jetstream().await;
    let raw = jetstream.get_object_store("O").await.unwrap();
    let nuid = raw.info("a").await.unwrap().nuid;
    let stream = jetstream.get_stream("OBJ_O").await.unwrap();
    stream
        .purge()
        .filter(format!("$O.O.C.{nuid}"))
        .await
        .unwrap();
    let error = store.get("a", 100).await.unwrap_err();
    assert!(matches!(error, NatsError::Damaged { .. }), "{error}");
    let chunk = jetstream.publish(format!("$O.O.C.{nuid}"), "evil".into());
    chunk.await.unwrap().await.unwrap();
    let error = store.get("a", 100).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "object a of bucket O is damaged: its digest does not match"
    );
}

#[tokio::test]
async fn links_that_lead_in_circles_end() {
    let server = NatsServer::start();
    make_store(&server).await;
    let store = server.client().await.objects("O").await.unwrap();
    let raw = server
        .jetstream()
        .await
        .get_object_store("O")
        .await
        .unwrap();
    store.put("real", b"content").await.unwrap();
    raw.add_link("to", &raw.get("real").await.unwrap())
        .await
        .unwrap();
    assert_eq!(store.get("to", 100).await.unwrap(), "content");
    for (name, target) in [("x", "y"), ("y", "x")] {
        use data_encoding::BASE64URL;
        let body = serde_json::json!({
            "name": name, "bucket": "O", "nuid": "",
            "options": {"link": {"bucket": "O", "name": target}}
        });
        let subject = format!("$O.O.M.{}", BASE64URL.encode(name.as_bytes()));
        let published = server.jetstream().await;
        let published = published.publish(subject, body.to_string().into());
        published.await.unwrap().await.unwrap();
    }
    let error = store.get("x", 100).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "object x of bucket O is damaged: too many links"
    );
}

#[tokio::test]
async fn a_store_is_watched_through_a_restart() {
    let mut server = NatsServer::start();
    make_store(&server).await;
    let connection = server.client().await;
    let store = connection.objects("O").await.unwrap();
    let mut watch = store.watch();
    let mut wait_for = async |wanted: &str| {
        let heard = async {
            loop {
                match watch.next().await.unwrap() {
                    object::Change::Put(info) if info.name == wanted => return,
                    object::Change::Removed { name } if name == wanted => return,
                    _ => {}
                }
            }
        };
        timeout(LIMIT, heard).await.expect("a change");
    };
    store.put("a", b"1").await.unwrap();
    wait_for("a").await;
    server.restart();
    wait_for("a").await;
    store.delete("a").await.unwrap();
    wait_for("a").await;
}
