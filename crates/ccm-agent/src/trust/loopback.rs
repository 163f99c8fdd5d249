//! What an agent obeys whose file says nothing about trust: servers on its own machine.
//!
//! Whoever can reach such a server has an account on the machine; whoever can reach any other may
//! be anyone in the network, and an order is root. So orders count only while every server in the
//! agent's file, and every one it was connected to since it started, is on loopback. That stays
//! decided until the agent restarts: what another server sent may still wait in a queue.

use parking_lot::Mutex;

use ccm_nats::{Connection, NatsError, Verb};

/// Why an order is refused where nothing says whom to trust.
#[derive(Debug, thiserror::Error)]
pub enum NoTrust {
    #[error(
        "agent.yaml names no trusted signers, and NATS server {server} is not on this machine: make a key \
         with \"ccm keys new ops.seed\", add \"trust:\" and \"  signers: [{{name: ops, key: U...}}]\" to \
         agent.yaml, and sign with --sign-with ops.seed; or add \"trust: {{required: false}}\" to obey \
         whoever this server lets through"
    )]
    Remote { server: String },
    #[error(
        "agent.yaml names no trusted signers, and which NATS server this came from is not known"
    )]
    Unknown(#[source] NatsError),
}

/// Reports whether a verb makes the node do something that only trusted callers may ask for.
pub fn is_order(verb: Verb) -> bool {
    match verb {
        Verb::Ensure | Verb::Apply | Verb::Pause | Verb::Resume | Verb::Cancel => true,
        Verb::Status | Verb::Facts | Verb::Ping | Verb::Nudge => false,
    }
}

/// Decides for an agent without `trust`.
pub struct LoopbackOnly {
    connection: Connection,
    /// The server that was found not to be on this machine.
    remote: Mutex<Option<String>>,
}

impl LoopbackOnly {
    pub fn new(connection: Connection) -> Self {
        let configured = connection.configured_remote_server();
        Self {
            remote: Mutex::new(configured.map(str::to_owned)),
            connection,
        }
    }

    /// Says whether an order that arrived before this is asked may be obeyed.
    pub async fn check(&self) -> Result<(), NoTrust> {
        if let Some(server) = self.remote() {
            return Err(NoTrust::Remote { server });
        }
        match self.connection.remote_server().await {
            Ok(None) => Ok(()),
            Ok(Some(server)) => {
                *self.remote.lock() = Some(server.clone());
                Err(NoTrust::Remote { server })
            }
            Err(err) => Err(NoTrust::Unknown(err)),
        }
    }

    /// Returns the server that is not on this machine, as far as that was found out.
    pub fn remote(&self) -> Option<String> {
        self.remote.lock().clone()
    }
}
