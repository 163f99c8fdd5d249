//! Health of the streams and buckets of a fleet: existence, settings, replicas. Changes nothing.

use async_nats::jetstream::stream::Info;

use super::{InitOptions, Kind, account, has_markers, merge, wanted};
use crate::{Connection, NatsError};

/// The streams and buckets of a fleet, and the storage of its account.
#[derive(Debug)]
pub struct StoreHealth {
    pub streams: Vec<StreamHealth>,
    /// Bytes in use.
    pub used: u64,
    /// Limit of the account in bytes, if it has one.
    pub limit: Option<u64>,
}

/// A stream or bucket.
#[derive(Debug)]
pub struct StreamHealth {
    pub name: &'static str,
    pub kind: Kind,
    pub state: StreamState,
}

/// State of a stream.
#[derive(Debug)]
pub enum StreamState {
    Missing,
    /// The servers did not return it: permissions, or no leader.
    Unavailable(NatsError),
    Found {
        /// `init` would change its settings.
        is_outdated: bool,
        replicas: usize,
        /// Replication; missing for a server without a cluster.
        cluster: Option<ClusterHealth>,
    },
}

/// Replication of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterHealth {
    pub leader: Option<String>,
    /// Other servers with a replica.
    pub peers: Vec<Peer>,
}

/// A server with a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub name: String,
    pub is_offline: bool,
    /// It has all messages.
    pub is_current: bool,
}

/// Returns the health of the streams and buckets.
pub async fn check(
    connection: &Connection,
    options: &InitOptions,
) -> Result<StoreHealth, NatsError> {
    let account = account(connection).await?;
    let mut streams = Vec::new();
    for (name, kind, wanted) in wanted(options, has_markers(&account)) {
        let state = match connection.stream_info(&wanted.name).await {
            Ok(None) => StreamState::Missing,
            Ok(Some(info)) => {
                let is_outdated = merge(&info.config, wanted, options) != info.config;
                found(info, is_outdated)
            }
            Err(err) => StreamState::Unavailable(err),
        };
        streams.push(StreamHealth { name, kind, state });
    }
    Ok(StoreHealth {
        streams,
        used: account.storage,
        // -1 is no limit.
        limit: account
            .limits
            .max_storage
            .and_then(|limit| limit.try_into().ok()),
    })
}

fn found(info: Info, is_outdated: bool) -> StreamState {
    StreamState::Found {
        is_outdated,
        replicas: info.config.num_replicas,
        // A server without a cluster states only itself as leader.
        cluster: info.cluster.filter(|it| it.name.is_some()).map(|cluster| {
            let peers = cluster.replicas.into_iter().map(|peer| Peer {
                name: peer.name,
                is_offline: peer.offline,
                is_current: peer.current,
            });
            ClusterHealth {
                leader: cluster.leader,
                peers: peers.collect(),
            }
        }),
    }
}
