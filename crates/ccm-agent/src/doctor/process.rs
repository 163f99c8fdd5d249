//! Checks of the agent: its unit, whether it runs, what it states about itself, and its trust.

use std::time::Duration;

use super::Statement;
use crate::VERSION;
use crate::config::Config;
use crate::local_status::LocalStatus;
use crate::spool;
use ccm_core::model::diagnosis::Check;
use ccm_core::model::node::NodeStatus;
use ccm_core::model::run::RunOutcome;
use ccm_core::system::{Clock, Command, Holder, Runner};
use ccm_nats::{ContextError, Settings};
use ccm_value::text::{count_of, to_the_second};

const UNIT: &str = "unit";
const AGENT: &str = "agent";
const VERSIONS: &str = "version";
const SPOOL: &str = "spool";
const LAST_RUN: &str = "last_run";
const TRUST: &str = "trust";

/// Names of the checks that need a configuration.
pub(super) const NAMES: [&str; 5] = [AGENT, VERSIONS, SPOOL, LAST_RUN, TRUST];

/// Name of the agent's unit.
const SERVICE: &str = "ccm-agent.service";

/// Time limit of `systemctl` and `journalctl`.
const LIMIT: Duration = Duration::from_secs(10);

/// Missed beats after which an agent counts as stalled.
const MAX_BEATS: u32 = 3;

/// Pending events of a connected agent above which it publishes too slowly.
const MAX_PENDING: u64 = 10_000;

const START: &str = "run `systemctl enable --now ccm-agent`";

/// Checks the unit of the agent.
pub(super) fn unit(runner: &dyn Runner) -> Check {
    let properties = [
        "show",
        SERVICE,
        "--property=LoadState,ActiveState,SubState,UnitFileState,Result,NRestarts",
    ];
    let shown = runner.run(&Command {
        timeout: Some(LIMIT),
        ..Command::new("systemctl", properties)
    });
    let text = match shown {
        Ok(output) if output.is_success() => output.stdout_text().into_owned(),
        Ok(output) => {
            let reason = output.stderr_text();
            let reason = reason.lines().next().unwrap_or("systemctl failed");
            return Check::not_checked(UNIT, format!("systemd can't be used: {reason}"));
        }
        Err(err) => return Check::not_checked(UNIT, format!("systemd can't be used: {err}")),
    };
    let property = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        let found = lines.find(|(key, _)| *key == name);
        found.map_or("", |(_, value)| value)
    };
    let (active, enabled) = (property("ActiveState"), property("UnitFileState"));
    let state = format!(
        "{SERVICE} is {active} ({}), {enabled}",
        property("SubState")
    );
    match (property("LoadState"), active, enabled) {
        ("not-found", ..) => Check::not_checked(UNIT, format!("{SERVICE} is not installed")),
        (_, "active" | "reloading", "enabled") => Check::ok(UNIT, state),
        (_, "active" | "reloading", _) => Check::warning(
            UNIT,
            format!("{state}: it does not start at boot"),
            "run `systemctl enable ccm-agent`",
        ),
        (_, "activating", _) if property("NRestarts") == "0" => {
            Check::warning(UNIT, state, "wait until it has started, and repeat this")
        }
        (_, "activating" | "failed", _) => {
            let (result, restarts) = (property("Result"), property("NRestarts"));
            let lines = last_log_lines(runner);
            let found = format!("{state}, result {result}, restarted {restarts} times{lines}");
            let remedy = "read `journalctl -u ccm-agent`, remove the cause, then run \
                          `systemctl restart ccm-agent`";
            Check::failed(UNIT, found, remedy)
        }
        _ => Check::failed(UNIT, state, START),
    }
}

/// Returns the last lines of the agent's log, each on a line of its own.
fn last_log_lines(runner: &dyn Runner) -> String {
    // Of its own processes, without the lines of systemd about them.
    let unit = format!("_SYSTEMD_UNIT={SERVICE}");
    let args = [&unit, "-n", "5", "-o", "cat", "--no-pager", "-q"];
    let printed = runner.run(&Command {
        timeout: Some(LIMIT),
        ..Command::new("journalctl", args)
    });
    let text = printed.map(|output| output.stdout_text().into_owned());
    let text = text.unwrap_or_default();
    text.lines().map(|line| format!("\n{line}")).collect()
}

/// The agent of this node.
pub(super) struct Agent {
    /// Process that has the spool open.
    process: Option<Holder>,
    /// What it last stated, or the reason why that can't be read.
    statement: Result<Option<LocalStatus>, String>,
}

impl Agent {
    pub(super) fn find(config: &Config) -> Self {
        Self {
            // Without the right to read the lock, it is not known.
            process: spool::process(&config.spool.directory).ok().flatten(),
            statement: LocalStatus::read(&config.state_dir).map_err(|err| err.to_string()),
        }
    }

    /// Returns what the agent last stated about itself.
    pub(super) fn status(&self) -> Statement<'_> {
        self.statement.as_ref().ok()?.as_ref()
    }
}

/// Runs the checks of a running agent.
pub(super) fn checks(agent: &Agent, config: &Config, clock: &dyn Clock) -> Vec<Check> {
    let mut checks = vec![running(agent, config, clock)];
    match &agent.statement {
        Ok(Some(local)) => checks.extend([
            version(&local.status, agent.process.is_some()),
            spooled(local),
            last_run(&local.status),
        ]),
        Ok(None) => {
            let skipped = [VERSIONS, SPOOL, LAST_RUN];
            checks.extend(skipped.map(|it| Check::not_checked(it, "no agent has run here yet")));
        }
        Err(reason) => {
            let skipped = [VERSIONS, SPOOL, LAST_RUN];
            checks.extend(skipped.map(|it| Check::not_checked(it, reason.as_str())));
        }
    }
    checks
}

fn running(agent: &Agent, config: &Config, clock: &dyn Clock) -> Check {
    let Some(pid) = agent.process.as_ref().and_then(|holder| holder.pid) else {
        return Check::failed(AGENT, "no agent is running", START);
    };
    let Some(local) = agent.status() else {
        return Check::ok(AGENT, format!("running as process {pid}"));
    };
    let status = &local.status;
    let age = clock.now().signed_duration_since(status.timestamp);
    let limit = config.beat * MAX_BEATS + LIMIT;
    if age.to_std().is_ok_and(|age| age > limit) {
        let found = format!(
            "process {pid} runs, but has stated nothing since {}",
            to_the_second(&status.timestamp)
        );
        return Check::failed(AGENT, found, "run `systemctl restart ccm-agent`");
    }
    if !status.problems.is_empty() {
        let found = status.problems.join("; ");
        return Check::failed(AGENT, found, "remove the cause; the agent then continues");
    }
    if !local.connected {
        let error = match local.connection_error.as_str() {
            "" => String::new(),
            error => format!(": {error}"),
        };
        let found = format!("process {pid} is not connected to NATS{error}");
        return Check::failed(AGENT, found, "see the checks credentials and server");
    }
    if let Some(pause) = &status.pause {
        let found = format!("process {pid} is paused: {}", pause.reason);
        let remedy = format!("run `ccm fleet resume --node {}`", status.identity);
        return Check::warning(AGENT, found, remedy);
    }
    let since = to_the_second(&status.started);
    Check::ok(
        AGENT,
        format!("running as process {pid} since {since}, connected"),
    )
}

fn version(status: &NodeStatus, is_running: bool) -> Check {
    if status.version == VERSION || !is_running {
        return Check::ok(VERSIONS, VERSION);
    }
    let found = format!(
        "the running agent has version {}, this program {VERSION}",
        status.version
    );
    Check::warning(VERSIONS, found, "run `systemctl restart ccm-agent`")
}

fn spooled(local: &LocalStatus) -> Check {
    let spool = local.status.spool;
    let pending = count_of(
        usize::try_from(spool.pending).unwrap_or(usize::MAX),
        "event",
    );
    if spool.dropped > 0 {
        let found = format!(
            "{} dropped because the spool was full; {pending} waiting",
            spool.dropped
        );
        let remedy = "restore the NATS connection sooner, or raise spool.max_size in agent.yaml";
        return Check::warning(SPOOL, found, remedy);
    }
    let found = format!("{pending} waiting");
    if spool.pending > 0 && !local.connected {
        let found = format!("{found} for the NATS connection");
        return Check::warning(SPOOL, found, "see the check server");
    }
    if spool.pending > MAX_PENDING {
        let remedy = "look for errors of the event stream with `ccm fleet doctor`";
        return Check::warning(SPOOL, found, remedy);
    }
    Check::ok(SPOOL, found)
}

fn last_run(status: &NodeStatus) -> Check {
    let Some(run) = &status.last_run else {
        return Check::not_checked(LAST_RUN, "no run since the agent started");
    };
    let time = to_the_second(&run.timestamp);
    if run.outcome != RunOutcome::Failed {
        return Check::ok(LAST_RUN, format!("{} at {time}", run.outcome.as_str()));
    }
    let failed = run.summary.failed_resources;
    let cause = match run.error.as_str() {
        "" => format!("{failed} of {} failed", run.summary.total_resources),
        error => error.to_owned(),
    };
    let found = format!("failed at {time}: {} ({cause})", run.source);
    let remedy = format!(
        "see `ccm fleet events --node {} --outcome failed`, or `journalctl -u ccm-agent`",
        status.identity
    );
    Check::warning(LAST_RUN, found, remedy)
}

/// Checks whether the agent can accept a request at all.
pub(super) fn trust(
    config: &Config,
    settings: Option<&Result<Settings, ContextError>>,
    agent: Statement<'_>,
) -> Check {
    let refusal = agent.and_then(|local| local.status.recent_refusal());
    if let Some(refusal) = refusal {
        let remedy = "sign with a key of trust.signers in agent.yaml (`ccm fleet --sign-with`), \
                      or add the key of the signer there; see also the check clock";
        return Check::warning(TRUST, refusal.to_string(), remedy);
    }
    let Some(trust) = &config.trust else {
        let settings = settings.and_then(|settings| settings.as_ref().ok());
        return match settings.and_then(Settings::first_remote_server) {
            Some(server) => Check::failed(
                TRUST,
                format!(
                    "no signers, and {server} is not on this machine: requests and assignments are refused"
                ),
                "add trust: with the key of a signer to agent.yaml, or enroll the node",
            ),
            None => Check::ok(
                TRUST,
                "requests of NATS servers on this machine are accepted without signatures",
            ),
        };
    };
    if !trust.required {
        let remedy = "remove `required: false` from trust: in agent.yaml";
        return Check::warning(TRUST, "unsigned requests are accepted", remedy);
    }
    let names: Vec<&str> = trust.signers.iter().map(|it| it.name.as_str()).collect();
    if names.is_empty() {
        let remedy = "add the key of a signer to trust.signers in agent.yaml";
        return Check::failed(
            TRUST,
            "signatures are required, and no signer is known",
            remedy,
        );
    }
    let count = count_of(names.len(), "signer");
    Check::ok(TRUST, format!("{count}: {}", names.join(", ")))
}
