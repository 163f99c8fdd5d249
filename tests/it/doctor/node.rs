//! `ccm doctor` on a node with a NATS server of its own.

use ccm_nats::Verb;
use serde_json::{Value, json};

use super::{Diagnosis, diagnose};
use crate::support::TestEnv;
use crate::support::agent::{self, AgentProcess, file_request};
use crate::support::disk::SmallDisk;
use crate::support::nats::NatsServer;
use crate::support::poll::wait_for;
use crate::support::setup::Setup;

/// Starts a node with more lines in its configuration.
async fn node(lines: &str) -> Setup<AgentProcess> {
    Setup::process("web1", lines).await
}

fn config(env: &TestEnv) -> String {
    env.at("web1.yaml")
}

/// Diagnoses until a check has a state: the agent states it at its next beat.
fn wait_for_state(env: &TestEnv, name: &str, state: &str) -> Diagnosis {
    wait_for(name, || {
        let found = diagnose(env, &config(env));
        let is_it = found.state(name) == state;
        if is_it {
            Ok(found)
        } else {
            Err(found.document)
        }
    })
}

#[tokio::test]
async fn nothing_is_wrong_with_a_node_that_works() {
    let setup = node("").await;
    let found = wait_for_state(&setup.env, "agent", "ok");
    assert_eq!(found.failed(), [""; 0], "{:#}", found.document);
    assert_eq!(found.code, Some(0));
    assert_eq!(found.document["node"], "web1");
    for name in ["configuration", "state_directory", "server", "clock"] {
        assert_eq!(found.state(name), "ok", "{:#}", found.document);
    }
}

#[tokio::test]
async fn the_table_has_a_line_for_each_check_and_its_remedy() {
    let env = TestEnv::new();
    let text = env.ccm(&["doctor", "--config", "none.yaml"]);
    assert_eq!(text.code, Some(1), "{text:?}");
    let mut lines = text.stdout.lines();
    assert!(lines.next().unwrap().starts_with("CHECK "), "{text:?}");
    let first = lines.next().unwrap();
    assert!(
        first.starts_with("configuration    failed       open"),
        "{first}"
    );
    let remedy = lines.next().unwrap().trim();
    assert!(
        remedy.starts_with("remedy: run `ccm agent enroll`"),
        "{remedy}"
    );
    let problems = env.ccm(&["doctor", "--config", "none.yaml", "--problems"]);
    assert!(!problems.stdout.contains("not checked"), "{problems:?}");
}

#[test]
fn an_invalid_configuration_is_named_with_its_line() {
    let env = TestEnv::new();
    let file = env.write_secret("web1.yaml", "identity: web1\nintervall: 5m\n");
    let found = diagnose(&env, &file);
    found.assert("configuration", "failed", "intervall", "correct");
    assert_eq!(found.state("server"), "not_checked");
}

#[test]
fn a_configuration_that_others_can_change_is_named() {
    let env = TestEnv::new();
    let file = env.write("web1.yaml", "identity: web1\n");
    env.ccm(&["--version"]).ok();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    diagnose(&env, &file).assert("configuration", "failed", "changed by others", "chmod 0640");
}

#[tokio::test]
async fn a_shared_state_directory_is_named() {
    let setup = node("").await;
    let directory = setup.env.path("web1/state");
    std::fs::set_permissions(
        directory,
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    let found = diagnose(&setup.env, &config(&setup.env));
    found.assert("state_directory", "failed", "not private", "chmod 0700");
}

#[test]
fn a_full_disk_and_one_that_is_nearly_full_are_named() {
    let env = TestEnv::new();
    let disk = SmallDisk::mount(&env.path("disk"), "8m");
    let text = format!("identity: web1\nstate_dir: {}\n", env.at("disk/state"));
    let file = env.write_secret("web1.yaml", text);
    std::fs::create_dir(env.path("disk/state")).unwrap();
    std::fs::set_permissions(
        env.path("disk/state"),
        std::os::unix::fs::PermissionsExt::from_mode(0o700),
    )
    .unwrap();
    diagnose(&env, &file).assert("disk_space", "failed", "8 MiB free", "free some space");
    disk.resize("100m");
    diagnose(&env, &file).assert("disk_space", "warning", "100 MiB free", "spool.max_size");
}

#[test]
fn a_read_only_state_directory_is_named() {
    let env = TestEnv::new();
    let disk = SmallDisk::mount(&env.path("disk"), "100m");
    let state = env.path("disk/state");
    std::fs::create_dir(&state).unwrap();
    std::fs::set_permissions(&state, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    disk.remount("ro");
    let text = format!("identity: web1\nstate_dir: {}\n", state.display());
    let file = env.write_secret("web1.yaml", text);
    let found = diagnose(&env, &file);
    found.assert(
        "state_directory",
        "failed",
        "read-only file system",
        "read-write",
    );
}

#[tokio::test]
async fn the_holder_of_the_run_lock_is_named() {
    let setup = node("").await;
    let url = setup.server.url();
    let script = format!("touch {}; sleep 60", setup.env.at("begun"));
    let ensure = ["fleet", "ensure", "exec", &script, "--provider", "shell"];
    let flags = ["--node", "web1", "--server", &url];
    let mut request = setup.env.command(&[&ensure[..], &flags].concat());
    let mut request = request.stdout(std::process::Stdio::null()).spawn().unwrap();
    wait_for("a run", || setup.env.exists("begun"));
    let found = diagnose(&setup.env, &config(&setup.env));
    let holder = format!("held by pid {} (run ", setup.agent.id());
    found.assert("run_lock", "ok", &holder, "");
    request.kill().unwrap();
    request.wait().unwrap();
}

#[tokio::test]
async fn an_agent_that_is_not_running_is_named() {
    let Setup {
        agent,
        env,
        server: _server,
        ..
    } = node("").await;
    wait_for_state(&env, "agent", "ok");
    agent.kill();
    let found = diagnose(&env, &config(&env));
    found.assert(
        "agent",
        "failed",
        "no agent is running",
        "systemctl enable --now ccm-agent",
    );
    // What it last stated is still known.
    assert_eq!(found.state("spool"), "ok");
}

#[tokio::test]
async fn a_stalled_agent_of_another_version_is_named() {
    let setup = node("").await;
    wait_for_state(&setup.env, "agent", "ok");
    setup.agent.signal("STOP");
    let text = setup.env.read("web1/state/status.json");
    let mut stated: Value = serde_json::from_str(&text).unwrap();
    stated["status"]["timestamp"] = json!("2026-01-01T00:00:00Z");
    stated["status"]["version"] = json!("0.0.1");
    setup
        .env
        .write("web1/state/status.json", stated.to_string());
    let found = diagnose(&setup.env, &config(&setup.env));
    setup.agent.signal("CONT");
    found.assert(
        "agent",
        "failed",
        "stated nothing since 2026-01-01",
        "systemctl restart",
    );
    found.assert(
        "version",
        "warning",
        "the running agent has version 0.0.1",
        "restart",
    );
}

#[tokio::test]
async fn a_paused_agent_is_named() {
    let setup = node("").await;
    let pause = ["fleet", "pause", "--node", "web1", "--reason", "disk swap"];
    let url = setup.server.url();
    setup
        .env
        .ccm(&[&pause[..], &["--server", &url]].concat())
        .ok();
    let found = wait_for_state(&setup.env, "agent", "warning");
    found.assert(
        "agent",
        "warning",
        "disk swap",
        "ccm fleet resume --node web1",
    );
}

#[tokio::test]
async fn a_server_that_is_down_and_events_that_wait_are_named() {
    let mut setup = node("interval: 30s\n").await;
    wait_for_state(&setup.env, "agent", "ok");
    let manifest = "ccm:\n  resources:\n    - exec:\n        - /bin/false: {}\n";
    let file = setup.env.write("site.yaml", manifest);
    setup.server.stop();
    wait_for_state(&setup.env, "agent", "failed");
    // A run without a server leaves its events in the spool.
    let text = setup.env.read("web1.yaml");
    setup.env.write(
        "web1.yaml",
        format!("{text}manifests: [{file}]\nsplay: false\n"),
    );
    setup.agent.signal("HUP");
    let found = wait_for_state(&setup.env, "spool", "warning");
    found.assert(
        "server",
        "failed",
        "connection refused",
        "check that the server runs",
    );
    found.assert("agent", "failed", "not connected", "see the checks");
    found.assert(
        "spool",
        "warning",
        "waiting for the NATS connection",
        "server",
    );
    assert_eq!(found.state("permissions"), "not_checked");
    let found = wait_for_state(&setup.env, "last_run", "warning");
    found.assert(
        "last_run",
        "warning",
        "failed at",
        "ccm fleet events --node web1",
    );
}

#[tokio::test]
async fn a_fleet_without_buckets_is_named() {
    let env = TestEnv::new();
    let server = NatsServer::start();
    let text = format!(
        "identity: web1\nstate_dir: {}\nservers: ['{}']\n",
        env.at("state"),
        server.url()
    );
    let file = env.write_secret("web1.yaml", text);
    diagnose(&env, &file).assert("permissions", "failed", "CCM_NODES", "ccm fleet init");
}

#[tokio::test]
async fn a_missing_permission_is_named_with_its_subject() {
    let (denied, allowed) = (
        "ccm.v1.default.all.>",
        "[\"_INBOX.>\", \"ccm.v1.default.node.>\"]",
    );
    let server = NatsServer::with(&format!(
        "authorization: {{ users: [ {{ user: web1, password: p, permissions: {{ publish: \">\", \
         subscribe: {{ allow: {allowed}, deny: [\"{denied}\"] }} }} }}, {{ user: all, password: p }} ] }}"
    ));
    let env = TestEnv::new();
    let address = server.url().replace("nats://", "");
    env.ccm(&[
        "fleet",
        "init",
        "--server",
        &format!("nats://all:p@{address}"),
    ])
    .ok();
    let text = format!(
        "identity: web1\nstate_dir: {}\nservers: ['nats://web1:p@{address}']\n",
        env.at("state")
    );
    let file = env.write_secret("web1.yaml", text);
    let found = diagnose(&env, &file);
    found.assert(
        "permissions",
        "failed",
        "lacks subscribe on ccm.v1.default.all.",
        "ccm fleet permissions agent",
    );
}

#[tokio::test]
async fn a_clock_that_differs_from_the_server_is_named() {
    let mut setup = node("").await;
    for (name, value) in crate::support::clock::variables("+5m") {
        setup.env.set(name, &value);
    }
    let found = diagnose(&setup.env, &config(&setup.env));
    found.assert("clock", "failed", "ahead of the NATS server", "synchronize");
}

#[tokio::test]
async fn a_refused_request_and_open_trust_are_named() {
    let key = "UABUTEEIXQBEB57L2N2V2M373ZFQQKDLORGEJN25BHDYNZQ2YSFOKERO";
    let trust = format!("trust: {{signers: [{{name: ops, key: {key}}}]}}\n");
    let setup = node(&trust).await;
    let text = setup.env.read("web1.yaml");
    // Another state directory, without an agent: the one that runs has refused a ping already.
    let other = |name: &str, text: &str| {
        let text = text.replace("web1/state", "other");
        setup.env.write_secret(name, text)
    };
    diagnose(&setup.env, &other("closed.yaml", &text)).assert("trust", "ok", "1 signer: ops", "");
    let body = file_request(&setup.env.path("f"), "x");
    agent::request_json(&setup.client, "web1", Verb::Ensure, &body).await;
    let found = wait_for_state(&setup.env, "trust", "warning");
    found.assert("trust", "warning", "not signed", "trust.signers");
    let open = text.replace(trust.trim(), "trust: {required: false}");
    diagnose(&setup.env, &other("open.yaml", &open)).assert(
        "trust",
        "warning",
        "unsigned requests",
        "required",
    );
}

#[test]
fn a_remote_server_without_signers_is_named() {
    let env = TestEnv::new();
    let text = format!(
        "identity: web1\nstate_dir: {}\nservers: ['nats://nats.invalid:4222']\n",
        env.at("state")
    );
    let file = env.write_secret("web1.yaml", text);
    let found = diagnose(&env, &file);
    found.assert(
        "trust",
        "failed",
        "nats.invalid:4222 is not on this machine",
        "enroll",
    );
    found.assert("server", "failed", "host lookup failed", "DNS");
}
