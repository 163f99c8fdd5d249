//! `ccm ensure user`: flags of user resources.

use std::path::PathBuf;

use super::{CliError, CommonArgs};
use ccm_core::model::resource::{Properties, Resource, User};
use ccm_core::system::files;
use ccm_value::secret::Secret;

/// Size limit of a file given with --password-file.
const MAX_PASSWORD_BYTES: u64 = 4096;

/// User management
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// User name
    name: String,

    /// Ensure value: present or absent
    #[arg(default_value = "present")]
    ensure: String,

    /// User id
    #[arg(long, value_name = "ID")]
    uid: Option<u32>,

    /// Primary group, a name or an id
    #[arg(long, value_name = "GROUP")]
    gid: Option<String>,

    /// Supplementary groups, separated by commas
    #[arg(long, value_name = "GROUPS", value_delimiter = ',')]
    groups: Option<Vec<String>>,

    /// Whether other supplementary groups are removed
    #[arg(long, value_parser = ["exact", "minimum"])]
    membership: Option<String>,

    /// Home directory
    #[arg(long, value_name = "DIR")]
    home: Option<String>,

    /// Create, move and remove the home directory with the user
    #[arg(long)]
    managehome: bool,

    /// Login shell
    #[arg(long, value_name = "FILE")]
    shell: Option<String>,

    /// Comment, such as the full name
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,

    /// Use an id of the system range for a new user
    #[arg(long)]
    system: bool,

    /// File with the password hash
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,

    /// Lock the password
    #[arg(long, conflicts_with = "unlocked")]
    locked: bool,

    /// Unlock the password
    #[arg(long)]
    unlocked: bool,

    /// Day from which the account is disabled, as YYYY-MM-DD, or never
    #[arg(long, value_name = "DAY")]
    expiry: Option<String>,

    #[command(flatten)]
    common: CommonArgs,
}

impl Args {
    pub(super) fn resource(self) -> Result<Resource, CliError> {
        let password = match self.password_file {
            Some(file) => {
                let text = files::read_to_string(&file, MAX_PASSWORD_BYTES);
                Secret::new(text.map_err(CliError::usage)?.trim_end())
            }
            None => Secret::default(),
        };
        let locked = match (self.locked, self.unlocked) {
            (false, false) => None,
            (locked, _) => Some(locked),
        };
        let user = User {
            uid: self.uid,
            gid: self.gid.unwrap_or_default(),
            groups: self.groups,
            membership: self.membership.unwrap_or_default(),
            home: self.home.unwrap_or_default(),
            managehome: self.managehome,
            shell: self.shell.unwrap_or_default(),
            comment: self.comment,
            system: self.system,
            password,
            locked,
            expiry: self.expiry.unwrap_or_default(),
        };
        let mut resource = Resource::new(self.name, self.ensure, Properties::User(user));
        self.common.fill(&mut resource);
        Ok(resource)
    }
}
