//! Diagnosis of a node: what is wrong, and what to do. Changes nothing, and needs no running agent.
//!
//! `local` checks files, disk and locks; `process` the unit and what the running agent states about
//! itself; `remote` the NATS connection. The diagnosis of a fleet is in `ccm_fleet::doctor`.

mod local;
mod process;
mod remote;

use std::path::Path;

use super::VERSION;
use super::config::{Config, ConfigError};
use super::local_status::LocalStatus;
use ccm_core::model::diagnosis::{Check, Diagnosis, NODE_DIAGNOSIS};
use ccm_core::system::{Clock, Runner};
use ccm_nats::{ContextError, Settings};

/// Reason of checks that need the configuration.
const NO_CONFIG: &str = "the configuration could not be read";

/// What the checks use.
pub struct Doctor<'a> {
    pub config_file: &'a Path,
    /// Starts `systemctl` and `journalctl`.
    pub runner: &'a dyn Runner,
    pub clock: &'a dyn Clock,
}

impl Doctor<'_> {
    /// Runs all checks of this node. `settings` are those of the agent's NATS connection.
    pub async fn diagnose(
        &self,
        config: &Result<Config, ConfigError>,
        settings: Option<Result<Settings, ContextError>>,
    ) -> Diagnosis {
        let mut checks = vec![local::configuration(self.config_file, config)];
        let unit = process::unit(self.runner);
        match config {
            Ok(config) => {
                let agent = process::Agent::find(config);
                checks.extend(local::checks(config));
                checks.extend(local::choria(config, self.clock));
                checks.push(unit);
                checks.extend(process::checks(&agent, config, self.clock));
                checks.push(process::trust(config, settings.as_ref(), agent.status()));
                match settings {
                    Some(Ok(settings)) => {
                        checks.extend(remote::checks(config, &settings, self.clock).await);
                    }
                    Some(Err(err)) => checks.extend(remote::without_settings(&err.to_string())),
                    None => checks.extend(remote::without_settings(NO_CONFIG)),
                }
            }
            Err(_) => {
                let skipped = |name: &&str| Check::not_checked(name, NO_CONFIG);
                checks.extend(local::NAMES.iter().map(skipped));
                checks.push(unit);
                let names = process::NAMES.iter().chain(&remote::NAMES);
                checks.extend(names.map(skipped));
            }
        }
        let node = config.as_ref().ok().map(|config| config.identity.clone());
        let now = self.clock.now();
        Diagnosis::new(NODE_DIAGNOSIS, node, VERSION, now, checks)
    }
}

/// The running agent's statement about itself, if there is one.
type Statement<'a> = Option<&'a LocalStatus>;
