//! How runs of Choria's agent reach the daemon of the node, and what such a run
//! takes from the node: slots, pending refreshes, the package module, registrations, checks, the log.
//! And the session of the pipe, and two counters of the daemon.

use ccm_nats::Verb;
use ccm_nats::registration::{STREAM, StreamOptions};
use serde_json::{Value, json};

use super::cases::with_module;
use super::{NODE, World};
use crate::support::TestEnv;
use crate::support::agent::{self, AgentProcess};
use crate::support::nats::NatsServer;
use crate::support::poll::{eventually, when};

/// Applies a manifest through Choria and returns what is known of the run when it is over.
fn apply(world: &World, manifest: &Value) -> Value {
    let data = json!({ "manifest": manifest.to_string() });
    let reply = world.choria.call("apply", data);
    world.choria.wait_for(&reply.data["run_id"])
}

/// Makes a governor with one slot.
async fn governor(nats: &NatsServer, name: &str) {
    let stream = async_nats::jetstream::stream::Config {
        name: format!("GOVERNOR_{name}"),
        subjects: vec![format!("mcollective.governor.{name}")],
        max_messages: 1,
        discard: async_nats::jetstream::stream::DiscardPolicy::New,
        ..Default::default()
    };
    nats.jetstream().await.create_stream(stream).await.unwrap();
}

/// Returns how many slots were ever taken, and how many are.
async fn slots(nats: &NatsServer, name: &str) -> (u64, u64) {
    let jetstream = nats.jetstream().await;
    let mut stream = jetstream
        .get_stream(format!("GOVERNOR_{name}"))
        .await
        .unwrap();
    let state = &stream.info().await.unwrap().state;
    (state.last_sequence, state.messages)
}

#[tokio::test]
async fn a_choria_apply_takes_the_slot_that_the_manifest_names() {
    let world = World::start().await;
    governor(&world.nats, "deploys").await;
    let done = world.choria.env.at("done");
    let manifest = json!({
        "governor": {"name": "deploys", "timeout": "1s"},
        "ccm": {"resources": [{"exec": [{format!("/usr/bin/touch {done}"): {}}]}]},
    });
    let run = apply(&world, &manifest);
    assert_eq!(run["state"], "finished", "{run:#}");
    assert_eq!(slots(&world.nats, "deploys").await, (1, 0));
    // Another owner has the only slot.
    let jetstream = world.nats.jetstream().await;
    let published = jetstream.publish("mcollective.governor.deploys", "db1".into());
    published.await.unwrap().await.unwrap();
    std::fs::remove_file(&done).unwrap();
    let run = apply(&world, &manifest);
    assert_eq!(run["state"], "failed", "{run:#}");
    assert!(!world.choria.env.exists("done"));
}

#[tokio::test]
async fn a_choria_apply_uses_the_configured_package_module() {
    let world = World::start().await;
    let env = &world.choria.env;
    std::fs::create_dir_all(env.path("module")).unwrap();
    with_module(&env.path("module"));
    world.configure_choria(&format!("cfengine_module = {}\n", env.at("module/module")));
    let manifest = json!({"ccm": {"resources": [
        {"package": [{"zsh": {"ensure": "present", "provider": "cfengine"}}]}
    ]}});
    let run = apply(&world, &manifest);
    assert_eq!(run["state"], "finished", "{run:#}");
    assert!(env.exists("module/packages/zsh"));
}

#[tokio::test]
async fn a_refresh_that_a_choria_run_leaves_is_made_by_the_daemon() {
    let world = World::start().await;
    let env = &world.choria.env;
    let manifest = json!({"ccm": {"resources": [
        {"file": [{env.at("conf"): {
            "ensure": "present", "content": "x", "owner": "root", "group": "root", "mode": "0644"
        }}]},
        {"exec": [{"reload": {
            "command": format!("/bin/sh -c 'test -e {} && touch {}'", env.at("ready"), env.at("reloaded")),
            "refreshonly": true, "subscribe": [format!("file#{}", env.at("conf"))],
        }}]},
    ]}});
    let path = env.write("site.yaml", manifest.to_string());
    let reply = world.choria.call("apply", json!({ "source": path }));
    let run = world.choria.wait_for(&reply.data["run_id"]);
    assert_eq!(run["state"], "failed", "{run:#}");
    env.write("ready", "");
    let request = json!({
        "protocol": "io.choria.ccm.v1.manifest.apply.request", "source": path, "wait": true,
    });
    let reply = agent::request_json(&world.client, NODE, Verb::Apply, &request.to_string()).await;
    assert_eq!(reply["run"]["outcome"], "changed", "{reply:#}");
    assert!(env.exists("reloaded"));
}

#[tokio::test]
async fn the_services_checks_and_warnings_of_a_choria_run_reach_the_daemon() {
    let world = World::with("registration: jetstream\nmonitor_port: 0\n").await;
    let options = StreamOptions::default();
    let client = &world.client;
    client.init_registrations(STREAM, options).await.unwrap();
    let listener = async_nats::connect(world.nats.url()).await.unwrap();
    let subject = "choria.machine.watcher.nagios.state";
    let mut checks = listener.subscribe(subject).await.unwrap();
    listener.flush().await.unwrap();
    let path = world.choria.env.at("web.conf");
    let manifest = format!(
        "data:\n  # @nosuch\n  port: 80\nhierarchy: {{order: [default]}}\nccm:\n  resources:\n    - file:\n        - {path}:\n            ensure: present\n            content: x\n            \
         owner: root\n            group: root\n            mode: '0644'\n            \
         health_checks: [{{command: /bin/true, name: probe, tries: 1}}]\n            \
         register_when_stable: [{{cluster: prod, service: web, protocol: http, \
         address: 127.0.0.1, port: 80, priority: 1}}]\n"
    );
    let data = json!({ "manifest": manifest });
    let reply = world.choria.call("apply", data);
    let run = world.choria.wait_for(&reply.data["run_id"]);
    assert_eq!(run["state"], "finished", "{run:#}");
    eventually("the service is registered", async || {
        let found = client.registrations(STREAM, [""; 4]).await.unwrap();
        found.entries.len() == 1
    })
    .await;
    let check = futures_util::StreamExt::next(&mut checks).await.unwrap();
    let check: Value = serde_json::from_slice(&check.payload).unwrap();
    assert_eq!(
        check["data"]["annotations"]["resource"],
        format!("file#{path}")
    );
    eventually("the warning is in the daemon's log", async || {
        let log = world.agent.log();
        when(log.contains("@nosuch"), log)
    })
    .await;
}

#[test]
fn the_pipe_records_into_its_session() {
    let env = TestEnv::new();
    let session = env.at("session");
    let request = json!({
        "protocol": "io.choria.ccm.v1.resource.ensure.request", "type": "exec",
        "properties": {"name": "/bin/true"},
    });
    let args = ["ensure", "api", "pipe", "--session", &session];
    let refused = env.ccm_with_input(&args, &request.to_string()).json();
    let missing = "session store $DIR/session does not exist";
    assert_eq!(refused["error"], missing, "{refused:#}");
    env.ccm(&["session", "new", "--directory", &session]).ok();
    env.ccm_with_input(&args, &request.to_string()).ok();
    let report = env.ccm(&["session", "report", "--session", &session]).ok();
    assert!(report.contains("Changed Resources: 1"), "{report}");
    // Another call of the same session may build on it.
    let after = json!({
        "protocol": "io.choria.ccm.v1.resource.ensure.request", "type": "exec",
        "properties": {"name": "/bin/echo", "require": ["exec#/bin/true"]},
    });
    let response = env.ccm_with_input(&args, &after.to_string()).json();
    assert_eq!(response["state"]["changed"], true, "{response:#}");
}

#[tokio::test]
async fn facts_that_can_not_be_read_are_counted_and_logged() {
    let env = TestEnv::new();
    let nats = NatsServer::start();
    let client = nats.client().await;
    agent::init(&client).await;
    env.write(".config/choria/ccm/facts.yaml", "{");
    let daemon = AgentProcess::start(&env, NODE, &nats.url(), "interval: 1h\n");
    agent::request_json(&client, NODE, Verb::Facts, "").await;
    eventually("the warning is logged", async || {
        let log = daemon.log();
        when(log.contains("could not parse facts file"), log)
    })
    .await;
}
