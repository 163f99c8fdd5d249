//! What a node refuses is seen wherever one looks: in the answer, in its presence and report, by
//! `fleet nodes`, `fleet drift` and rollouts, and on the page.

use ccm_core::model::node::{ASSIGNMENT, Assignment, BundleRef, NodeName};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::Connection;
use ccm_nats::request_signature::Signer;
use ccm_value::Value as Data;
use serde_json::{Value, json};

use crate::support::agent::subjects;
use crate::support::browser::Browser;
use crate::support::fleet::Fleet;
use crate::support::poll::{eventually, wait_for, when};
use crate::support::web::{Page, Web};

/// A node that trusts two signers, one with a policy, and the seeds of both and of a stranger.
struct World {
    fleet: Fleet,
    client: Connection,
    ops: Signer,
}

const NODE: &str = "web1";

async fn world() -> World {
    let mut fleet = Fleet::start(&[]);
    let signers = ["ops", "reader", "stranger"].map(|name| {
        let signer = Signer::generate();
        let seed = signer.seed().unwrap();
        fleet
            .env
            .write_secret(&format!("{name}.seed"), seed.reveal());
        signer
    });
    let [ops, reader, _] = &signers;
    let lines = format!(
        "trust:\n  signers:\n    - {{name: ops, key: {}}}\n    \
         - {{name: reader, key: {}, policy: [{{verbs: [ping, status]}}]}}\n",
        ops.public_key(),
        reader.public_key()
    );
    fleet.add(NODE, &[], &lines);
    fleet.settle(1);
    let client = fleet.server.client().await;
    let [ops, ..] = signers;
    World { fleet, client, ops }
}

impl World {
    /// Returns the list's entry of the node, once its last refusal is as expected.
    fn refusal(&self, is_expected: impl Fn(&Value) -> bool) -> Value {
        wait_for("refusal", || {
            let line = self.fleet.run(&["nodes", "--jsonl"]).ok();
            let node: Value = serde_json::from_str(&line).unwrap();
            let found = node["status"]["trust"].clone();
            when(is_expected(&found["last_refusal"]), found)
        })
    }

    /// Puts an assignment into the bucket.
    async fn assign(&self, generation: u64, by: Option<&Signer>) {
        let node: NodeName = NODE.parse().unwrap();
        let mut assignment = Assignment {
            protocol: ASSIGNMENT.into(),
            generation,
            incarnation: None,
            manifests: vec![BundleRef {
                name: "app".parse().unwrap(),
                digest: "ab".repeat(32).parse().unwrap(),
            }],
            data: Data::Null,
            noop: false,
            governor: None,
            rollout: None,
            assigned: SystemClock.now(),
            signature: None,
        };
        if let Some(signer) = by {
            signer.sign_assignment(&mut assignment, &node).unwrap();
        }
        let text = serde_json::to_vec(&assignment).unwrap();
        let desired = self.client.bucket("CCM_DESIRED").await.unwrap();
        let key = subjects().key(&node.token());
        desired.put(&key, text.into()).await.unwrap();
    }

    /// Nudges the node, with a request that it refuses.
    async fn nudge(&self) {
        let node: NodeName = NODE.parse().unwrap();
        let subject = subjects().node(&node.token(), ccm_nats::Verb::Nudge);
        let none = ccm_nats::Headers::new();
        self.client
            .publish(&subject, none, ccm_nats::Bytes::new())
            .await
            .unwrap();
    }

    /// Returns what `fleet drift` says, once it names this.
    async fn drift(&self, expected: &str) -> String {
        eventually(expected, async || {
            self.nudge().await;
            let output = self.fleet.run(&["drift"]).stdout;
            output.contains(expected).then_some(output)
        })
        .await
    }
}

#[tokio::test]
async fn a_refused_request_is_reported_with_its_reason_and_caller() {
    let world = world().await;
    let path = world.fleet.env.at("motd");
    let ensure = ["ensure", "file", &path, "--content", "x", "--node", NODE];
    let with = |seed: &'static str| [&ensure[..], &["--sign-with", seed]].concat();
    for (args, who, reason, remedy) in [
        (ensure.to_vec(), "@", "request is not signed", "--sign-with"),
        (
            with("stranger.seed"),
            "@",
            "signer is not trusted here",
            "trust: signers:",
        ),
        (with("reader.seed"), "reader", "denied by policy", "policy"),
    ] {
        let output = world.fleet.run(&args);
        assert!(output.stdout.contains("1 denied"), "{output:?}");
        assert!(output.stdout.contains(reason), "{output:?}");
        assert!(output.stdout.contains(remedy), "{output:?}");
        let trust = world.refusal(|refusal| refusal["reason"] == reason);
        assert_eq!(
            (&trust["required"], &trust["open"]),
            (&true.into(), &false.into())
        );
        let refusal = &trust["last_refusal"];
        assert_eq!(refusal["what"], "ensure", "{refusal}");
        assert!(refusal["who"].as_str().unwrap().contains(who), "{refusal}");
        let table = world.fleet.run(&["nodes"]).ok();
        assert!(table.contains(reason), "{table}");
    }
    assert!(!world.fleet.env.exists("motd"));
    world.fleet.run(&with("ops.seed")).ok();
    assert!(world.fleet.env.exists("motd"));
}

#[tokio::test]
async fn a_refused_assignment_is_shown_by_drift_nodes_and_the_page() {
    let world = world().await;
    let page = Page::serve(&world.fleet.server).settled();
    let stranger = Signer::generate();
    for (generation, by, reason) in [
        (90, None, "assignment is not signed"),
        (
            91,
            Some(&stranger),
            "signer of the assignment is not trusted here",
        ),
    ] {
        world.assign(generation, by).await;
        let output = world.drift(reason).await;
        let expected = format!("refused assignment of generation {generation}");
        assert!(output.contains(&expected), "{output}");
        assert!(output.contains("1 failed"), "{output}");
        let refusal = world.refusal(|refusal| refusal["reason"] == reason);
        assert_eq!(refusal["last_refusal"]["generation"], generation);
        page.until("/api/nodes/web1", |answer| {
            let document = answer.json();
            let note = document["node"]["note"].as_str().unwrap_or_default();
            document["node"]["state"] == "failed" && note.contains(reason)
        });
    }
    // One that is followed takes the reason away, whatever comes of it.
    world.assign(100, Some(&world.ops)).await;
    let key = subjects().key(&NODE.parse::<NodeName>().unwrap().token());
    let reported = world.client.bucket("CCM_REPORTED").await.unwrap();
    eventually("the assignment is followed", async || {
        world.nudge().await;
        let entry = reported.get(&key).await.unwrap().ok_or(Value::Null)?;
        let report: Value = serde_json::from_slice(&entry.value).unwrap();
        when(
            report["generation"] == 100 && report["refusal"].is_null(),
            report,
        )
    })
    .await;
    world.assign(3, Some(&world.ops)).await;
    world.drift("is older than the accepted 100").await;
}

#[tokio::test]
async fn a_rollout_of_a_stranger_fails_with_the_reason_of_its_nodes() {
    let world = world().await;
    let fleet = &world.fleet;
    let path = fleet.env.at("rolled");
    fleet.env.write(
        "app/manifest.yaml",
        format!("ccm:\n  resources:\n    - exec:\n        - /usr/bin/touch {path}: {{}}\n"),
    );
    let push = ["bundle", "push", &fleet.env.at("app"), "--name", "app"];
    fleet.run(&push).ok();
    let start = ["rollout", "start", "app", "--all", "--node-timeout", "25s"];
    let refused = fleet.run(&[&start[..], &["--sign-with", "stranger.seed"]].concat());
    let reason = "is not trusted here";
    assert!(refused.stdout.contains(reason), "{refused:?}");
    let all = fleet.run(&["rollout", "list", "--json"]).json();
    let id = all[0]["id"].as_str().unwrap().to_owned();
    let shown = fleet.run(&["rollout", "show", &id]).stdout;
    assert!(shown.contains(reason), "{shown}");
    assert!(!fleet.env.exists("rolled"));
    fleet
        .run(&[&start[..], &["--sign-with", "ops.seed"]].concat())
        .ok();
    assert!(fleet.env.exists("rolled"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_open_nodes_and_what_was_refused_as_text() {
    let web = Web::start().await;
    let refusal = json!({
        "time": "2027-01-15T08:00:00Z", "what": "ensure", "who": "<img src=x onerror=alert(1)>",
        "reason": "request is not signed"
    });
    let now = json!({"timestamp": "2027-01-15T08:00:10Z"});
    let mut closed = json!({"trust": {"required": true, "open": false, "last_refusal": refusal}});
    closed["timestamp"] = now["timestamp"].clone();
    web.presence("closed", closed).await;
    let open = json!({"trust": {"required": false, "open": true}});
    web.presence("opened", open).await;
    let mut browser = Browser::start();
    browser.open(&web.url("#/nodes"));
    browser.live();
    let row_holds = |node: &str, text: &str| {
        format!("document.querySelector('[data-node={node}]')?.innerText.includes({text:?})")
    };
    browser.wait(&row_holds("opened", "accepts unsigned requests"));
    browser.wait(&row_holds("closed", "request is not signed"));
    for (node, texts) in [
        ("opened", ["trust: {required: false}", "open"]),
        (
            "closed",
            ["requires signatures of trusted signers", "onerror=alert(1)"],
        ),
    ] {
        browser.open(&web.url(&format!("#/nodes/{node}")));
        for text in texts {
            browser.wait(&format!(
                "document.querySelector('main').innerText.includes({text:?})"
            ));
        }
    }
    assert_eq!(browser.errors, Vec::<String>::new());
}
