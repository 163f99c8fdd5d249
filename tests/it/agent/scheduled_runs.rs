//! Runs that no request started: at the start, on schedule, for a new object or assignment, and while
//! the NATS server is unreachable. Also presence, remediation, metrics and reloads.

use std::path::Path;
use std::time::Duration;

use ccm_agent::config::Config;
use ccm_nats::streams::{DESIRED, MANIFESTS, NODES, REPORTED};
use ccm_nats::{Connection, Verb};
use serde_json::{Value, json};

use crate::support::agent::{self, AgentProcess, config, request_json, start};
use crate::support::http::{Response, Server};
use crate::support::nats::{MONITOR, NatsServer, own_address};
use crate::support::poll::{eventually, when};
use crate::support::setup::Setup;
use crate::support::{TestEnv, pack};

pub(crate) fn manifest(path: &str, content: &str) -> String {
    format!(
        "ccm:\n  resources:\n    - file:\n        - {path}:\n            ensure: present\n            content: \"{content}\"\n            owner: root\n            group: root\n            mode: '0644'\n"
    )
}

/// Returns a bundle with one manifest in it.
fn bundle(text: &str) -> Vec<u8> {
    pack::tgz(&[("site/manifest.yaml", text)])
}

pub(crate) async fn content_becomes(env: &TestEnv, name: &str, content: &str) {
    eventually(&format!("{name} holds {content}"), async || {
        let found = std::fs::read_to_string(env.path(name)).unwrap_or_default();
        when(found == content, found)
    })
    .await;
}

pub(crate) async fn document(connection: &Connection, bucket: &str, key: &str) -> Option<Value> {
    let bucket = connection.bucket(bucket).await.unwrap();
    let entry = bucket.get(key).await.unwrap()?;
    Some(serde_json::from_slice(&entry.value).unwrap())
}

async fn object_store(server: &NatsServer) {
    let config = async_nats::jetstream::object_store::Config {
        bucket: "SITE".into(),
        ..Default::default()
    };
    let jetstream = server.jetstream().await;
    jetstream.create_object_store(config).await.unwrap();
}

#[tokio::test]
async fn a_manifest_is_applied_at_the_start_without_a_server() {
    let env = TestEnv::new();
    let file = env.write("site.yaml", manifest(&env.at("motd"), "hello"));
    let agent = AgentProcess::start(
        &env,
        "web1.lab",
        "nats://127.0.0.1:1",
        &format!("manifests: [{file}]\n"),
    );
    content_becomes(&env, "motd", "hello").await;
    agent.signal("TERM");
    assert_eq!(agent.wait(), Some(0));
}

#[tokio::test]
async fn an_object_is_followed_through_restarts_and_removals() {
    let env = TestEnv::new();
    let mut server = NatsServer::start();
    object_store(&server).await;
    let store = async |server: &NatsServer| server.client().await.objects("SITE").await.unwrap();
    let path = env.at("motd");
    let first = bundle(&manifest(&path, "one"));
    store(&server)
        .await
        .put("a/site.tar.gz", &first)
        .await
        .unwrap();
    let lines = "manifests: ['obj://SITE/a/site.tar.gz']\n";
    let _agent = AgentProcess::start(&env, "web1.lab", &server.url(), lines);
    content_becomes(&env, "motd", "one").await;
    server.restart();
    let second = bundle(&manifest(&path, "two"));
    store(&server)
        .await
        .put("a/site.tar.gz", &second)
        .await
        .unwrap();
    content_becomes(&env, "motd", "two").await;
    store(&server).await.delete("a/site.tar.gz").await.unwrap();
    let third = bundle(&manifest(&path, "three"));
    store(&server)
        .await
        .put("a/site.tar.gz", &third)
        .await
        .unwrap();
    content_becomes(&env, "motd", "three").await;
}

#[tokio::test]
async fn what_was_fetched_once_is_applied_after_a_restart_without_a_server() {
    let env = TestEnv::new();
    let mut server = NatsServer::start();
    object_store(&server).await;
    let text = manifest(&env.at("motd"), "kept");
    let store = server.client().await.objects("SITE").await.unwrap();
    store.put("site.tgz", &bundle(&text)).await.unwrap();
    let lines = "manifests: ['obj://SITE/site.tgz']\n";
    let agent = AgentProcess::start(&env, "web1.lab", &server.url(), lines);
    content_becomes(&env, "motd", "kept").await;
    agent.kill();
    server.stop();
    std::fs::remove_file(env.path("motd")).unwrap();
    let _agent = AgentProcess::start(&env, "web1.lab", &server.url(), lines);
    content_becomes(&env, "motd", "kept").await;
}

#[tokio::test]
async fn external_data_that_is_away_is_replaced_by_the_last_that_was_good() {
    let env = TestEnv::new();
    let mut server = NatsServer::start();
    let bucket = async_nats::jetstream::kv::Config {
        bucket: "DATA".into(),
        ..Default::default()
    };
    let jetstream = server.jetstream().await;
    let data = jetstream.create_key_value(bucket).await.unwrap();
    let hiera = "hierarchy: {order: [default]}\ndata: {word: first}\n";
    data.put("site", hiera.into()).await.unwrap();
    let file = env.write("site.yaml", manifest(&env.at("motd"), "{{ Data.word }}"));
    let lines = format!("manifests: [{file}]\nexternal_data_url: kv://DATA/site\n");
    let agent = AgentProcess::start(&env, "web1.lab", &server.url(), &lines);
    content_becomes(&env, "motd", "first").await;
    agent.kill();
    server.stop();
    std::fs::remove_file(env.path("motd")).unwrap();
    let agent = AgentProcess::start(&env, "web1.lab", &server.url(), &lines);
    content_becomes(&env, "motd", "first").await;
    assert!(
        agent.log().contains("Using the last good external data"),
        "{}",
        agent.log()
    );
}

#[tokio::test]
async fn presence_comes_with_the_agent_and_goes_with_it() {
    let setup = Setup::inside("web1.lab").await;
    let status = eventually("present", async || {
        document(&setup.client, NODES, "default.web1_lab").await
    })
    .await;
    assert_eq!(status["identity"], "web1.lab");
    assert_eq!(status["facts"]["host"]["info"]["os"], "linux");
    setup.agent.stop().await;
    assert_eq!(
        document(&setup.client, NODES, "default.web1_lab").await,
        None
    );
}

/// Stores a bundle and assigns it to `web1.lab`.
pub(crate) async fn assign(client: &Connection, generation: u64, text: &str, noop: bool) {
    let bytes = bundle(text);
    let digest = ccm_core::system::Digest::of(&bytes).to_string();
    let store = client.objects(MANIFESTS).await.unwrap();
    store.put(&format!("app/{digest}"), &bytes).await.unwrap();
    let assignment = json!({
        "protocol": "io.choria.ccm.v1.node.assignment",
        "generation": generation,
        "manifests": [{"name": "app", "digest": digest}],
        "data": {"word": format!("g{generation}")},
        "noop": noop,
        "assigned": "2027-01-15T08:00:00Z",
    });
    let desired = client.bucket(DESIRED).await.unwrap();
    let text = assignment.to_string();
    desired.put("default.web1_lab", text.into()).await.unwrap();
}

pub(crate) async fn reported(client: &Connection, generation: u64) -> Value {
    eventually(
        &format!("generation {generation} is reported"),
        async || {
            let report = document(client, REPORTED, "default.web1_lab").await;
            let report = report.ok_or(Value::Null)?;
            when(report["generation"] == generation, report)
        },
    )
    .await
}

#[tokio::test]
async fn an_assignment_is_followed_at_the_start_and_when_nudged_and_reported() {
    let env = TestEnv::new();
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    let text = manifest(&env.at("motd"), "{{ Data.word }}");
    assign(&client, 1, &text, false).await;
    let _agent = start(&config("web1.lab", &env.path("node")), &server).await;
    let report = reported(&client, 1).await;
    assert_eq!(report["run"]["outcome"], "changed", "{report}");
    assert_eq!(env.read("motd"), "g1");
    assign(&client, 2, &text, true).await;
    request_json(&client, "web1.lab", Verb::Nudge, "").await;
    let report = reported(&client, 2).await;
    assert_eq!(report["run"]["outcome"], "noop", "{report}");
    assert_eq!(report["drift"][0]["name"], env.at("motd"), "{report}");
    let drift = &report["drift"][0];
    assert_eq!(drift["message"], "content or attributes differ");
    let diff = drift["diff"].as_str().unwrap();
    assert!(diff.contains("-g1") && diff.contains("+g2"), "{diff}");
    assert_eq!(env.read("motd"), "g1");
    let status = request_json(&client, "web1.lab", Verb::Ping, "").await;
    assert_eq!(status["generation"], 2);
}

#[tokio::test]
async fn a_bundle_that_is_not_what_was_promised_is_not_applied() {
    let env = TestEnv::new();
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    let text = manifest(&env.at("motd"), "good");
    assign(&client, 1, &text, false).await;
    // The object is replaced under the same name.
    let digest = ccm_core::system::Digest::of(&bundle(&text)).to_string();
    let store = client.objects(MANIFESTS).await.unwrap();
    let evil = bundle(&manifest(&env.at("motd"), "evil"));
    store.put(&format!("app/{digest}"), &evil).await.unwrap();
    let _agent = start(&config("web1.lab", &env.path("node")), &server).await;
    let report = reported(&client, 1).await;
    assert!(
        report["error"]
            .as_str()
            .unwrap()
            .starts_with("app: unexpected digest "),
        "{report}"
    );
    assert!(!env.exists("motd"));
}

#[tokio::test]
async fn a_pending_refresh_is_done_by_the_next_run() {
    let setup = Setup::inside("web1.lab").await;
    let manifest = |between: &str| {
        format!(
            "ccm:\n  fail_on_error: true\n  resources:\n    - file:\n        - {0}: {{ensure: present, content: x, owner: root, group: root, mode: '0644'}}\n    - exec:\n        - gate: {{command: {between}, creates: {1}}}\n    - exec:\n        - reload:\n            command: /usr/bin/touch {2}\n            refreshonly: true\n            subscribe: [file#{0}]\n",
            setup.env.at("conf"),
            setup.env.at("never"),
            setup.env.at("refreshed"),
        )
    };
    let source = setup.env.write("site.yaml", manifest("/bin/false"));
    let apply = json!({
        "protocol": "io.choria.ccm.v1.manifest.apply.request", "source": source, "wait": true,
    })
    .to_string();
    let answer = request_json(&setup.client, "web1.lab", Verb::Apply, &apply).await;
    assert_eq!(answer["run"]["summary"]["failed_resources"], 1, "{answer}");
    assert!(setup.env.exists("conf") && !setup.env.exists("refreshed"));
    setup.env.write("site.yaml", manifest("/bin/true"));
    let answer = request_json(&setup.client, "web1.lab", Verb::Apply, &apply).await;
    assert_eq!(answer["run"]["summary"]["failed_resources"], 0, "{answer}");
    assert!(
        setup.env.exists("refreshed"),
        "the file did not change in this run: {answer}"
    );
    std::fs::remove_file(setup.env.path("refreshed")).unwrap();
    request_json(&setup.client, "web1.lab", Verb::Apply, &apply).await;
    assert!(!setup.env.exists("refreshed"), "and it is paid once");
}

#[tokio::test]
async fn a_refresh_in_a_nested_manifest_that_was_not_reached_is_done_by_the_next_run() {
    let setup = Setup::inside("web1.lab").await;
    let manifest = |between: &str| {
        format!(
            "ccm:\n  fail_on_error: true\n  resources:\n    - file:\n        - {0}: {{ensure: present, content: x, owner: root, group: root, mode: '0644'}}\n    - exec:\n        - gate: {{command: {between}, creates: {1}}}\n    - apply: [{{child.yaml: {{}}}}]\n",
            setup.env.at("conf"),
            setup.env.at("never"),
        )
    };
    let reload = |name: &str, source: &str| {
        format!(
            "        - {name}: {{command: /usr/bin/touch {}, refreshonly: true, subscribe: ['{source}']}}\n",
            setup.env.at(name)
        )
    };
    let child = format!(
        "ccm:\n  resources:\n    - exec:\n        - inside: {{command: /bin/true, creates: /}}\n{}{}",
        reload("reloaded", &format!("file#{}", setup.env.at("conf"))),
        reload("other", "exec#inside"),
    );
    setup.env.write("child.yaml", child);
    let source = setup.env.write("site.yaml", manifest("/bin/false"));
    let apply = json!({
        "protocol": "io.choria.ccm.v1.manifest.apply.request", "source": source, "wait": true,
    })
    .to_string();
    let answer = request_json(&setup.client, "web1.lab", Verb::Apply, &apply).await;
    assert_eq!(answer["run"]["summary"]["failed_resources"], 1, "{answer}");
    assert!(setup.env.exists("conf") && !setup.env.exists("reloaded"));
    setup.env.write("site.yaml", manifest("/bin/true"));
    let answer = request_json(&setup.client, "web1.lab", Verb::Apply, &apply).await;
    assert!(setup.env.exists("reloaded"), "{answer}");
    assert!(!setup.env.exists("other"), "{answer}");
    std::fs::remove_file(setup.env.path("reloaded")).unwrap();
    let answer = request_json(&setup.client, "web1.lab", Verb::Apply, &apply).await;
    assert!(!setup.env.exists("reloaded"), "{answer}");
}

#[tokio::test]
async fn a_hangup_reads_the_file_again_and_a_bad_file_is_ignored() {
    let setup = Setup::process("web1.lab", "").await;
    let status = request_json(&setup.client, "web1.lab", Verb::Ping, "").await;
    assert_eq!(status["groups"], json!([]));
    let good = setup.env.read("web1.lab.yaml");
    setup
        .env
        .write("web1.lab.yaml", format!("{good}group: [db]\n"));
    setup.agent.signal("HUP");
    eventually("the bad file is logged", async || {
        let log = setup.agent.log();
        when(
            log.contains("unknown key \\\"group\\\", did you mean \\\"groups\\\"?"),
            log,
        )
    })
    .await;
    setup
        .env
        .write("web1.lab.yaml", format!("{good}groups: [db]\n"));
    setup.agent.signal("HUP");
    eventually("the groups are new", async || {
        let status = request_json(&setup.client, "web1.lab", Verb::Ping, "").await;
        when(status["groups"] == json!(["db"]), status)
    })
    .await;
    setup.agent.signal("TERM");
    assert_eq!(setup.agent.wait(), Some(0));
}

#[tokio::test]
async fn metrics_and_health_are_served() {
    let address = own_address();
    let lines = format!("monitor_port: {MONITOR}\nmonitor_address: {address}\n");
    let _setup = Setup::process("web1.lab", &lines).await;
    let get = async |path: &str| {
        let url = format!("http://{address}:{MONITOR}{path}");
        let text = fetch(&url).await;
        text.unwrap_or_default()
    };
    eventually("ready", async || {
        let text = get("/readyz").await;
        when(text.contains("ok"), text)
    })
    .await;
    assert!(get("/healthz").await.contains("ok"));
    for wanted in [
        "choria_ccm_agent_requests_count{verb=\"ping\",outcome=\"ok\"} ",
        "choria_ccm_agent_connected 1",
    ] {
        eventually(wanted, async || {
            let text = get("/metrics").await;
            when(text.contains(wanted), text)
        })
        .await;
    }
}

/// Returns the document at a URL, if there is one.
pub(crate) async fn fetch(url: &str) -> Option<String> {
    let url = url.to_owned();
    let get = move || {
        let mut body = Vec::new();
        let limit = Duration::from_secs(5);
        let request = ccm_core::system::http::Request::new(&url, limit, 1 << 20);
        ccm_core::system::http::get(&request, &ccm_core::system::SystemClock, &mut body).ok()?;
        String::from_utf8(body).ok()
    };
    tokio::task::spawn_blocking(get).await.unwrap()
}

#[tokio::test]
async fn a_bundle_on_a_server_is_applied_and_an_agent_without_the_server_keeps_it() {
    let env = TestEnv::new();
    let text = manifest(&env.at("motd"), "from http");
    let server = Server::start(move |request| {
        let tag = "\"1\"";
        match request.header("if-none-match") {
            Some(known) if known == tag => Response::new("304 Not Modified", ""),
            _ => Response::ok(bundle(&text)).with("ETag", tag),
        }
    });
    let lines = format!("manifests: ['{}']\n", server.url("/site.tgz"));
    let agent = AgentProcess::start(&env, "web1.lab", "nats://127.0.0.1:1", &lines);
    content_becomes(&env, "motd", "from http").await;
    agent.kill();
    drop(server);
    std::fs::remove_file(env.path("motd")).unwrap();
    let _agent = AgentProcess::start(&env, "web1.lab", "nats://127.0.0.1:1", &lines);
    content_becomes(&env, "motd", "from http").await;
}

/// Returns a manifest of one file whose health is that it is there.
fn checked_manifest(path: &str) -> String {
    format!(
        "ccm:\n  resources:\n    - file:\n        - {path}:\n            ensure: present\n            content: healthy\n            owner: root\n            group: root\n            mode: '0644'\n            health_checks:\n              - command: /bin/sh -c 'test -e {path} || exit 2'\n"
    )
}

#[tokio::test]
async fn a_critical_health_check_is_answered_by_an_apply() {
    let env = TestEnv::new();
    let path = env.at("motd");
    let file = env.write("site.yaml", checked_manifest(&path));
    let lines = format!("manifests: [{file}]\nhealth_check_interval: 1s\n");
    let _agent = AgentProcess::start(&env, "web1.lab", "nats://127.0.0.1:1", &lines);
    content_becomes(&env, "motd", "healthy").await;
    std::fs::remove_file(&path).unwrap();
    content_becomes(&env, "motd", "healthy").await;
}

#[tokio::test]
async fn a_critical_health_check_of_an_assignment_is_answered_by_an_apply_and_reported() {
    let env = TestEnv::new();
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    let path = env.at("motd");
    assign(&client, 1, &checked_manifest(&path), false).await;
    let config = Config {
        health_check_interval: Some(Duration::from_millis(200)),
        ..config("web1.lab", &env.path("node"))
    };
    let _agent = start(&config, &server).await;
    reported(&client, 1).await;
    std::fs::remove_file(&path).unwrap();
    content_becomes(&env, "motd", "healthy").await;
    eventually("the mending is reported", async || {
        let report = document(&client, REPORTED, "default.web1_lab").await;
        let report = report.ok_or(Value::Null)?;
        when(report["run"]["trigger"] == "remediation", report)
    })
    .await;
}

/// Returns a manifest that appends a word to a file at each run.
fn counting(path: &str, word: &str) -> String {
    format!(
        "ccm:\n  resources:\n    - exec: [{{{word}: {{provider: shell, command: 'echo {word} >> {path}'}}}}]\n"
    )
}

#[tokio::test]
async fn a_bundle_that_arrives_during_the_first_run_is_applied_once() {
    let env = TestEnv::new();
    let server = NatsServer::start();
    object_store(&server).await;
    let bucket = async_nats::jetstream::kv::Config {
        bucket: "DATA".into(),
        ..Default::default()
    };
    let jetstream = server.jetstream().await;
    let data = jetstream.create_key_value(bucket).await.unwrap();
    data.put("site", "data: {word: any}\n".into())
        .await
        .unwrap();
    let store = server.client().await.objects("SITE").await.unwrap();
    let path = env.at("runs");
    let put = async |word: &str| {
        let content = bundle(&counting(&path, word));
        store.put("site.tgz", &content).await.unwrap();
    };
    put("one").await;
    // The first manifest ends once the second one is in the cache.
    let cache = env.at("web1.lab/cache");
    let wait = format!(
        "ccm:\n  resources:\n    - exec: [{{wait: {{provider: shell, command: 'until ls {cache}/*/copy.json; do sleep 0.05; done'}}}}]\n"
    );
    let first = env.write("first.yaml", wait);
    let lines =
        format!("manifests: [{first}, 'obj://SITE/site.tgz']\nexternal_data_url: kv://DATA/site\n");
    let _agent = AgentProcess::start(&env, "web1.lab", &server.url(), &lines);
    content_becomes(&env, "runs", "one\n").await;
    // Updates are processed in order: a repeated run would come before the next word.
    put("two").await;
    content_becomes(&env, "runs", "one\ntwo\n").await;
    put("three").await;
    content_becomes(&env, "runs", "one\ntwo\nthree\n").await;
}

#[tokio::test]
async fn upstream_s_packaged_configuration_starts_the_agent() {
    let mut env = TestEnv::new();
    env.set("XDG_CONFIG_HOME", &env.at("config"));
    let server = NatsServer::start();
    let jetstream = server.jetstream().await;
    for bucket in ["ccm-manifests", "ccm-data"] {
        let config = async_nats::jetstream::object_store::Config {
            bucket: bucket.into(),
            ..Default::default()
        };
        jetstream.create_object_store(config).await.unwrap();
    }
    let client = server.client().await;
    let data = client.objects("ccm-data").await.unwrap();
    data.put("common", b"data: {word: shared}\n").await.unwrap();
    let manifests = client.objects("ccm-manifests").await.unwrap();
    let app = bundle(&manifest(&env.at("app"), "{{ Data.word }}"));
    manifests.put("app.tar.gz", &app).await.unwrap();
    env.write("base.yaml", manifest(&env.at("base"), "base"));
    // The paths, also of the state, are below the scratch directory; everything else is unchanged.
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/agent/upstream.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let text = text
        .replace("/etc/choria/ccm/manifests/", &env.at(""))
        .replace("/etc/choria/ccm/source", &env.at("cache"));
    let context = json!({"url": server.url()}).to_string();
    env.write("config/nats/context/CCM.json", context);
    let text = format!("{text}state_dir: {}\n", env.at("state"));
    let _agent = AgentProcess::with_config(&env, "web1.lab", &text);
    content_becomes(&env, "base", "base").await;
    content_becomes(&env, "app", "shared").await;
}
