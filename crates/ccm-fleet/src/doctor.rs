//! Diagnosis of a fleet: what is wrong, and what to do. Reads the fleet's streams and buckets only:
//! no node is contacted and nothing is changed.
//!
//! The diagnosis of a node is in `ccm_agent::doctor`.

mod nodes;
mod servers;

use chrono::{DateTime, Utc};

use super::enrolment::EnrolmentStore;
use super::inventory::Inventory;
use super::rollout_store::RolloutStore;
use ccm_core::model::diagnosis::{Check, Diagnosis, FLEET_DIAGNOSIS};
use ccm_core::model::rollout::Rollout;
use ccm_core::system::Clock;
use ccm_nats::streams::{self, InitOptions};
use ccm_nats::{Connection, NatsError, Subjects};
use ccm_value::text::{count_of, to_the_second};

const ROLLOUTS: &str = "rollouts";
const ENROLMENTS: &str = "enrolments";

/// Most names in a text; the number of further ones follows.
const MAX_NAMES: usize = 5;

/// Runs all checks of a fleet, as far as its servers were reached. `version` is that of this
/// program.
pub async fn diagnose(
    connection: Result<Connection, NatsError>,
    subjects: &Subjects,
    version: &str,
    clock: &dyn Clock,
) -> Diagnosis {
    let checks = match &connection {
        Ok(connection) => connected_checks(connection, subjects, version, clock).await,
        Err(err) => vec![servers::unreachable(err)],
    };
    Diagnosis::new(FLEET_DIAGNOSIS, None, version, clock.now(), checks)
}

async fn connected_checks(
    connection: &Connection,
    subjects: &Subjects,
    version: &str,
    clock: &dyn Clock,
) -> Vec<Check> {
    let mut checks = vec![servers::server(connection)];
    let options = InitOptions::new(subjects.clone());
    let health = streams::check(connection, &options).await;
    checks.extend(servers::checks(health));
    checks.push(servers::clock(connection, clock).await);
    checks.push(rollouts(connection, subjects, clock.now()).await);
    match Inventory::load(connection, subjects).await {
        Ok(inventory) => checks.extend(nodes::checks(&inventory, version)),
        Err(err) => {
            let reason = err.to_string();
            checks.extend(nodes::NAMES.map(|name| Check::not_checked(name, reason.as_str())));
        }
    }
    checks.push(nodes::clocks(connection, subjects).await);
    checks.push(enrolments(connection, subjects).await);
    checks
}

/// Joins names, with the number of those that are left out.
fn name_list(names: &[String]) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMES).map(String::as_str).collect();
    let more = names.len().saturating_sub(MAX_NAMES);
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Checks that every active rollout has a controller, and that none was halted.
async fn rollouts(connection: &Connection, subjects: &Subjects, now: DateTime<Utc>) -> Check {
    let listed = async { RolloutStore::open(connection, subjects).await?.list().await };
    let (stored, broken) = match listed.await {
        Ok(listed) => listed,
        Err(err) => return Check::not_checked(ROLLOUTS, err.to_string()),
    };
    if let Some(err) = broken.first() {
        let remedy =
            "read it with the version of ccm that wrote it, or remove its key from CCM_ROLLOUTS";
        return Check::failed(ROLLOUTS, err.to_string(), remedy);
    }
    let rollouts: Vec<&Rollout> = stored.iter().map(|it| &it.rollout).collect();
    check_rollouts(&rollouts, now)
}

fn check_rollouts(rollouts: &[&Rollout], now: DateTime<Utc>) -> Check {
    let active = rollouts.iter().filter(|it| it.state.is_active());
    let active: Vec<&&Rollout> = active.collect();
    let is_driven = |rollout: &Rollout| rollout.lease.as_ref().is_some_and(|it| it.until > now);
    let idle = active.iter().filter(|it| !is_driven(it));
    let idle: Vec<String> = idle.map(|it| it.id.to_string()).collect();
    if !idle.is_empty() {
        let found = format!("no controller drives {}", name_list(&idle));
        let remedy = "run `systemctl start ccm-controller`, or `ccm fleet rollout drive`";
        return Check::failed(ROLLOUTS, found, remedy);
    }
    let halted = rollouts.iter().filter(|it| it.state.as_str() == "halted");
    let halted: Vec<String> = halted.map(|it| it.id.to_string()).collect();
    if let Some(first) = halted.first() {
        let found = format!("halted: {}", name_list(&halted));
        let remedy =
            format!("see `ccm fleet rollout show {first}`, then retry, roll back or abort it");
        return Check::warning(ROLLOUTS, found, remedy);
    }
    Check::ok(ROLLOUTS, format!("{} active", active.len()))
}

/// Checks whether nodes wait for a decision.
async fn enrolments(connection: &Connection, subjects: &Subjects) -> Check {
    let read = async {
        let store = EnrolmentStore::open(connection, subjects).await?;
        store.requests(None).await
    };
    let requests = match read.await {
        Ok(requests) => requests,
        Err(err) => return Check::not_checked(ENROLMENTS, err.to_string()),
    };
    let pending: Vec<_> = requests.iter().filter(|it| it.rejected.is_none()).collect();
    let Some(oldest) = pending.iter().map(|it| it.requested).min() else {
        return Check::ok(ENROLMENTS, "no request waits for a decision");
    };
    let names: Vec<String> = pending.iter().map(|it| it.node.to_string()).collect();
    let found = format!(
        "{} since {}: {}",
        count_of(pending.len(), "waiting request"),
        to_the_second(&oldest),
        name_list(&names)
    );
    let remedy = "run `ccm fleet enroll list`, then approve or reject";
    Check::warning(ENROLMENTS, found, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::model::diagnosis::CheckState;
    use chrono::TimeDelta;

    fn rollout(state: &str, lease: Option<DateTime<Utc>>) -> Rollout {
        let mut document = serde_json::json!({
            "protocol": "p", "id": "r1", "created": "2027-01-15T08:00:00Z",
            "bundle": {"name": "app", "digest": "ab".repeat(32)},
            "plan": {"waves": []}, "state": {"name": state, "reason": "x", "rolling_back": false},
        });
        if let Some(until) = lease {
            let until = until.to_rfc3339();
            document["lease"] = serde_json::json!({"holder": "c1", "until": until});
        }
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn an_active_rollout_needs_a_controller_with_a_lease() {
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(365);
        let (past, future) = (now - TimeDelta::minutes(1), now + TimeDelta::minutes(1));
        for (state, lease, wanted) in [
            ("running", Some(future), CheckState::Ok),
            ("running", Some(past), CheckState::Failed),
            ("running", None, CheckState::Failed),
            ("done", None, CheckState::Ok),
            ("halted", None, CheckState::Warning),
        ] {
            let rollout = rollout(state, lease);
            let check = check_rollouts(&[&rollout], now);
            assert_eq!(check.state, wanted, "{state} {lease:?}: {check:?}");
        }
    }

    #[test]
    fn long_lists_of_names_are_cut() {
        let names: Vec<String> = (1..=7).map(|number| format!("n{number}")).collect();
        assert_eq!(name_list(&names), "n1, n2, n3, n4, n5 and 2 more");
        assert_eq!(name_list(&names[..2]), "n1, n2");
    }
}
