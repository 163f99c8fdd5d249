//! exec: runs a command when it should, and says what came of it.
//!
//! Guards (`onlyif`, `unless`) are part of reading the state, so they run in noop too. A command
//! is cut into words and started directly (`posix`) or handed to `/bin/sh` (`shell`).

use std::path::Path;

use super::{Action, Done, Host, Plan, ProviderError, ResourceError};
use crate::model::resource::{Exec, Resource};
use crate::model::state::{Detail, ExecDetail, State};
use crate::model::text::split_words;
use crate::system::files::{self, FileKind};
use crate::system::{Command, Output};

const SHELL: &str = "/bin/sh";

/// How many lines of a failed command's complaint are kept.
const COMPLAINT_LINES: usize = 10;

/// How a command line becomes a process.
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

    /// The shell is only taken when asked for by name.
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

/// Reads whether what the command creates is there.
pub(super) fn inspect(
    resource: &Resource,
    exec: &Exec,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let creates_satisfied = match optional(&exec.creates) {
        // A link that leads nowhere has created nothing.
        Some(path) => files::inspect(Path::new(path), true)?
            .is_some_and(|found| found.kind != FileKind::Symlink),
        None => false,
    };
    let detail = ExecDetail {
        creates_satisfied,
        ..ExecDetail::default()
    };
    Ok(State::new(
        host.clock.now(),
        &resource.common.name,
        "present",
        Detail::Exec(detail),
    ))
}

/// Runs the guards and notes what they said.
pub(super) fn ask_guards(
    state: &mut State,
    exec: &Exec,
    provider: Provider,
    host: Host<'_>,
) -> Result<(), ResourceError> {
    let Detail::Exec(detail) = &mut state.detail else {
        return Ok(());
    };
    detail.onlyif_satisfied = guard(&exec.onlyif, exec, provider, host)?;
    detail.unless_satisfied = guard(&exec.unless, exec, provider, host)?;
    Ok(())
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

/// Decides whether the command runs.
pub(super) fn plan(exec: &Exec, state: &State, refresh: bool) -> Plan {
    let satisfied = match &state.detail {
        Detail::Exec(seen) => {
            seen.creates_satisfied
                || (!exec.onlyif.is_empty() && !seen.onlyif_satisfied)
                || seen.unless_satisfied
                || exec.refreshonly
        }
        _ => false,
    };
    if satisfied && !refresh {
        return Plan::stable();
    }
    let message = if refresh {
        "Would have executed via subscribe"
    } else {
        "Would have executed"
    };
    Plan {
        actions: vec![Action::Run],
        message: message.into(),
        refreshed: refresh,
        satisfied,
        settles: false,
        ..Plan::default()
    }
}

/// Runs the command.
pub(super) fn run(
    resource: &Resource,
    exec: &Exec,
    provider: Provider,
    host: Host<'_>,
    output: &dyn Fn(&str),
) -> Result<Done, ResourceError> {
    let line = optional(&exec.command).unwrap_or(&resource.common.name);
    let mut command = provider.command(line, exec)?;
    if exec.logoutput && !resource.common.sensitive {
        command.on_line = Some(output);
    }
    let result = host.runner.run(&command)?;
    let complaint = if exec.accepts(result.code) || resource.common.sensitive {
        Vec::new()
    } else {
        last_lines(&result)
    };
    Ok(Done {
        exit_code: Some(result.code),
        complaint,
        ..Done::default()
    })
}

fn last_lines(output: &Output) -> Vec<String> {
    let text = output.stderr_text();
    let lines: Vec<&str> = text.lines().collect();
    let skipped = lines.len().saturating_sub(COMPLAINT_LINES);
    lines.into_iter().skip(skipped).map(Into::into).collect()
}

/// Checks that the command did what it was run for: what it creates is there, or else its exit
/// code is one of those accepted.
pub(super) fn verify(
    resource: &Resource,
    exec: &Exec,
    done: &mut Done,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let mut state = inspect(resource, exec, host)?;
    let code = done.exit_code.unwrap_or_default();
    let Detail::Exec(detail) = &mut state.detail else {
        return Ok(state);
    };
    detail.exitcode = done.exit_code;
    if exec.accepts(code) {
        return Ok(state);
    }
    let accepted: Vec<String> = exec.accepted().iter().map(ToString::to_string).collect();
    let reason = format!(
        "exit code {code} not in allowed returns [{}]",
        accepted.join(" ")
    );
    if detail.creates_satisfied {
        done.warning = Some(format!("{reason}, but {} exists", exec.creates));
        return Ok(state);
    }
    Err(ResourceError::NotReached {
        ensure: format!("exit code {code}"),
        reason,
    })
}
