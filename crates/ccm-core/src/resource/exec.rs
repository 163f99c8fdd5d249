//! exec type: runs a command if its conditions hold.
//!
//! Guards (`onlyif`, `unless`) are part of reading the state, so they also run in noop mode. A command
//! is split into words and started directly (`posix`), or passed to `/bin/sh` (`shell`).

use chrono::{DateTime, Utc};

use super::{
    ChangeReport, ErrorOutput, Host, MAX_ERROR_LINES, Plan, ProviderError, ResourceError,
    creates_exists,
};
use crate::model::TypeName;
use crate::model::resource::{Exec, Resource};
use crate::model::state::{Detail, ExecDetail, State};
use crate::model::text::split_words;
use crate::system::Command;

const SHELL: &str = "/bin/sh";

/// The number of output lines logged of a failed command.
const MAX_LOGGED_LINES: usize = 10;

/// How a command line is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    Posix,
    Shell,
}

impl Provider {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Posix => "posix",
            Self::Shell => "shell",
        }
    }

    /// Selects a provider; the shell only if it is named.
    pub(super) fn select(wanted: &str, host: Host<'_>) -> Result<Self, ProviderError> {
        match wanted {
            "" | "posix" => Ok(Self::Posix),
            "shell" if host.runner.locate(SHELL).is_some() => Ok(Self::Shell),
            "shell" => Err(ProviderError::NotManageable),
            _ => Err(ProviderError::NotFound),
        }
    }

    fn command<'a>(self, line: &str, exec: &Exec) -> Result<Command<'a>, ResourceError> {
        let mut command = match self {
            Self::Shell => Command::new(SHELL, ["-c", line]),
            Self::Posix => {
                let mut words = split_words(line)?.into_iter();
                let program = words.next().ok_or(ResourceError::NoCommand)?;
                Command::new(program, words)
            }
        };
        command.cwd = optional(&exec.cwd).map(Into::into);
        command.path = optional(&exec.path).map(Into::into);
        command.timeout = exec.timeout()?;
        command.env = exec
            .environment
            .iter()
            .filter_map(|item| item.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Ok(command)
    }
}

fn optional(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// An exec action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Run the command.
    Run,
}

/// Checks whether the `creates` path exists, and runs the guards.
pub(super) fn inspect(
    resource: &Resource,
    exec: &Exec,
    provider: Provider,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let creates_satisfied = creates_exists(&exec.creates)?;
    let began = host.clock.now();
    let detail = ExecDetail {
        creates_satisfied,
        onlyif_satisfied: guard(&exec.onlyif, exec, provider, host)?,
        unless_satisfied: guard(&exec.unless, exec, provider, host)?,
        exitcode: None,
    };
    Ok(state(resource, detail, began))
}

fn state(resource: &Resource, detail: ExecDetail, timestamp: DateTime<Utc>) -> State {
    let name = &resource.common.name;
    State::new(timestamp, name, "present", Detail::Exec(detail))
}

fn guard(
    line: &str,
    exec: &Exec,
    provider: Provider,
    host: Host<'_>,
) -> Result<bool, ResourceError> {
    if line.is_empty() {
        return Ok(false);
    }
    if line.trim().is_empty() {
        return Err(ResourceError::EmptyGuard);
    }
    let command = provider.command(line, exec).map_err(|err| match err {
        ResourceError::Split(err) => ResourceError::Guard(err),
        ResourceError::NoCommand => ResourceError::EmptyGuard,
        other => other,
    })?;
    Ok(host.runner.run(&command)?.is_success())
}

/// Returns the condition that keeps the command from running, if there is one.
pub(super) fn condition(exec: &Exec, detail: &ExecDetail) -> Option<&'static str> {
    if detail.creates_satisfied {
        Some("creates exists")
    } else if !exec.onlyif.is_empty() && !detail.onlyif_satisfied {
        Some("onlyif failed")
    } else if detail.unless_satisfied {
        Some("unless succeeded")
    } else if exec.refreshonly {
        Some("refreshonly, and nothing it subscribes to changed")
    } else {
        None
    }
}

/// Plans whether the command runs.
pub(super) fn plan(
    exec: &Exec,
    state: &State,
    refresh: bool,
) -> Result<Plan<Action>, ResourceError> {
    let Detail::Exec(detail) = &state.detail else {
        return Err(ResourceError::other_state(TypeName::Exec, state));
    };
    let satisfied = condition(exec, detail).is_some();
    if satisfied && !refresh {
        return Ok(Plan::stable());
    }
    let message = if refresh {
        "Would have executed via subscribe"
    } else {
        "Would have executed"
    };
    Ok(Plan {
        actions: vec![Action::Run],
        message: message.into(),
        refreshed: refresh,
        satisfied,
        settles: false,
        tentative: false,
    })
}

/// Runs the command.
pub(super) fn run(
    resource: &Resource,
    exec: &Exec,
    provider: Provider,
    host: Host<'_>,
    output: &dyn Fn(&str),
) -> Result<ChangeReport, ResourceError> {
    let line = optional(&exec.command).unwrap_or(&resource.common.name);
    let mut command = provider.command(line, exec)?;
    if exec.logoutput && !resource.common.sensitive {
        command.on_line = Some(output);
    }
    command.keeps_end = true;
    command.supervised = true;
    let result = host.runner.run(&command)?;
    let mut report = ChangeReport {
        exit_code: Some(result.code),
        ..ChangeReport::default()
    };
    if resource.common.sensitive {
        return Ok(report);
    }
    if !exec.accepts(result.code) {
        report.output = result.printed();
        report.error_output = report.output.last_lines(MAX_LOGGED_LINES);
    } else if exec.logoutput {
        report.output = result.printed();
    }
    Ok(report)
}

/// Checks that the exit code is accepted, or that the `creates` path exists.
pub(super) fn verify(
    resource: &Resource,
    exec: &Exec,
    report: &mut ChangeReport,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let detail = ExecDetail {
        creates_satisfied: creates_exists(&exec.creates)?,
        exitcode: report.exit_code,
        ..ExecDetail::default()
    };
    let code = report.exit_code.unwrap_or_default();
    if exec.accepts(code) {
        return Ok(state(resource, detail, host.clock.now()));
    }
    let accepted: Vec<String> = exec.accepted().iter().map(ToString::to_string).collect();
    let reason = format!("not in allowed returns [{}]", accepted.join(" "));
    if detail.creates_satisfied {
        let exists = format!("but {} exists", exec.creates);
        report.warning = Some(format!("exit code {code} {reason}, {exists}"));
        return Ok(state(resource, detail, host.clock.now()));
    }
    // Short output is part of the error, so it is not reported separately.
    if report.error_output.len() <= MAX_ERROR_LINES {
        report.error_output.clear();
    }
    Err(ResourceError::ExitCode {
        code,
        reason,
        error_output: ErrorOutput {
            lines: report.output.last_lines(MAX_ERROR_LINES),
            output: report.output.tail(),
        },
    })
}
