//! `ccm agent check-policy`: whether a signer may do something on this node, and by which rule.

use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_agent::config::Config;
use ccm_core::model::TypeName;
use ccm_core::model::policy::{Action, PolicyRequest};
use ccm_nats::Verb;

/// Check whether a signer is allowed to do something; exit 1 if not
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Public key or name of the signer
    #[arg(long, value_name = "KEY")]
    signer: String,

    /// Request verb, such as ensure
    #[arg(long)]
    verb: Verb,

    /// Resource type
    #[arg(long = "type", value_name = "TYPE")]
    type_name: Option<TypeName>,

    /// Resource name; for exec resources also the command line
    #[arg(long)]
    name: Option<String>,

    /// Resource provider
    #[arg(long)]
    provider: Option<String>,

    /// Check a noop request
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
        let reason = "no trust section in the configuration: requests are accepted from NATS servers on this machine only";
        return (true, reason.into());
    };
    let is_match = |key: &str, name: &str| key == args.signer || name == args.signer;
    let signer = trust
        .signers
        .iter()
        .find(|signer| is_match(&signer.key, &signer.name));
    let Some(signer) = signer else {
        return (false, "signer is not in the trust section".into());
    };
    let Some(policy) = &signer.policy else {
        let reason = format!(
            "signer {} has no policy, everything is allowed",
            signer.name
        );
        return (true, reason);
    };
    let request = PolicyRequest {
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
    let decision = policy.decide_partial(&request);
    let reason = match decision.rule {
        Some(rule) => format!("rule {rule} of signer {}", signer.name),
        None => format!("no rule of signer {} matches", signer.name),
    };
    (decision.action == Action::Allow, reason)
}
