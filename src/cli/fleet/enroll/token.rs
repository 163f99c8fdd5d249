//! `ccm fleet enroll token`: tokens that permit nodes to request enrolment.

use std::time::Duration;

use chrono::TimeDelta;
use clap::Subcommand;
use serde_json::json;

use super::Context;
use crate::cli::fleet::flag_values::BadValue;
use crate::cli::fleet::list_output::print_list;
use crate::cli::fleet::permissions::GrantArgs;
use crate::cli::fleet::request::{FormatArgs, caller, positive_duration};
use crate::cli::fleet::trust::push;
use crate::cli::output::print_error;
use crate::cli::{CliError, runtime};
use ccm_core::model::enrolment::EnrolmentToken;
use ccm_core::model::node::Token;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::enrolment::{TokenRequest, create_token};
use ccm_value::text::to_the_second;

/// Manage enrolment tokens
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(CreateArgs),
    /// List tokens
    List(ListArgs),
    /// Revoke a token; enrolled nodes keep their credentials
    Revoke {
        /// Id of the token
        id: Token,
    },
}

/// Create a token and print it
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Time after which the token expires, or `never`
    #[arg(long, value_name = "DURATION|never", default_value = "24h", value_parser = expiry)]
    expires: Expiry,

    /// Number of nodes that the token approves
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,

    /// Pattern of permitted node names, such as 'web*.example.net'; repeatable
    #[arg(long, value_name = "PATTERN")]
    name: Vec<String>,

    /// Approve nothing automatically: requests wait for `ccm fleet enroll approve`
    #[arg(long, conflicts_with = "count")]
    manual: bool,

    #[command(flatten)]
    grants: GrantArgs,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    format: FormatArgs,
}

/// Expiry of a token.
#[derive(Clone, Copy, Debug)]
enum Expiry {
    Never,
    After(Duration),
}

fn expiry(text: &str) -> Result<Expiry, BadValue> {
    match text {
        "never" => Ok(Expiry::Never),
        text => positive_duration(text).map(Expiry::After),
    }
}

pub(super) fn run(args: &Args, context: &Context<'_>) -> Result<(), CliError> {
    match &args.command {
        Command::Create(command) => create(command, context),
        Command::List(command) => list(command, context),
        Command::Revoke { id } => revoke(id, context),
    }
}

fn create(args: &CreateArgs, context: &Context<'_>) -> Result<(), CliError> {
    let now = SystemClock.now();
    let expires = match args.expires {
        Expiry::Never => None,
        Expiry::After(after) => {
            let after = TimeDelta::from_std(after).ok();
            let expires = after.and_then(|after| now.checked_add_signed(after));
            Some(expires.ok_or_else(|| CliError::usage("--expires is too late"))?)
        }
    };
    let request = TokenRequest {
        expires,
        automatic: !args.manual,
        max_nodes: (!args.manual).then_some(args.count),
        patterns: args.name.clone(),
        grants: args.grants.grants(),
        created_by: caller(),
    };
    let trust = context.directory.open()?;
    let (token, secret) = runtime::block_on(async {
        let store = context.store().await?;
        let created = create_token(&store, &trust, request, now).await;
        created.map_err(CliError::from)
    })?;
    print_error(&format!("ccm: token {}: {}", token.id, terms(&token)));
    context.console.print(&format!("{}\n", secret.reveal()));
    Ok(())
}

fn list(args: &ListArgs, context: &Context<'_>) -> Result<(), CliError> {
    let tokens = runtime::block_on(async {
        let store = context.store().await?;
        store.tokens().await.map_err(CliError::from)
    })?;
    let rows = tokens.iter().map(|token| {
        let cells = [
            token.id.to_string(),
            state(token).into(),
            terms(token),
            token.approved.to_string(),
            to_the_second(&token.created),
            token.created_by.clone(),
        ];
        (cells, json!({ "token": token, "state": state(token) }))
    });
    let title = ["TOKEN", "STATE", "TERMS", "USED", "CREATED", "BY"];
    print_list(context.console, args.format.format(), "tokens", title, rows)
}

fn revoke(id: &Token, context: &Context<'_>) -> Result<(), CliError> {
    let mut trust = context.directory.open()?;
    runtime::block_on(async {
        let store = context.store().await?;
        let token = store.revoke_token(id).await?;
        let lock = trust.lock(&SystemClock)?;
        let jwt = trust.revoke(&token.public_key, SystemClock.now())?;
        drop(lock);
        push(&trust, &jwt).await
    })?;
    context.console.print(&format!("revoked token {id}\n"));
    Ok(())
}

fn state(token: &EnrolmentToken) -> &'static str {
    let now = SystemClock.now();
    if token.revoked {
        "revoked"
    } else if token.expires.is_some_and(|expires| expires <= now) {
        "expired"
    } else if token.max_nodes.is_some_and(|max| token.approved >= max) {
        "used up"
    } else {
        "valid"
    }
}

/// Returns what a token permits.
fn terms(token: &EnrolmentToken) -> String {
    let mut terms = Vec::new();
    terms.push(match (token.automatic, token.max_nodes) {
        (false, _) => "requests wait for approval".to_owned(),
        (true, Some(1)) => "approves 1 node".to_owned(),
        (true, Some(count)) => format!("approves {count} nodes"),
        (true, None) => "approves all nodes".to_owned(),
    });
    if !token.patterns.is_empty() {
        terms.push(format!("named {}", token.patterns.join(" or ")));
    }
    terms.push(match token.expires {
        Some(expires) => format!("expires {}", to_the_second(&expires)),
        None => "does not expire".to_owned(),
    });
    terms.join(", ")
}
