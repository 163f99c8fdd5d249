//! `ccm ensure package`: flags of package resources.

use super::{CliError, CommonArgs};
use ccm_core::model::resource::{Package, Properties, Resource, UpdateIndex};

/// Package management
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Package name, or the path of a package file
    name: String,

    /// Ensure value: present, absent, latest or a version
    #[arg(default_value = "present")]
    ensure: String,

    /// When to update the package index before installing: never, stale or always
    #[arg(long, value_name = "WHEN", default_value = "never", value_parser = update_index)]
    update_index: UpdateIndex,

    /// Age at which the package index is stale [default: 24h]
    #[arg(
        long,
        value_name = "DURATION",
        default_value_t,
        hide_default_value = true
    )]
    index_max_age: String,

    /// Time to wait for another package manager to release its lock [default: 10m]
    #[arg(
        long,
        value_name = "DURATION",
        default_value_t,
        hide_default_value = true
    )]
    lock_timeout: String,

    /// Option for a CFEngine package module; repeatable
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
