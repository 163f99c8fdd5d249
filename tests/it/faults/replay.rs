//! Signed requests after a reboot at which the clock was wrong: none is accepted twice, and new ones
//! are accepted.

use std::os::unix::fs::FileExt as _;

use ccm_core::model::node::NodeName;
use ccm_nats::request_signature::Signer;
use ccm_nats::{Connection, Headers, Verb};
use chrono::Utc;

use crate::support::agent::{self, AgentProcess, file_request, subjects};
use crate::support::nats::NatsServer;
use crate::support::poll::{eventually, when};
use crate::support::{TestEnv, clock};

const NODE: &str = "web1.lab";

/// An agent that trusts one signer, and has a clock of its own.
struct Rebooted {
    agent: Option<AgentProcess>,
    client: Connection,
    server: NatsServer,
    signer: Signer,
    env: TestEnv,
}

impl Rebooted {
    async fn start() -> Self {
        let server = NatsServer::start();
        let client = server.client().await;
        agent::init(&client).await;
        let mut env = TestEnv::new();
        clock::fake(&mut env);
        let mut started = Self {
            agent: None,
            client,
            server,
            signer: Signer::generate(),
            env,
        };
        started.start_agent().await;
        started
    }

    async fn start_agent(&mut self) {
        let key = self.signer.public_key();
        // Longer than any test takes.
        let lines =
            format!("trust:\n  clock_skew: 1h\n  signers:\n    - {{name: ops, key: {key}}}\n");
        let (env, url) = (&self.env, self.server.url());
        self.agent = Some(AgentProcess::start(env, NODE, &url, &lines));
        // Refused, because it is not signed, but answered.
        agent::request(&self.client, NODE, Verb::Ping, Headers::new(), "").await;
    }

    /// Kills the agent and starts it as after a reboot, with another clock.
    async fn reboot(&mut self, offset: &str) {
        self.agent.take().unwrap().kill();
        // The digest of the boot id: the file was written before another boot.
        let path = self.env.path("web1.lab/state/seen");
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.write_all_at(&[0x5a; 32], 8).unwrap();
        clock::jump(&self.env, offset);
        self.start_agent().await;
    }

    /// Returns a request for a file, signed now.
    fn signed(&self) -> (Headers, String) {
        let body = file_request(&self.env.path("file"), "x");
        let node: NodeName = NODE.parse().unwrap();
        let subject = subjects().node(&node.token(), Verb::Ensure);
        let mut headers = Headers::new();
        let signed = self
            .signer
            .sign_at(Utc::now(), &subject, &mut headers, body.as_bytes());
        signed.unwrap();
        (headers, body)
    }

    /// Sends a request, and returns why it was refused; an empty text if it was accepted.
    async fn refusal(&self, (headers, body): &(Headers, String)) -> String {
        let headers = headers.clone();
        let reply = agent::request(&self.client, NODE, Verb::Ensure, headers, body).await;
        let error = reply.service_error();
        error.map_or_else(String::new, |(_, text)| text.to_string())
    }
}

#[tokio::test]
async fn a_signed_request_is_accepted_once_although_the_clock_was_behind_at_a_reboot() {
    let mut node = Rebooted::start().await;
    let request = node.signed();
    assert_eq!(node.refusal(&request).await, "");
    node.reboot("-1d").await;
    clock::jump(&node.env, "+0d");
    let refusal = node.refusal(&request).await;
    assert_eq!(refusal, "denied: request was seen before");
}

#[tokio::test]
async fn signed_requests_are_accepted_although_the_clock_was_ahead_at_a_reboot() {
    let mut node = Rebooted::start().await;
    assert_eq!(node.refusal(&node.signed()).await, "");
    node.reboot("+1d").await;
    clock::jump(&node.env, "+0d");
    // Not within the second of the last accepted one: expiry is kept in whole seconds.
    eventually("an accepted request", async || {
        let refusal = node.refusal(&node.signed()).await;
        when(refusal.is_empty(), refusal)
    })
    .await;
}
