//! `ccm ensure archive`

use std::collections::BTreeMap;

use super::{CliError, CommonArgs, Host, owners};
use crate::cli::environment::split_pair;
use ccm_core::model::resource::{Archive, Properties, Resource};
use ccm_value::secret::Secret;

/// Downloads an archive and may unpack it
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The file to keep the archive in
    file: String,

    /// Where to get it
    url: String,

    /// present or absent
    #[arg(default_value = "present")]
    ensure: String,

    /// A header to send
    #[arg(short = 'H', long, value_name = "KEY:VALUE")]
    header: Vec<String>,

    /// The user to log in as
    #[arg(long, value_name = "USER")]
    username: Option<String>,

    /// The password to log in with
    #[arg(long, env = "HTTP_PASSWORD", hide_env_values = true)]
    password: Option<String>,

    /// The SHA-256 of the archive
    #[arg(long, value_name = "HEX")]
    checksum: Option<String>,

    /// The directory to unpack into
    #[arg(long, value_name = "DIR")]
    extract: Option<String>,

    /// A path that unpacking creates
    #[arg(long, value_name = "PATH")]
    creates: Option<String>,

    /// Removes the archive once it is unpacked
    #[arg(long)]
    cleanup: bool,

    /// The owner, or owner and group; yours unless given
    #[arg(long, value_name = "USER[:GROUP]")]
    owner: Option<String>,

    /// The group; yours unless given
    #[arg(long)]
    group: Option<String>,

    #[command(flatten)]
    common: CommonArgs,
}

impl Args {
    pub(super) fn resource(self, host: Host) -> Result<Resource, CliError> {
        let (owner, group) = owners(host, self.owner.as_deref(), self.group.as_deref())?;
        let archive = Archive {
            url: self.url,
            headers: headers(&self.header)?,
            username: self.username.unwrap_or_default(),
            password: Secret::new(self.password.unwrap_or_default()),
            checksum: self.checksum.unwrap_or_default(),
            extract_parent: path(host, self.extract)?,
            cleanup: self.cleanup,
            creates: path(host, self.creates)?,
            owner,
            group,
        };
        let name = host.path(&self.file)?;
        let mut resource = Resource::new(name, self.ensure, Properties::Archive(archive));
        self.common.fill(&mut resource);
        Ok(resource)
    }
}

fn path(host: Host, path: Option<String>) -> Result<String, CliError> {
    path.map_or(Ok(String::new()), |path| host.path(&path))
}

/// Reads headers as `Key:value`, with a blank after the colon as HTTP writes them, or not.
fn headers(pairs: &[String]) -> Result<BTreeMap<String, Secret>, CliError> {
    pairs
        .iter()
        .map(|pair| {
            let (key, value) = split_pair(pair)?;
            Ok((key.trim().to_owned(), Secret::new(value.trim())))
        })
        .collect()
}
