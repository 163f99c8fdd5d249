//! `ccm ensure file`: flags of file resources.

use std::path::PathBuf;

use clap::ValueHint;

use super::{CliError, CommonArgs, Target, owners};
use ccm_core::model::resource::{File, Properties, Resource};
use ccm_core::system::files;

/// Size limit of a file given with --content-file.
const MAX_CONTENT_BYTES: u64 = 64 * 1024 * 1024;

/// File management
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Path to manage
    #[arg(value_hint = ValueHint::AnyPath)]
    name: String,

    /// Ensure value: present, absent or directory
    #[arg(default_value = "present")]
    ensure: String,

    /// Owner, or owner and group [default: current user]
    #[arg(long, value_name = "USER[:GROUP]")]
    owner: Option<String>,

    /// Group [default: current group]
    #[arg(long)]
    group: Option<String>,

    /// File mode (octal) [default: 0644, 0755 for directories]
    #[arg(long)]
    mode: Option<String>,

    /// Content of the file; templates are rendered
    #[arg(long, alias = "contents", conflicts_with_all = ["content_file", "source"])]
    content: Option<String>,

    /// File with the content; templates are rendered
    #[arg(
        long,
        alias = "contents-file",
        value_name = "FILE",
        conflicts_with = "source"
    )]
    content_file: Option<PathBuf>,

    /// File or directory to copy verbatim
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    source: Option<String>,

    /// Template file to render
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["content", "content_file", "source"])]
    template: Option<String>,

    /// Engine of the template [default: jet]
    #[arg(long, value_parser = ["go", "jet", "jinja"], requires = "template")]
    engine: Option<String>,

    /// Copy only the files directly in the source directory
    #[arg(long, requires = "source")]
    no_recurse: bool,

    /// Remove what is not in the source directory
    #[arg(long, requires = "source")]
    purge: bool,

    /// Command that checks the new file before it replaces the old one; % is its path
    #[arg(long, value_name = "COMMAND")]
    validate: Option<String>,

    /// Remove a directory including its contents
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    common: CommonArgs,
}

impl Args {
    pub(super) fn resource(self, target: Target<'_>) -> Result<Resource, CliError> {
        let (owner, group) = owners(target, self.owner.as_deref(), self.group.as_deref())?;
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
            Some(source) => existing(target, &source)?,
            None => String::new(),
        };
        let template = match self.template {
            Some(template) => existing(target, &template)?,
            None => String::new(),
        };
        let file = File {
            content,
            source,
            template,
            engine: self.engine.unwrap_or_default(),
            recurse: self.no_recurse.then_some(false),
            purge: self.purge,
            validate: self.validate.unwrap_or_default(),
            owner,
            group,
            mode,
            force: self.force,
        };
        let name = target.path(&self.name)?;
        let mut resource = Resource::new(name, self.ensure, Properties::File(file));
        self.common.fill(&mut resource);
        Ok(resource)
    }
}

fn existing(target: Target<'_>, path: &str) -> Result<String, CliError> {
    let path = target.path(path)?;
    if matches!(target, Target::Remote) {
        return Ok(path);
    }
    match files::inspect(path.as_ref(), true).map_err(CliError::usage)? {
        Some(_) => Ok(path),
        None => Err(CliError::usage(format!("path '{path}' does not exist"))),
    }
}
