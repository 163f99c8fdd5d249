//! A package module is a program: who may only look, or only install a package, starts none.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ccm_nats::request_signature::Signer;
use ccm_nats::{Headers, Verb};
use serde_json::{Value, json};

use super::{NODE, answer_to, ensure_body, setup, trusting_all};
use crate::support::TestEnv;
use crate::support::agent::{self, start};
use crate::support::nats::NatsServer;
use crate::support::setup::Setup;

const STATUS: &str = "io.choria.ccm.v1.resource.status.request";

/// Writes a module that leaves a mark when it is started, and returns both paths.
fn module(directory: &Path) -> (String, PathBuf) {
    let (program, mark) = (directory.join("module"), directory.join("started"));
    let text = format!(
        "#!/bin/sh\ntouch {}\ncase $1 in supports-api-version) echo 1;; esac\n",
        mark.display()
    );
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    (program.display().to_string(), mark)
}

/// Returns the properties of a package in every form that a request may have.
fn forms(provider: &str) -> Vec<Value> {
    vec![
        json!({"name": "zsh", "provider": provider}),
        json!([{"name": "zsh", "provider": provider}]),
        json!([{"zsh": {"provider": provider}}]),
        json!({"zsh": {"provider": provider}}),
    ]
}

#[tokio::test]
async fn a_status_request_starts_no_module_by_path() {
    let (ops, weak) = (Signer::generate(), Signer::generate());
    let policy = "{verbs: [status], types: [package], providers: [apt, dnf]}";
    let signers = [(&ops, "ops", None), (&weak, "weak", Some(policy))];
    let setup = setup(&signers).await;
    let (program, mark) = module(setup.env.root());
    let providers = [
        format!("cfengine/{program}"),
        format!("cfengine/../../../../../../../../../..{program}"),
    ];
    for (who, signer) in [("ops", &ops), ("weak", &weak)] {
        for properties in providers.iter().flat_map(|provider| forms(provider)) {
            let body = json!({"protocol": STATUS, "type": "package", "name": "zsh",
                "properties": properties});
            let (code, answer) =
                answer_to(&setup.client, signer, Verb::Status, Headers::new(), &body).await;
            assert!(!mark.exists(), "{who} {properties}: {answer}");
            // A form that can't be read is no request.
            assert!(code == 403 || code == 400, "{who} {properties}: {answer}");
        }
    }
    // The policy reads the provider from a list as well as from a map.
    for properties in [forms("cfengine/x").remove(0), forms("cfengine/x").remove(2)] {
        let body = json!({"protocol": STATUS, "type": "package", "name": "zsh",
            "properties": properties});
        let (code, answer) =
            answer_to(&setup.client, &weak, Verb::Status, Headers::new(), &body).await;
        assert_eq!(code, 403, "{properties}: {answer}");
    }
    let body = json!({"protocol": STATUS, "type": "file", "name": setup.env.root()});
    let (code, answer) = answer_to(&setup.client, &ops, Verb::Status, Headers::new(), &body).await;
    assert_eq!(
        (code, &answer["state"]["ensure"]),
        (200, &json!("directory"))
    );
    setup.agent.stop().await;
}

#[tokio::test]
async fn without_trust_a_status_request_starts_none_either() {
    let setup = Setup::inside(NODE).await;
    let (program, mark) = module(setup.env.root());
    for properties in forms(&format!("cfengine/{program}")) {
        let body = json!({"protocol": STATUS, "type": "package", "name": "zsh",
            "properties": properties});
        let answer =
            agent::request_json(&setup.client, NODE, Verb::Status, &body.to_string()).await;
        assert!(!mark.exists(), "{properties}: {answer}");
        assert!(answer["error"].is_string(), "{properties}: {answer}");
    }
    setup.agent.stop().await;
}

#[tokio::test]
async fn a_signer_with_a_policy_needs_a_rule_that_names_the_module() {
    let weak = Signer::generate();
    let policy = "{verbs: [ensure, apply]}";
    let signers = [(&weak, "weak", Some(policy))];
    let setup = setup(&signers).await;
    let (program, mark) = module(setup.env.root());
    let provider = format!("cfengine/{program}");
    let rendered = format!("{{{{ 'cfengine/' + '{program}' }}}}");
    for provider in [&provider, &rendered] {
        let properties = json!({"name": "zsh", "ensure": "present", "provider": provider});
        let body = ensure_body("package", &properties);
        let (_, answer) =
            answer_to(&setup.client, &weak, Verb::Ensure, Headers::new(), &body).await;
        assert!(!mark.exists(), "{provider}: {answer}");
        assert!(answer.to_string().contains("denied by policy"), "{answer}");
        let manifest = json!({"ccm": {"resources": [{"package": [{"zsh":
            {"ensure": "present", "provider": provider}}]}]}});
        let body = json!({"protocol": "io.choria.ccm.v1.manifest.apply.request",
            "manifest": manifest, "wait": true});
        let (_, answer) = answer_to(&setup.client, &weak, Verb::Apply, Headers::new(), &body).await;
        assert!(!mark.exists(), "{provider}: {answer}");
        assert!(answer.to_string().contains("denied by policy"), "{answer}");
    }
    setup.agent.stop().await;
}

#[tokio::test]
async fn a_module_that_a_rule_names_is_started() {
    let server = NatsServer::start();
    let client = server.client().await;
    let dir = tempfile::tempdir().unwrap();
    let (program, mark) = module(dir.path());
    let weak = Signer::generate();
    let policy = format!("{{verbs: [ensure], types: [package], modules: ['{program}']}}");
    let signers = [(&weak, "weak", Some(policy.as_str()))];
    let running = start(&trusting_all(&signers, dir.path()), &server).await;
    let other = dir.path().join("other").display().to_string();
    std::fs::copy(&program, &other).unwrap();
    for (program, is_started) in [(&other, false), (&program, true)] {
        let properties = json!({"name": "zsh", "ensure": "present",
            "provider": format!("cfengine/{program}")});
        let body = ensure_body("package", &properties);
        let (_, answer) = answer_to(&client, &weak, Verb::Ensure, Headers::new(), &body).await;
        assert_eq!(mark.exists(), is_started, "{program}: {answer}");
    }
    running.stop().await;
}

#[test]
fn the_status_action_of_choria_starts_no_module_by_path() {
    let env = TestEnv::new();
    let (program, mark) = module(env.root());
    let provider = format!("cfengine/{program}");
    let state = env.at("state");
    let config = env.write("plugin.d/ccm", format!("state_dir = {state}\n"));
    let protocol = "io.choria.mcorpc.external.v1.rpc_request";
    for data in [
        json!({"type": "package", "name": "zsh", "provider": provider}),
        json!({"type": "package", "name": "zsh", "properties": {"provider": provider}}),
        json!({"type": "package", "name": "zsh", "provider": "cfengine/../../x"}),
    ] {
        let request = json!({
            "$schema": "https://choria.io/schemas/mcorpc/external/v1/rpc_request.json",
            "protocol": protocol, "agent": "ccm", "action": "status",
            "requestid": "8d0cb5e3d9a64c5b8a8f0f3a3f5d7c11", "senderid": "ops1",
            "callerid": "choria=ann.mcollective", "collective": "mcollective", "ttl": 60,
            "msgtime": 1_790_000_000, "data": data,
        });
        let request = env.write("request", request.to_string());
        let (reply, facts) = (env.write("reply", ""), env.write("facts", "{}"));
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_ccm"))
            .args(["choria", "agent", &request, &reply, protocol])
            .env_clear()
            .env("CHORIA_EXTERNAL_REQUEST", &request)
            .env("CHORIA_EXTERNAL_REPLY", &reply)
            .env("CHORIA_EXTERNAL_PROTOCOL", protocol)
            .env("CHORIA_EXTERNAL_CONFIG", &config)
            .env("CHORIA_EXTERNAL_FACTS", &facts)
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
            .output()
            .unwrap();
        let reply: Value = serde_json::from_str(&std::fs::read_to_string(&reply).unwrap()).unwrap();
        assert!(!mark.exists(), "{data}: {reply} {output:?}");
        // 4: the inputs are not valid.
        assert_eq!(reply["statuscode"], 4, "{data}: {reply}");
    }
}
