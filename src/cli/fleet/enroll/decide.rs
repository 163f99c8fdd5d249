//! `ccm fleet enroll approve` and `reject`: decisions of an operator.

use super::Context;
use crate::cli::fleet::permissions::GrantArgs;
use crate::cli::fleet::request::caller;
use crate::cli::fleet::trust::push;
use crate::cli::{CliError, runtime};
use ccm_core::model::node::NodeName;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::enrolment::{Approval, EnrolmentError};

/// Approve the request of a node
#[derive(Debug, clap::Args)]
pub(super) struct ApproveArgs {
    /// Name of the node
    node: NodeName,

    /// Public key of the request, or its beginning; required if several requests have the name
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// Approve a name that is taken: revokes the key that has it
    #[arg(long)]
    replace: bool,

    #[command(flatten)]
    grants: GrantArgs,
}

/// Reject the request of a node
#[derive(Debug, clap::Args)]
pub(super) struct RejectArgs {
    /// Name of the node
    node: NodeName,

    /// Public key of the request, or its beginning; required if several requests have the name
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// Reason, which the node displays
    #[arg(long, value_name = "TEXT", default_value = "rejected by an operator")]
    reason: String,
}

pub(super) fn approve(args: &ApproveArgs, context: &Context<'_>) -> Result<(), CliError> {
    let console = context.console;
    let key = runtime::block_on(async {
        let now = SystemClock.now();
        let approver = context.approver().await?;
        let request = approver.request(&args.node, args.key.as_deref()).await?;
        if let Some(public_key) = approver.taken_by(&request).await? {
            if !args.replace {
                let node = args.node.clone();
                return Err(EnrolmentError::Taken { node, public_key }.into());
            }
            // Revoked first: two machines never have the name at the same time.
            let mut trust = context.directory.open()?;
            let lock = trust.lock(&SystemClock)?;
            let jwt = trust.revoke(&public_key, now)?;
            drop(lock);
            let store = approver.store();
            store.mark_revoked(&args.node, &public_key, now).await?;
            push(&trust, &jwt).await?;
        }
        let caller = caller();
        let approval = Approval {
            request: &request,
            grants: args.grants.grants(),
            approved_by: &caller,
        };
        approver.approve(&approval, now).await?;
        Ok(request.public_key)
    })?;
    console.print(&format!("approved {} with key {key}\n", args.node));
    Ok(())
}

pub(super) fn reject(args: &RejectArgs, context: &Context<'_>) -> Result<(), CliError> {
    let key = runtime::block_on(async {
        let approver = context.approver().await?;
        let request = approver.request(&args.node, args.key.as_deref()).await?;
        approver
            .reject(&request, &args.reason, &caller(), SystemClock.now())
            .await?;
        Ok(request.public_key)
    })?;
    let console = context.console;
    console.print(&format!("rejected {} with key {key}\n", args.node));
    Ok(())
}
