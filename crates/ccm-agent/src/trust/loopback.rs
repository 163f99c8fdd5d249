//! Loopback trust: decides which requests are accepted without a `trust` section.
//!
//! Access to a NATS server on this machine requires access to the machine; any other server may
//! relay requests from anywhere in the network, and a request can run commands as root. So requests
//! that change something are accepted only while all configured servers, and all servers connected
//! to since the agent started, are on loopback. A remote server locks them until the agent
//! restarts: its messages may still be queued.

use parking_lot::Mutex;

use ccm_nats::{Connection, NatsError, Verb};

/// Why a request is refused without a `trust` section.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoopbackError {
    #[error(
        "agent.yaml names no trusted signers, and NATS server {server} is not on this machine: make a key \
         with \"ccm keys new ops.seed\", add \"trust:\" and \"  signers: [{{name: ops, key: U...}}]\" to \
         agent.yaml, and sign with --sign-with ops.seed; or add \"trust: {{required: false}}\" to accept \
         every client of this server"
    )]
    Remote { server: String },
    #[error("agent.yaml names no trusted signers, and the NATS server of this request is unknown")]
    Unknown(#[source] NatsError),
}

/// Reports whether a verb changes the node, which only trusted requesters may do.
pub(crate) fn requires_trust(verb: Verb) -> bool {
    match verb {
        Verb::Ensure | Verb::Apply | Verb::Pause | Verb::Resume | Verb::Cancel => true,
        Verb::Status | Verb::Facts | Verb::Ping | Verb::Nudge => false,
    }
}

/// Loopback check of an agent without a `trust` section.
pub(crate) struct LoopbackOnly {
    connection: Connection,
    /// First server found not to be on this machine.
    remote: Mutex<Option<String>>,
}

impl LoopbackOnly {
    pub(crate) fn new(connection: Connection) -> Self {
        let configured = connection.configured_remote_server();
        Self {
            remote: Mutex::new(configured.map(str::to_owned)),
            connection,
        }
    }

    /// Checks whether requests received so far may be accepted.
    pub(crate) async fn check(&self) -> Result<(), LoopbackError> {
        if let Some(server) = self.remote() {
            return Err(LoopbackError::Remote { server });
        }
        match self.connection.remote_server().await {
            Ok(None) => Ok(()),
            Ok(Some(server)) => {
                *self.remote.lock() = Some(server.clone());
                Err(LoopbackError::Remote { server })
            }
            Err(err) => Err(LoopbackError::Unknown(err)),
        }
    }

    /// Returns the first server found not to be on this machine.
    pub(crate) fn remote(&self) -> Option<String> {
        self.remote.lock().clone()
    }
}
