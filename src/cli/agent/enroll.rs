//! `ccm agent enroll`: makes this node a member of a fleet.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::environment::NatsArgs;
use crate::cli::output::{Console, print_error};
use crate::cli::{CliError, Verdict, runtime};
use ccm_agent::enroll::{
    ConfigFileError, EnrollError, EnrollOptions, Enrolled, Progress, enroll, is_login_error,
};
use ccm_core::model::node::NodeName;
use ccm_core::run::local_identity;
use ccm_core::system::{SystemClock, files};
use ccm_nats::NatsError;
use ccm_nats::enrolment_token::TokenContent;
use ccm_value::secret::Secret;
use ccm_value::text::{DurationError, parse_wait};

/// Size limit of a token file.
const MAX_TOKEN: u64 = 64 * 1024;

/// Make this node a member of a fleet: request credentials and write the agent's configuration
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Enrolment token, from `ccm fleet enroll token create`
    #[arg(
        long,
        env = "CCM_ENROLL_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true
    )]
    token: Option<String>,

    /// File with the enrolment token; other users can't see it, unlike --token
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,

    /// Name of this node [default: the fully qualified host name]
    #[arg(long, value_name = "NODE")]
    name: Option<NodeName>,

    /// Time to wait for approval [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,

    /// Replace a configuration or credentials that differ
    #[arg(long)]
    force: bool,

    /// Create a new key, even if this node has one
    #[arg(long)]
    new_key: bool,
}

pub(in crate::cli) fn run(
    args: &Args,
    config: &Path,
    nats: &NatsArgs,
    console: &Console,
) -> Result<Verdict, CliError> {
    let token = TokenContent::parse(&args.token()?).map_err(CliError::usage)?;
    let node = match &args.name {
        Some(name) => name.clone(),
        None => local_identity().map_err(|err| CliError::usage(err).hint("use --name NODE"))?,
    };
    let options = EnrollOptions {
        token,
        servers: nats.given_servers().map(str::to_owned),
        node,
        config: config.to_owned(),
        wait: args.wait,
        force: args.force,
        new_key: args.new_key,
    };
    let enrolled = runtime::block_on(async {
        let enrolled = enroll(&options, &SystemClock, |progress| {
            print_error(&describe(&options.node, &progress));
        });
        enrolled.await.map_err(CliError::from)
    })?;
    console.print(&summary(&enrolled));
    Ok(Verdict::default())
}

impl Args {
    fn token(&self) -> Result<Secret, CliError> {
        match (&self.token, &self.token_file) {
            (Some(token), _) => Ok(Secret::new(token.trim())),
            (None, Some(file)) => {
                let text = files::read_secret(file, MAX_TOKEN).map_err(CliError::usage)?;
                Ok(Secret::new(text.trim()))
            }
            (None, None) => Err(CliError::usage("no enrolment token given")
                .hint("use --token, --token-file or CCM_ENROLL_TOKEN")
                .hint("create one with `ccm fleet enroll token create`")),
        }
    }
}

fn describe(node: &NodeName, progress: &Progress) -> String {
    match progress {
        Progress::Pending { public_key } => format!(
            "ccm: waiting for approval of {node} with key {public_key}\n\
             ccm: an operator can approve it with `ccm fleet enroll approve {node}`"
        ),
        Progress::NoApprover => {
            "ccm: waiting: no approver is running; start `ccm fleet enroll serve`".to_owned()
        }
    }
}

fn summary(enrolled: &Enrolled) -> String {
    let Enrolled {
        node,
        public_key,
        files,
    } = enrolled;
    let mut text = format!("enrolled {node} with key {public_key}\n");
    for file in files {
        text.push_str(&format!("wrote {}\n", file.display()));
    }
    text.push_str("next: systemctl enable --now ccm-agent\n");
    text
}

fn duration(text: &str) -> Result<Duration, DurationError> {
    parse_wait(text)
}

impl From<EnrollError> for CliError {
    fn from(err: EnrollError) -> Self {
        match &err {
            EnrollError::OtherFleet(_)
            | EnrollError::Config {
                source: ConfigFileError::Conflict(_),
                ..
            } => Self::usage(err).hint("replace it with --force"),
            EnrollError::Config { .. } | EnrollError::Token(_) | EnrollError::Context(_) => {
                Self::usage(err)
            }
            EnrollError::Nats(NatsError::Connect { reason, .. }) if is_login_error(reason) => {
                Self::failed(err).hint("the token may have expired or been revoked")
            }
            EnrollError::TimedOut(_) => {
                Self::failed(err).hint("run the same command again to continue waiting")
            }
            _ => Self::failed(err),
        }
    }
}
