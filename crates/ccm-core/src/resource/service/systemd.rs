//! systemd provider, through `systemctl`.
//!
//! A unit that is starting or stopping gets a short time to settle before its status is reported. A
//! daemon-reload is done only before a change, and only if the unit needs it; never in noop mode or for
//! a status.

use std::time::Duration;

use super::{Action, Diagnosis, ServiceError, ServiceProvider, Status};
use crate::model::output;
use crate::resource::Host;
use crate::system::{Command, FileLock, Output, RunError};

/// The timeout of a query. Changes have no timeout here, because systemd limits each unit itself.
const QUERY_TIMEOUT: Duration = Duration::from_secs(60);

/// The timeout for the lock: longer than the usual timeout of a unit.
const LOCK_TIMEOUT: Duration = Duration::from_secs(300);

/// The waits for a unit that is starting or stopping; three seconds in total.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1500),
];

/// The maximum number of output lines in an error.
const MAX_LINES: usize = 10;

pub(super) struct Systemd;

impl ServiceProvider for Systemd {
    fn name(&self) -> &'static str {
        "systemd"
    }

    fn is_usable(&self, host: Host<'_>) -> bool {
        host.runner.locate("systemctl").is_some()
    }

    fn status(&self, service: &str, host: Host<'_>) -> Result<Status, ServiceError> {
        let running = is_running(service, host)?;
        let (enabled, boot) = is_enabled(service, host)?;
        Ok(Status {
            running,
            enabled,
            boot,
        })
    }

    /// A reload does not apply a changed unit file, so such a unit must be restarted.
    fn can_reload(&self, service: &str, host: Host<'_>) -> Result<bool, ServiceError> {
        let names = ["CanReload", "NeedDaemonReload"];
        let [can_reload, changed] = properties(service, names, host)?;
        Ok(can_reload.as_deref() == Some("yes") && changed.as_deref() == Some("no"))
    }

    fn change(&self, service: &str, action: Action, host: Host<'_>) -> Result<(), ServiceError> {
        let purpose = format!("{} {service}", action.verb());
        let _lock =
            FileLock::acquire(&host.services.lock_file, &purpose, LOCK_TIMEOUT, host.clock)?;
        // Enabling reads unit files from disk and does its own daemon-reload.
        if !action.is_for_boot() {
            daemon_reload(service, host)?;
        }
        let job = Command::new("systemctl", [action.verb(), "--system", service]);
        let output = host.runner.run(&job)?;
        if output.is_success() {
            return Ok(());
        }
        Err(ServiceError::Refused {
            action,
            service: service.into(),
            reason: error_text(&output),
            output: output.printed().tail(),
            diagnosis: Box::default(),
        })
    }

    fn diagnose(&self, service: &str, host: Host<'_>) -> Diagnosis {
        let result = match properties(service, ["Result"], host) {
            Ok([Some(result)]) if result != "success" => Some(result),
            _ => None,
        };
        Diagnosis {
            result,
            journal: journal(service, host),
        }
    }
}

/// Runs a command that changes nothing.
fn query<'a>(
    program: &str,
    args: impl IntoIterator<Item = &'a str>,
    host: Host<'_>,
) -> Result<Output, RunError> {
    host.runner.run(&Command {
        timeout: Some(QUERY_TIMEOUT),
        ..Command::new(program, args)
    })
}

/// Reports whether a unit is active, after waiting while it starts or stops. A unit that does not settle
/// in time counts as stopped, or as running if it is reloading.
fn is_running(service: &str, host: Host<'_>) -> Result<bool, ServiceError> {
    let mut pauses = PAUSES.into_iter();
    loop {
        let output = query("systemctl", ["is-active", "--system", service], host)?;
        let (running, is_settled) = match output.stdout_text().trim() {
            "active" => (true, true),
            "inactive" | "failed" => (false, true),
            "reloading" | "refreshing" => (true, false),
            "activating" | "deactivating" | "maintenance" => (false, false),
            _ => return Err(invalid("is-active", &output)),
        };
        match pauses.next() {
            Some(pause) if !is_settled => host.clock.sleep(pause),
            _ => return Ok(running),
        }
    }
}

/// Reports whether a unit is enabled, and systemd's word for it. A unit that can't be enabled, such as a
/// static one, counts as enabled.
fn is_enabled(service: &str, host: Host<'_>) -> Result<(bool, String), ServiceError> {
    let output = query("systemctl", ["is-enabled", "--system", service], host)?;
    let text = output.stdout_text();
    let word = text.trim();
    let enabled = match word {
        "enabled" | "enabled-runtime" | "alias" | "static" | "indirect" | "generated"
        | "transient" => true,
        "disabled" | "linked" | "linked-runtime" | "masked" | "masked-runtime" => false,
        "not-found" => return Err(ServiceError::NotFound(service.into())),
        // Before version 253, only standard error reports an unknown unit.
        "" if output.stderr_text().contains("No such file or directory") => {
            return Err(ServiceError::NotFound(service.into()));
        }
        _ => return Err(invalid("is-enabled", &output)),
    };
    Ok((enabled, word.to_owned()))
}

fn invalid(command: &'static str, output: &Output) -> ServiceError {
    let output = match output.stdout_text().trim() {
        "" => error_text(output),
        text => text.to_owned(),
    };
    ServiceError::InvalidOutput { command, output }
}

/// Returns properties of a unit; nothing for those that systemd does not report.
fn properties<const N: usize>(
    service: &str,
    names: [&str; N],
    host: Host<'_>,
) -> Result<[Option<String>; N], RunError> {
    let mut args = vec!["show", "--system"];
    for name in names {
        args.extend(["-p", name]);
    }
    args.push(service);
    let output = query("systemctl", args, host)?;
    let text = output.stdout_text();
    let find = |name: &str| {
        let mut pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs.find(|(key, _)| *key == name)
    };
    Ok(names.map(|name| find(name).map(|(_, value)| value.to_owned())))
}

/// Does a daemon-reload if the unit files of this unit have changed on disk. If systemd does not report
/// that, it is done once per run.
fn daemon_reload(service: &str, host: Host<'_>) -> Result<(), ServiceError> {
    let [changed] = properties(service, ["NeedDaemonReload"], host)?;
    let needed = match changed.as_deref() {
        Some("yes") => true,
        Some("no") => false,
        _ => !host.services.reloaded.get(),
    };
    if needed {
        let output = host
            .runner
            .run(&Command::new("systemctl", ["daemon-reload"]))?;
        if !output.is_success() {
            return Err(ServiceError::DaemonReload(error_text(&output)));
        }
        host.services.reloaded.set(true);
    }
    Ok(())
}

/// Returns the last journal lines of a unit; none without a journal.
fn journal(service: &str, host: Host<'_>) -> Vec<String> {
    if host.runner.locate("journalctl").is_none() {
        return Vec::new();
    }
    // The last lines of a unit may not be in the journal yet.
    let _ = query("journalctl", ["--sync"], host);
    let count = MAX_LINES.to_string();
    let args = ["-u", service, "-n", &count, "--no-pager", "-o", "cat"];
    match query("journalctl", args, host) {
        Ok(output) if output.is_success() => last_lines(&output.stdout_text()),
        _ => Vec::new(),
    }
}

/// Returns the exit code and error output of a failed command, on one line.
fn error_text(output: &Output) -> String {
    let lines = last_lines(&output.stderr_text());
    if lines.is_empty() {
        format!("exit code {}", output.code)
    } else {
        let text = lines.join(" | ");
        format!("exit code {}: {}", output.code, text.trim_end_matches('.'))
    }
}

/// Returns the last lines of a text without hints to use other commands.
fn last_lines(text: &str) -> Vec<String> {
    let is_relevant =
        |line: &&str| !line.starts_with("See \"") && !line.starts_with("-- No entries");
    let lines: Vec<&str> = text.lines().filter(is_relevant).collect();
    output::last_lines(&lines.join("\n"), MAX_LINES)
}
