//! `ccm ensure service`: flags of service resources.

use super::{CliError, CommonArgs};
use ccm_core::model::resource::{Properties, Resource, Service};

/// Service management
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Service name
    name: String,

    /// Ensure value: running or stopped
    #[arg(default_value = "running")]
    ensure: String,

    /// Enable the service at boot
    #[arg(long)]
    enable: bool,

    /// Disable the service at boot
    #[arg(long)]
    disable: bool,

    /// Subscribe to changes of another resource; repeatable
    #[arg(short = 'S', long, value_name = "TYPE#NAME")]
    subscribe: Vec<String>,

    /// Reload instead of restart, if the service supports it
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
