//! `ccm ensure package`

use super::{CliError, CommonArgs};
use ccm_core::model::resource::{Package, Properties, Resource, UpdateIndex};

/// Manages a package
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The package, or the path of a package file
    name: String,

    /// present, absent, latest or a version
    #[arg(default_value = "present")]
    ensure: String,

    /// Updates the index of available packages before installing: never, stale or always
    #[arg(long, value_name = "WHEN", default_value = "never", value_parser = update_index)]
    update_index: UpdateIndex,

    /// How old the index may be before it is stale [default: 24h]
    #[arg(long, value_name = "DURATION", default_value_t)]
    index_max_age: String,

    /// How long another package manager at work is waited for [default: 10m]
    #[arg(long, value_name = "DURATION", default_value_t)]
    lock_timeout: String,

    /// An option for a CFEngine package module
    #[arg(long, value_name = "TEXT")]
    option: Vec<String>,

    #[command(flatten)]
    common: CommonArgs,
}

fn update_index(text: &str) -> Result<UpdateIndex, CliError> {
    match text {
        "never" => Ok(UpdateIndex::Never),
        "stale" => Ok(UpdateIndex::Stale),
        "always" => Ok(UpdateIndex::Always),
        _ => Err(CliError::usage("expected never, stale or always")),
    }
}

impl Args {
    pub(super) fn resource(self) -> Resource {
        let package = Package {
            update_index: self.update_index,
            index_max_age: self.index_max_age,
            lock_timeout: self.lock_timeout,
            options: self.option,
        };
        let mut resource = Resource::new(self.name, self.ensure, Properties::Package(package));
        self.common.fill(&mut resource);
        resource
    }
}
