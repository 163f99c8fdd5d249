//! `ccm ensure file`

use std::path::PathBuf;

use super::{CliError, CommonArgs, Host, owners};
use ccm_core::model::resource::{File, Properties, Resource};
use ccm_core::system::files;

/// The largest file whose content is taken with --content-file.
const MAX_CONTENT_BYTES: u64 = 64 * 1024 * 1024;

/// Manages a file or a directory
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The path to manage
    name: String,

    /// present, absent or directory
    #[arg(default_value = "present")]
    ensure: String,

    /// The owner, or owner and group; yours unless given
    #[arg(long, value_name = "USER[:GROUP]")]
    owner: Option<String>,

    /// The group; yours unless given
    #[arg(long)]
    group: Option<String>,

    /// The permissions, in octal [default: 0644, 0755 for a directory]
    #[arg(long)]
    mode: Option<String>,

    /// The content
    #[arg(long, alias = "contents", conflicts_with_all = ["content_file", "source"])]
    content: Option<String>,

    /// A file that holds the content, with templates
    #[arg(
        long,
        alias = "contents-file",
        value_name = "FILE",
        conflicts_with = "source"
    )]
    content_file: Option<PathBuf>,

    /// A file to copy
    #[arg(long, value_name = "FILE")]
    source: Option<String>,

    /// Removes a directory with all that is in it
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    common: CommonArgs,
}

impl Args {
    pub(super) fn resource(self, host: Host) -> Result<Resource, CliError> {
        let (owner, group) = owners(host, self.owner.as_deref(), self.group.as_deref())?;
        let mode = self.mode.unwrap_or_else(|| match self.ensure.as_str() {
            "directory" => "0755".into(),
            _ => "0644".into(),
        });
        let content = match (self.content, self.content_file) {
            (Some(content), _) => Some(content),
            (None, Some(file)) => {
                Some(files::read_to_string(&file, MAX_CONTENT_BYTES).map_err(CliError::usage)?)
            }
            (None, None) => None,
        };
        let source = match self.source {
            Some(source) => existing(host, &source)?,
            None => String::new(),
        };
        let file = File {
            content,
            source,
            owner,
            group,
            mode,
            force: self.force,
        };
        let name = host.path(&self.name)?;
        let mut resource = Resource::new(name, self.ensure, Properties::File(file));
        self.common.fill(&mut resource);
        Ok(resource)
    }
}

fn existing(host: Host, path: &str) -> Result<String, CliError> {
    let path = host.path(path)?;
    if host == Host::Remote {
        return Ok(path);
    }
    match files::inspect(path.as_ref(), true).map_err(CliError::usage)? {
        Some(_) => Ok(path),
        None => Err(CliError::usage(format!("path '{path}' does not exist"))),
    }
}
