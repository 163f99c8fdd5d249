//! systemd, through `systemctl`: one question, one word, one exit code at a time.
//!
//! A unit that is on its way somewhere gets a short while to arrive before it is judged. Unit
//! files are read again only for a unit that needs it, and only when something is about to be
//! done to it; so neither noop nor status ever does. Knows nothing of what was asked for.

use std::time::Duration;

use super::{Action, Diagnosis, ServiceError, ServiceProvider, Status};
use crate::resource::Host;
use crate::system::{Command, FileLock, Output, RunError};

/// How long a question may take. A job has no limit here: every unit has its own, in systemd.
const QUESTION_LIMIT: Duration = Duration::from_secs(60);

/// How long to wait for others who change services: longer than a unit takes to give up.
const PATIENCE: Duration = Duration::from_secs(300);

/// The waits for a unit that is on its way; three seconds in all.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1500),
];

/// How much of what systemd or a service says goes into an error.
const MAX_LINES: usize = 10;
const MAX_LINE_CHARS: usize = 300;

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

    /// A reload does not take up a changed unit file, so such a unit has to be restarted.
    fn can_reload(&self, service: &str, host: Host<'_>) -> Result<bool, ServiceError> {
        let names = ["CanReload", "NeedDaemonReload"];
        let [can_reload, changed] = properties(service, names, host)?;
        Ok(can_reload.as_deref() == Some("yes") && changed.as_deref() == Some("no"))
    }

    fn change(&self, service: &str, action: Action, host: Host<'_>) -> Result<(), ServiceError> {
        let purpose = format!("{} {service}", action.verb());
        let _lock = FileLock::acquire(&host.services.lock, &purpose, PATIENCE, host.clock)?;
        // Enabling reads unit files from disk, and ends in a daemon-reload of its own.
        if !action.is_for_boot() {
            read_unit_files(service, host)?;
        }
        let job = Command::new("systemctl", [action.verb(), "--system", service]);
        let output = host.runner.run(&job)?;
        if output.is_success() {
            return Ok(());
        }
        Err(ServiceError::Refused {
            action,
            service: service.into(),
            reason: complaint(&output),
            diagnosis: Diagnosis::default(),
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

/// Runs a command that only looks.
fn ask<'a>(
    program: &str,
    args: impl IntoIterator<Item = &'a str>,
    host: Host<'_>,
) -> Result<Output, RunError> {
    host.runner.run(&Command {
        timeout: Some(QUESTION_LIMIT),
        ..Command::new(program, args)
    })
}

/// Reports whether a unit is active, once it is neither starting nor stopping. One that does not
/// arrive in time counts as stopped, unless it is up and only reloads.
fn is_running(service: &str, host: Host<'_>) -> Result<bool, ServiceError> {
    let mut pauses = PAUSES.into_iter();
    loop {
        let output = ask("systemctl", ["is-active", "--system", service], host)?;
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

/// Reports whether a unit comes up at boot, and systemd's own word for it. A unit that nobody has
/// to enable counts as enabled.
fn is_enabled(service: &str, host: Host<'_>) -> Result<(bool, String), ServiceError> {
    let output = ask("systemctl", ["is-enabled", "--system", service], host)?;
    let text = output.stdout_text();
    let word = text.trim();
    let enabled = match word {
        "enabled" | "enabled-runtime" | "alias" | "static" | "indirect" | "generated"
        | "transient" => true,
        "disabled" | "linked" | "linked-runtime" | "masked" | "masked-runtime" => false,
        "not-found" => return Err(ServiceError::NotFound(service.into())),
        // Before version 253 there is no word for it, only a complaint.
        "" if output.stderr_text().contains("No such file or directory") => {
            return Err(ServiceError::NotFound(service.into()));
        }
        _ => return Err(invalid("is-enabled", &output)),
    };
    Ok((enabled, word.to_owned()))
}

fn invalid(question: &'static str, output: &Output) -> ServiceError {
    let answer = match output.stdout_text().trim() {
        "" => complaint(output),
        answer => answer.to_owned(),
    };
    ServiceError::Answer { question, answer }
}

/// Returns properties of a unit; nothing for one that systemd does not tell.
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
    let output = ask("systemctl", args, host)?;
    let text = output.stdout_text();
    let find = |name: &str| {
        let mut pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs.find(|(key, _)| *key == name)
    };
    Ok(names.map(|name| find(name).map(|(_, value)| value.to_owned())))
}

/// Makes systemd read its unit files again if this unit's have changed on disk. Afterwards no unit
/// needs it, so a run does this once, and once more only if a file changes in between. Where
/// systemd does not tell, once is the best guess.
fn read_unit_files(service: &str, host: Host<'_>) -> Result<(), ServiceError> {
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
            return Err(ServiceError::DaemonReload(complaint(&output)));
        }
        host.services.reloaded.set(true);
    }
    Ok(())
}

/// Returns the last lines a unit logged; none where there is no journal.
fn journal(service: &str, host: Host<'_>) -> Vec<String> {
    if host.runner.locate("journalctl").is_none() {
        return Vec::new();
    }
    // What a unit wrote just before it died may still be on its way into the journal.
    let _ = ask("journalctl", ["--sync"], host);
    let count = MAX_LINES.to_string();
    let args = ["-u", service, "-n", &count, "--no-pager", "-o", "cat"];
    match ask("journalctl", args, host) {
        Ok(output) if output.is_success() => lines(&output.stdout_text()),
        _ => Vec::new(),
    }
}

/// Returns what a failed command said, on one line.
fn complaint(output: &Output) -> String {
    let said = lines(&output.stderr_text());
    if said.is_empty() {
        format!("exit code {}", output.code)
    } else {
        let said = said.join(" | ");
        format!("exit code {}: {}", output.code, said.trim_end_matches('.'))
    }
}

/// Returns the last lines of a text that say something, short and fit for a terminal.
fn lines(text: &str) -> Vec<String> {
    // Hints where else to look are left out: we looked.
    let is_said = |line: &&str| {
        !line.trim().is_empty() && !line.starts_with("See \"") && !line.starts_with("-- No entries")
    };
    let said: Vec<&str> = text.lines().filter(is_said).collect();
    let skipped = said.len().saturating_sub(MAX_LINES);
    let shorten = |line: &str| {
        let chars = line.trim().chars().take(MAX_LINE_CHARS);
        chars
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect()
    };
    said.into_iter().skip(skipped).map(shorten).collect()
}
