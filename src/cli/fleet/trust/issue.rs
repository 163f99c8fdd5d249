//! `ccm fleet trust issue`: issues credentials of a user.

use chrono::TimeDelta;
use std::time::Duration;

use super::push;
use crate::cli::fleet::permissions::GrantArgs;
use crate::cli::fleet::request::positive_duration;
use crate::cli::output::{Console, print_error};
use crate::cli::{CliError, runtime};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::role_permissions::Role;
use ccm_fleet::trust::{TrustDir, UserRequest};

/// Issue credentials of a user and print them
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Role: agent, operator, controller or monitor
    role: Role,

    /// Name of the user, or of the node of an agent
    name: String,

    /// Public key of the user, who keeps the seed; prints the JWT only
    #[arg(long, value_name = "KEY", conflicts_with = "save")]
    public_key: Option<String>,

    /// Time after which the credentials expire [default: never]
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    expires: Option<Duration>,

    /// Store credentials and a NATS context in the trust directory instead of printing them
    #[arg(long)]
    save: bool,

    /// Revoke the credentials that the name has
    #[arg(long)]
    replace: bool,

    #[command(flatten)]
    grants: GrantArgs,
}

pub(super) fn run(args: &Args, trust: &TrustDir, console: &Console) -> Result<(), CliError> {
    let now = SystemClock.now();
    let expires = args
        .expires
        .and_then(|after| now.checked_add_signed(TimeDelta::from_std(after).ok()?));
    let revoked = trust.revocations()?;
    let existing = trust.user(args.role, &args.name)?;
    let existing = existing.filter(|user| !revoked.contains_key(&user.public_key));
    if let Some(user) = &existing
        && args.public_key.as_ref() != Some(&user.public_key)
    {
        if !args.replace {
            let text = format!("{} {} has valid credentials", args.role, args.name);
            return Err(CliError::usage(text).hint("revoke and replace them with --replace"));
        }
        let jwt = trust.revoke(&user.public_key, now)?;
        runtime::block_on(push(trust, &jwt))?;
    }
    let request = UserRequest {
        role: args.role,
        name: args.name.clone(),
        public_key: args.public_key.clone(),
        expires,
        grants: args.grants.grants(),
    };
    let issued = trust.issue(&request, now)?;
    match &issued.creds {
        Some(creds) if args.save => {
            let context = trust.store_user(&issued, creds)?;
            console.print(&format!("{}\n", context.display()));
        }
        Some(creds) => {
            console.print(creds.reveal());
            let inbox = &issued.inbox_prefix;
            print_error(&format!(
                "ccm: the NATS context of this user must set inbox_prefix to {inbox}"
            ));
        }
        None => console.print(&format!("{}\n", issued.jwt)),
    }
    Ok(())
}
