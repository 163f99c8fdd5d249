//! `ccm agent check-policy`: what a signer may do on this node, and which rule says so.

use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_agent::config::Config;
use ccm_core::model::TypeName;
use ccm_core::model::policy::{Action, Asked};
use ccm_nats::Verb;

/// Explains whether a signer may do something; exits 1 if not
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The public key or the name of the signer
    #[arg(long, value_name = "KEY")]
    signer: String,

    /// What is asked of the node, such as ensure
    #[arg(long)]
    verb: Verb,

    /// The type of the resource
    #[arg(long = "type", value_name = "TYPE")]
    type_name: Option<TypeName>,

    /// The name of the resource; of a command also its command line
    #[arg(long)]
    name: Option<String>,

    /// The provider of the resource
    #[arg(long)]
    provider: Option<String>,

    /// Asks about a request that changes nothing
    #[arg(long)]
    noop: bool,
}

pub(in crate::cli) fn run(
    args: &Args,
    config: &Config,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    let (is_allowed, reason) = decide(args, config);
    let word = if is_allowed { "allowed" } else { "denied" };
    console.print(&format!("{word}: {reason}\n"));
    Ok(Verdict {
        failed: !is_allowed,
        ..Verdict::default()
    })
}

fn decide(args: &Args, config: &Config) -> (bool, String) {
    let Some(trust) = &config.trust else {
        let reason =
            "no trust in this file: NATS servers on this machine are obeyed, and no others";
        return (true, reason.into());
    };
    let is_meant = |key: &str, name: &str| key == args.signer || name == args.signer;
    let signer = trust
        .signers
        .iter()
        .find(|signer| is_meant(&signer.key, &signer.name));
    let Some(signer) = signer else {
        return (false, "signer is not trusted here".into());
    };
    let Some(policy) = &signer.policy else {
        let reason = format!(
            "signer {} has no policy: everything is allowed",
            signer.name
        );
        return (true, reason);
    };
    let asked = Asked {
        verb: args.verb.as_str(),
        noop: args.noop,
        type_name: args.type_name,
        name: args.name.as_deref(),
        provider: args.provider.as_deref(),
        command: args
            .name
            .as_deref()
            .filter(|_| args.type_name == Some(TypeName::Exec)),
    };
    let decision = policy.decide_so_far(&asked);
    let reason = match decision.rule {
        Some(rule) => format!("rule {rule} of signer {}", signer.name),
        None => format!("no rule of signer {} matches", signer.name),
    };
    (decision.action == Action::Allow, reason)
}
