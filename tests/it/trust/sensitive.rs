//! Secrets appear in no output: they are planted in every property that hides them and
//! in every URL, and everything that comes out is searched for them.

use std::path::Path;
use std::process::{Command, Stdio};

use ccm_nats::streams::{NODES, REPORTED};
use ccm_nats::{Connection, Headers, Verb};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::agent::{self, AgentProcess, request_json};
use crate::support::http::{Response, Server};
use crate::support::nats::{MONITOR, NatsServer, own_address};
use crate::support::poll::{eventually, when};
use crate::support::setup::Setup;
use crate::support::web::Page;

const NODE: &str = "web1.example.net";

/// Part of everything that is planted; what follows says where.
const SECRET: &str = "s3cret";

/// Fails if a text holds anything that was planted, and shows where.
fn check(place: &str, text: &str) {
    if let Some(at) = text.find(SECRET) {
        let from = text.floor_char_boundary(at.saturating_sub(300));
        let to = text.ceil_char_boundary((at + 100).min(text.len()));
        panic!("{place}: …{}…", &text[from..to]);
    }
}

/// Checks every file below a directory.
fn check_files(directory: &Path) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        check("a name", &path.display().to_string());
        if path.is_dir() {
            check_files(&path);
        } else if let Ok(bytes) = std::fs::read(&path) {
            check(
                &path.display().to_string(),
                &String::from_utf8_lossy(&bytes),
            );
        }
    }
}

/// Returns a URL that carries secrets in every part that may hold one.
fn url(base: &str) -> String {
    let rest = base.strip_prefix("http://").unwrap();
    format!(
        "http://ann:s3cret-pw@{rest}?file=a&token=s3cret-query&X-Amz-Signature=s3cret%2Fsigned\
         &s3cret-bare#s3cret-fragment"
    )
}

/// Writes templates that can be rendered, and some that fail with what they are given.
fn write_templates(directory: &Path) {
    for (name, text) in [("good", "{{ .word }}\n"), ("bad", "{{ fail .word }}\n")] {
        std::fs::create_dir(directory.join(name)).unwrap();
        std::fs::write(directory.join(name).join("file"), text).unwrap();
    }
}

/// Returns resources that hide what they hold, by their type.
fn hiding(home: &Path, templates: &Path) -> Vec<(&'static str, Value)> {
    let at = |name: &str| home.join(name).display().to_string();
    let file = |name: &str, more: Value| {
        let mut file = json!({"name": at(name), "ensure": "present", "content": "s3cret-content",
            "owner": "root", "group": "root", "mode": "0600", "sensitive": true});
        merge(&mut file, more);
        ("file", file)
    };
    let exec = |name: &str, more: Value| {
        let mut exec = json!({"name": name, "sensitive": true, "logoutput": true});
        merge(&mut exec, more);
        ("exec", exec)
    };
    let checks = |check: Value| json!({ "health_checks": [check] });
    let says = "/bin/echo 's3cret-output | s3cret-label=1'";
    let fails = "/bin/sh -c 'echo s3cret-critical; exit 2'";
    vec![
        file("ok", checks(json!({"command": says}))),
        file("bad", checks(json!({"command": fails}))),
        file(
            "gone",
            checks(json!({"command": "s3cret-plugin --x s3cret-argument"})),
        ),
        file(
            "quote",
            checks(json!({"command": "check 's3cret-unterminated"})),
        ),
        file(
            "goss",
            checks(json!({"goss_rules": {
                "command": {"echo s3cret-goss-command": {"exit-status": 7, "stdout": ["s3cret-stdout"]}},
                "file": {at("ok"): {"exists": true, "contents": ["s3cret-contents"]}}}})),
        ),
        file(
            "odd",
            checks(json!({"goss_rules": {"s3cret-family": {"x": {}}}})),
        ),
        file("/s3cret", json!({"name": at("no/such/directory/file")})),
        exec("missing program", json!({"command": "s3cret-program --x"})),
        exec(
            "missing path",
            json!({"command": format!("{}/s3cret-path", at(""))}),
        ),
        exec(
            "missing guard",
            json!({"command": "/bin/true", "onlyif": "s3cret-guard"}),
        ),
        exec(
            "missing unless",
            json!({"command": "/bin/true", "unless": "s3cret-unless"}),
        ),
        exec(
            "slow",
            json!({"command": "/bin/sleep 60 s3cret-slow", "timeout": "10ms"}),
        ),
        exec("quoted", json!({"command": "/bin/echo 's3cret-quote"})),
        exec(
            "killed",
            json!({"command": "/bin/sh -c 'kill -9 $$' s3cret-killed"}),
        ),
        exec(
            "failing",
            json!({"command": "/bin/sh -c 'echo s3cret-said; echo s3cret-err >&2; exit 3'",
                   "environment": ["TOKEN=s3cret-value"]}),
        ),
        exec(
            "environment",
            json!({"command": "/bin/true", "environment": ["s3cret-key=s3cret-value"]}),
        ),
        exec(
            "expression",
            json!({"command": "/bin/echo {{ int('s3cret-number') }}"}),
        ),
        file(
            "resolved",
            json!({"content": "{{ int('s3cret-integer') }}"}),
        ),
        exec(
            "empty",
            json!({"command": "/bin/true", "environment": ["s3cret-lone"]}),
        ),
        (
            "scaffold",
            json!({"name": at("scaffold"), "ensure": "present", "source": templates.join("good"),
                "engine": "go", "data": {"word": "s3cret-word"}, "sensitive": true,
                "post": [{"*": "/bin/sh -c 'echo s3cret-post; exit 1'"}]}),
        ),
        (
            "scaffold",
            json!({"name": at("scaffold2"), "ensure": "present", "source": templates.join("good"),
                "engine": "go", "data": {"word": "s3cret-word"}, "sensitive": true,
                "post": [{"*": "s3cret-post-program --x"}]}),
        ),
        (
            "scaffold",
            json!({"name": at("scaffold3"), "ensure": "present", "source": templates.join("bad"),
                "engine": "go", "data": {"word": "s3cret-word"}, "sensitive": true}),
        ),
    ]
}

/// Returns resources that hide nothing but use URLs that do.
fn using_urls(home: &Path, web: &Server) -> Vec<(&'static str, Value)> {
    let at = |name: &str| home.join(name).display().to_string();
    let there = |path: &str| url(&web.url(path));
    let archive = |name: &str, url: String| {
        let archive = json!({"name": at(name), "ensure": "present", "url": url,
            "headers": {"X-Key": "s3cret-header"}, "owner": "root", "group": "root"});
        ("archive", archive)
    };
    let checks = |check: Value| json!({ "health_checks": [check] });
    let exec = |name: &str, more: Value| {
        let mut exec = json!({"name": name, "logoutput": true});
        merge(&mut exec, more);
        ("exec", exec)
    };
    let printed_url = there("/said");
    vec![
        archive("a.tar.gz", there("/a.tar.gz")),
        archive("b.tar.gz", there("/missing.tar.gz")),
        archive("c.tar.gz", there("/redirect.tar.gz")),
        archive("d.tar.gz", url("http://127.0.0.1:1/d.tar.gz")),
        archive("e.tar.gz", url("http://127.0.0.1:port/e.tar.gz")),
        (
            "scaffold",
            json!({"name": at("templates"), "ensure": "present", "engine": "go",
                "source": there("/missing.tar.gz"), "data": {"from": printed_url}}),
        ),
        exec(
            "says it",
            json!({"command": format!("/bin/echo got {printed_url} now")}),
        ),
        exec(&format!("/bin/echo '{printed_url}'"), json!({})),
        exec(
            "complains",
            json!({"command": format!("/bin/sh -c 'echo \"curl: {printed_url}: 403\" >&2; exit 22'"),
                "environment": [format!("FROM={printed_url}")]}),
        ),
        exec("healthy", {
            let mut exec = checks(json!({"command": format!("/bin/echo {printed_url}")}));
            merge(&mut exec, json!({"command": "/bin/true"}));
            exec
        }),
        exec("tested", {
            let mut exec =
                checks(json!({"goss_rules": {"http": {printed_url.clone(): {"status": 200}}}}));
            merge(&mut exec, json!({"command": "/bin/true"}));
            exec
        }),
        (
            "file",
            json!({"name": at("config"), "ensure": "present", "content": format!("from={printed_url}\n"),
                "owner": "root", "group": "root", "mode": "0600"}),
        ),
    ]
}

fn merge(base: &mut Value, more: Value) {
    for (key, value) in more.as_object().unwrap() {
        base[key] = value.clone();
    }
}

/// Answers with an archive, a redirect that carries a secret, or a refusal that repeats the request.
fn web() -> Server {
    Server::start(|request| match request.path.split('?').next().unwrap() {
        "/redirect.tar.gz" => Response::redirect("/missing.tar.gz?token=s3cret-redirect"),
        "/a.tar.gz" => Response::ok("no archive"),
        "/data.yaml" => Response::ok("data: {word: x}\n"),
        _ => Response::new("404 Not Found", format!("no {}", request.path)),
    })
}

fn manifest(resources: &[(&str, Value)]) -> String {
    let list: Vec<Value> = resources
        .iter()
        .map(|(type_name, properties)| {
            let mut entry = json!({});
            entry[*type_name] = properties.clone();
            entry
        })
        .collect();
    json!({"ccm": {"resources": list, "fail_on_error": false}}).to_string()
}

async fn stored(client: &Connection, bucket: &str) -> String {
    let bucket = client.bucket(bucket).await.unwrap();
    let node: ccm_core::model::node::NodeName = NODE.parse().unwrap();
    let key = format!("default.{}", node.token());
    let entry = bucket.get(&key).await.unwrap();
    entry.map_or_else(String::new, |entry| {
        String::from_utf8(entry.value.to_vec()).unwrap()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_reveals_no_sensitive_properties_and_no_secrets_of_urls() {
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    let page = Page::serve(&server).settled();
    let web = web();
    let env = TestEnv::new();
    let home = tempfile::tempdir().unwrap();
    let templates = tempfile::tempdir().unwrap();
    write_templates(templates.path());
    let address = own_address();
    let lines = format!(
        "log_level: debug\nmonitor_port: {MONITOR}\nmonitor_address: {address}\n\
         manifests: [\"{}\"]\nexternal_data_url: \"{}\"\ninterval: 1h\n",
        url(&web.url("/manifest.tar.gz")),
        url(&web.url("/data.yaml")),
    );
    let running = AgentProcess::start(&env, NODE, &server.url(), &lines);
    // What the test itself wrote is no leak.
    eventually("the agent", async || {
        let text = running.log();
        assert!(!text.contains("unknown key"), "{text}");
        (text.lines().count() > 1).then_some(())
    })
    .await;
    std::fs::remove_file(env.path(&format!("{NODE}.yaml"))).unwrap();
    request_json(&client, NODE, Verb::Ping, "").await;

    let mut resources = hiding(home.path(), templates.path());
    let hidden = resources.len();
    resources.extend(using_urls(home.path(), &web));
    for (index, (type_name, properties)) in resources.iter().enumerate() {
        let body = json!({"protocol": "io.choria.ccm.v1.resource.ensure.request",
            "type": type_name, "properties": properties});
        for headers in [
            Headers::new().with("Choria-CCM-Noop", "true").unwrap(),
            Headers::new(),
        ] {
            let body = body.to_string();
            let reply = agent::request(&client, NODE, Verb::Ensure, headers, &body).await;
            let text = std::str::from_utf8(&reply.body).unwrap().to_owned();
            let what = if index < hidden { "hidden" } else { "URL" };
            check(&format!("the answer for {what} {properties}"), &text);
            check("a header", &format!("{:?}", reply.headers));
        }
    }
    for body in [
        json!({"manifest": manifest(&resources), "wait": true}),
        json!({"source": url(&web.url("/site.tar.gz")), "wait": true}),
        json!({"source": url("http://127.0.0.1:1/site.tar.gz"), "wait": true}),
    ] {
        let mut request = json!({"protocol": "io.choria.ccm.v1.manifest.apply.request"});
        merge(&mut request, body);
        let answer = request_json(&client, NODE, Verb::Apply, &request.to_string()).await;
        check("the answer of apply", &answer.to_string());
    }
    let ended = "ccm.v1.default.event.web1_example_net.run.";
    let events = eventually("all runs", async || {
        let events = agent::stored_events(&server).await;
        let runs = events.iter().filter(|(name, _)| name.starts_with(ended));
        when(runs.count() >= 3, events)
    })
    .await;
    let resource_events = events
        .iter()
        .filter(|(_, body)| body["health_check"].is_array());
    assert!(resource_events.count() >= 8, "health checks really ran");
    for (subject, body) in &events {
        check(subject, &body.to_string());
    }
    // What is kept of a URL still says where it leads.
    let all = format!("{events:?}");
    assert!(
        all.contains("/a.tar.gz?file=REDACTED"),
        "host and path are shown"
    );
    check("the log", &running.log());
    assert!(running.log().contains("exec#complains failed"));
    let metrics = Command::new("curl")
        .args(["-s", &format!("http://{address}:{MONITOR}/metrics")])
        .output()
        .unwrap();
    let metrics = String::from_utf8(metrics.stdout).unwrap();
    assert!(metrics.contains("choria_ccm"), "{metrics}");
    check("metrics", &metrics);
    for bucket in [NODES, REPORTED] {
        check(bucket, &stored(&client, bucket).await);
    }
    page.until("/api/events?outcome=failed", |answer| {
        !answer.json()["events"].as_array().unwrap().is_empty()
    });
    for path in [
        "/api/summary",
        "/api/nodes",
        &format!("/api/nodes/{NODE}"),
        "/api/events?limit=10000",
        "/metrics",
    ] {
        check(path, &page.get(path).body);
    }
    check_files(env.root());
}

#[tokio::test]
async fn an_agent_without_its_data_does_not_tell_where_the_key_to_it_is() {
    let web = web();
    let data = url(&web.url("/missing.yaml"));
    let lines = format!("log_level: debug\nexternal_data_url: \"{data}\"\n");
    let setup = Setup::process(NODE, &lines).await;
    let request = agent::file_request(&setup.env.path("motd"), "hi");
    let answer = request_json(&setup.client, NODE, Verb::Ensure, &request).await;
    let error = answer["error"].as_str().unwrap();
    assert!(error.contains("/missing.yaml?file=REDACTED"), "{error}");
    check("the answer", &answer.to_string());
    check("the log", &setup.agent.log());
}

#[test]
fn a_run_on_the_command_line_reveals_no_secrets() {
    let web = web();
    let env = TestEnv::new();
    let home = tempfile::tempdir().unwrap();
    let input = tempfile::tempdir().unwrap();
    let templates = input.path();
    write_templates(templates);
    let mut resources = hiding(home.path(), templates);
    resources.extend(using_urls(home.path(), &web));
    let file = input.path().join("manifest.json");
    let file = file.to_str().unwrap();
    for resource in resources {
        std::fs::write(file, manifest(std::slice::from_ref(&resource))).unwrap();
        for flags in [
            &["--noop"][..],
            &["--json"],
            &["--debug"],
            &["--monitor-only", "--debug"],
        ] {
            let mut args = vec!["apply", file];
            args.extend(flags);
            let outcome = env.ccm(&args);
            assert!(
                !outcome.stderr.contains("unexpected argument"),
                "{outcome:?}"
            );
            check(&format!("{flags:?} of {resource:?}"), &outcome.stdout);
            check(&format!("{flags:?} of {resource:?}"), &outcome.stderr);
        }
    }
    check_files(env.root());
}

#[test]
fn a_session_finds_a_command_whose_name_is_a_url_and_keeps_no_secret() {
    let mut env = TestEnv::new();
    let name = format!("/bin/echo {}", url("http://127.0.0.1:1/x"));
    env.set("CCM_SESSION_STORE", &env.at("session"));
    let outcome = env.ccm(&["session", "new", "--directory", &env.at("session")]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let outcome = env.ccm(&["ensure", "exec", &name]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let outcome = env.ccm(&[
        "ensure",
        "exec",
        "/bin/true",
        "--require",
        &format!("exec#{name}"),
    ]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(!outcome.stderr.contains("no events found"), "{outcome:?}");
    check_files(env.root());
}

/// Calls an action of the external agent of Choria.
fn request_choria(env: &TestEnv, action: &str, data: Value) -> Value {
    env.write("plugin.d/ccm", format!("state_dir = {}\n", env.at("state")));
    let protocol = "io.choria.mcorpc.external.v1.rpc_request";
    let request = json!({
        "$schema": "https://choria.io/schemas/mcorpc/external/v1/rpc_request.json",
        "protocol": protocol, "agent": "ccm", "action": action,
        "requestid": "8d0cb5e3d9a64c5b8a8f0f3a3f5d7c11", "senderid": "ops1",
        "callerid": "choria=ann.mcollective", "collective": "mcollective", "ttl": 60,
        "msgtime": 1_800_000_000, "data": data,
    });
    let request = env.write("request", request.to_string());
    let reply = env.write("reply", "");
    let facts = env.write("facts", "{}");
    let output = Command::new(env!("CARGO_BIN_EXE_ccm"))
        .args(["choria", "agent", &request, &reply, protocol])
        .current_dir(env.root())
        .env_clear()
        .env("CHORIA_EXTERNAL_REQUEST", &request)
        .env("CHORIA_EXTERNAL_REPLY", &reply)
        .env("CHORIA_EXTERNAL_PROTOCOL", protocol)
        .env("CHORIA_EXTERNAL_CONFIG", env.path("plugin.d/ccm"))
        .env("CHORIA_EXTERNAL_FACTS", &facts)
        .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(&reply).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|err| panic!("{err}: {text} {output:?}"))
}

#[test]
fn choria_s_status_hides_what_a_request_calls_sensitive() {
    let env = TestEnv::new();
    let path = env.write_secret("pin", "1234");
    let digest = ccm_core::system::Digest::of(b"1234").to_string();
    let status = |properties: Value| {
        let data = json!({"type": "file", "name": path, "properties": properties});
        request_choria(&env, "status", data)
    };
    // A number that can be guessed is revealed by its checksum.
    let open = status(json!({}));
    assert_eq!(open["statuscode"], 0, "{open:#}");
    assert!(open.to_string().contains(&digest), "{open:#}");
    let hidden = status(json!({"sensitive": true}));
    assert_eq!(hidden["data"]["ensure"], "present", "{hidden:#}");
    assert!(!hidden.to_string().contains(&digest), "{hidden:#}");
}
