//! Services that register: the commands against real servers, streams that others made, and
//! templates that look services up. `agents` shows nodes at work.

mod agents;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use async_nats::jetstream::stream::Config;
use ccm_core::model::registration::{Entry, Port, Ttl};
use ccm_nats::registration::{Destination, STREAM, StreamOptions};
use ccm_nats::{ConnectMode, Settings, connect};
use futures_util::{StreamExt as _, stream};
use serde_json::Value;

use crate::support::TestEnv;
use crate::support::nats::NatsServer;
use crate::support::poll::LIMIT;

fn world() -> (TestEnv, NatsServer) {
    let (mut env, server) = (TestEnv::new(), NatsServer::start());
    env.set("NATS_URL", &server.url());
    // No context of this machine matters.
    env.set("XDG_CONFIG_HOME", &env.at("config"));
    (env, server)
}

/// Registers a web server with more flags.
fn create(env: &TestEnv, address: &str, port: &str, more: &[&str]) -> String {
    let identity = identity("create", address, port);
    env.ccm(&[&identity, more].concat()).ok()
}

fn identity<'a>(command: &'a str, address: &'a str, port: &'a str) -> Vec<&'a str> {
    let mut args = vec!["registration", command];
    args.extend(["--cluster", "prod", "--service", "web"]);
    args.extend(["--protocol", "http", "--address", address, "--port", port]);
    args
}

fn entry(address: &str, port: i64) -> Entry {
    Entry {
        cluster: "prod".into(),
        service: "web".into(),
        protocol: "http".into(),
        address: address.into(),
        port: Port::Number(port),
        priority: 10,
        ttl: Some(Ttl::Never),
        ..Entry::default()
    }
}

/// Returns the stream exactly as upstream's init makes it.
fn upstream_stream() -> Config {
    Config {
        name: STREAM.into(),
        subjects: vec!["choria.ccm.registration.v1.>".into()],
        max_messages_per_subject: 1,
        allow_message_ttl: true,
        num_replicas: 1,
        allow_rollup: true,
        max_age: Duration::from_secs(60),
        subject_delete_marker_ttl: Some(Duration::from_secs(60)),
        deny_delete: true,
        ..Config::default()
    }
}

async fn config(server: &NatsServer) -> Config {
    let jetstream = server.jetstream().await;
    let stream = jetstream.get_stream(STREAM).await.unwrap();
    stream.cached_info().config.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stream_is_upstreams_but_can_be_read() {
    let (env, server) = world();
    let ready = " INFO  Registration stream ready stream=REGISTRATION subjects=[choria.ccm.registration.v1.>] replicas=1\n";
    assert_eq!(env.ccm(&["registration", "init"]).ok(), ready);
    let made = config(&server).await;
    let upstream = upstream_stream();
    assert!(made.allow_direct && !made.deny_purge);
    assert_eq!(made.max_age, upstream.max_age);
    assert_eq!(made.subjects, upstream.subjects);
    assert_eq!(
        made.subject_delete_marker_ttl,
        upstream.subject_delete_marker_ttl
    );
    assert_eq!((made.max_messages_per_subject, made.deny_delete), (1, true));
    assert!(made.allow_message_ttl && made.allow_rollup);
    env.ccm(&["reg", "init", "--max-age", "5m"]).ok();
    assert_eq!(env.ccm(&["r", "init"]).ok(), ready);
    assert_eq!(config(&server).await.max_age, Duration::from_secs(300));
    for (flag, value, text) in [
        ("--replicas", "6", "replicas must be between 1 and 5"),
        ("--replicas", "0", "replicas must be between 1 and 5"),
        ("--max-age", "10ms", "must be 1s or more"),
    ] {
        let error = env.ccm(&["reg", "init", flag, value]).error(2);
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn an_entry_is_made_found_and_removed() {
    let (env, _server) = world();
    env.ccm(&["registration", "init"]).ok();
    assert_eq!(
        create(&env, "10.0.0.2", "80", &[]),
        " INFO  Registration entry created cluster=prod service=web protocol=http address=10.0.0.2 port=80 priority=100\n"
    );
    let more = ["--priority", "7", "--ttl", "1m", "-A", "a=1", "-A", "b:x=y"];
    create(&env, "10.0.0.1", "8080", &more);
    let shown = env.ccm(&["registration", "query"]).ok();
    let expected = "\
Service: web @ prod

       Cluster: prod
      Protocol: http
       Service: web
       Address: 10.0.0.1
          Port: 8080
      Priority: 7
   Annotations:
                a: 1
                b: x=y

       Cluster: prod
      Protocol: http
       Service: web
       Address: 10.0.0.2
          Port: 80
      Priority: 100

";
    assert_eq!(shown, expected);
    let found = env
        .ccm(&["reg", "q", "prod", "http", "*", "10.0.0.1", "--json"])
        .json();
    assert_eq!(found.as_array().unwrap().len(), 1);
    assert_eq!(found[0]["ttl"], "1m0s");
    assert_eq!(found[0]["annotations"]["b"], "x=y");
    let yaml = env.ccm(&["reg", "query", "prod", "--yaml"]).ok();
    assert!(yaml.contains("address: 10.0.0.2"), "{yaml}");

    let rm = identity("rm", "10.0.0.2", "80");
    assert_eq!(env.ccm_with_input(&rm, "n\n").ok(), "");
    let error = env.ccm(&rm).error(1);
    assert!(
        error.starts_with("Remove registration entry prod/web/http at 10.0.0.2:80?"),
        "{error}"
    );
    assert_eq!(
        env.ccm(&["reg", "q", "--json"])
            .json()
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(
        env.ccm_with_input(&rm, "y\n").ok(),
        " INFO  Registration entry removed cluster=prod service=web protocol=http address=10.0.0.2 port=80\n"
    );
    let rm = identity("delete", "10.0.0.1", "8080");
    env.ccm(&[&rm[..], &["--force"]].concat()).ok();
    assert_eq!(env.ccm(&["reg", "query"]).ok(), "No results found\n");
    assert_eq!(env.ccm(&["reg", "query", "--json"]).ok(), "[]\n");
}

#[test]
fn unusable_registrations_are_refused_before_anything_is_sent() {
    let env = TestEnv::new();
    for (address, port, more, text) in [
        (
            "web1",
            "80",
            ["--priority", "1"],
            "address \"web1\" is not a valid Address address",
        ),
        (
            "10.0.0.1",
            "0",
            ["--priority", "1"],
            "port '0' must be between 1 and 65535",
        ),
        (
            "10.0.0.1",
            "-1",
            ["--priority", "1"],
            "port '-1' must be between 1 and 65535",
        ),
        (
            "10.0.0.1",
            "80",
            ["--priority", "256"],
            "priority '256' must be between 1 and 255",
        ),
        (
            "10.0.0.1",
            "80",
            ["--ttl", "soon"],
            "invalid TTL duration \"soon\": invalid duration",
        ),
        (
            "10.0.0.1",
            "80",
            ["--ttl", "10ms"],
            "ttl '10ms' must be 1s or more, or never",
        ),
    ] {
        let args = identity("create", address, port);
        let error = env.ccm(&[&args[..], &more].concat()).error(2);
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn a_server_that_is_away_and_a_stream_that_is_missing_are_errors() {
    let mut env = TestEnv::new();
    env.set("NATS_URL", "nats://127.0.0.1:1");
    let create = identity("create", "10.0.0.1", "80");
    let rm = [&identity("rm", "10.0.0.1", "80")[..], &["--force"]].concat();
    let commands = [
        &create[..],
        &rm,
        &["registration", "query"],
        &["registration", "watch"],
    ];
    for args in commands.into_iter().chain([&["registration", "init"][..]]) {
        let error = env.ccm(args).error(1);
        assert!(error.contains("can't connect to NATS"), "{error}");
    }
    let (env, _server) = world();
    for args in commands {
        let error = env.ccm(args).error(1);
        let hint = "\nccm: hint: run `ccm registration init`\n";
        assert!(error.ends_with(hint), "{error}");
    }
}

/// `ccm registration watch` and what it says.
struct Watching {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Watching {
    fn start(env: &TestEnv, more: &[&str]) -> Self {
        let mut child = env
            .command(&[&["registration", "watch"], more].concat())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    /// Interrupts it and returns its exit code.
    fn interrupt(mut self) -> Option<i32> {
        let id = self.child.id().to_string();
        let status = std::process::Command::new("kill")
            .args(["-INT", &id])
            .status();
        assert!(status.unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_watcher_hears_what_comes_expires_and_is_removed() {
    let (env, _server) = world();
    env.ccm(&["registration", "init"]).ok();
    create(&env, "10.0.0.1", "80", &["--ttl", "never"]);
    let mut watch = Watching::start(&env, &["prod"]);
    let on = "cluster=prod service=web protocol=http address=10.0.0.";
    assert_eq!(
        watch.line(),
        format!(" INFO  Updated entry {on}1 port=80 ttl=never")
    );
    create(&env, "10.0.0.2", "81", &["--ttl", "1s"]);
    assert_eq!(
        watch.line(),
        format!(" INFO  Updated entry {on}2 port=81 ttl=1s")
    );
    assert_eq!(
        watch.line(),
        format!(" WARN  Removed entry {on}2 reason=MaxAge")
    );
    let rm = identity("rm", "10.0.0.1", "80");
    env.ccm(&[&rm[..], &["--force"]].concat()).ok();
    assert_eq!(
        watch.line(),
        format!(" WARN  Removed entry {on}1 reason=Purge")
    );
    create(&env, "10.0.0.3", "82", &["--ttl", ""]);
    assert_eq!(watch.line(), format!(" INFO  Updated entry {on}3 port=82"));
    assert_eq!(watch.interrupt(), Some(0));
}

#[test]
fn a_watcher_that_is_a_program_gets_lines_of_json() {
    let (env, mut server) = world();
    env.ccm(&["registration", "init"]).ok();
    create(&env, "10.0.0.1", "80", &["--ttl", "never"]);
    let mut watch = Watching::start(&env, &["--json"]);
    let document = |line: String| -> Value { serde_json::from_str(&line).unwrap() };
    let first = document(watch.line());
    assert_eq!(first["action"], "register");
    assert_eq!(first["entry"]["port"], 80);
    // What is still there after a restart is not published again.
    server.restart();
    let rm = identity("rm", "10.0.0.1", "80");
    env.ccm(&[&rm[..], &["--force"]].concat()).ok();
    let second = document(watch.line());
    assert_eq!(
        (&second["action"], &second["entry"]["port"]),
        (&"remove".into(), &80.into())
    );
    // The marker itself may be gone before the watcher is back.
    let reason = second["reason"].as_str().unwrap();
    assert!(["Purge", "Unseen"].contains(&reason), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_upstream_made_works_and_can_be_repaired() {
    let (env, server) = world();
    let jetstream = server.jetstream().await;
    jetstream.create_stream(upstream_stream()).await.unwrap();
    create(&env, "10.0.0.1", "80", &[]);
    let query = || env.ccm(&["reg", "query", "--json"]).json();
    assert_eq!(query()[0]["address"], "10.0.0.1");
    assert!(!config(&server).await.allow_direct);
    env.ccm(&["reg", "init"]).ok();
    assert!(config(&server).await.allow_direct);
    assert_eq!(query()[0]["address"], "10.0.0.1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_entries_are_found_than_servers_give_at_once() {
    let (env, server) = world();
    let connection = server.client().await;
    let options = StreamOptions::default();
    connection
        .init_registrations(STREAM, options)
        .await
        .unwrap();
    let destination = Destination::Jetstream(STREAM.into());
    let register = async |number: u16| {
        let [high, low] = number.to_be_bytes();
        let entry = entry(&format!("10.0.{high}.{low}"), 80);
        connection.register(&entry, &destination).await.unwrap();
    };
    let count = async || {
        let found = connection.registrations(STREAM, [""; 4]).await.unwrap();
        assert_eq!(found.unreadable, []);
        found.entries.len()
    };
    for (from, to) in [(0, 1024), (1024, 2000)] {
        stream::iter(from..to)
            .map(register)
            .buffer_unordered(64)
            .count()
            .await;
        assert_eq!(count().await, usize::from(to));
    }
    let found = env.ccm(&["reg", "query", "--json"]).json();
    assert_eq!(found.as_array().unwrap().len(), 2000);
}

#[tokio::test]
async fn a_reader_needs_no_right_but_to_ask() {
    let rights = format!("publish: [\"$JS.API.DIRECT.GET.{STREAM}\"], subscribe: [\"_INBOX.>\"]");
    let server = NatsServer::with(&format!(
        "no_auth_user: all\nauthorization {{ users: [ {{ user: all }}, \
         {{ user: reader, password: pw, permissions: {{ {rights} }} }} ] }}"
    ));
    let all = server.client().await;
    let options = StreamOptions::default();
    all.init_registrations(STREAM, options).await.unwrap();
    let url = server.url().replace("//", "//reader:pw@");
    let settings = Settings::plain(&url).unwrap();
    let reader = connect(&settings, ConnectMode::Once(LIMIT), "test").await;
    let reader = reader.unwrap();
    let found = async || reader.registrations(STREAM, [""; 4]).await.unwrap();
    assert_eq!(found().await.entries, []);
    let destination = Destination::Jetstream(STREAM.into());
    let entry = entry("10.0.0.1", 80);
    all.register(&entry, &destination).await.unwrap();
    assert_eq!(found().await.entries, [entry]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_entry_does_not_hide_the_others() {
    let (env, server) = world();
    env.ccm(&["reg", "init"]).ok();
    create(&env, "10.0.0.1", "80", &[]);
    let raw = async_nats::connect(server.url()).await.unwrap();
    let forged = serde_json::to_string(&entry("10.0.0.66", 80)).unwrap();
    for (subject, body) in [
        ("prod.http.web.10_0_0_9.a", "{".to_owned()),
        ("prod.http.web.10_0_0_9.b", forged),
    ] {
        let subject = format!("choria.ccm.registration.v1.{subject}");
        raw.publish(subject, body.into()).await.unwrap();
    }
    raw.flush().await.unwrap();
    let outcome = env.ccm(&["reg", "query", "--json"]);
    assert_eq!(
        outcome.stderr.matches("invalid registration on ").count(),
        2,
        "{outcome:?}"
    );
    let found = outcome.json();
    assert_eq!(found.as_array().unwrap().len(), 1, "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_message_is_upstreams() {
    let (env, server) = world();
    env.ccm(&["reg", "init"]).ok();
    let raw = async_nats::connect(server.url()).await.unwrap();
    let mut messages = raw.subscribe("choria.ccm.registration.v1.>").await.unwrap();
    raw.flush().await.unwrap();
    create(&env, "10.0.0.1", "80", &["--ttl", "10m"]);
    let message = messages.next().await.unwrap();
    let headers = message.headers.unwrap();
    let header = |name: &str| headers.get(name).unwrap().as_str().to_owned();
    assert_eq!(header("Nats-TTL"), "10m0s");
    assert_eq!(header("Nats-Rollup"), "sub");
    assert_eq!(header("Nats-Expected-Stream"), "REGISTRATION");
    assert_eq!(
        std::str::from_utf8(&message.payload).unwrap(),
        r#"{"cluster":"prod","service":"web","protocol":"http","address":"10.0.0.1","port":80,"priority":100,"ttl":"10m0s"}"#
    );
}

#[test]
fn every_template_language_finds_services() {
    let (env, _server) = world();
    env.ccm(&["reg", "init", "-R", "SERVICES"]).ok();
    let annotation = ["-A", "prometheus.io/scrape=true"];
    let more = [&["-R", "SERVICES"][..], &annotation].concat();
    create(&env, "10.0.0.1", "80", &more);
    create(&env, "10.0.0.2", "81", &more);
    let rendered = |engine: &str, template: &str| {
        env.write("t", template);
        let args = ["template", "t", "--engine", engine, "-R", "SERVICES"];
        env.ccm(&args).ok()
    };
    let two = "10.0.0.1:80 10.0.0.2:81 ";
    let jet = r#"[[ range _, e := registrations("prod", "http", "web", "*") ]][[ e.Address ]]:[[ e.Port ]] [[ end ]]"#;
    assert_eq!(rendered("jet", jet), two);
    let go = r#"{{ range $e := registrations "prod" "http" "web" "*" }}{{ $e.Address }}:{{ $e.Port }} {{ end }}"#;
    assert_eq!(rendered("go", go), two);
    let jinja = "{% for e in registrations('prod', 'http', 'web', '*') %}{{ e.Address }}:{{ e.Port }} {% endfor %}";
    assert_eq!(rendered("jinja", jinja), two);
    let expr = "{{ join(map(registrations('prod','http','web','*'), .Address + ':' + string(.Port) + ' '), '') }}";
    assert_eq!(rendered("expr", expr), two);

    let targets = rendered(
        "expr",
        "{{ registrations('prod','','','').PrometheusFileSD() }}",
    );
    let groups: Value = serde_json::from_str(&targets).unwrap();
    assert_eq!(groups[0]["targets"][1], "10.0.0.2:81");
    for (engine, template) in [
        (
            "jet",
            r#"[[ registrations("prod", "", "", "").PrometheusFileSD() ]]"#,
        ),
        (
            "go",
            r#"{{ $r := registrations "prod" "" "" "" }}{{ $r.PrometheusFileSD }}"#,
        ),
        (
            "jinja",
            "{{ registrations('prod', '', '', '').PrometheusFileSD() }}",
        ),
    ] {
        assert_eq!(rendered(engine, template), targets, "{engine}");
    }
}

#[test]
fn a_lookup_that_gets_no_answer_is_an_error_and_not_an_empty_list() {
    let mut env = TestEnv::new();
    env.set("NATS_URL", "nats://127.0.0.1:1");
    env.write("t", "{{ len(registrations('*','*','*','*')) }}");
    let error = env.ccm(&["template", "t"]).error(1);
    assert!(
        error.contains("could not query registrations: can't connect"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_from_the_command_line_registers_nothing() {
    let (env, server) = world();
    env.ccm(&["reg", "init"]).ok();
    env.write("m.yaml", "ccm:\n  resources:\n    - exec:\n        - /bin/true:\n            register_when_stable:\n              - {cluster: prod, service: web, protocol: http, address: 10.0.0.1, port: '{{ 40 + 40 }}', priority: 1, ttl: \"never\"}\n");
    env.ccm(&["apply", "m.yaml"]).ok();
    let connection = server.client().await;
    let found = connection.registrations(STREAM, [""; 4]).await.unwrap();
    assert_eq!(found.entries, []);
}
