//! `ccm fleet trust list`: issued users and their state.

use chrono::{DateTime, Utc};
use serde_json::json;

use crate::cli::CliError;
use crate::cli::fleet::reply_report::Format;
use crate::cli::fleet::request::FormatArgs;
use crate::cli::fleet::table::table;
use crate::cli::output::Console;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::trust::{TrustDir, UserRecord};
use ccm_value::json as text;
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
    let document = |user: &UserRecord| json!({ "user": user, "state": state(user) });
    match args.format.format() {
        Format::Text => {
            let day = |time: Option<DateTime<Utc>>| {
                time.map_or_else(|| "-".to_owned(), |time| to_the_second(&time))
            };
            let rows = users.iter().map(|user| {
                [
                    user.role.to_string(),
                    user.name.clone(),
                    state(user).into(),
                    day(Some(user.issued)),
                    day(user.expires),
                    user.public_key.clone(),
                ]
            });
            let title = ["ROLE", "NAME", "STATE", "ISSUED", "EXPIRES", "KEY"];
            console.print(&table(title, rows));
        }
        Format::Lines => users
            .iter()
            .for_each(|user| console.print(&format!("{}\n", document(user)))),
        Format::Json => {
            let users: Vec<_> = users.iter().map(document).collect();
            let text = text::pretty(&json!({ "users": users })).map_err(CliError::failed)?;
            console.print(&format!("{text}\n"));
        }
    }
    Ok(())
}
