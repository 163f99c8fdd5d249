//! `ccm ensure archive`: flags of archive resources.

use std::collections::BTreeMap;

use clap::ValueHint;

use super::{CliError, CommonArgs, Target, owners};
use crate::cli::environment::{self, split_pair};
use ccm_core::model::resource::{Archive, Properties, Resource};
use ccm_value::secret::Secret;

/// Archive management
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// File to store the archive in
    #[arg(value_hint = ValueHint::FilePath)]
    file: String,

    /// URL to download the archive from
    url: String,

    /// Ensure value: present or absent
    #[arg(default_value = "present")]
    ensure: String,

    /// HTTP header to send; repeatable
    #[arg(short = 'H', long, value_name = "KEY:VALUE")]
    header: Vec<String>,

    /// HTTP username
    #[arg(long, value_name = "USER")]
    username: Option<String>,

    /// HTTP password
    #[arg(long, env = "HTTP_PASSWORD", hide_env_values = true)]
    password: Option<String>,

    /// Password of the NATS user; --password is that of the archive [env: NATS_PASSWORD]
    // Replaces the global flag with this id, whose name is in use here.
    #[arg(long, id = "nats_password", help_heading = "NATS", value_name = "PASSWORD", value_parser = environment::secret)]
    nats_password: Option<Secret>,

    /// Hex encoded SHA-256 checksum of the archive
    #[arg(long, value_name = "HEX")]
    checksum: Option<String>,

    /// Parent directory to extract to
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    extract: Option<String>,

    /// Skip extraction if this path exists
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    creates: Option<String>,

    /// Remove the archive after extraction
    #[arg(long)]
    cleanup: bool,

    /// Owner, or owner and group [default: current user]
    #[arg(long, value_name = "USER[:GROUP]")]
    owner: Option<String>,

    /// Group [default: current group]
    #[arg(long)]
    group: Option<String>,

    #[command(flatten)]
    common: CommonArgs,
}

impl Args {
    pub(super) fn resource(self, target: Target<'_>) -> Result<Resource, CliError> {
        let (owner, group) = owners(target, self.owner.as_deref(), self.group.as_deref())?;
        let archive = Archive {
            url: self.url,
            headers: headers(&self.header)?,
            username: self.username.unwrap_or_default(),
            password: Secret::new(self.password.unwrap_or_default()),
            checksum: self.checksum.unwrap_or_default(),
            extract_parent: path(target, self.extract)?,
            cleanup: self.cleanup,
            creates: path(target, self.creates)?,
            owner,
            group,
        };
        let name = target.path(&self.file)?;
        let mut resource = Resource::new(name, self.ensure, Properties::Archive(archive));
        self.common.fill(&mut resource);
        Ok(resource)
    }
}

fn path(target: Target<'_>, path: Option<String>) -> Result<String, CliError> {
    path.map_or(Ok(String::new()), |path| target.path(&path))
}

/// Parses `Key:value` or `Key: value` headers.
fn headers(pairs: &[String]) -> Result<BTreeMap<String, Secret>, CliError> {
    pairs
        .iter()
        .map(|pair| {
            let (key, value) = split_pair(pair)?;
            Ok((key.trim().to_owned(), Secret::new(value.trim())))
        })
        .collect()
}
