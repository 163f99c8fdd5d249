//! What a signer may do, and what becomes of the rest.

use ccm_core::model::envelope::NOOP;
use ccm_nats::request_signature::Signer;
use ccm_nats::{Headers, Verb};
use serde_json::{Value, json};

use super::{request_signed, trusting};
use crate::support::TestEnv;
use crate::support::agent::{file_request, start};
use crate::support::nats::NatsServer;

#[tokio::test]
async fn a_policy_holds_for_requests_and_for_every_resource_of_a_manifest() {
    let server = NatsServer::start();
    let client = server.client().await;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let signer = Signer::generate();
    let policy = format!(
        "- {{verbs: [ensure, apply], types: [file, apply], names: ['{}/**']}}\n- {{verbs: [ensure], noop_only: true}}",
        dir.path().display()
    );
    let running = start(&trusting(&signer, Some(&policy), dir.path()), &server).await;
    let request = async |verb, headers, body: &str| {
        let reply = request_signed(&client, &signer, verb, headers, body).await;
        let code = reply.service_error().map_or(200, |(code, _)| code);
        let answer: Value = serde_json::from_slice(&reply.body).unwrap();
        (code, answer)
    };
    let (code, answer) = request(Verb::Ping, Headers::new(), "").await;
    assert_eq!((code, &answer["error"]), (403, &json!("denied by policy")));
    let body = file_request(&path("a"), "a");
    assert_eq!(request(Verb::Ensure, Headers::new(), &body).await.0, 200);
    assert!(path("a").exists());

    let outside = tempfile::tempdir().unwrap();
    let body = file_request(&outside.path().join("b"), "b");
    assert_eq!(request(Verb::Ensure, Headers::new(), &body).await.0, 403);
    let noop = Headers::new().with(NOOP, "true").unwrap();
    assert_eq!(request(Verb::Ensure, noop, &body).await.0, 200);
    assert!(!outside.path().join("b").exists());

    let exec = |target: &str| json!([{"exec": [{format!("/usr/bin/touch {target}"): {}}]}]);
    let marks = [path("nested-mark"), path("mark")].map(|path| path.display().to_string());
    let child = json!({"ccm": {"resources": exec(&marks[0])}});
    std::fs::write(path("child.yaml"), child.to_string()).unwrap();
    let mut resources = exec(&marks[1]);
    let own = json!({"file": [{path("c").display().to_string(): {"ensure": "present", "content": "c", "owner": "root", "group": "root", "mode": "0644"}}]});
    let nested = json!({"apply": [{path("child.yaml").display().to_string(): {}}]});
    resources.as_array_mut().unwrap().extend([own, nested]);
    let body = json!({
        "protocol": "io.choria.ccm.v1.manifest.apply.request",
        "manifest": {"ccm": {"resources": resources}},
        "wait": true,
    });
    let (code, answer) = request(Verb::Apply, Headers::new(), &body.to_string()).await;
    assert_eq!(code, 200, "{answer}");
    assert!(path("c").exists(), "{answer}");
    for mark in marks {
        assert!(!std::path::Path::new(&mark).exists(), "{answer}");
        let errors: Vec<String> = answer["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["error"].to_string())
            .collect();
        let denied = format!("denied by policy: resource exec#/usr/bin/touch {mark}");
        assert!(
            errors.iter().any(|error| error.contains(&denied)),
            "{errors:?}"
        );
    }
    running.stop().await;
}

#[test]
fn a_decision_is_explained() {
    let env = TestEnv::new();
    let key = env.ccm(&["keys", "new", &env.at("seed")]).ok();
    let key = key.trim();
    assert_eq!(env.ccm(&["keys", "show", &env.at("seed")]).ok().trim(), key);
    let text = format!(
        "identity: web1.lab\ntrust:\n  signers:\n    - key: {key}\n      name: ops\n      policy:\n        - {{action: deny, types: [exec]}}\n        - {{verbs: [ensure]}}\n"
    );
    let file = env.write("agent.yaml", text);
    let check = |rest: &[&str]| {
        let mut args = vec!["agent", "check-policy", "--config", &file, "--signer", key];
        args.extend(rest);
        let outcome = env.ccm(&args);
        (outcome.stdout.clone(), outcome.code)
    };
    let (text, code) = check(&["--verb", "ensure", "--type", "exec", "--name", "x"]);
    assert_eq!(
        (text.as_str(), code),
        ("denied: rule 1 of signer ops\n", Some(1))
    );
    let (text, code) = check(&["--verb", "ensure", "--type", "file", "--name", "/x"]);
    assert_eq!(
        (text.as_str(), code),
        ("allowed: rule 2 of signer ops\n", Some(0))
    );
    let (text, code) = check(&["--verb", "ping"]);
    assert_eq!(
        (text.as_str(), code),
        ("denied: no rule of signer ops matches\n", Some(1))
    );
}

#[test]
fn a_seed_is_kept_to_itself() {
    use std::os::unix::fs::PermissionsExt as _;
    let env = TestEnv::new();
    env.ccm(&["keys", "new", &env.at("seed")]).ok();
    let seed = std::fs::read_to_string(env.path("seed")).unwrap();
    let sign = ["fleet", "sign", "ccm.v1.default.all.ping", "--sign-with"];
    let output = env.ccm(&[&sign[..], &[&env.at("seed")]].concat()).ok();
    assert!(
        output.contains("Ccm-Signature:") && !output.contains(seed.trim()),
        "{output}"
    );
    env.ccm(&["keys", "new", &env.at("seed")]).error(2);
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(env.path("seed"), open).unwrap();
    let error = env.ccm(&[&sign[..], &[&env.at("seed")]].concat()).error(2);
    assert!(error.contains("may be read by others"), "{error}");
    let broken = format!("{}X", seed.trim());
    let error = env.ccm(&[&sign[..], &[&broken]].concat()).error(2);
    assert!(!error.contains(seed.trim()), "{error}");
}
