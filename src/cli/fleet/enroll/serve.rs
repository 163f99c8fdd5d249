//! `ccm fleet enroll serve`: answers enrolment requests.

use tokio::signal::unix::{SignalKind, signal};

use super::Context;
use crate::cli::{CliError, runtime};
use ccm_core::engine::{Level, Line};
use ccm_core::model::enrolment::EnrolmentState;
use ccm_core::system::SystemClock;
use ccm_fleet::enrolment::{EnrolmentError, Notice};

/// Answer enrolment requests: approve those with a valid token, store the others
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_: &Args, context: &Context<'_>) -> Result<(), CliError> {
    runtime::block_on(async {
        let approver = context.approver().await?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(CliError::failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(CliError::failed)?;
        let stop = async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        let console = context.console;
        console.print("serving enrolment requests\n");
        let notify = |notice: Result<Notice, EnrolmentError>| match notice {
            Ok(notice) => console.print(&describe(&notice)),
            Err(err) => {
                let line = Line::new(Level::Error, "Enrolment request failed");
                console.log(&line.with("error", err));
            }
        };
        let served = approver.serve(&SystemClock, notify, stop).await;
        served.map_err(CliError::from)
    })
}

fn describe(notice: &Notice) -> String {
    let Notice {
        node,
        public_key,
        state,
        reason,
        token,
    } = notice;
    match state {
        EnrolmentState::Refused | EnrolmentState::Rejected => {
            format!("{node} {state}: {reason} (key {public_key}, token {token})\n")
        }
        _ => format!("{node} {state} (key {public_key}, token {token})\n"),
    }
}
