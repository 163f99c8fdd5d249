//! Data that the agent's own file names: where signers are required, who can write the bucket
//! decides nothing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::kv::Store;
use ccm_agent::config::Config;
use ccm_nats::request_signature::Signer;

use super::sources::{self, content_becomes, is_denied, signed};
use super::trusting;
use crate::support::TestEnv;
use crate::support::agent::{self, start};
use crate::support::http::{Response, Server};
use crate::support::nats::NatsServer;

const SOURCE: &str = "kv://DATA/site";

async fn make_bucket(server: &NatsServer) -> Store {
    let bucket = async_nats::jetstream::kv::Config {
        bucket: "DATA".into(),
        history: 1,
        ..Default::default()
    };
    let jetstream = server.jetstream().await;
    jetstream.create_key_value(bucket).await.unwrap()
}

fn document(word: &str) -> Vec<u8> {
    format!("hierarchy: {{order: [default]}}\ndata: {{word: {word}}}\n").into_bytes()
}

/// Returns the configuration of a node that often applies a manifest of its own with this data.
fn using(signer: &Signer, env: &TestEnv) -> Config {
    let path = env.at("motd");
    let manifest = env.write(
        "site.yaml",
        format!(
            "ccm:\n  resources:\n    - file:\n        - {path}: {{ensure: present, content: \
             '{{{{ Data.word }}}}', owner: root, group: root, mode: '0644'}}\n"
        ),
    );
    Config {
        manifests: vec![manifest.parse().unwrap()],
        external_data_url: Some(SOURCE.parse().unwrap()),
        interval: Duration::from_secs(1),
        ..trusting(signer, None, env.root())
    }
}

#[tokio::test]
async fn data_counts_only_with_the_signature_of_a_trusted_signer() {
    let env = TestEnv::new();
    let server = NatsServer::start();
    agent::init(&server.client().await).await;
    let store = make_bucket(&server).await;
    let put = async |key: &str, value: Vec<u8>| store.put(key, value.into()).await.unwrap();
    let (signer, thief) = (Signer::generate(), Signer::generate());
    let config = using(&signer, &env);

    // What was good before signatures were wanted is not good any more.
    put("site", document("zero")).await;
    let careless = Config {
        trust: None,
        ..config.clone()
    };
    let running = start(&careless, &server).await;
    content_becomes(&env, "zero").await;
    running.stop().await;
    std::fs::remove_file(env.path("motd")).unwrap();
    let running = start(&config, &server).await;
    is_denied(&server, "kv://DATA/site is not signed: put what").await;
    assert!(!env.exists("motd"));

    let first = signed(&signer, SOURCE, &document("one"));
    put("site", document("one")).await;
    put("site.sig", first.clone()).await;
    content_becomes(&env, "one").await;

    // Of a stranger, for another place, for another content: the last good data stays.
    let second = document("two");
    put("site", second.clone()).await;
    for (signature, reason) in [
        (signed(&thief, SOURCE, &second), "not trusted"),
        (
            signed(&signer, "kv://DATA/other", &second),
            "another source",
        ),
        (signed(&signer, SOURCE, b"else"), "not what was signed"),
    ] {
        put("site.sig", signature).await;
        is_denied(&server, reason).await;
    }
    assert_eq!(env.read("motd"), "one");
    put("site.sig", signed(&signer, SOURCE, &second)).await;
    content_becomes(&env, "two").await;

    // What was good once does not come back.
    put("site", document("one")).await;
    put("site.sig", first).await;
    is_denied(&server, "before the accepted one").await;
    assert_eq!(env.read("motd"), "two");
    running.stop().await;
}

#[tokio::test]
async fn data_of_a_server_is_signed_beside_its_path() {
    let env = TestEnv::new();
    let server = NatsServer::start();
    agent::init(&server.client().await).await;
    let signer = Signer::generate();
    let signature: Arc<Mutex<Vec<u8>>> = Arc::default();
    let beside = signature.clone();
    let web = Server::start(move |request| match request.path.as_str() {
        "/site.yaml?v=1" => Response::ok(document("one")),
        "/site.yaml.sig?v=1" => Response::ok(beside.lock().unwrap().clone()),
        _ => Response::new("404 Not Found", "none"),
    });
    let url = web.url("/site.yaml?v=1");
    let config = Config {
        external_data_url: Some(url.parse().unwrap()),
        ..using(&signer, &env)
    };
    let running = start(&config, &server).await;
    is_denied(&server, "can't be read").await;
    *signature.lock().unwrap() = signed(&signer, &url, &document("one"));
    content_becomes(&env, "one").await;
    running.stop().await;
}

#[tokio::test]
async fn data_of_an_object_store_is_signed_beside_its_object() {
    let env = TestEnv::new();
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    sources::make_bucket(&server).await;
    let put = async |name: &str, content: &[u8]| sources::put(&client, name, content).await;
    let (signer, thief) = (Signer::generate(), Signer::generate());
    let url = "obj://SITE/site.yaml";
    let config = Config {
        external_data_url: Some(url.parse().unwrap()),
        ..using(&signer, &env)
    };
    let first = document("one");
    put("site.yaml", &first).await;
    let running = start(&config, &server).await;
    is_denied(&server, "obj://SITE/site.yaml is not signed").await;
    assert!(!env.exists("motd"));
    put("site.yaml.sig", &signed(&signer, url, &first)).await;
    content_becomes(&env, "one").await;

    let second = document("two");
    put("site.yaml", &second).await;
    put("site.yaml.sig", &signed(&thief, url, &second)).await;
    is_denied(&server, "not trusted").await;
    assert_eq!(env.read("motd"), "one");
    put("site.yaml.sig", &signed(&signer, url, &second)).await;
    content_becomes(&env, "two").await;
    running.stop().await;
}

#[tokio::test]
async fn data_needs_no_signature_where_sources_need_none() {
    let env = TestEnv::new();
    let server = NatsServer::start();
    agent::init(&server.client().await).await;
    let store = make_bucket(&server).await;
    store.put("site", document("one").into()).await.unwrap();
    let mut config = using(&Signer::generate(), &env);
    config.trust.as_mut().unwrap().sources = false;
    let running = start(&config, &server).await;
    content_becomes(&env, "one").await;
    running.stop().await;
}
