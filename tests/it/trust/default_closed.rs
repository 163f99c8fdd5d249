//! An agent whose file says nothing about trust obeys servers on its own machine and no others.

use ccm_core::model::node::{ASSIGNMENT, NodeName};
use ccm_nats::request_signature::Signer;
use ccm_nats::{Connection, Headers, Verb};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::agent::{self, AgentProcess, file_request, request, subjects};
use crate::support::namespace::{ADDRESS, inside};
use crate::support::nats::NatsServer;
use crate::support::poll::{eventually, when};

/// Sends a request to a node and returns the code and the reply.
async fn request_with_code(
    client: &Connection,
    node: &str,
    verb: Verb,
    body: &str,
) -> (u16, Value) {
    let reply = request(client, node, verb, Headers::new(), body).await;
    let code = reply.service_error().map_or(200, |(code, _)| code);
    (code, serde_json::from_slice(&reply.body).unwrap())
}

/// Returns one order of each verb, made for a file.
fn orders(env: &TestEnv, name: &str) -> Vec<(Verb, String)> {
    let path = env.path(name);
    let apply = json!({
        "protocol": "io.choria.ccm.v1.manifest.apply.request",
        "manifest": {"ccm": {"resources": [{"exec": [
            {format!("/usr/bin/touch {}", path.display()): {}}
        ]}]}},
        "wait": true,
    });
    vec![
        (Verb::Ensure, file_request(&path, "hi\n")),
        (Verb::Apply, apply.to_string()),
        (Verb::Pause, r#"{"reason":"test"}"#.into()),
        (Verb::Resume, String::new()),
        (Verb::Cancel, "2bYsAaoKXa1Ug8y6zLQ0bF3Vq7x".into()),
    ]
}

/// Puts an assignment into the bucket, and says so.
async fn assign(client: &Connection, node: &str, generation: u64) {
    let name: NodeName = node.parse().unwrap();
    let assignment = json!({
        "protocol": ASSIGNMENT, "generation": generation, "manifests": [],
        "assigned": "2027-01-15T08:00:00Z",
    });
    let desired = client.bucket("CCM_DESIRED").await.unwrap();
    let key = subjects().key(&name.token());
    desired
        .put(&key, assignment.to_string().into())
        .await
        .unwrap();
    request(client, node, Verb::Nudge, Headers::new(), "").await;
}

/// Returns the report of a node, once it is as expected.
async fn report(client: &Connection, node: &str, is_expected: impl Fn(&Value) -> bool) -> Value {
    let name: NodeName = node.parse().unwrap();
    let reported = client.bucket("CCM_REPORTED").await.unwrap();
    let key = subjects().key(&name.token());
    eventually("the report", async || {
        let entry = reported.get(&key).await.unwrap()?;
        let report: Value = serde_json::from_slice(&entry.value).unwrap();
        is_expected(&report).then_some(report)
    })
    .await
}

/// Checks that a text names what fixes it.
fn names_the_remedy(text: &str) {
    for part in [
        "ccm keys",
        "trust:",
        "signers:",
        "required: false",
        "agent.yaml",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Checks that a node refuses every order, and says so wherever one looks.
async fn refuses_orders(client: &Connection, env: &TestEnv, node: &str, running: &AgentProcess) {
    for (verb, body) in orders(env, "refused") {
        let (code, answer) = request_with_code(client, node, verb, &body).await;
        assert_eq!(code, 403, "{verb}: {answer}");
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains(ADDRESS), "{error}");
        names_the_remedy(error);
    }
    assert!(!env.exists("refused"));
    let (code, status) = request_with_code(client, node, Verb::Ping, "").await;
    assert_eq!(code, 200, "{status}");
    assert!(status["pause"].is_null(), "{status}");
    assert_eq!(status["trust"]["required"], true, "{status}");
    assert_eq!(status["trust"]["open"], false, "{status}");
    assert_eq!(status["trust"]["last_refusal"]["what"], "cancel");
    assert_eq!(
        request_with_code(client, node, Verb::Facts, "").await.0,
        200
    );
    assign(client, node, 7).await;
    let report = report(client, node, |report| report["refusal"]["generation"] == 7).await;
    assert_eq!(report["generation"], 0, "{report}");
    names_the_remedy(report["refusal"]["reason"].as_str().unwrap());
    let log = running.log();
    let line = log.lines().find(|line| line.contains("Request denied"));
    names_the_remedy(line.unwrap_or_else(|| panic!("{log}")));
    let line = log.lines().find(|line| line.contains("assignment"));
    names_the_remedy(line.unwrap_or_else(|| panic!("{log}")));
}

/// Checks that a node obeys orders.
async fn obeys(client: &Connection, env: &TestEnv, node: &str) {
    let file = format!("{node}.txt");
    for (verb, body) in orders(env, &file) {
        let expected = match verb {
            Verb::Cancel => 404,
            _ => 200,
        };
        // A node is paused and resumed in turn.
        let (code, answer) = request_with_code(client, node, verb, &body).await;
        assert_eq!(code, expected, "{verb}: {answer}");
    }
    assert_eq!(env.read(&file), "hi\n");
    assign(client, node, 7).await;
    report(client, node, |report| report["generation"] == 7).await;
}

#[test]
fn an_agent_without_trust_obeys_only_servers_on_its_own_machine() {
    let name =
        "trust::default_closed::an_agent_without_trust_obeys_only_servers_on_its_own_machine";
    inside(name, async || {
        let server = NatsServer::on_all_addresses("");
        let client = server.client().await;
        agent::init(&client).await;
        // Agents take their server from their file.
        let env = TestEnv::new();
        let mut operator = TestEnv::new();
        operator.set("NATS_URL", &server.url());
        let far = server.url_at(ADDRESS);
        let signer = Signer::generate();
        let seed = signer.seed().unwrap();
        operator.write_secret("ops.seed", seed.reveal());
        let signers = format!(
            "trust:\n  signers: [{{name: ops, key: {}}}]\n",
            signer.public_key()
        );
        let open = "trust: {required: false}\n";
        let closed = AgentProcess::start(&env, "closed", &far, "");
        let _local = AgentProcess::start(&env, "local", &server.url(), "");
        let _named = AgentProcess::start(&env, "named", &server.url_at("localhost"), "");
        let opened = AgentProcess::start(&env, "opened", &far, open);
        let _signed = AgentProcess::start(&env, "signed", &far, &signers);

        refuses_orders(&client, &env, "closed", &closed).await;
        for node in ["local", "named", "opened"] {
            obeys(&client, &env, node).await;
        }
        let log = opened.log();
        let warned = |line: &str| line.contains("WARN") && line.contains("required: false");
        assert!(log.lines().any(warned), "{log}");

        // With the lines that the refusal names, and a signature, it is obeyed.
        let path = env.at("signed.txt");
        let ensure = [
            "fleet",
            "ensure",
            "file",
            &path,
            "--content",
            "hi\n",
            "--node",
            "signed",
        ];
        let output = operator.ccm(&ensure);
        assert!(
            output.stdout.contains("request is not signed"),
            "{output:?}"
        );
        assert!(output.stdout.contains("--sign-with"), "{output:?}");
        operator
            .ccm(&[&ensure[..], &["--sign-with", "ops.seed"]].concat())
            .ok();
        assert!(env.exists("signed.txt"));

        let row_holds = |node: &str, text: &str| {
            let table = operator.ccm(&["fleet", "nodes"]).ok();
            let row = table.lines().find(|row| row.starts_with(node));
            let holds = row.unwrap_or_else(|| panic!("{table}")).contains(text);
            when(holds, table)
        };
        for (node, text) in [
            ("opened", "accepts unsigned requests"),
            ("closed", "refused assignment of generation 7"),
        ] {
            eventually(text, async || row_holds(node, text)).await;
        }
        assert!(row_holds("local", "unsigned").is_err());
    });
}

/// A cluster announces other servers to its clients; a client that moves to one is not on loopback
/// any more.
#[test]
fn an_agent_that_was_led_to_a_server_elsewhere_is_closed() {
    let name = "trust::default_closed::an_agent_that_was_led_to_a_server_elsewhere_is_closed";
    inside(name, async || {
        let routes = [6222, 6223];
        let cluster = |number: usize| {
            let urls = routes.map(|port| format!("\"nats://127.0.0.1:{port}\""));
            NatsServer::on_all_addresses(&format!(
                "server_name: n{number}\n\
                 cluster {{ name: c, listen: \"127.0.0.1:{}\", routes: [{}] }}",
                routes[number],
                urls.join(", ")
            ))
        };
        let (mut first, second) = (cluster(0), cluster(1));
        let env = TestEnv::new();
        let running = AgentProcess::start(&env, "led", &first.url(), "");
        let client = first.client().await;
        let body = file_request(&env.path("before"), "hi\n");
        let (code, answer) = request_with_code(&client, "led", Verb::Ensure, &body).await;
        assert_eq!(code, 200, "{answer}");
        // Each server announces the other once they are connected.
        let known_urls = async || -> Vec<String> {
            let raw = async_nats::connect(first.url()).await.unwrap();
            let other = format!("{ADDRESS}:");
            let urls = raw.server_info().connect_urls.into_iter();
            urls.filter(|url| url.starts_with(&other)).collect()
        };
        eventually("the cluster", async || {
            let urls = known_urls().await;
            when(urls.len() == 2, urls)
        })
        .await;

        first.stop();
        let client = second.client().await;
        let body = file_request(&env.path("after"), "hi\n");
        let (code, answer) = request_with_code(&client, "led", Verb::Ensure, &body).await;
        assert_eq!(code, 403, "{answer}\n{}", running.log());
        names_the_remedy(answer["error"].as_str().unwrap());
        assert!(!env.exists("after"));
    });
}
