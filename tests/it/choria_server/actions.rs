//! Replies to Choria's clients: discovery, filters, `rpcutil` and `ccm`.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Call, Lab, NODE, STRANGER, seed, token};
use crate::governor;
use crate::support::agent::stored_events;
use crate::support::poll::{eventually, when};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_is_answered_in_every_collective_and_to_the_node_itself() {
    let lab = Lab::new().await;
    assert_eq!(lab.text(&Call::ping()).await, "pong");
    for (collective, subject) in [
        ("ops", "ops.broadcast.agent.discovery"),
        ("ops", "ops.node.web1.lab"),
        ("mcollective", "mcollective.node.web1.lab"),
    ] {
        let call = Call {
            collective: collective.into(),
            subject: subject.into(),
            ..Call::ping()
        };
        assert_eq!(lab.text(&call).await, "pong", "{subject}");
    }
    lab.setup.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_select_by_identity_fact_class_agent_and_expression() {
    let lab = Lab::new().await;
    let os = lab
        .data("rpcutil", "get_fact", json!({"fact": "host.info.os"}))
        .await;
    let os = os["value"].as_str().unwrap().to_owned();
    for filter in [
        json!({"identity": [NODE]}),
        json!({"identity": ["/^web/"]}),
        json!({"cf_class": ["web"]}),
        json!({"agent": ["ccm", "rpcutil", "discovery"]}),
        json!({"fact": [{"fact": "host.info.os", "operator": "==", "value": os}]}),
        json!({"compound": [[{"expr": format!("with('web') && fact('host.info.os') == '{os}'")}]]}),
        json!({"compound": [[{"expr": "with('rpcutil') and 'discovery' in agents"}]]}),
    ] {
        let call = Call::ping().filtered(filter.clone());
        assert_eq!(lab.text(&call).await, "pong", "{filter}");
    }
    let stats = |name: &'static str| {
        let lab = &lab;
        async move {
            let stats = lab.data("rpcutil", "daemon_stats", json!({})).await;
            stats[name].as_u64().unwrap()
        }
    };
    let others = [
        json!({"identity": ["web2.lab"]}),
        json!({"cf_class": ["db"]}),
        json!({"agent": ["puppet"]}),
        json!({"fact": [{"fact": "host.info.os", "operator": "==", "value": "plan9"}]}),
        json!({"compound": [[{"expr": "with('db')"}]]}),
    ];
    let before = stats("filtered").await;
    for filter in &others {
        let call = Call::ping().filtered(filter.clone());
        lab.publish(&call.subject, call.encode("mcollective.reply.x.y"))
            .await;
    }
    let wanted = before + others.len() as u64;
    eventually("filtered requests", async || {
        (stats("filtered").await == wanted).then_some(())
    })
    .await;
    lab.setup.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rpcutil_describes_the_node() {
    let lab = Lab::new().await;
    assert!(lab.data("rpcutil", "ping", json!({})).await["pong"].is_u64());
    let info = lab.data("rpcutil", "collective_info", json!({})).await;
    assert_eq!(info["main_collective"], "mcollective");
    assert_eq!(info["collectives"], json!(["mcollective", "ops"]));
    let inventory = lab.data("rpcutil", "inventory", json!({})).await;
    assert_eq!(inventory["agents"], json!(["ccm", "discovery", "rpcutil"]));
    assert_eq!(inventory["classes"], json!(["web"]));
    assert!(inventory["facts"]["host"]["info"].is_object());
    let agents = lab.data("rpcutil", "agent_inventory", json!({})).await;
    let names: Vec<&Value> = agents["agents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["agent"])
        .collect();
    assert_eq!(json!(names), json!(["ccm", "discovery", "rpcutil"]));
    let facts = json!({"facts": "host.info.os, nothing"});
    let facts = lab.data("rpcutil", "get_facts", facts).await;
    assert!(facts["values"]["host.info.os"].is_string());
    assert!(facts["values"]["nothing"].is_null());
    let unknown = lab.reply(&Call::rpc("rpcutil", "reboot", json!({}))).await;
    assert_eq!(unknown["statuscode"], 2);
    let missing = lab
        .reply(&Call::rpc("rpcutil", "get_fact", json!({})))
        .await;
    assert_eq!(missing["statuscode"], 3);
    lab.setup.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ccm_actions_change_the_node_and_report_their_runs() {
    let lab = Lab::new().await;
    let path = lab.setup.env.at("motd");
    let properties = json!({"content": "hi\n", "owner": "root", "group": "root", "mode": "0644"});
    let ensure =
        json!({"type": "file", "name": path, "ensure": "present", "properties": properties});
    let noop = {
        let mut noop = ensure.clone();
        noop["noop"] = true.into();
        noop
    };
    assert_eq!(lab.data("ccm", "ensure", noop).await["noop"], true);
    assert!(!lab.setup.env.exists("motd"));
    let changed = lab.data("ccm", "ensure", ensure).await;
    assert_eq!(
        (&changed["changed"], &changed["state"]),
        (&json!(true), &json!("finished"))
    );
    assert_eq!(lab.setup.env.read("motd"), "hi\n");
    let status = lab
        .data("ccm", "status", json!({"type": "file", "name": path}))
        .await;
    assert_eq!(status["ensure"], "present");
    let manifest = "ccm: {resources: [{exec: {name: /bin/true}}]}";
    let applied = lab
        .data("ccm", "apply", json!({"manifest": manifest, "wait": 50}))
        .await;
    assert_eq!(
        (&applied["outcome"], &applied["total"]),
        (&json!("changed"), &json!(1))
    );
    let last = lab.data("ccm", "run_status", json!({})).await;
    assert_eq!(last["run_id"], applied["run_id"]);
    let ping = lab.data("ccm", "ping", json!({})).await;
    assert_eq!(
        (&ping["identity"], &ping["last_run"]),
        (&json!(NODE), &applied["run_id"])
    );
    let facts = lab
        .data("ccm", "facts", json!({"query": "host.info.os"}))
        .await;
    assert!(facts["value"].is_string());
    let invalid = lab
        .reply(&Call::rpc(
            "ccm",
            "ensure",
            json!({"type": "file", "name": "x", "ensure": "present"}),
        ))
        .await;
    assert_eq!(invalid["statuscode"], 4, "{invalid}");
    let failed = "ccm: {resources: [{exec: {name: /bin/false}}]}";
    let failed = lab
        .reply(&Call::rpc(
            "ccm",
            "apply",
            json!({"manifest": failed, "wait": 50}),
        ))
        .await;
    assert_eq!(
        (&failed["statuscode"], &failed["data"]["state"]),
        (&json!(1), &json!("failed"))
    );
    lab.setup.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_run_is_refused_while_one_is_active() {
    let lab = Lab::new().await;
    let gate = lab.setup.env.at("gate");
    let command = format!("/bin/sh -c 'until test -e {gate}; do sleep 0.05; done'");
    let manifest = json!({"ccm": {"resources": [{"exec": [{"wait": {"command": command}}]}]}});
    let apply = json!({"manifest": manifest.to_string()});
    let first = lab.data("ccm", "apply", apply.clone()).await;
    assert_eq!(first["state"], "running");
    let id = first["run_id"].as_str().unwrap();
    let second = lab.reply(&Call::rpc("ccm", "apply", apply)).await;
    assert_eq!(second["statuscode"], 1);
    assert_eq!(
        second["statusmsg"],
        format!("run {id} is still running: wait for it to end")
    );
    // The node's own status names the run.
    let current = lab.setup.agent.node().status().current_run.unwrap();
    assert_eq!(current.run_id.as_str(), id);
    lab.setup.env.write("gate", "");
    eventually("the end of the run", async || {
        let status = lab.data("ccm", "run_status", json!({"run_id": id})).await;
        (status["state"] == "finished").then_some(())
    })
    .await;
    lab.setup.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_node_changes_nothing() {
    let lab = Lab::new().await;
    let pause = r#"{"reason": "maintenance"}"#;
    crate::support::agent::request_json(&lab.setup.client, NODE, ccm_nats::Verb::Pause, pause)
        .await;
    let manifest = json!({"manifest": "ccm: {resources: [{exec: {name: /bin/true}}]}", "wait": 50});
    let refused = lab.reply(&Call::rpc("ccm", "apply", manifest)).await;
    assert_eq!(refused["statusmsg"], "the node is paused: maintenance");
    lab.setup.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registration_data_has_the_form_of_choria_s_server() {
    use ccm_nats::choria::TransportMessage;
    use ccm_nats::choria::message::{Request, SecureRequest};
    use futures_util::StreamExt as _;
    let server = crate::support::nats::NatsServer::start();
    let client = async_nats::connect(server.url()).await.unwrap();
    let subject = "mcollective.broadcast.agent.registration";
    let mut published = client.subscribe(subject).await.unwrap();
    client.flush().await.unwrap();
    let env = crate::support::TestEnv::new();
    let mut config = crate::support::agent::config(NODE, env.root());
    let mut choria = super::server_config(&env);
    choria.registration_interval = Some(Duration::from_secs(10));
    config.choria.server = Some(choria);
    let agent = crate::support::agent::start(&config, &server).await;
    let message = published.next().await.unwrap();
    let transport = TransportMessage::decode(&message.payload).unwrap();
    assert_eq!(transport.reply_to(), "dev.null");
    let secure = SecureRequest::decode(transport.data()).unwrap();
    let request = Request::decode(secure.request()).unwrap();
    assert_eq!(
        (request.agent.as_str(), request.caller.as_str()),
        ("registration", "choria=web1.lab")
    );
    let document: Value = serde_json::from_slice(request.message()).unwrap();
    assert_eq!(
        document["protocol"],
        "choria:registration:inventorycontent:1"
    );
    let content = &document["content"];
    assert_eq!(content["status"]["identity"], NODE);
    assert_eq!(content["agents"][0]["name"], "ccm");
    assert!(content["facts"]["host"].is_object());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_audit_of_a_delegated_request_names_delegator_and_caller() {
    let lab = Lab::new().await;
    let delegator = json!({
        "callerid": "choria=aaa",
        "public_key": seed(STRANGER).public_key().to_hex(),
        "permissions": {"authentication_delegator": true},
    });
    let caller = json!({"permissions": {"signed_fleet_management": true}});
    let call = Call {
        token: token(1, caller),
        delegator: token(1, delegator),
        signer: STRANGER,
        ..Call::rpc("ccm", "ping", json!({}))
    };
    assert_eq!(lab.reply(&call).await["statuscode"], 0);
    let event = eventually("the audit event", async || {
        let events = stored_events(&lab.setup.server).await.into_iter();
        let mut pings = events.filter(|(_, event)| event["verb"] == "choria.ccm.ping");
        pings.next().map(|(_, event)| event)
    })
    .await;
    assert_eq!(
        (&event["decision"], &event["signer"], &event["caller"]),
        (
            &json!("allowed"),
            &json!("choria=aaa"),
            &json!("choria=ann")
        )
    );
    lab.setup.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_waits_for_the_governor_of_its_request() {
    let lab = Lab::new().await;
    let server = &lab.setup.server;
    governor::make(server, governor::stream(1, Duration::from_secs(600))).await;
    let other = governor::occupy(server).await;
    let command = format!("/usr/bin/touch {}", lab.setup.env.at("touched"));
    let manifest = json!({"ccm": {"resources": [{"exec": [{command: {}}]}]}}).to_string();
    let input = json!({"manifest": manifest, "governor": governor::DEPLOYS});
    let run = lab.data("ccm", "apply", input).await;
    let status = async || {
        let input = json!({"run_id": run["run_id"]});
        lab.data("ccm", "run_status", input).await
    };
    eventually("the wait for the governor", async || {
        let status = status().await;
        when(status["waiting_for"] == "governor deploys", status)
    })
    .await;
    assert!(!lab.setup.env.exists("touched"), "it had no slot");
    governor::evict(server, other).await;
    eventually("the end of the run", async || {
        let status = status().await;
        when(status["outcome"] == "changed", status)
    })
    .await;
    assert!(lab.setup.env.exists("touched"));
    lab.setup.agent.stop().await;
}
