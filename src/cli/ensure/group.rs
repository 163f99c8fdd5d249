//! `ccm ensure group`: flags of group resources.

use super::CommonArgs;
use ccm_core::model::resource::{Group, Properties, Resource};

/// Group management
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Group name
    name: String,

    /// Ensure value: present or absent
    #[arg(default_value = "present")]
    ensure: String,

    /// Group id
    #[arg(long, value_name = "ID")]
    gid: Option<u32>,

    /// Use an id of the system range for a new group
    #[arg(long)]
    system: bool,

    #[command(flatten)]
    common: CommonArgs,
}

impl Args {
    pub(super) fn resource(self) -> Resource {
        let group = Group {
            gid: self.gid,
            system: self.system,
        };
        let mut resource = Resource::new(self.name, self.ensure, Properties::Group(group));
        self.common.fill(&mut resource);
        resource
    }
}
