//! `ccm ensure link`: flags of link resources.

use clap::ValueHint;

use super::{CliError, CommonArgs, Target};
use ccm_core::model::resource::{Link, Properties, Resource};

/// Symbolic link management
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Path of the link
    #[arg(value_hint = ValueHint::AnyPath)]
    name: String,

    /// Ensure value: present or absent
    #[arg(default_value = "present")]
    ensure: String,

    /// Path that the link leads to, kept as written
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    target: Option<String>,

    /// Replace or remove a file or directory that is in the way
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    common: CommonArgs,
}

impl Args {
    pub(super) fn resource(self, target: Target<'_>) -> Result<Resource, CliError> {
        let link = Link {
            target: self.target.unwrap_or_default(),
            force: self.force,
        };
        let name = target.path(&self.name)?;
        let mut resource = Resource::new(name, self.ensure, Properties::Link(link));
        self.common.fill(&mut resource);
        Ok(resource)
    }
}
