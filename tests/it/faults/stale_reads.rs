//! Replicas that lag behind: what was just written is read, and never taken for missing.

use async_nats::jetstream::stream::{Config, Source};
use ccm_nats::kv::Bucket;
use ccm_nats::streams::ROLLOUTS;

use crate::rollout::{fleet, push, ran};
use crate::support::nats::NatsServer;
use crate::support::poll::eventually;

/// Adds a mirror of a bucket that replies to a share of its direct reads, as replicas do, and has one
/// key only. Returns once another stored key was not found.
async fn add_stale_replica(server: &NatsServer, bucket: &Bucket) {
    let origin = bucket.name();
    let mirror = Source {
        name: format!("KV_{origin}"),
        filter_subject: Some(format!("$KV.{origin}.default.mirrored")),
        ..Source::default()
    };
    let config = Config {
        name: "STALE".into(),
        mirror: Some(mirror),
        mirror_direct: true,
        allow_direct: true,
        ..Config::default()
    };
    let jetstream = server.jetstream().await;
    jetstream.create_stream(config).await.unwrap();
    bucket.put("default.other", "1".into()).await.unwrap();
    eventually("a stale read", async || {
        // It takes part once it has a message.
        bucket.put("default.mirrored", "1".into()).await.unwrap();
        bucket.get("default.other").await.unwrap().is_none()
    })
    .await;
    for key in ["default.mirrored", "default.other"] {
        bucket.purge(key).await.unwrap();
    }
}

#[tokio::test]
async fn the_leader_of_a_bucket_has_the_last_write() {
    let fleet = fleet(&[]);
    let bucket = fleet.server.client().await.bucket(ROLLOUTS).await.unwrap();
    add_stale_replica(&fleet.server, &bucket).await;
    for number in 0..50 {
        let key = format!("default.k{number}");
        let revision = bucket.create(&key, "1".into()).await.unwrap();
        let found = bucket.get_latest(&key).await.unwrap();
        assert_eq!(found.map(|entry| entry.revision), Some(revision));
    }
    bucket.delete("default.k0").await.unwrap();
    assert_eq!(bucket.get_latest("default.k0").await.unwrap(), None);
    assert_eq!(bucket.get_latest("default.none").await.unwrap(), None);
    assert!(bucket.get_latest("default.*").await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollouts_are_driven_although_a_replica_does_not_have_them() {
    let fleet = fleet(&["a"]);
    let bucket = fleet.server.client().await.bucket(ROLLOUTS).await.unwrap();
    add_stale_replica(&fleet.server, &bucket).await;
    let mut expected = Vec::new();
    for round in 0..6 {
        let name = format!("app{round}");
        push(&fleet, &name, "true");
        let start = ["rollout", "start", &name, "--all", "--json"];
        let started = match round % 2 {
            0 => fleet.run(&start),
            _ => fleet.run(&[&start[..], &["--detach"]].concat()),
        };
        let id = started.json()["id"].as_str().unwrap().to_owned();
        if round % 2 == 1 {
            fleet.run(&["rollout", "pause", &id]).ok();
            fleet.run(&["rollout", "resume", &id]).ok();
        }
        fleet.run(&["rollout", "rollback", &id]).ok();
        expected.push(name);
    }
    assert_eq!(ran(&fleet, "a"), expected);
}
