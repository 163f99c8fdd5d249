//! All storage of NATS is lost: nodes keep what they have, and accept what is new.

use ccm_core::model::node::{Assignment, NodeName, NodeReport};
use ccm_nats::streams::{DESIRED, REPORTED};
use ccm_nats::{Connection, Headers, Verb};

use crate::support::TestEnv;
use crate::support::agent::{AgentProcess, subjects};
use crate::support::nats::NatsServer;
use crate::support::poll::{eventually, wait_for, when};

/// A node, its server, and an operator with a key.
struct Site {
    env: TestEnv,
    server: NatsServer,
    agent: Option<AgentProcess>,
    /// More lines in the configuration of the node.
    lines: String,
}

const NODE: &str = "web1.lab";
const KEY: &str = "default.web1_lab";

/// Runs are started by tests only.
const LONG: &str = "interval: 1h\n";

impl Site {
    /// Starts a node that accepts everything, and assigns it the file `motd` with content `first`.
    fn start() -> Self {
        Self::with(LONG)
    }

    /// Starts a node that accepts what the operator has signed.
    fn signed() -> Self {
        let mut env = TestEnv::new();
        let key = env.ccm(&["keys", "new", "ops.seed"]).ok();
        env.set("CCM_SIGN_WITH", &env.at("ops.seed"));
        let key = key.trim();
        let lines = format!("{LONG}trust:\n  signers: [{{name: ops, key: {key}}}]\n");
        Self::with_env(env, &lines)
    }

    /// Starts a node with these lines in its configuration.
    fn with(lines: &str) -> Self {
        Self::with_env(TestEnv::new(), lines)
    }

    fn with_env(mut env: TestEnv, lines: &str) -> Self {
        let server = NatsServer::start();
        env.set("NATS_URL", &server.url());
        let mut site = Self {
            env,
            server,
            agent: None,
            lines: lines.into(),
        };
        site.fleet(&["init"]);
        site.start_agent();
        site.roll_out("first");
        site
    }

    fn fleet(&self, args: &[&str]) -> String {
        self.env.ccm(&[&["fleet"], args].concat()).ok()
    }

    fn start_agent(&mut self) {
        let agent = AgentProcess::start(&self.env, NODE, &self.server.url(), &self.lines);
        self.agent = Some(agent);
        self.wait_for_presence();
    }

    fn wait_for_presence(&self) {
        wait_for("presence", || {
            let nodes = self.fleet(&["nodes", "--jsonl"]);
            when(nodes.contains("\"idle\""), nodes)
        });
    }

    /// Assigns the file `motd` with this content.
    fn roll_out(&self, content: &str) {
        let manifest = format!(
            "ccm:\n  resources:\n    - file:\n        - {}: {{ensure: present, content: {content}, owner: root, group: root, mode: \"0644\"}}\n",
            self.env.at("motd")
        );
        self.env.write("app/manifest.yaml", manifest);
        let directory = self.env.at("app");
        self.fleet(&["bundle", "push", &directory, "--name", "app"]);
        self.fleet(&["rollout", "start", "app", "--all"]);
        assert_eq!(self.env.read("motd"), content);
    }

    /// Removes the managed file, and restarts the agent, which applies its assignment at the start.
    fn drift_and_restart(&mut self) {
        self.agent.take().unwrap().kill();
        std::fs::remove_file(self.env.path("motd")).unwrap();
        let agent = AgentProcess::start(&self.env, NODE, &self.server.url(), &self.lines);
        self.agent = Some(agent);
    }

    fn expect_content(&self, content: &str) {
        wait_for("the managed file", || {
            let found = std::fs::read_to_string(self.env.path("motd")).unwrap_or_default();
            let log = self.agent.as_ref().unwrap().log();
            when(found == content, format!("{found:?} {log}"))
        });
    }

    fn has_assignment(&self) -> bool {
        self.env.exists(&format!("{NODE}/state/assignment.json"))
    }

    async fn nudge(&self, client: &Connection) {
        let node: NodeName = NODE.parse().unwrap();
        let subject = subjects().node(&node.token(), Verb::Nudge);
        let sent = client.publish(&subject, Headers::new(), "".into());
        sent.await.unwrap();
    }

    async fn assignment(&self, client: &Connection) -> Assignment {
        let bucket = client.bucket(DESIRED).await.unwrap();
        let entry = bucket.get(KEY).await.unwrap().unwrap();
        serde_json::from_slice(&entry.value).unwrap()
    }

    async fn report(&self, client: &Connection) -> Option<NodeReport> {
        let bucket = client.bucket(REPORTED).await.unwrap();
        let entry = bucket.get(KEY).await.unwrap()?;
        serde_json::from_slice(&entry.value).unwrap()
    }
}

#[test]
fn drift_is_repaired_while_the_buckets_are_missing() {
    // The shortest interval, which is shorter than a test waits.
    let mut site = Site::with("interval: 30s\n");
    site.server.lose_storage();
    wait_for("the connection", || {
        let log = site.agent.as_ref().unwrap().log();
        when(log.contains("CCM_NODES"), log)
    });
    std::fs::remove_file(site.env.path("motd")).unwrap();
    site.expect_content("first");
}

#[tokio::test(flavor = "multi_thread")]
async fn drift_is_repaired_after_a_new_init() {
    let mut site = Site::start();
    site.server.lose_storage();
    site.fleet(&["init"]);
    let client = site.server.client().await;
    // The node has read the new, empty bucket once its report is back.
    eventually("the report", async || {
        site.nudge(&client).await;
        site.report(&client).await
    })
    .await;
    assert!(site.has_assignment(), "the assignment is gone");
    site.drift_and_restart();
    site.expect_content("first");
    assert!(site.has_assignment(), "the assignment is gone");
}

#[test]
fn a_rollout_after_a_new_init_is_followed() {
    let mut site = Site::start();
    site.roll_out("second");
    site.roll_out("third");
    site.server.lose_storage();
    site.fleet(&["init"]);
    site.wait_for_presence();
    site.roll_out("fourth");
}

#[test]
fn a_rollout_after_a_new_init_is_followed_by_a_node_that_counts_generations() {
    let mut site = Site::with("interval: 1h\ntrust: {required: false}\n");
    site.roll_out("second");
    site.roll_out("third");
    site.server.lose_storage();
    site.fleet(&["init"]);
    site.wait_for_presence();
    site.roll_out("fourth");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_rollout_after_a_new_init_is_followed_and_older_ones_are_not() {
    let mut site = Site::signed();
    site.roll_out("second");
    let client = site.server.client().await;
    let old = site.assignment(&client).await;
    site.roll_out("third");
    site.server.lose_storage();
    site.fleet(&["init"]);
    site.wait_for_presence();
    site.roll_out("fourth");
    // Whoever can write to the bucket replays what was signed before the loss, in the new
    // incarnation and with a higher generation.
    let client = site.server.client().await;
    let current = site.assignment(&client).await;
    assert_ne!(old.incarnation, current.incarnation);
    let replayed = Assignment {
        generation: current.generation + 1,
        incarnation: current.incarnation.clone(),
        ..old
    };
    let bucket = client.bucket(DESIRED).await.unwrap();
    let text = serde_json::to_vec(&replayed).unwrap();
    bucket.put(KEY, text.into()).await.unwrap();
    let report = eventually("the refusal", async || {
        site.nudge(&client).await;
        let report = site.report(&client).await.unwrap();
        when(report.refusal.is_some(), report)
    })
    .await;
    let reason = report.refusal.unwrap().reason;
    assert!(reason.contains("before the accepted decision"), "{reason}");
    site.drift_and_restart();
    site.expect_content("fourth");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_assignment_ends_if_its_key_is_removed() {
    let site = Site::start();
    let client = site.server.client().await;
    let bucket = client.bucket(DESIRED).await.unwrap();
    bucket.purge(KEY).await.unwrap();
    eventually("the end of the assignment", async || {
        site.nudge(&client).await;
        !site.has_assignment()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_removed_in_another_incarnation_ends_no_assignment() {
    let mut site = Site::start();
    site.server.lose_storage();
    site.fleet(&["init"]);
    let client = site.server.client().await;
    let bucket = client.bucket(DESIRED).await.unwrap();
    bucket.purge(KEY).await.unwrap();
    // The node has read the bucket once its report is back.
    eventually("the report", async || {
        site.nudge(&client).await;
        site.report(&client).await
    })
    .await;
    assert!(site.has_assignment(), "the assignment is gone");
    site.drift_and_restart();
    site.expect_content("first");
}

#[test]
fn a_second_init_keeps_the_incarnation() {
    let env = TestEnv::new();
    let server = NatsServer::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let init = || env.ccm(&["fleet", "init", "--server", &server.url()]).ok();
    let incarnation = || {
        runtime.block_on(async {
            let client = server.client().await;
            client.incarnation().await.unwrap().unwrap()
        })
    };
    init();
    let first = incarnation();
    init();
    assert_eq!(incarnation(), first);
}
