//! `ccm fleet trust revoke`: revokes the credentials of a user or of an enrolled node.

use super::{TrustArgs, push};
use crate::cli::fleet::FleetArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, runtime};
use ccm_core::model::node::{NameError, NodeName};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::enrolment::EnrolmentStore;
use ccm_fleet::role_permissions::Role;
use ccm_fleet::trust::TrustDir;

/// Revoke the credentials of a user or an enrolled node, and disconnect it
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Role: agent, operator, controller or monitor
    role: Role,

    /// Name of the user or node
    name: String,
}

pub(super) fn run(
    args: &Args,
    directory: &TrustArgs,
    fleet: &FleetArgs,
    trust: &TrustDir,
    console: &Console,
) -> Result<(), CliError> {
    let now = SystemClock.now();
    let issued = trust.user(args.role, &args.name)?;
    let mut keys: Vec<String> = issued.into_iter().map(|user| user.public_key).collect();
    runtime::block_on(async {
        let mut enrolled = None;
        if args.role == Role::Agent {
            let invalid = |err: NameError| CliError::usage(err);
            let node: NodeName = args.name.parse().map_err(invalid)?;
            let connection = directory.connect(fleet).await?;
            let store = EnrolmentStore::open(&connection, &fleet.subjects()?).await;
            let store = store.map_err(CliError::of_fleet)?;
            if let Some(found) = store.enrolled(&node).await? {
                keys.push(found.value.public_key);
            }
            enrolled = Some((store, node));
        }
        if keys.is_empty() {
            let text = format!("{} {} has no credentials", args.role, args.name);
            return Err(CliError::usage(text)
                .hint("see `ccm fleet trust list` and `ccm fleet enroll list --all`"));
        }
        let mut jwt = String::new();
        for key in &keys {
            jwt = trust.revoke(key, now)?;
            // Marked first: a revoked key must not get new credentials.
            if let Some((store, node)) = &enrolled {
                store.mark_revoked(node, key, now).await?;
            }
        }
        push(trust, &jwt).await
    })?;
    console.print(&format!("revoked {} {}\n", args.role, args.name));
    Ok(())
}
