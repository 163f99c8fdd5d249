//! `ccm fleet trust list`: issued users and their state.

use chrono::{DateTime, Utc};
use serde_json::json;

use crate::cli::CliError;
use crate::cli::fleet::list_output::print_list;
use crate::cli::fleet::request::FormatArgs;
use crate::cli::output::Console;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::trust::{TrustDir, UserRecord};
use ccm_value::text::to_the_second;

/// List users that were issued from the trust directory
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    format: FormatArgs,
}

pub(super) fn run(args: &Args, trust: &TrustDir, console: &Console) -> Result<(), CliError> {
    let revoked = trust.revocations()?;
    let now = SystemClock.now();
    let state = |user: &UserRecord| {
        if revoked.contains_key(&user.public_key) {
            "revoked"
        } else if user.expires.is_some_and(|expires| expires <= now) {
            "expired"
        } else if !trust.is_current(user) {
            "old key"
        } else {
            "valid"
        }
    };
    let users = trust.users()?;
    let time = |time: Option<DateTime<Utc>>| {
        time.map_or_else(|| "-".to_owned(), |time| to_the_second(&time))
    };
    let rows = users.iter().map(|user| {
        let cells = [
            user.role.to_string(),
            user.name.clone(),
            state(user).into(),
            time(Some(user.issued)),
            time(user.expires),
            user.public_key.clone(),
        ];
        (cells, json!({ "user": user, "state": state(user) }))
    });
    let title = ["ROLE", "NAME", "STATE", "ISSUED", "EXPIRES", "KEY"];
    print_list(console, args.format.format(), "users", title, rows)
}
