//! service: running or stopped and, apart from that, started at boot or not.
//!
//! The two are decided on their own: `plan` is both tables, a `ServiceProvider` is how a
//! platform answers and obeys. The type knows nothing of units and exit codes; a provider knows
//! nothing of noop, subscriptions or what was asked for. Read next: `systemd`.

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

/// Where the lock lies that everyone who changes a service holds. Only root can write here, so
/// nobody else can keep us waiting.
const LOCK: &str = "/run/ccm-service.lock";

/// How services are asked and told on one platform.
pub(super) trait ServiceProvider {
    /// Returns the name events show.
    fn name(&self) -> &'static str;

    /// Reports whether the host has what this provider needs.
    fn is_usable(&self, host: Host<'_>) -> bool;

    /// Returns what a service does now and at boot. Changes nothing.
    fn status(&self, service: &str, host: Host<'_>) -> Result<Status, ServiceError>;

    /// Reports whether a reload makes a running service take up all that changed about it.
    fn can_reload(&self, service: &str, host: Host<'_>) -> Result<bool, ServiceError>;

    /// Does one thing to a service and waits for its end.
    fn change(&self, service: &str, action: Action, host: Host<'_>) -> Result<(), ServiceError>;

    /// Returns what the platform knows about why a service does not run. Never fails: it comes on
    /// top of an error that must not be lost.
    fn diagnose(&self, service: &str, host: Host<'_>) -> Diagnosis;
}

/// Which provider a service has. Platforms are an open set; the names we know are not.
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

/// What one run remembers about services.
#[derive(Debug)]
pub struct Memory {
    /// The service manager has read its files again in this run.
    reloaded: Cell<bool>,
    /// Held while a service is changed.
    lock: PathBuf,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            reloaded: Cell::new(false),
            lock: LOCK.into(),
        }
    }
}

/// What a service does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Status {
    running: bool,
    enabled: bool,
    /// The platform's own word for what happens at boot.
    boot: String,
}

/// One thing to do to a service.
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

    /// Returns what a noop run says instead.
    fn noop(self) -> &'static str {
        match self {
            Self::Start => "Would have started",
            Self::Stop => "Would have stopped",
            Self::Restart => "Would have restarted via subscribe",
            Self::Reload => "Would have reloaded via subscribe",
            Self::Enable => "Would have enabled",
            Self::Disable => "Would have disabled",
        }
    }

    /// Reports whether it is about boot, not about now.
    fn is_for_boot(self) -> bool {
        matches!(self, Self::Enable | Self::Disable)
    }
}

/// Why a service does not run, as far as the platform knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// How its last run ended, if not well.
    result: Option<String>,
    /// The last lines it or its manager logged.
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

/// Why a service could not be asked or changed.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("service {0} not found")]
    NotFound(String),
    #[error("invalid systemctl {question} output: {answer}")]
    Answer {
        question: &'static str,
        answer: String,
    },
    #[error("could not {} service {service}: {reason}{diagnosis}", action.verb())]
    Refused {
        action: Action,
        service: String,
        reason: String,
        diagnosis: Diagnosis,
    },
    #[error("could not make systemd read its unit files again: {0}")]
    DaemonReload(String),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Lock(#[from] LockError),
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

/// Decides what to do: first about now, then about boot.
pub(super) fn plan(
    resource: &Resource,
    service: &Service,
    provider: &dyn ServiceProvider,
    state: &State,
    refresh: bool,
    host: Host<'_>,
) -> Result<Plan<Action>, ResourceError> {
    let Detail::Service { metadata: seen } = &state.detail else {
        return Err(ResourceError::other_state(TypeName::Service, state));
    };
    let now = match (wants_running(resource), seen.running) {
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
    let boot = match (service.enable, seen.enabled) {
        (Some(true), false) => Some(Action::Enable),
        (Some(false), true) => Some(Action::Disable),
        _ => None,
    };
    let message = match (now, boot) {
        // The second part of a sentence starts small.
        (Some(now), Some(boot)) => format!("{}, would have {}d", now.noop(), boot.verb()),
        (now, boot) => now.or(boot).map(Action::noop).unwrap_or_default().into(),
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

/// Carries one action out.
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
        *diagnosis = diagnose(resource, provider, host);
    }
    changed
}

/// Returns why a service does not run, unless what it logs is nobody's business.
fn diagnose(resource: &Resource, provider: &dyn ServiceProvider, host: Host<'_>) -> Diagnosis {
    if resource.common.sensitive {
        return Diagnosis::default();
    }
    provider.diagnose(&resource.common.name, host)
}

/// Reads the state again and checks both dimensions.
pub(super) fn verify(
    resource: &Resource,
    service: &Service,
    provider: &dyn ServiceProvider,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let status = provider.status(&resource.common.name, host)?;
    let wanted = wants_running(resource);
    let reason = if status.running != wanted {
        let mut reason = format!(
            "service is {}, expected {}",
            running_word(status.running),
            running_word(wanted)
        );
        if wanted {
            reason.push_str(&diagnose(resource, provider, host).to_string());
        }
        reason
    } else if let Some(wanted) = service.enable
        && wanted != status.enabled
    {
        let (found, wanted) = (enabled_word(status.enabled), enabled_word(wanted));
        let mut reason = format!("service is {found}, expected {wanted}");
        if status.boot != found {
            // Static or masked: asking again won't help, so say what it is.
            reason.push_str(&format!(" ({} calls it {})", provider.name(), status.boot));
        }
        reason
    } else {
        return Ok(state(resource, provider, &status, host));
    };
    Err(ResourceError::NotReached {
        ensure: resource.common.ensure.clone(),
        reason,
    })
}
