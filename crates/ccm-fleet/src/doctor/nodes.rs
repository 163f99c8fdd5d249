//! Checks of the nodes, by what they state about themselves in the fleet's buckets.

use chrono::TimeDelta;

use super::name_list;
use crate::inventory::Inventory;
use crate::node_condition::{VersionSkew, last_seen, version_skew};
use ccm_core::model::diagnosis::Check;
use ccm_core::model::node::{NodeName, NodeStatus};
use ccm_core::model::run::RunOutcome;
use ccm_nats::streams::NODES;
use ccm_nats::{Connection, Subjects};
use ccm_value::text::{count_of, to_the_second};

const ONLINE: &str = "nodes_online";
const HEALTH: &str = "nodes_health";
const TRUST: &str = "nodes_trust";
const VERSIONS: &str = "nodes_version";
const SPOOLS: &str = "nodes_spool";
const CLOCKS: &str = "nodes_clock";

/// Names of the checks that need the inventory.
pub(super) const NAMES: [&str; 5] = [ONLINE, HEALTH, TRUST, VERSIONS, SPOOLS];

/// Difference of clocks above which a node may refuse signed requests.
const MAX_SKEW: TimeDelta = TimeDelta::seconds(30);

/// Pending events of an online node above which its events arrive late.
const MAX_PENDING: u64 = 10_000;

/// Runs the checks of all nodes. `version` is that of this program.
pub(super) fn checks(inventory: &Inventory, version: &str) -> [Check; 5] {
    let present: Vec<&NodeStatus> = inventory.present().collect();
    let present = present.as_slice();
    [
        online(inventory),
        health(present),
        trust(present),
        versions(present, version),
        spools(present),
    ]
}

/// Returns the names of online nodes that match.
fn names(present: &[&NodeStatus], matches: impl Fn(&NodeStatus) -> bool) -> Vec<String> {
    let matching = present.iter().filter(|status| matches(status));
    matching.map(|status| status.identity.to_string()).collect()
}

fn online(inventory: &Inventory) -> Check {
    if inventory.is_empty() {
        let remedy = "run `ccm agent enroll` on a machine to add it";
        return Check::warning(ONLINE, "no nodes", remedy);
    }
    let count = count_of(inventory.online(), "node");
    let known = inventory.known();
    let offline = known.filter(|node| inventory.status(node).is_none());
    let offline: Vec<String> = offline
        .map(|node| describe_offline(node, inventory))
        .collect();
    if offline.is_empty() {
        return Check::ok(ONLINE, format!("{count} online, none offline"));
    }
    let found = format!(
        "{count} online, {} offline: {}",
        offline.len(),
        name_list(&offline)
    );
    let remedy = "run `ccm doctor` on them, or remove nodes that are gone";
    Check::warning(ONLINE, found, remedy)
}

fn describe_offline(node: &NodeName, inventory: &Inventory) -> String {
    match last_seen(node, inventory) {
        Some(time) => format!("{node} (last seen {})", to_the_second(&time)),
        None => node.to_string(),
    }
}

fn health(present: &[&NodeStatus]) -> Check {
    let unhealthy = names(present, |status| !status.problems.is_empty());
    if !unhealthy.is_empty() {
        let found = format!("unhealthy: {}", name_list(&unhealthy));
        let remedy = "see REASON in `ccm fleet nodes`, and run `ccm doctor` on them";
        return Check::failed(HEALTH, found, remedy);
    }
    let has_failed = |status: &NodeStatus| {
        let last = status.last_run.as_ref();
        last.is_some_and(|run| run.outcome == RunOutcome::Failed)
    };
    let failed = names(present, has_failed);
    if !failed.is_empty() {
        let found = format!("last run failed: {}", name_list(&failed));
        let remedy = "see `ccm fleet events --outcome failed`";
        return Check::warning(HEALTH, found, remedy);
    }
    let paused = names(present, |status| status.pause.is_some());
    if !paused.is_empty() {
        let found = format!("paused: {}", name_list(&paused));
        let remedy = "run `ccm fleet resume` when the reason is over";
        return Check::warning(HEALTH, found, remedy);
    }
    Check::ok(HEALTH, "no node reports a problem or a failed run")
}

fn trust(present: &[&NodeStatus]) -> Check {
    let refusing = names(present, |status| status.recent_refusal().is_some());
    if !refusing.is_empty() {
        let found = format!("refused a request or assignment: {}", name_list(&refusing));
        let remedy = "see REASON in `ccm fleet nodes`: sign with a known key, and compare clocks";
        return Check::warning(TRUST, found, remedy);
    }
    let open = names(present, |status| status.open_note().is_some());
    if !open.is_empty() {
        let found = format!("accept unsigned requests: {}", name_list(&open));
        let remedy = "remove `required: false` from trust: in their agent.yaml";
        return Check::warning(TRUST, found, remedy);
    }
    Check::ok(TRUST, "no refused requests in the last hour")
}

fn versions(present: &[&NodeStatus], version: &str) -> Check {
    let skew = |status: &NodeStatus| version_skew(&status.version, version);
    let unsupported = names(present, |status| skew(status) == VersionSkew::Unsupported);
    if !unsupported.is_empty() {
        let found = format!(
            "more than one minor version from {version}: {}",
            name_list(&unsupported)
        );
        let remedy = "upgrade step by step: see docs/install.md";
        return Check::failed(VERSIONS, found, remedy);
    }
    let old = names(present, |status| skew(status) == VersionSkew::Older);
    if !old.is_empty() {
        let found = format!("older than {version}: {}", name_list(&old));
        return Check::warning(VERSIONS, found, "upgrade them: see docs/install.md");
    }
    let newer = names(present, |status| skew(status) == VersionSkew::Newer);
    if !newer.is_empty() {
        let found = format!("newer than {version}: {}", name_list(&newer));
        return Check::warning(VERSIONS, found, "upgrade this machine and the controllers");
    }
    Check::ok(VERSIONS, format!("all nodes have version {version}"))
}

fn spools(present: &[&NodeStatus]) -> Check {
    let dropped = names(present, |status| status.spool.dropped > 0);
    if !dropped.is_empty() {
        let found = format!("dropped events: {}", name_list(&dropped));
        let remedy = "raise spool.max_size in their agent.yaml, or restore NATS sooner";
        return Check::warning(SPOOLS, found, remedy);
    }
    let late = names(present, |status| status.spool.pending > MAX_PENDING);
    if !late.is_empty() {
        let found = format!("many unpublished events: {}", name_list(&late));
        let remedy = "check CCM_EVENTS, its storage and the network";
        return Check::warning(SPOOLS, found, remedy);
    }
    Check::ok(SPOOLS, "events are published, none dropped")
}

/// Compares the clocks of nodes with that of the server: a presence record has the time of both.
pub(super) async fn clocks(connection: &Connection, subjects: &Subjects) -> Check {
    let read = async {
        let bucket = connection.bucket(NODES).await?;
        bucket.entries(&subjects.all_keys()).await
    };
    let entries = match read.await {
        Ok(entries) => entries,
        Err(err) => return Check::not_checked(CLOCKS, err.to_string()),
    };
    let mut skewed = Vec::new();
    for entry in entries {
        // A record that can't be read is listed by `ccm fleet nodes`.
        let Ok(status) = serde_json::from_slice::<NodeStatus>(&entry.value) else {
            continue;
        };
        let difference = status.timestamp.signed_duration_since(entry.created);
        if difference.abs() > MAX_SKEW {
            let seconds = difference.num_seconds();
            skewed.push(format!("{} ({seconds:+}s)", status.identity));
        }
    }
    if skewed.is_empty() {
        return Check::ok(CLOCKS, "all clocks are close to that of the NATS server");
    }
    let found = format!("clocks differ from the NATS server: {}", name_list(&skewed));
    let remedy = "synchronize them, for example with chrony: signed requests are refused";
    Check::failed(CLOCKS, found, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::model::diagnosis::CheckState;

    fn node(version: &str) -> NodeStatus {
        serde_json::from_value(serde_json::json!({
            "protocol": "p", "identity": "web1", "collective": "c", "version": version, "beat": 30,
            "started": "2027-01-15T08:00:00Z", "timestamp": "2027-01-15T08:00:00Z",
        }))
        .unwrap()
    }

    #[test]
    fn one_minor_version_is_a_warning_and_two_are_a_failure() {
        for (version, wanted) in [
            ("0.2.0", CheckState::Ok),
            ("0.1.9", CheckState::Warning),
            ("0.3.0", CheckState::Warning),
            ("0.4.0", CheckState::Failed),
            ("1.2.0", CheckState::Failed),
        ] {
            let check = versions(&[&node(version)], "0.2.0");
            assert_eq!(check.state, wanted, "{version}: {check:?}");
        }
    }
}
