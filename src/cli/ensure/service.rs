//! `ccm ensure service`

use super::{CliError, CommonArgs};
use ccm_core::model::resource::{Properties, Resource, Service};

/// Manages a service, now and at boot
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The service to manage
    name: String,

    /// running or stopped
    #[arg(default_value = "running")]
    ensure: String,

    /// Starts the service at boot
    #[arg(long)]
    enable: bool,

    /// Does not start the service at boot
    #[arg(long)]
    disable: bool,

    /// A resource whose change restarts the service, as type#name
    #[arg(short = 'S', long, value_name = "TYPE#NAME")]
    subscribe: Vec<String>,

    /// Reloads instead of restarting, where the service can
    #[arg(long)]
    reload: bool,

    #[command(flatten)]
    common: CommonArgs,
}

impl Args {
    pub(super) fn resource(self) -> Result<Resource, CliError> {
        let enable = match (self.enable, self.disable) {
            (true, true) => {
                let message = "cannot specify both enable and disable flags";
                return Err(CliError::usage(message));
            }
            (false, false) => None,
            (enable, _) => Some(enable),
        };
        let service = Service {
            enable,
            subscribe: self.subscribe,
            reload: self.reload,
        };
        let mut resource = Resource::new(self.name, self.ensure, Properties::Service(service));
        self.common.fill(&mut resource);
        Ok(resource)
    }
}
