//! Local status: what the agent last stated about itself, in a file of the state directory. Unlike
//! the presence record it is written while NATS is unreachable, for `ccm doctor`.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use ccm_core::model::node::NodeStatus;
use ccm_core::system::files::{self, Durability, FileError};
use ccm_nats::Connection;
use ccm_value::Value;

/// The file in the state directory.
const FILE: &str = "status.json";

/// Size limit of the file; a status without facts is far smaller.
const MAX_SIZE: u64 = 1 << 20;

/// Status of an agent and its connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LocalStatus {
    /// Whether the agent is connected to NATS.
    pub(crate) connected: bool,
    /// Last error of the connection; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) connection_error: String,
    /// Status of the node, without facts.
    pub(crate) status: NodeStatus,
}

/// Why a status could not be written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LocalStatusError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} is not a status", path.display())]
    Document {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

impl LocalStatus {
    /// Returns the status of a connected or disconnected agent.
    pub(crate) fn of(status: &NodeStatus, connection: &Connection) -> Self {
        Self {
            connected: connection.is_up(),
            connection_error: connection.last_error().borrow().clone(),
            status: NodeStatus {
                facts: Value::Null,
                ..status.clone()
            },
        }
    }

    /// Writes the status to a state directory.
    pub(crate) fn write(&self, state_dir: &Path) -> Result<(), LocalStatusError> {
        let path = state_dir.join(FILE);
        let text = serde_json::to_vec(self);
        let text = text.map_err(|source| LocalStatusError::Document {
            path: path.clone(),
            source,
        })?;
        // Written again at the next beat: it need not survive a power cut.
        Ok(files::write_private(&path, &text, Durability::Cached)?)
    }

    /// Reads the status of a state directory; nothing if no agent has run.
    pub(crate) fn read(state_dir: &Path) -> Result<Option<Self>, LocalStatusError> {
        let path = state_dir.join(FILE);
        let text = match files::read(&path, MAX_SIZE) {
            Ok(text) => text,
            Err(err) if err.is_not_found() => return Ok(None),
            Err(err) => return Err(err.into()),
        };
        let read = serde_json::from_slice(&text);
        let document = |source| LocalStatusError::Document { path, source };
        read.map(Some).map_err(document)
    }
}
