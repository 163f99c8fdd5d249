//! service type: whether a service runs, and whether it is enabled at boot.
//!
//! Both are planned independently (see `plan`). A `ServiceProvider` reads and changes services on a
//! platform; noop mode, subscriptions and wanted states are handled here. The only provider is
//! `systemd`.

mod systemd;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fmt;
use std::path::PathBuf;

use super::{Host, Plan, ProviderError, ResourceError};
use crate::model::TypeName;
use crate::model::resource::{Resource, Service};
use crate::model::state::{Detail, ServiceMetadata, State};
use crate::system::{LockError, RunError};

/// The lock file held while a service is changed. Only root can write to its directory, so other users
/// can't block changes.
const LOCK_FILE: &str = "/run/ccm-service.lock";

/// A service manager.
pub(super) trait ServiceProvider {
    /// Returns the name in events.
    fn name(&self) -> &'static str;

    /// Reports whether the provider is usable on this machine.
    fn is_usable(&self, host: Host<'_>) -> bool;

    /// Returns whether a service is running and enabled. Changes nothing.
    fn status(&self, service: &str, host: Host<'_>) -> Result<Status, ServiceError>;

    /// Reports whether a reload is enough for a running service to apply all changes.
    fn can_reload(&self, service: &str, host: Host<'_>) -> Result<bool, ServiceError>;

    /// Performs an action on a service and waits until it has finished.
    fn change(&self, service: &str, action: Action, host: Host<'_>) -> Result<(), ServiceError>;

    /// Returns details about why a service does not run. Does not fail, because it only adds to another
    /// error.
    fn diagnose(&self, service: &str, host: Host<'_>) -> Diagnosis;
}

/// A service provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    Systemd,
}

impl Provider {
    const ALL: [Self; 1] = [Self::Systemd];

    pub(super) fn name(self) -> &'static str {
        self.get().name()
    }

    pub(super) fn select(wanted: &str, host: Host<'_>) -> Result<Self, ProviderError> {
        let usable = |provider: &Self| provider.get().is_usable(host);
        if wanted.is_empty() {
            let first = Self::ALL.into_iter().find(usable);
            return first.ok_or(ProviderError::NoneSuitable);
        }
        let named = Self::ALL.into_iter().find(|it| it.name() == wanted);
        let named = named.ok_or(ProviderError::NotFound)?;
        usable(&named)
            .then_some(named)
            .ok_or(ProviderError::NotManageable)
    }

    pub(super) fn get(self) -> &'static dyn ServiceProvider {
        match self {
            Self::Systemd => &systemd::Systemd,
        }
    }
}

/// Service state of one run.
#[derive(Debug)]
pub struct ServiceCache {
    /// Whether a daemon-reload was done in this run.
    reloaded: Cell<bool>,
    /// The lock file held while a service is changed.
    lock_file: PathBuf,
}

impl Default for ServiceCache {
    fn default() -> Self {
        Self::new(LOCK_FILE)
    }
}

impl ServiceCache {
    /// Returns an empty cache with this lock file.
    pub fn new(lock_file: impl Into<PathBuf>) -> Self {
        Self {
            reloaded: Cell::new(false),
            lock_file: lock_file.into(),
        }
    }
}

/// The status of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Status {
    running: bool,
    enabled: bool,
    /// The platform's word for the boot setting, such as `static`.
    boot: String,
}

/// A service action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Start,
    Stop,
    Restart,
    Reload,
    Enable,
    Disable,
}

impl Action {
    fn verb(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Reload => "reload",
            Self::Enable => "enable",
            Self::Disable => "disable",
        }
    }

    /// Returns the message of a noop run.
    fn message(self) -> &'static str {
        match self {
            Self::Start => "Would have started",
            Self::Stop => "Would have stopped",
            Self::Restart => "Would have restarted via subscribe",
            Self::Reload => "Would have reloaded via subscribe",
            Self::Enable => "Would have enabled",
            Self::Disable => "Would have disabled",
        }
    }

    /// Reports whether the action changes the boot setting only.
    fn is_for_boot(self) -> bool {
        matches!(self, Self::Enable | Self::Disable)
    }
}

/// Details about why a service does not run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// The result of its last run, unless successful.
    result: Option<String>,
    /// The last lines of its journal.
    journal: Vec<String>,
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(result) = &self.result {
            write!(out, "; result {result}")?;
        }
        if !self.journal.is_empty() {
            write!(out, "; last journal lines: {}", self.journal.join(" | "))?;
        }
        Ok(())
    }
}

/// A failure to query or change a service.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("service {0} not found")]
    NotFound(String),
    #[error("invalid systemctl {command} output: {output}")]
    InvalidOutput {
        command: &'static str,
        output: String,
    },
    #[error("could not {} service {service}: {reason}{diagnosis}", action.verb())]
    Refused {
        action: Action,
        service: String,
        reason: String,
        /// What the command printed.
        output: String,
        diagnosis: Box<Diagnosis>,
    },
    #[error("systemctl daemon-reload failed: {0}")]
    DaemonReload(String),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Lock(#[from] LockError),
}

impl ServiceError {
    /// Returns the output of the failed command and the last journal lines of the unit, for the event.
    pub(super) fn output(&self) -> String {
        match self {
            Self::Refused {
                output, diagnosis, ..
            } => {
                let lines = [output.as_str()]
                    .into_iter()
                    .filter(|text| !text.is_empty());
                let journal = diagnosis.journal.iter().map(String::as_str);
                lines.chain(journal).collect::<Vec<_>>().join("\n")
            }
            _ => String::new(),
        }
    }
}

/// Reads the state of a service.
pub(super) fn inspect(
    resource: &Resource,
    provider: &dyn ServiceProvider,
    host: Host<'_>,
) -> Result<State, ServiceError> {
    let status = provider.status(&resource.common.name, host)?;
    Ok(state(resource, provider, &status, host))
}

fn state(
    resource: &Resource,
    provider: &dyn ServiceProvider,
    status: &Status,
    host: Host<'_>,
) -> State {
    let name = &resource.common.name;
    let metadata = ServiceMetadata {
        name: name.clone(),
        provider: provider.name().into(),
        enabled: status.enabled,
        running: status.running,
    };
    let detail = Detail::Service { metadata };
    State::new(host.clock.now(), name, running_word(status.running), detail)
}

fn running_word(running: bool) -> &'static str {
    if running { "running" } else { "stopped" }
}

fn enabled_word(enabled: bool) -> &'static str {
    if enabled { "enabled" } else { "disabled" }
}

fn wants_running(resource: &Resource) -> bool {
    resource.common.ensure != "stopped"
}

/// Plans the actions: first for the running service, then for the boot setting.
pub(super) fn plan(
    resource: &Resource,
    service: &Service,
    provider: &dyn ServiceProvider,
    state: &State,
    refresh: bool,
    host: Host<'_>,
) -> Result<Plan<Action>, ResourceError> {
    let Detail::Service { metadata } = &state.detail else {
        return Err(ResourceError::other_state(TypeName::Service, state));
    };
    let now = match (wants_running(resource), metadata.running) {
        (true, true) if refresh => {
            let reload = service.reload && provider.can_reload(&resource.common.name, host)?;
            Some(if reload {
                Action::Reload
            } else {
                Action::Restart
            })
        }
        (true, false) => Some(Action::Start),
        (false, true) => Some(Action::Stop),
        (true, true) | (false, false) => None,
    };
    let boot = match (service.enable, metadata.enabled) {
        (Some(true), false) => Some(Action::Enable),
        (Some(false), true) => Some(Action::Disable),
        _ => None,
    };
    let message = match (now, boot) {
        // The second part of the sentence is in lower case.
        (Some(now), Some(boot)) => format!("{}, would have {}d", now.message(), boot.verb()),
        (now, boot) => now.or(boot).map(Action::message).unwrap_or_default().into(),
    };
    Ok(Plan {
        actions: now.into_iter().chain(boot).collect(),
        message,
        refreshed: matches!(now, Some(Action::Restart | Action::Reload)),
        satisfied: now.is_none() && boot.is_none(),
        settles: false,
        tentative: false,
    })
}

/// Performs one action.
pub(super) fn change(
    resource: &Resource,
    provider: &dyn ServiceProvider,
    action: Action,
    host: Host<'_>,
) -> Result<(), ServiceError> {
    let mut changed = provider.change(&resource.common.name, action, host);
    if let Err(ServiceError::Refused { diagnosis, .. }) = &mut changed
        && !action.is_for_boot()
    {
        **diagnosis = diagnose(resource, provider, host);
    }
    changed
}

/// Returns details about why a service does not run, unless the resource is sensitive.
fn diagnose(resource: &Resource, provider: &dyn ServiceProvider, host: Host<'_>) -> Diagnosis {
    if resource.common.sensitive {
        return Diagnosis::default();
    }
    provider.diagnose(&resource.common.name, host)
}

/// Reads the state again and checks both running and enabled.
pub(super) fn verify(
    resource: &Resource,
    service: &Service,
    provider: &dyn ServiceProvider,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let status = provider.status(&resource.common.name, host)?;
    let wanted = wants_running(resource);
    let mut output = String::new();
    let reason = if status.running != wanted {
        let mut reason = format!(
            "service is {}, expected {}",
            running_word(status.running),
            running_word(wanted)
        );
        if wanted {
            let diagnosis = diagnose(resource, provider, host);
            reason.push_str(&diagnosis.to_string());
            output = diagnosis.journal.join("\n");
        }
        reason
    } else if let Some(wanted) = service.enable
        && wanted != status.enabled
    {
        let (found, wanted) = (enabled_word(status.enabled), enabled_word(wanted));
        let mut reason = format!("service is {found}, expected {wanted}");
        if status.boot != found {
            // A static or masked unit can't be enabled or disabled, so the error names its state.
            reason.push_str(&format!(" ({} state: {})", provider.name(), status.boot));
        }
        reason
    } else {
        return Ok(state(resource, provider, &status, host));
    };
    Err(ResourceError::NotReached {
        ensure: resource.common.ensure.clone(),
        reason,
        output,
    })
}
