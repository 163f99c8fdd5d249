//! What most tests of an agent begin with: a server, a client of it, and one agent that answers.

use ccm_agent::Agent;
use ccm_agent::config::Config;
use ccm_nats::{Connection, Verb};

use super::TestEnv;
use super::agent::{self, AgentProcess};
use super::nats::NatsServer;

/// A server with the streams of a fleet, and an agent. Parts end in this order, so the agent is
/// gone before its server.
pub struct Setup<A> {
    pub agent: A,
    pub client: Connection,
    pub server: NatsServer,
    pub env: TestEnv,
}

impl Setup<Agent> {
    /// Starts an agent in this process that keeps everything below `env`.
    pub async fn inside(node: &str) -> Self {
        Self::inside_with(node, |_, _| {}).await
    }

    /// Starts an agent in this process with a changed configuration.
    pub async fn inside_with(node: &str, change: impl FnOnce(&mut Config, &TestEnv)) -> Self {
        let (env, server, client) = served().await;
        let mut config = agent::config(node, env.root());
        change(&mut config, &env);
        let agent = agent::start(&config, &server).await;
        agent::request_json(&client, node, Verb::Ping, "").await;
        Self {
            agent,
            client,
            server,
            env,
        }
    }
}

impl Setup<AgentProcess> {
    /// Starts the real program as an agent, with more lines in its file.
    pub async fn process(node: &str, lines: &str) -> Self {
        let (env, server, client) = served().await;
        let agent = AgentProcess::start(&env, node, &server.url(), lines);
        agent::request_json(&client, node, Verb::Ping, "").await;
        Self {
            agent,
            client,
            server,
            env,
        }
    }
}

async fn served() -> (TestEnv, NatsServer, Connection) {
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    (TestEnv::new(), server, client)
}
