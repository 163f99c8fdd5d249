//! Bundles that the agent's own file names: where signers are required, who can write the bucket or
//! the server decides nothing.

use std::sync::{Arc, Mutex};

use ccm_agent::config::Config;
use ccm_core::model::signature::BundleSignature;
use ccm_core::system::{Clock as _, Digest, SystemClock};
use ccm_nats::Connection;
use ccm_nats::request_signature::Signer;
use serde_json::Value;

use super::trusting;
use crate::support::agent::{self, start, stored_events};
use crate::support::http::{Response, Server};
use crate::support::nats::NatsServer;
use crate::support::poll::{eventually, when};
use crate::support::{TestEnv, pack};

pub(super) const OBJECT: &str = "obj://SITE/site.tgz";

/// Returns a bundle that writes this content to a file.
pub(super) fn bundle(path: &str, content: &str) -> Vec<u8> {
    let manifest = format!(
        "ccm:\n  resources:\n    - file:\n        - {path}: {{ensure: present, content: {content}, owner: root, group: root, mode: '0644'}}\n"
    );
    pack::tgz(&[("manifest.yaml", &manifest)])
}

pub(super) fn signed(signer: &Signer, source: &str, bundle: &[u8]) -> Vec<u8> {
    let now = SystemClock.now();
    let signature = signer.sign_bundle(source, &Digest::of(bundle), now);
    serde_json::to_vec(&signature.unwrap()).unwrap()
}

/// Returns the configuration of a node that trusts one signer and follows a source.
pub(super) fn following(signer: &Signer, source: &str, env: &TestEnv) -> Config {
    Config {
        manifests: vec![source.parse().unwrap()],
        ..trusting(signer, None, env.root())
    }
}

pub(super) async fn content_becomes(env: &TestEnv, content: &str) {
    eventually(&format!("the file holds {content}"), async || {
        let found = std::fs::read_to_string(env.path("motd")).unwrap_or_default();
        when(found == content, found)
    })
    .await;
}

/// Returns why sources were refused so far, as the audit has it.
async fn denials(server: &NatsServer) -> Vec<String> {
    let events = stored_events(server).await.into_iter();
    let denied = events.filter(|(subject, _)| subject.ends_with("audit.denied"));
    let reason = |event: &Value| event["reason"].as_str().unwrap().to_owned();
    denied.map(|(_, event)| reason(&event)).collect()
}

pub(super) async fn is_denied(server: &NatsServer, part: &str) {
    eventually(&format!("a denial with {part:?}"), async || {
        let reasons = denials(server).await;
        when(reasons.iter().any(|it| it.contains(part)), reasons)
    })
    .await;
}

/// Makes a bucket of objects that is not the fleet's own.
pub(super) async fn make_bucket(server: &NatsServer) {
    let config = async_nats::jetstream::object_store::Config {
        bucket: "SITE".into(),
        ..Default::default()
    };
    let jetstream = server.jetstream().await;
    jetstream.create_object_store(config).await.unwrap();
}

pub(super) async fn put(client: &Connection, name: &str, content: &[u8]) {
    let store = client.objects("SITE").await.unwrap();
    store.put(name, content).await.unwrap();
}

#[tokio::test]
async fn an_object_is_applied_only_with_the_signature_of_a_trusted_signer() {
    let env = TestEnv::new();
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    make_bucket(&server).await;
    let (signer, thief) = (Signer::generate(), Signer::generate());
    let path = env.at("motd");

    // Without a signature; the log and the audit say what to do.
    let first = bundle(&path, "one");
    put(&client, "site.tgz", &first).await;
    let config = following(&signer, OBJECT, &env);
    let running = start(&config, &server).await;
    is_denied(
        &server,
        "ccm fleet sign --file FILE --source obj://SITE/site.tgz",
    )
    .await;
    assert!(!env.exists("motd"));

    // With one, it is applied without being put again.
    let old = signed(&signer, OBJECT, &first);
    put(&client, "site.tgz.sig", &old).await;
    content_becomes(&env, "one").await;

    // A stranger's, one for another source, one for another bundle: the last good one stays.
    let second = bundle(&path, "two");
    for (signature, reason) in [
        (signed(&thief, OBJECT, &second), "not trusted"),
        (
            signed(&signer, "obj://SITE/other.tgz", &second),
            "another source",
        ),
        (signed(&signer, OBJECT, b"else"), "not what was signed"),
        (b"junk".to_vec(), "can't be read"),
    ] {
        put(&client, "site.tgz.sig", &signature).await;
        put(&client, "site.tgz", &second).await;
        is_denied(&server, reason).await;
    }
    let mut forged: BundleSignature =
        serde_json::from_slice(&signed(&signer, OBJECT, &first)).unwrap();
    forged.digest = Digest::of(&second).to_string();
    put(
        &client,
        "site.tgz.sig",
        &serde_json::to_vec(&forged).unwrap(),
    )
    .await;
    is_denied(&server, "does not match").await;
    assert_eq!(env.read("motd"), "one");

    // The right one is applied; the old bundle with its old signature is not taken back.
    put(&client, "site.tgz.sig", &signed(&signer, OBJECT, &second)).await;
    content_becomes(&env, "two").await;
    put(&client, "site.tgz", &first).await;
    put(&client, "site.tgz.sig", &old).await;
    is_denied(&server, "before the accepted one").await;
    assert_eq!(env.read("motd"), "two");

    // An empty cache and a restart do not help; what was once good is refused by its time.
    running.stop().await;
    std::fs::remove_dir_all(env.path("cache")).unwrap();
    let refusals = denials(&server).await.len();
    let running = start(&config, &server).await;
    eventually("another denial", async || {
        denials(&server).await.len() > refusals
    })
    .await;
    assert_eq!(env.read("motd"), "two");

    // To go back is to sign it again.
    put(&client, "site.tgz.sig", &signed(&signer, OBJECT, &first)).await;
    content_becomes(&env, "one").await;
    running.stop().await;
}

#[tokio::test]
async fn a_copy_from_before_signatures_were_wanted_is_not_applied() {
    let env = TestEnv::new();
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    let signer = Signer::generate();
    let bundle = Arc::new(Mutex::new(bundle(&env.at("motd"), "one")));
    let signature: Arc<Mutex<Option<Vec<u8>>>> = Arc::default();
    let (served, beside) = (bundle.clone(), signature.clone());
    let web = Server::start(move |request| match request.path.ends_with(".sig") {
        false => Response::ok(served.lock().unwrap().clone()).with("ETag", "\"1\""),
        true => match beside.lock().unwrap().clone() {
            Some(text) => Response::ok(text),
            None => Response::new("404 Not Found", "none"),
        },
    });
    let url = web.url("/site.tgz");
    let trusting = following(&signer, &url, &env);
    let careless = Config {
        trust: None,
        ..trusting.clone()
    };
    let running = start(&careless, &server).await;
    content_becomes(&env, "one").await;
    running.stop().await;

    std::fs::remove_file(env.path("motd")).unwrap();
    let running = start(&trusting, &server).await;
    is_denied(&server, "is not signed").await;
    running.stop().await;
    assert!(!env.exists("motd"));

    let text = signed(&signer, &url, &bundle.lock().unwrap());
    *signature.lock().unwrap() = Some(text);
    let running = start(&trusting, &server).await;
    content_becomes(&env, "one").await;
    running.stop().await;
}

#[test]
fn a_bundle_is_signed_from_the_command_line() {
    let env = TestEnv::new();
    env.ccm(&["keys", "new", "ops.seed"]).ok();
    env.write("site.tgz", bundle("/motd", "one"));
    let sign = [
        "fleet",
        "sign",
        "--sign-with",
        "ops.seed",
        "--file",
        "site.tgz",
        "--source",
    ];
    let text = env
        .ccm(&[&sign[..], &["https://u:secret@h/site.tgz"]].concat())
        .ok();
    assert!(!text.contains("secret"), "{text}");
    let signature: BundleSignature = serde_json::from_str(&text).unwrap();
    let digest = Digest::of(&std::fs::read(env.path("site.tgz")).unwrap());
    assert_eq!(signature.digest, digest.to_string());
    let error = env.ccm(&[&sign[..], &["/srv/site.tgz"]].concat()).error(2);
    assert!(error.contains("is a local path"), "{error}");
    let text = env.ccm(&[&sign[..], &["KV://DATA/site"]].concat()).ok();
    let signature: BundleSignature = serde_json::from_str(&text).unwrap();
    assert_eq!(signature.source, "kv://DATA/site");
}
