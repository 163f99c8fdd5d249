//! `ccm fleet bundle push`: packs, signs and stores a bundle for agents whose configuration names it.

use ccm_nats::request_signature::Signer;
use ccm_nats::streams::MANIFESTS;
use serde_json::Value;

use super::sources::{OBJECT, content_becomes, following, is_denied, make_bucket};
use crate::support::TestEnv;
use crate::support::agent::{self, start};
use crate::support::nats::NatsServer;

/// Returns a world with a key, a server, and who signs.
async fn world() -> (TestEnv, NatsServer, Signer) {
    let mut env = TestEnv::new();
    let server = NatsServer::start();
    agent::init(&server.client().await).await;
    env.set("NATS_URL", &server.url());
    env.ccm(&["keys", "new", "ops.seed"]).ok();
    let signer = Signer::from_seed(&env.read("ops.seed")).unwrap();
    (env, server, signer)
}

/// Pushes a manifest that writes this content to a file, and returns what the program says.
fn push(env: &TestEnv, content: &str, more: &[&str]) -> Value {
    let path = env.at("motd");
    env.write(
        "app/manifest.yaml",
        format!(
            "ccm:\n  resources:\n    - file:\n        - {path}: {{ensure: present, content: \
             {content}, owner: root, group: root, mode: '0644'}}\n"
        ),
    );
    let directory = env.at("app");
    let push = [
        "fleet", "bundle", "push", &directory, "--name", "app", "--json",
    ];
    let output = env.ccm(&[&push[..], more].concat()).ok();
    serde_json::from_str(&output).unwrap()
}

#[tokio::test]
async fn a_signed_push_is_applied_where_its_agent_names_it_and_an_unsigned_one_is_not() {
    let (env, server, signer) = world().await;
    let source = |pushed: &Value| {
        let digest = pushed["digest"].as_str().unwrap();
        format!("obj://{MANIFESTS}/app/{digest}")
    };
    let unsigned = push(&env, "unsigned", &[]);
    assert_eq!(unsigned["signed_for"], Value::Array(Vec::new()));
    let running = start(&following(&signer, &source(&unsigned), &env), &server).await;
    is_denied(&server, "is not signed").await;
    running.stop().await;
    assert!(!env.exists("motd"));

    let signed = push(&env, "signed", &["--sign-with", "ops.seed"]);
    assert_eq!(signed["signed_for"][0], source(&signed));
    let running = start(&following(&signer, &source(&signed), &env), &server).await;
    content_becomes(&env, "signed").await;
    running.stop().await;
}

#[tokio::test]
async fn a_push_to_a_place_that_stays_is_followed_by_its_agents() {
    let (env, server, signer) = world().await;
    make_bucket(&server).await;
    let signed = ["--sign-with", "ops.seed", "--source", OBJECT];
    let running = start(&following(&signer, OBJECT, &env), &server).await;
    for content in ["one", "two"] {
        let pushed = push(&env, content, &signed);
        assert_eq!(pushed["signed_for"][1], OBJECT);
        content_becomes(&env, content).await;
    }
    push(&env, "three", &["--source", OBJECT]);
    is_denied(&server, "not what was signed").await;
    assert_eq!(env.read("motd"), "two");

    // To go back, the old content is pushed and signed again.
    push(&env, "one", &signed);
    content_becomes(&env, "one").await;
    running.stop().await;
}

#[tokio::test]
async fn a_bundle_that_is_removed_takes_its_signature_along() {
    let (env, server, _) = world().await;
    let pushed = push(&env, "one", &["--sign-with", "ops.seed"]);
    let name = format!("app@{}", pushed["digest"].as_str().unwrap());
    let store = server.client().await.objects(MANIFESTS).await.unwrap();
    assert_eq!(store.list().await.unwrap().len(), 2);
    let listed = env.ccm(&["fleet", "bundle", "list"]).ok();
    // One line below the header: signatures are not listed.
    assert_eq!(listed.lines().count(), 2, "{listed}");
    env.ccm(&["fleet", "bundle", "rm", &name]).ok();
    assert_eq!(store.list().await.unwrap(), []);
}

#[tokio::test]
async fn only_an_object_store_is_a_place_to_push_to() {
    let (env, _server, _) = world().await;
    env.write("app/manifest.yaml", "ccm: {resources: []}\n");
    let push = [
        "fleet", "bundle", "push", "app", "--name", "app", "--source",
    ];
    let error = env.ccm(&[&push[..], &["https://h/x"]].concat()).error(2);
    assert!(error.contains("is not an object store location"), "{error}");
}
