//! Checks of the NATS servers: connection, storage, streams and buckets, replication, clock.

use std::collections::BTreeSet;

use chrono::TimeDelta;

use super::name_list;
use ccm_core::model::diagnosis::Check;
use ccm_core::system::Clock;
use ccm_nats::streams::{ClusterHealth, NODES, StoreHealth, StreamHealth, StreamState};
use ccm_nats::{Connection, NatsError};
use ccm_value::text::byte_size;

const SERVER: &str = "server";
const STORAGE: &str = "storage";
const STREAMS: &str = "streams";
const REPLICATION: &str = "replication";
const CLOCK: &str = "clock";

/// Share of the storage limit, in percent, above which it should be raised.
const STORAGE_WARNING: u64 = 80;

/// Difference of clocks above which requests signed here may be refused.
const MAX_SKEW: TimeDelta = TimeDelta::seconds(30);

const INIT: &str = "run `ccm fleet init`";

/// Returns the check of servers that were not reached.
pub(super) fn unreachable(err: &NatsError) -> Check {
    let remedy = "check that a server runs, its address, its CA, and that the credentials are valid \
                  and not revoked or expired";
    Check::failed(SERVER, err.to_string(), remedy)
}

/// Describes the connection that all other checks use.
pub(super) fn server(connection: &Connection) -> Check {
    let exposure = connection.exposure();
    let found = format!(
        "connected to {}, version {}",
        connection.servers(),
        connection.server_version()
    );
    match (
        exposure.is_local,
        exposure.requires_auth,
        exposure.requires_tls,
    ) {
        (false, false, _) => Check::failed(
            SERVER,
            format!("{found}: it requires no authentication"),
            "set up users with `ccm fleet trust init`, or listen on 127.0.0.1 only",
        ),
        (false, true, false) => Check::warning(
            SERVER,
            format!("{found}: it does not use TLS"),
            "configure tls in the server configuration",
        ),
        _ => Check::ok(SERVER, found),
    }
}

/// Checks storage, streams and replication.
pub(super) fn checks(health: Result<StoreHealth, NatsError>) -> [Check; 3] {
    match health {
        Ok(health) => [
            storage(&health),
            streams(&health.streams),
            replication(&health.streams),
        ],
        Err(err @ NatsError::Denied(_)) => {
            [STORAGE, STREAMS, REPLICATION].map(|name| Check::not_checked(name, err.to_string()))
        }
        Err(err) => {
            let remedy = "enable jetstream in the configuration of the server and in the account";
            let skipped = |name| Check::not_checked(name, "JetStream is not available");
            [
                Check::failed(STORAGE, err.to_string(), remedy),
                skipped(STREAMS),
                skipped(REPLICATION),
            ]
        }
    }
}

fn storage(health: &StoreHealth) -> Check {
    let used = byte_size(health.used);
    let Some(limit) = health.limit else {
        return Check::ok(STORAGE, format!("{used} used, no limit of the account"));
    };
    let found = format!("{used} of {} used", byte_size(limit));
    let percent = health.used.saturating_mul(100).checked_div(limit);
    match percent.unwrap_or(100) {
        percent if percent >= 100 => Check::failed(
            STORAGE,
            format!("{found}: events and records can't be stored"),
            "raise the storage limit of the account, or lower --events-max-age of `ccm fleet init`",
        ),
        percent if percent >= STORAGE_WARNING => Check::warning(
            STORAGE,
            found,
            "raise the storage limit of the account, or lower --events-max-age of `ccm fleet init`",
        ),
        _ => Check::ok(STORAGE, found),
    }
}

fn streams(streams: &[StreamHealth]) -> Check {
    let named = |wanted: fn(&StreamState) -> bool| -> Vec<String> {
        let matching = streams.iter().filter(|it| wanted(&it.state));
        matching.map(|it| it.name.to_owned()).collect()
    };
    let missing = named(|state| matches!(state, StreamState::Missing));
    if !missing.is_empty() {
        let found = format!("missing: {}", missing.join(", "));
        return Check::failed(STREAMS, found, INIT);
    }
    let is_denied = |err: &NatsError| matches!(err, NatsError::Denied(_));
    let failure = streams.iter().find_map(|it| match &it.state {
        StreamState::Unavailable(err) if !is_denied(err) => Some((it.name, err)),
        _ => None,
    });
    if let Some((name, err)) = failure {
        let remedy = "start the servers that are down: a stream needs the majority of its replicas";
        return Check::failed(STREAMS, format!("{name}: {err}"), remedy);
    }
    let is_outdated = |state: &StreamState| {
        matches!(
            state,
            StreamState::Found {
                is_outdated: true,
                ..
            }
        )
    };
    let outdated = named(is_outdated);
    if !outdated.is_empty() {
        let found = format!("settings differ: {}", outdated.join(", "));
        return Check::warning(STREAMS, found, INIT);
    }
    // A monitor may not read all of them.
    let hidden = named(|state| matches!(state, StreamState::Unavailable(_)));
    let found = streams.len().saturating_sub(hidden.len());
    let mut text = format!("{found} exist, settings are current");
    if !hidden.is_empty() {
        text.push_str(&format!("; not permitted: {}", hidden.join(", ")));
    }
    Check::ok(STREAMS, text)
}

fn replication(streams: &[StreamHealth]) -> Check {
    let found = streams.iter().filter_map(|it| match &it.state {
        StreamState::Found {
            replicas, cluster, ..
        } => Some((it.name, *replicas, cluster.as_ref()?)),
        _ => None,
    });
    let found: Vec<(&str, usize, &ClusterHealth)> = found.collect();
    if found.is_empty() {
        return Check::not_checked(REPLICATION, "the servers are no cluster");
    }
    let without_leader = found
        .iter()
        .filter(|(.., cluster)| cluster.leader.is_none());
    let without_leader: Vec<String> = without_leader.map(|(name, ..)| (*name).into()).collect();
    let remedy = "start the servers that are down";
    if !without_leader.is_empty() {
        let found = format!("no leader: {}", name_list(&without_leader));
        return Check::failed(REPLICATION, found, remedy);
    }
    let peers = || found.iter().flat_map(|(.., cluster)| &cluster.peers);
    let offline: BTreeSet<&str> = peers()
        .filter(|peer| peer.is_offline)
        .map(|peer| peer.name.as_str())
        .collect();
    if !offline.is_empty() {
        let names: Vec<&str> = offline.into_iter().collect();
        let found = format!("offline servers: {}", names.join(", "));
        return Check::warning(REPLICATION, found, remedy);
    }
    let lagging: BTreeSet<&str> = peers()
        .filter(|peer| !peer.is_current)
        .map(|peer| peer.name.as_str())
        .collect();
    if !lagging.is_empty() {
        let names: Vec<&str> = lagging.into_iter().collect();
        let found = format!("replicas that lag behind: {}", names.join(", "));
        let remedy = "wait; if it lasts, check disks and network of these servers";
        return Check::warning(REPLICATION, found, remedy);
    }
    let single = found.iter().filter(|(_, replicas, _)| *replicas < 3);
    let single: Vec<String> = single.map(|(name, ..)| (*name).into()).collect();
    if !single.is_empty() {
        let found = format!("fewer than 3 replicas: {}", name_list(&single));
        return Check::warning(REPLICATION, found, "run `ccm fleet init --replicas 3`");
    }
    Check::ok(REPLICATION, "all replicas are current")
}

/// Compares the clock of this machine with that of the server.
pub(super) async fn clock(connection: &Connection, clock: &dyn Clock) -> Check {
    let server = match connection.server_time(NODES).await {
        Ok(Some(server)) => server,
        Ok(None) => return Check::not_checked(CLOCK, "the server does not state its time"),
        Err(err) => return Check::not_checked(CLOCK, err.to_string()),
    };
    let difference = clock.now().signed_duration_since(server);
    let found = match difference.num_seconds() {
        0 => "less than 1s from the NATS server".to_owned(),
        seconds => format!("{seconds:+}s from the NATS server"),
    };
    if difference.abs() <= MAX_SKEW {
        return Check::ok(CLOCK, found);
    }
    let remedy = "synchronize the clocks: nodes refuse requests that are signed here";
    Check::failed(CLOCK, found, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::model::diagnosis::CheckState;
    use ccm_nats::streams::{Kind, Peer};

    fn stream(name: &'static str, state: StreamState) -> StreamHealth {
        let kind = Kind::Bucket;
        StreamHealth { name, kind, state }
    }

    fn found(replicas: usize, cluster: Option<ClusterHealth>) -> StreamState {
        StreamState::Found {
            is_outdated: false,
            replicas,
            cluster,
        }
    }

    #[test]
    fn replication_is_as_good_as_the_worst_stream() {
        let cluster = |leader: Option<&str>, is_offline, is_current| {
            let name = "n2".to_owned();
            let peer = Peer {
                name,
                is_offline,
                is_current,
            };
            Some(ClusterHealth {
                leader: leader.map(str::to_owned),
                peers: vec![peer],
            })
        };
        for (state, wanted) in [
            (found(1, None), CheckState::NotChecked),
            (found(3, cluster(Some("n1"), false, true)), CheckState::Ok),
            (
                found(1, cluster(Some("n1"), false, true)),
                CheckState::Warning,
            ),
            (
                found(3, cluster(Some("n1"), false, false)),
                CheckState::Warning,
            ),
            (
                found(3, cluster(Some("n1"), true, false)),
                CheckState::Warning,
            ),
            (found(3, cluster(None, false, true)), CheckState::Failed),
        ] {
            let check = replication(&[stream("CCM_NODES", state)]);
            assert_eq!(check.state, wanted, "{check:?}");
        }
    }

    #[test]
    fn storage_near_its_limit_is_a_warning() {
        let check = |used, limit| {
            let streams = Vec::new();
            storage(&StoreHealth {
                streams,
                used,
                limit,
            })
            .state
        };
        assert_eq!(check(90, None), CheckState::Ok);
        assert_eq!(check(10, Some(100)), CheckState::Ok);
        assert_eq!(check(90, Some(100)), CheckState::Warning);
        assert_eq!(check(100, Some(100)), CheckState::Failed);
    }
}
