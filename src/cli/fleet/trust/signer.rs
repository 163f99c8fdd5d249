//! `ccm fleet trust rotate signer`: a new request signer beside the old one, which is retired later.

use std::time::Duration;

use crate::cli::fleet::FleetArgs;
use crate::cli::fleet::request::inventory;
use crate::cli::fleet::trust::TrustArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, runtime};
use ccm_core::model::node::NodeStatus;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::drift;
use ccm_fleet::trust::TrustDir;
use ccm_nats::{Connection, Headers, Subjects, Verb};

/// Time between two reads of the presence records.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// What the commands use.
pub(super) struct Rotation<'a> {
    pub(super) directory: &'a TrustArgs,
    pub(super) fleet: &'a FleetArgs,
    pub(super) console: &'a Console,
    pub(super) trust: &'a mut TrustDir,
    /// Maximum time to wait for nodes.
    pub(super) wait: Duration,
    /// Retire the previous signer although nodes need it.
    pub(super) force: bool,
}

impl Rotation<'_> {
    /// Adds a successor of the request signer, which is used from then on.
    pub(super) fn rotate(self) -> Result<(), CliError> {
        let key = self.trust.begin_signer_rotation(SystemClock.now())?;
        let subjects = self.fleet.subjects()?;
        let missing = runtime::block_on(async {
            let connection = self.directory.connect(self.fleet).await?;
            publish(&connection, &subjects, self.trust).await?;
            let missing = |status: &NodeStatus| !trusts(status, &key);
            self.wait_for_nodes(&connection, &subjects, missing).await
        })?;
        self.trust.finish_signer_rotation()?;
        self.console.print(&format!(
            "created the request signer {key}; its seed is {}, and requests of the previous signer \
             are accepted until `ccm fleet trust rotate signer --retire`\n",
            self.trust.signer_seed().display()
        ));
        if !missing.is_empty() {
            self.console.print(&format!(
                "not confirmed yet by {}; a node reads it when it gets the first request\n",
                missing.join(", ")
            ));
        }
        Ok(())
    }

    /// Retires the previous request signer.
    pub(super) fn retire(self) -> Result<(), CliError> {
        let subjects = self.fleet.subjects()?;
        let current = self.trust.fleet.signer.clone();
        let (previous, missing) = runtime::block_on(async {
            let connection = self.directory.connect(self.fleet).await?;
            if !self.force {
                self.check(&connection, &subjects, &current).await?;
            }
            let previous = self.trust.begin_signer_retirement(SystemClock.now())?;
            publish(&connection, &subjects, self.trust).await?;
            let missing = |status: &NodeStatus| trusts(status, &previous);
            let missing = self.wait_for_nodes(&connection, &subjects, missing).await?;
            Ok((previous, missing))
        })?;
        let is_listed = self.trust.finish_signer_retirement()?;
        self.console
            .print(&format!("retired the request signer {previous}\n"));
        if !is_listed {
            self.console.print(&format!(
                "agent-trust.yaml does not list {current}: add it for nodes that enroll\n"
            ));
        }
        if !missing.is_empty() {
            self.console.print(&format!(
                "not confirmed yet by {}; a node reads it at its next scheduled run\n",
                missing.join(", ")
            ));
        }
        Ok(())
    }

    /// Fails if nodes would be left without a signer, or without their assignment.
    async fn check(
        &self,
        connection: &Connection,
        subjects: &Subjects,
        current: &str,
    ) -> Result<(), CliError> {
        let is_missing = |status: &NodeStatus| !trusts(status, current);
        let missing = self
            .wait_for_nodes(connection, subjects, is_missing)
            .await?;
        if !missing.is_empty() {
            let text = format!(
                "the new request signer is not trusted yet by {}",
                missing.join(", ")
            );
            return Err(CliError::usage(text).hint("wait, or use --force"));
        }
        let previous = self.trust.fleet.previous_signer.as_deref();
        let nodes = drift::load(connection, subjects).await;
        let nodes = nodes.map_err(CliError::of_fleet)?;
        let is_unreported = |state| {
            matches!(
                state,
                drift::DriftState::Lagging | drift::DriftState::Unreadable
            )
        };
        let pending = nodes
            .iter()
            .filter(|node| is_unreported(node.state) && node.signer() == previous);
        let pending: Vec<&str> = pending.map(|node| node.node.as_str()).collect();
        if !pending.is_empty() {
            let text = format!(
                "an assignment of the previous request signer was not applied yet by {}",
                pending.join(", ")
            );
            return Err(CliError::usage(text)
                .hint("wait, start a rollout with the new signer, or use --force"));
        }
        Ok(())
    }

    /// Makes nodes read the statements, and returns the online nodes that still are as described
    /// after the wait.
    async fn wait_for_nodes(
        &self,
        connection: &Connection,
        subjects: &Subjects,
        is_pending: impl Fn(&NodeStatus) -> bool,
    ) -> Result<Vec<String>, CliError> {
        let nudge = subjects.all(Verb::Nudge);
        connection
            .publish(&nudge, Headers::new(), Default::default())
            .await
            .map_err(CliError::of_fleet)?;
        let end = tokio::time::Instant::now() + self.wait;
        loop {
            let nodes = inventory(connection, subjects, self.console).await?;
            // Agents without a trust section, and older ones, list no signers.
            let verifying = |status: &&NodeStatus| {
                let trust = status.trust.as_ref();
                trust.is_some_and(|trust| !trust.signers.is_empty())
            };
            let pending = nodes.present().filter(verifying);
            let pending = pending.filter(|status| is_pending(status));
            let pending: Vec<String> = pending.map(|it| it.identity.to_string()).collect();
            if pending.is_empty() || tokio::time::Instant::now() >= end {
                return Ok(pending);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Stores the statements of the trust directory in the fleet's bucket.
pub(super) async fn publish(
    connection: &Connection,
    subjects: &Subjects,
    trust: &TrustDir,
) -> Result<(), CliError> {
    let updates = trust.signer_updates()?;
    let stored = connection.add_signer_updates(subjects, &updates).await;
    stored.map_err(CliError::of_fleet)
}

/// Reports whether a node trusts a key.
fn trusts(status: &NodeStatus, key: &str) -> bool {
    let trust = status.trust.as_ref();
    trust.is_some_and(|trust| trust.signers.iter().any(|signer| signer == key))
}
