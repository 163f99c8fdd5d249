//! Requests that must be refused: forged, expired, foreign, replayed, and against a policy. Each is
//! audited, and nothing happens.

use ccm_agent::config::{Signer, Trust};
use ccm_core::model::policy::Policy;
use chrono::TimeDelta;
use serde_json::{Value, json};

use super::{ANN, Call, Lab, NODE, STRANGER, seed, token};
use crate::support::agent::stored_events;
use crate::support::poll::eventually;

/// Returns a request that would create a file.
fn ensure(path: &str) -> Call {
    let properties = json!({"content": "hi\n", "owner": "root", "group": "root", "mode": "0644"});
    Call::rpc(
        "ccm",
        "ensure",
        json!({"type": "file", "name": path, "ensure": "present", "properties": properties}),
    )
}

/// Waits for the audit event of a denial, by its number.
async fn audited_denial(lab: &Lab, index: usize) -> Value {
    eventually(&format!("audit event {index} of a denial"), async || {
        let events = stored_events(&lab.setup.server).await.into_iter();
        let mut denied = events.filter(|(_, event)| event["decision"] == "denied");
        denied.nth(index).map(|(_, event)| event)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_that_is_not_authentic_is_obeyed_and_each_is_audited() {
    let lab = Lab::new().await;
    let path = lab.setup.env.at("motd");
    let valid = || ensure(&path);
    let with_token = |token: String| Call { token, ..valid() };
    let now = valid().time;
    let table: Vec<(&str, Call, &str)> = vec![
        (
            "a forged token",
            with_token(token(STRANGER, json!({}))),
            "token of the caller: the token is not signed by the issuer of its organization",
        ),
        (
            "a token of another organization",
            with_token(token(1, json!({"ou": "acme"}))),
            "token of the caller: the organization of the token has no issuer here",
        ),
        (
            "an expired token",
            with_token(token(1, json!({"exp": 1}))),
            "token of the caller: the token has expired",
        ),
        (
            "a token of a server",
            with_token(token(1, json!({"purpose": "choria_server"}))),
            "token of the caller: the token is not that of a client",
        ),
        (
            "a token without permission",
            with_token(token(1, json!({"permissions": {}}))),
            "the token of the caller permits no requests to nodes",
        ),
        (
            "a token that needs a delegator",
            with_token(token(
                1,
                json!({"permissions": {"signed_fleet_management": true}}),
            )),
            "the token of the caller requires the signature of a delegator",
        ),
        (
            "a token with an OPA policy",
            with_token(token(1, json!({"opa_policy": "package x"}))),
            "the token of the caller has an Open Policy Agent policy, which is not supported here",
        ),
        (
            "a signature of another key",
            Call {
                signer: STRANGER,
                ..valid()
            },
            "the signature does not match the request",
        ),
        (
            "another caller",
            Call {
                caller: "choria=root".into(),
                ..valid()
            },
            "the request names another caller than the token",
        ),
        (
            "an old request",
            Call {
                time: now - TimeDelta::seconds(120),
                ..valid()
            },
            "the request is older than its time to live",
        ),
        (
            "a request from the future",
            Call {
                time: now + TimeDelta::seconds(120),
                ..valid()
            },
            "the request is from the future",
        ),
        (
            "a request of another collective",
            Call {
                collective: "ops".into(),
                ..valid()
            },
            "the request was sent to a subject of another agent or collective",
        ),
        (
            "a request for another agent",
            Call {
                subject: "mcollective.broadcast.agent.rpcutil".into(),
                ..valid()
            },
            "the request was sent to a subject of another agent or collective",
        ),
        (
            "an invalid filter",
            valid().filtered(json!({"identity": ["/(/"]})),
            "invalid filter: ",
        ),
    ];
    for (index, (name, call, reason)) in table.into_iter().enumerate() {
        lab.publish(&call.subject, call.encode("mcollective.reply.x.y"))
            .await;
        let event = audited_denial(&lab, index).await;
        let found = event["reason"].as_str().unwrap();
        assert!(found.starts_with(reason), "{name}: {found}");
        assert_eq!(event["subject"], call.subject, "{name}");
        assert!(!lab.setup.env.exists("motd"), "{name}");
        assert_eq!(lab.last_refusal().as_deref(), Some(found), "{name}");
    }
    let stats = lab.data("rpcutil", "daemon_stats", json!({})).await;
    assert_eq!(stats["ttlexpired"], 2);
    lab.setup.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replayed_request_is_refused_also_after_a_restart() {
    let lab = Lab::new().await;
    let path = lab.setup.env.at("motd");
    let reply_to = "mcollective.reply.x.once";
    let call = ensure(&path);
    let message = call.encode(reply_to);
    let sent = lab.send(&call.subject, message.clone(), reply_to).await;
    assert!(sent.unwrap().contains(r#""changed":true"#));
    std::fs::remove_file(&path).unwrap();
    let refused = async |lab: &Lab, index: usize| {
        lab.publish(&call.subject, message.clone()).await;
        let event = audited_denial(lab, index).await;
        assert_eq!(event["reason"], "request was seen before");
        assert_eq!(event["caller"], "choria=ann");
        assert!(!std::path::Path::new(&path).exists());
    };
    refused(&lab, 0).await;
    let mut config = crate::support::agent::config(NODE, lab.setup.env.root());
    config.choria.server = Some(super::server_config(&lab.setup.env));
    let Lab { setup, client } = lab;
    setup.agent.stop().await;
    let agent = crate::support::agent::start(&config, &setup.server).await;
    let setup = crate::support::setup::Setup { agent, ..setup };
    let lab = Lab { setup, client };
    refused(&lab, 1).await;
    lab.setup.agent.stop().await;
}

/// Returns the message of a reply that refuses.
async fn denied(lab: &Lab, call: &Call) -> String {
    let reply = lab.reply(call).await;
    assert_eq!(reply["statuscode"], 1, "{reply}");
    reply["statusmsg"].as_str().unwrap().to_owned()
}

const UNAUTHORIZED: &str = "You are not authorized to call this agent or action";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_token_or_the_action_policy_denies_is_denied() {
    let lab = Lab::new().await;
    let path = lab.setup.env.at("motd");
    let limited = |agents: Value| Call {
        token: token(1, json!({"agents": agents})),
        ..ensure(&path)
    };
    for (policy, agents, reason) in [
        (
            None,
            json!(["ccm.ping"]),
            "the token of the caller does not allow this action",
        ),
        (
            None,
            json!([]),
            "neither the token of the caller nor an action policy allows this action",
        ),
        (
            Some("policy default deny\nallow\tchoria=ann\tping\t*\t*\n"),
            json!(["*"]),
            "the action policy does not allow this action",
        ),
        (
            Some("policy default allow\ndeny\tchoria=ann\tensure\t*\t*\n"),
            json!([]),
            "the action policy does not allow this action",
        ),
        (
            Some("policy default allow\nallow choria=ann\n"),
            json!(["*"]),
            "action policy: ",
        ),
    ] {
        if let Some(policy) = policy {
            lab.setup.env.write("policies/ccm.policy", policy);
        }
        assert_eq!(denied(&lab, &limited(agents)).await, UNAUTHORIZED);
        let found = lab.last_refusal().unwrap();
        assert!(found.starts_with(reason), "{found}");
        assert!(!lab.setup.env.exists("motd"));
    }
    lab.setup
        .env
        .write("policies/ccm.policy", "allow\tchoria=ann\tensure\t*\tweb\n");
    assert_eq!(lab.reply(&limited(json!([]))).await["statuscode"], 0);
    lab.setup.agent.stop().await;
}

/// Returns a trust section with one signer and its rules.
fn trust(signer: u8, rules: Value) -> Trust {
    let rules = ccm_value::document::parse(&rules.to_string()).unwrap();
    Trust {
        required: true,
        clock_skew: std::time::Duration::from_secs(60),
        signers: vec![Signer {
            key: seed(signer).public_key().to_user_nkey(),
            name: "ann".into(),
            policy: Some(Policy::read(&rules).unwrap()),
        }],
        sources: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trust_section_limits_choria_s_callers_as_well() {
    let rules = json!([{"verbs": ["ensure"], "types": ["file"], "names": ["/nowhere/*"]}, {"verbs": ["ping"]}]);
    let lab = Lab::with(|config, _| config.trust = Some(trust(ANN, rules))).await;
    let path = lab.setup.env.at("motd");
    assert_eq!(denied(&lab, &ensure(&path)).await, "denied by policy");
    let apply = Call::rpc("ccm", "apply", json!({"manifest": "ccm: {resources: []}"}));
    assert_eq!(denied(&lab, &apply).await, UNAUTHORIZED);
    assert!(!lab.setup.env.exists("motd"));
    assert_eq!(lab.text(&Call::ping()).await, "pong");
    // Both are audited where an operator looks.
    eventually("audit records", async || {
        let events = stored_events(&lab.setup.server).await;
        let is_denied = |verb: &str| {
            events.iter().any(|(_, event)| {
                event["verb"] == verb
                    && event["decision"] == "denied"
                    && event["caller"] == "choria=ann"
            })
        };
        (is_denied("choria.ccm.ensure") && is_denied("choria.ccm.apply")).then_some(())
    })
    .await;
    lab.setup.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_the_trust_section_does_not_list_is_refused() {
    let rules = json!([{}]);
    let lab = Lab::with(|config, _| config.trust = Some(trust(STRANGER, rules))).await;
    let call = Call::rpc("rpcutil", "ping", json!({}));
    assert_eq!(denied(&lab, &call).await, UNAUTHORIZED);
    let key = seed(ANN).public_key().to_user_nkey();
    let reason = format!("signer {key} is not trusted here");
    assert_eq!(lab.last_refusal().unwrap(), reason);
    lab.setup.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_does_not_start_with_a_token_that_is_not_its_own() {
    let server = crate::support::nats::NatsServer::start();
    let env = crate::support::TestEnv::new();
    let start = async |change: &dyn Fn(&mut ccm_agent::config::ChoriaServerConfig)| {
        let mut choria = super::server_config(&env);
        change(&mut choria);
        let mut config = crate::support::agent::config(NODE, env.root());
        config.choria.server = Some(choria);
        let process = crate::support::agent::process(Default::default());
        let started = ccm_agent::Agent::start(&config, &server.settings(), process).await;
        started.err().map(|error| error.to_string())
    };
    let other = env.write("other.seed", "07".repeat(32));
    assert_eq!(
        start(&|choria| choria.seed = other.clone().into())
            .await
            .unwrap(),
        "choria.token and choria.seed: the seed is not that of the token"
    );
    assert_eq!(
        start(&|choria| choria.collectives = vec!["secret".parse().unwrap()])
            .await
            .unwrap(),
        "choria.token and choria.seed: the token is not for collective secret"
    );
    assert_eq!(
        start(&|choria| choria.issuers.clear()).await.unwrap(),
        "choria.token and choria.seed: the organization of the token has no issuer here"
    );
}
