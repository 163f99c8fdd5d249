//! Rollouts under attack: whoever can write the buckets can't change what was signed, neither for
//! the controllers that drive a rollout nor for the nodes that follow their assignments.
//!
//! Every bundle here appends its name to a file of each node, so a file tells what its node ran.

use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};

use ccm_core::model::rollout::Rollout;
use ccm_fleet::decision;
use ccm_nats::request_signature::Signer;
use serde_json::{Value, json};

use crate::support::fleet::Fleet;
use crate::support::poll::{wait_for, when};
use crate::support::{Outcome, TestEnv};

/// What a node logs of an assignment that it does not follow.
const REFUSED: &str = "Not following the assignment";

/// Why a change is refused, and the change.
type Change<'a> = (&'a str, &'a dyn Fn(&mut Value));

/// A fleet whose nodes require the signature of one key, which signs all that `ask` sends.
struct Signed {
    fleet: Fleet,
    key: String,
    /// Where nobody has a key.
    other: TestEnv,
}

impl Signed {
    fn start(nodes: &[&str]) -> Self {
        let mut fleet = Fleet::start(&[]);
        let seed = fleet.env.at("ops.seed");
        let key = fleet.env.ccm(&["keys", "new", &seed]).ok();
        let key = key.trim().to_owned();
        let trust = format!("trust:\n  signers:\n    - {{name: ops, key: {key}}}\n");
        for node in nodes {
            fleet.add(node, &[], &trust);
        }
        fleet.env.set("CCM_SIGN_WITH", &seed);
        fleet.settle(nodes.len());
        let mut other = TestEnv::new();
        other.set("NATS_URL", &fleet.server.url());
        Self { fleet, key, other }
    }

    fn ask(&self, args: &[&str]) -> Outcome {
        self.fleet.ask(args)
    }

    /// Asks as somebody who has no key.
    fn ask_unsigned(&self, args: &[&str]) -> Outcome {
        let mut all = vec!["fleet"];
        all.extend(args);
        self.other.ccm(&all)
    }

    /// Stores a bundle that runs `first` on each node and then notes the bundle's name. Returns
    /// what it is known by.
    fn push_after(&self, name: &str, first: &str) -> Value {
        let log = self.fleet.env.at("{{ Facts.node }}.log");
        let manifest = format!(
            "ccm:\n  resources:\n    - exec:\n        - run:\n            provider: shell\n            \
             command: \"{first} && echo {name} >> {log}\"\n"
        );
        let file = format!("{name}/manifest.yaml");
        let file = self.fleet.env.write(&file, manifest);
        let directory = file.trim_end_matches("/manifest.yaml");
        let pushed = self.ask(&["bundle", "push", directory, "--name", name, "--json"]);
        json!({"name": name, "digest": pushed.json()["digest"]})
    }

    fn push(&self, name: &str) -> Value {
        self.push_after(name, "true")
    }

    /// Returns what a node ran, in order.
    fn ran(&self, node: &str) -> Vec<String> {
        let name = format!("{node}.log");
        if !self.fleet.env.exists(&name) {
            return Vec::new();
        }
        let log = self.fleet.env.read(&name);
        log.lines().map(str::to_owned).collect()
    }

    /// Takes a bundle to node a and returns the rollout's id.
    fn roll_out(&self, bundle: &str) -> String {
        let done = self.ask(&["rollout", "start", bundle, "--node", "a", "--json"]);
        id(&done.json())
    }

    /// Stores a rollout to node a that nobody drives yet, and returns its id.
    fn detached(&self, bundle: &str) -> String {
        let args = [
            "rollout", "start", bundle, "--node", "a", "--detach", "--json",
        ];
        id(&self.ask(&args).json())
    }

    fn state(&self, id: &str) -> Value {
        self.ask(&["rollout", "show", id, "--json"]).json()["state"].clone()
    }

    /// Returns a value from a bucket.
    async fn read(&self, bucket: &str, key: &str) -> Value {
        let jetstream = self.fleet.server.jetstream().await;
        let bucket = jetstream.get_key_value(bucket).await.unwrap();
        let stored = bucket.get(format!("default.{key}")).await.unwrap();
        serde_json::from_slice(&stored.unwrap()).unwrap()
    }

    /// Writes a value to a bucket, as whoever has the right to can.
    async fn write(&self, bucket: &str, key: &str, value: &Value) {
        let jetstream = self.fleet.server.jetstream().await;
        let bucket = jetstream.get_key_value(bucket).await.unwrap();
        let key = format!("default.{key}");
        bucket.put(key, value.to_string().into()).await.unwrap();
    }

    async fn tamper(&self, id: &str, change: impl Fn(&mut Value)) {
        let mut rollout = self.read("CCM_ROLLOUTS", id).await;
        change(&mut rollout);
        self.write("CCM_ROLLOUTS", id, &rollout).await;
    }

    /// Assigns something to a node as a controller would that obeys nobody.
    async fn assign(&self, node: &str, assignment: &Value) {
        self.write("CCM_DESIRED", node, assignment).await;
        let client = async_nats::connect(self.fleet.server.url()).await.unwrap();
        let subject = format!("ccm.v1.default.node.{node}.nudge");
        client.publish(subject, "".into()).await.unwrap();
        client.flush().await.unwrap();
    }

    /// Assigns something to a node that must refuse it for this reason.
    async fn refused(&self, node: &str, assignment: &Value, reason: &str) {
        let lines = || -> Vec<String> {
            let log = self.fleet.log(node);
            let refused = log.lines().filter(|line| line.contains(REFUSED));
            refused.map(str::to_owned).collect()
        };
        let (before, ran) = (lines().len(), self.ran(node));
        self.assign(node, assignment).await;
        wait_for("refusal", || match lines().get(before) {
            Some(line) if line.contains(reason) => Ok(()),
            Some(line) => panic!("{reason}: {line}"),
            None => Err(self.fleet.log(node)),
        });
        assert_eq!(self.ran(node), ran, "{reason}");
    }
}

fn id(rollout: &Value) -> String {
    rollout["id"].as_str().unwrap().to_owned()
}

/// Returns an assignment with a higher generation and one more change.
fn altered(assignment: &Value, change: impl FnOnce(&mut Value)) -> Value {
    let mut altered = assignment.clone();
    let generation = altered["generation"].as_u64().unwrap();
    // The same refusal twice is logged once.
    let step = ALTERED.fetch_add(1, Ordering::Relaxed);
    altered["generation"] = json!(generation + 10 + step);
    change(&mut altered);
    altered
}

/// How many assignments were altered.
static ALTERED: AtomicU64 = AtomicU64::new(0);

#[tokio::test]
async fn a_controller_hands_out_only_what_was_signed() {
    let signed = Signed::start(&["a", "b"]);
    signed.push("good");
    let evil = signed.push("evil");
    let changes: [Change<'_>; 9] = [
        ("bundle, data", &|it| it["bundle"] = evil.clone()),
        ("bundle, data", &|it| it["data"] = json!({"a": 1})),
        ("bundle, data", &|it| it["noop"] = json!(true)),
        ("bundle, data", &|it| {
            it["settings"]["governor"] = json!({"name": "deploys", "timeout": "1m"});
        }),
        ("plan or limits", &|it| {
            it["plan"]["waves"][0]["nodes"] = json!(["a", "b"]);
        }),
        ("plan or limits", &|it| {
            it["settings"]["budget"]["max_failures"] = json!(100);
        }),
        ("list of nodes or previous assignments", &|it| {
            it["previous_digests"] = json!({"ab".repeat(32): ["a"]});
        }),
        ("time of creation", &|it| {
            it["created"] = json!("2037-01-15T08:00:00Z");
        }),
        ("not signed", &|it| {
            it["decision"].take();
        }),
    ];
    for (reason, change) in changes {
        let id = signed.detached("good");
        signed.tamper(&id, change).await;
        let outcome = signed.ask(&["rollout", "drive", &id]);
        assert_eq!(outcome.code, Some(3), "{reason}: {outcome:?}");
        let state = signed.state(&id);
        assert_eq!(state["name"], "halted", "{reason}");
        let said = state["reason"].as_str().unwrap();
        assert!(said.contains(reason), "{reason}: {said}");
    }
    // One that is signed anew by a stranger fits, but not for whoever lists signers.
    let id = signed.detached("good");
    let stored = signed.read("CCM_ROLLOUTS", &id).await;
    let mut rollout: Rollout = serde_json::from_value(stored).unwrap();
    rollout.bundle = serde_json::from_value(evil).unwrap();
    decision::sign(&mut rollout, &Signer::generate()).unwrap();
    let forged = serde_json::to_value(&rollout).unwrap();
    signed.write("CCM_ROLLOUTS", &id, &forged).await;
    let args = ["rollout", "drive", &id, "--trust-signer", &signed.key];
    assert_eq!(signed.ask_unsigned(&args).code, Some(3));
    let said = signed.state(&id).to_string();
    assert!(said.contains("is not trusted"), "{said}");
    for node in ["a", "b"] {
        assert_eq!(signed.ran(node), [""; 0]);
    }
}

#[tokio::test]
async fn a_rollout_under_the_name_of_another_is_refused() {
    let signed = Signed::start(&["a"]);
    signed.push("one");
    signed.push("two");
    let one = signed.roll_out("one");
    let two = signed.detached("two");
    let stored = signed.read("CCM_ROLLOUTS", &one).await;
    signed.write("CCM_ROLLOUTS", &two, &stored).await;
    let said = signed.ask(&["rollout", "drive", &two]).error(1);
    assert!(said.contains(&format!("holds rollout {one}")), "{said}");
}

#[tokio::test]
async fn a_node_follows_only_what_was_signed() {
    let signed = Signed::start(&["a", "b"]);
    signed.push("one");
    signed.push("two");
    let evil = signed.push("evil");
    signed.roll_out("one");
    let one = signed.read("CCM_DESIRED", "a").await;
    let content = "assignment is not the one signed";
    let changes: [Change<'_>; 8] = [
        (content, &|it| it["manifests"] = json!([evil.clone()])),
        (content, &|it| it["data"] = json!({"a": 1})),
        (content, &|it| it["noop"] = json!(true)),
        (content, &|it| it["governor"] = json!({"name": "deploys"})),
        (content, &|it| it["rollout"] = json!("other")),
        ("not a member", &|it| {
            it["signature"]["member"]["wave"] = json!(1);
        }),
        ("signature does not match", &|it| {
            it["signature"]["member"]["decision"]["created"] = json!("2037-01-15T08:00:00Z");
        }),
        ("assignment is not signed", &|it| {
            it["signature"].take();
        }),
    ];
    for (reason, change) in changes {
        signed.refused("a", &altered(&one, change), reason).await;
    }
    // The decision is good, but not for this node.
    signed.refused("b", &one, "not a member").await;
    // What was decided earlier does not come back, whatever its generation.
    signed.assign("a", &one).await;
    signed.roll_out("two");
    assert_eq!(signed.ran("a"), ["one", "two"]);
    signed
        .refused("a", &altered(&one, |_| {}), "before the accepted decision")
        .await;
}

#[tokio::test]
async fn what_a_stranger_signed_is_followed_by_no_node() {
    let signed = Signed::start(&["a"]);
    signed.push("good");
    let id = signed.detached("good");
    let stored = signed.read("CCM_ROLLOUTS", &id).await;
    let mut rollout: Rollout = serde_json::from_value(stored).unwrap();
    decision::sign(&mut rollout, &Signer::generate()).unwrap();
    let forged = serde_json::to_value(&rollout).unwrap();
    signed.write("CCM_ROLLOUTS", &id, &forged).await;
    // A controller without a list of signers hands it out; the node has one.
    let mut evil = signed
        .other
        .command(&["fleet", "rollout", "drive", &id])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("refusal", || {
        let log = signed.fleet.log("a");
        let is_refused = log.contains("signer of rollout");
        when(is_refused, log)
    });
    evil.kill().unwrap();
    evil.wait().unwrap();
    assert_eq!(signed.ran("a"), [""; 0]);
}

#[tokio::test]
async fn nobody_locks_a_node_with_a_generation() {
    let signed = Signed::start(&["a"]);
    signed.push("one");
    signed.push("two");
    signed.roll_out("one");
    let mut one = signed.read("CCM_DESIRED", "a").await;
    one["generation"] = json!(1_u64 << 62);
    signed.assign("a", &one).await;
    wait_for("second run", || {
        let ran = signed.ran("a");
        (ran == ["one", "one"]).then_some(()).ok_or(ran.join(" "))
    });
    one["generation"] = json!(7);
    signed.assign("a", &one).await;
    wait_for("third run", || {
        let ran = signed.ran("a");
        (ran.len() == 3).then_some(()).ok_or(ran.join(" "))
    });
    signed.roll_out("two");
    assert_eq!(signed.ran("a"), ["one", "one", "one", "two"]);
}

#[tokio::test]
async fn a_signed_rollback_restores_what_was_there_and_nothing_else() {
    let signed = Signed::start(&["a"]);
    for name in ["one", "two", "three"] {
        signed.push(name);
    }
    let evil = signed.push("evil");
    signed.roll_out("one");
    let two = signed.roll_out("two");
    let assigned_two = signed.read("CCM_DESIRED", "a").await;
    // Without a key nobody rolls back, neither by command nor by hand.
    let rollback = ["rollout", "rollback", &two];
    let said = signed.ask_unsigned(&rollback).error(2);
    assert!(said.contains("its rollback must be signed"), "{said}");
    let done = signed.read("CCM_ROLLOUTS", &two).await;
    let set_back = |it: &mut Value| it["state"] = json!({"name": "rolling_back"});
    signed.tamper(&two, set_back).await;
    assert_eq!(signed.ask(&["rollout", "drive", &two]).code, Some(3));
    let said = signed.state(&two).to_string();
    assert!(said.contains("rollback not signed"), "{said}");
    // Something else in place of what was there.
    signed.write("CCM_ROLLOUTS", &two, &done).await;
    signed
        .tamper(&two, |it| {
            it["previous"][0]["assignment"]["manifests"] = json!([evil.clone()]);
        })
        .await;
    assert_eq!(signed.ask(&rollback).code, Some(3));
    let said = signed.state(&two).to_string();
    assert!(said.contains("previous assignment of node a"), "{said}");
    assert_eq!(signed.ran("a"), ["one", "two"]);
    // As it was.
    signed.write("CCM_ROLLOUTS", &two, &done).await;
    signed.ask(&rollback).ok();
    wait_for("what was there", || {
        let ran = signed.ran("a");
        (ran == ["one", "two", "one"])
            .then_some(())
            .ok_or(signed.fleet.log("a"))
    });
    let restored = signed.read("CCM_DESIRED", "a").await;
    let changes: [Change<'_>; 4] = [
        ("not the signed one from before", &|it| {
            it["manifests"] = json!([evil.clone()]);
        }),
        ("does not match the rollback", &|it| {
            it["signature"]["rollback"]["decided"] = json!("2037-01-15T08:00:00Z");
        }),
        ("assignment is not signed", &|it| {
            it["signature"]["origin"].take();
        }),
        ("not a member", &|it| {
            it["signature"]["member"]["previous"].take();
        }),
    ];
    for (reason, change) in changes {
        signed
            .refused("a", &altered(&restored, change), reason)
            .await;
    }
    let again = altered(&assigned_two, |_| {});
    signed
        .refused("a", &again, "before the accepted decision")
        .await;
    // What was restored can be replaced and restored again.
    signed.assign("a", &restored).await;
    let three = signed.roll_out("three");
    assert_eq!(signed.ran("a"), ["one", "two", "one", "three"]);
    signed
        .refused("a", &altered(&restored, |_| {}), "before the accepted decision")
        .await;
    signed.ask(&["rollout", "rollback", &three]).ok();
    // What was put there by hand is what was there before, so there is nothing to do.
    assert_eq!(signed.state(&three)["name"], "rolled_back");
}

#[tokio::test]
async fn rollouts_can_be_rolled_back_one_after_the_other() {
    let signed = Signed::start(&["a"]);
    for name in ["one", "two", "three"] {
        signed.push(name);
    }
    let roll_back = |id: &str, expected: &[&str]| {
        signed.ask(&["rollout", "rollback", id]).ok();
        wait_for("what was there", || {
            let ran = signed.ran("a");
            (ran == expected)
                .then_some(())
                .ok_or_else(|| signed.fleet.log("a"))
        });
    };
    let one = signed.roll_out("one");
    let two = signed.roll_out("two");
    roll_back(&two, &["one", "two", "one"]);
    let three = signed.roll_out("three");
    let two = signed.roll_out("two");
    let ran = ["one", "two", "one", "three", "two", "three", "one"];
    roll_back(&two, &ran[..6]);
    roll_back(&three, &ran);
    // Before the first one there was nothing.
    roll_back(&one, &ran);
    wait_for("nothing", || {
        let report = signed.ask(&["drift", "--json"]).stdout;
        let drift: Value = serde_json::from_str(&report).unwrap();
        let nodes = drift["nodes"].as_array().unwrap();
        let is_nothing = nodes
            .iter()
            .all(|it| it["manifests"].as_array().is_none_or(Vec::is_empty));
        when(is_nothing, report)
    });
    let log = signed.fleet.log("a");
    assert!(!log.contains(REFUSED), "{log}");
    assert_eq!(signed.ran("a"), ran);
}

#[tokio::test]
async fn controllers_without_a_key_drive_retry_and_resume_what_is_signed() {
    let signed = Signed::start(&["a", "b"]);
    let flag = signed.fleet.env.at("flag");
    signed.push_after("app", &format!("test -e {flag}"));
    let args = [
        "rollout", "start", "app", "--all", "--wave", "1", "--detach", "--json",
    ];
    let id = id(&signed.ask(&args).json());
    let drive = ["rollout", "drive", &id, "--trust-signer", &signed.key];
    assert_eq!(signed.ask_unsigned(&drive).code, Some(3));
    signed.fleet.env.write("flag", "");
    let retried = signed.ask_unsigned(&["rollout", "retry", &id, "--detach"]);
    retried.ok();
    signed.ask_unsigned(&["rollout", "pause", &id]).ok();
    signed.ask_unsigned(&["rollout", "resume", &id]).ok();
    for node in ["a", "b"] {
        assert_eq!(signed.ran(node), ["app"]);
    }
}

#[tokio::test]
async fn an_unsigned_rollout_to_nodes_that_require_signatures_does_not_start() {
    let signed = Signed::start(&["a"]);
    signed.push("one");
    let said = signed
        .ask_unsigned(&["rollout", "start", "one", "--all"])
        .error(2);
    assert!(
        said.contains("1 of the nodes require signatures, such as a"),
        "{said}"
    );
    assert!(said.contains("--sign-with"), "{said}");
    let all = signed.ask(&["rollout", "list", "--json"]).json();
    assert_eq!(all, json!([]));
    signed.roll_out("one");
    assert_eq!(signed.ran("a"), ["one"]);
}
