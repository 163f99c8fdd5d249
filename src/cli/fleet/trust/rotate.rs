//! `ccm fleet trust rotate`: new signing keys of roles, a new request signer, and new server
//! certificates.

use std::collections::BTreeSet;
use std::time::Duration;

use super::signer::Rotation;
use super::{TrustArgs, push};
use crate::cli::fleet::FleetArgs;
use crate::cli::fleet::request::positive_duration;
use crate::cli::output::Console;
use crate::cli::{CliError, runtime};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::enrolment::EnrolmentStore;
use ccm_fleet::role_permissions::Role;
use ccm_fleet::trust::TrustDir;

/// Maximum number of names in an error.
const MAX_NAMES: usize = 10;

/// Rotate the signing key of a role, the request signer, or the certificate of the server
///
/// Users that the previous key of a role has signed, and requests that the previous request signer
/// has signed, stay valid until `--retire`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Role (agent, operator, controller, monitor, enroll), `signer` for the request signer, or `tls`
    /// for the server certificate
    #[arg(value_name = "ROLE|signer|tls", value_parser = target)]
    target: Target,

    /// Remove the previous keys instead: users and requests that they have signed are refused
    #[arg(long)]
    retire: bool,

    /// Maximum time to wait until the online nodes have read the change of the request signer
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = positive_duration)]
    wait: Duration,

    /// Retire previous keys although nodes or users need them
    #[arg(long, requires = "retire")]
    force: bool,
}

/// What to rotate.
#[derive(Clone, Copy, Debug)]
enum Target {
    Role(Role),
    Signer,
    Tls,
}

fn target(text: &str) -> Result<Target, ccm_fleet::role_permissions::UnknownRole> {
    match text {
        "tls" => Ok(Target::Tls),
        "signer" => Ok(Target::Signer),
        "enroll" => Ok(Target::Role(Role::Enroll)),
        role => role.parse().map(Target::Role),
    }
}

pub(super) fn run(
    args: &Args,
    directory: &TrustArgs,
    fleet: &FleetArgs,
    trust: &mut TrustDir,
    console: &Console,
) -> Result<(), CliError> {
    let now = SystemClock.now();
    let role = match args.target {
        Target::Role(role) => role,
        Target::Signer => {
            let rotation = Rotation {
                directory,
                fleet,
                console,
                trust,
                wait: args.wait,
                force: args.force,
            };
            return match args.retire {
                true => rotation.retire(),
                false => rotation.rotate(),
            };
        }
        Target::Tls => {
            if !trust.renew_certificate(now)? {
                let text = "the server certificate was not created by `ccm fleet trust init`";
                return Err(CliError::usage(text));
            }
            console.print("created a new server certificate; reload the server: nats-server --signal reload\n");
            return Ok(());
        }
    };
    let jwt = if args.retire {
        if !args.force {
            check_unused(role, directory, fleet, trust)?;
        }
        trust.retire(role, now)?
    } else {
        trust.rotate(role, now)?
    };
    runtime::block_on(push(trust, &jwt))?;
    console.print(&match (args.retire, role) {
        (true, _) => format!("removed the previous signing keys of role {role}\n"),
        (false, Role::Agent) => "created a new signing key of role agent; create new enrolment \
             tokens, enroll the nodes again, then retire the previous key with --retire\n"
            .to_owned(),
        (false, _) => format!(
            "created a new signing key of role {role}; issue its users again, then retire the \
             previous key with --retire\n"
        ),
    });
    Ok(())
}

/// Fails if valid nodes or users have credentials of a previous signing key of a role.
fn check_unused(
    role: Role,
    directory: &TrustArgs,
    fleet: &FleetArgs,
    trust: &TrustDir,
) -> Result<(), CliError> {
    let issued = trust.users_of_previous_keys(role, SystemClock.now())?;
    let mut names: BTreeSet<String> = issued.into_iter().map(|user| user.name).collect();
    let mut remedy = "issue these users again (`ccm fleet trust issue --replace`)";
    if role == Role::Agent {
        remedy = "enroll these nodes again, see `ccm fleet enroll list --all`";
        let enrolled = runtime::block_on(async {
            let connection = directory.connect(fleet).await?;
            let store = EnrolmentStore::open(&connection, &fleet.subjects()?).await;
            let store = store.map_err(CliError::of_fleet)?;
            store.all_enrolled().await.map_err(CliError::from)
        })?;
        let enrolled = enrolled
            .into_iter()
            .filter(|node| node.revoked.is_none() && !trust.has_signed(role, &node.jwt));
        names.extend(enrolled.map(|node| node.node.to_string()));
    }
    if names.is_empty() {
        return Ok(());
    }
    let more = names.len().saturating_sub(MAX_NAMES);
    let mut list: Vec<String> = names.into_iter().take(MAX_NAMES).collect();
    if more > 0 {
        list.push(format!("and {more} more"));
    }
    let text = format!(
        "a previous signing key of role {role} is used by {}",
        list.join(", ")
    );
    Err(CliError::usage(text).hint(format!("{remedy}, or disconnect them with --force")))
}
