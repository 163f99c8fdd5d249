//! `ccm ensure scaffold`

use std::collections::BTreeMap;

use super::{CliError, CommonArgs, Host};
use ccm_core::model::resource::{ArchiveKind, Properties, Resource, Scaffold};
use ccm_core::system::files::{self, FileKind};
use ccm_value::text::url_scheme;

/// Renders a directory of templates
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The directory to render to
    name: String,

    /// The directory of templates, or a .zip, .tar.gz, .tgz or .tar of it, also from an http or
    /// https URL
    source: Option<String>,

    /// present or absent
    #[arg(default_value = "present")]
    ensure: String,

    /// Leaves out files that come out blank
    #[arg(long, overrides_with = "no_skip_empty")]
    skip_empty: bool,

    /// Keeps files that come out blank (the default)
    #[arg(long, hide = true)]
    no_skip_empty: bool,

    /// What opens an action in a template [default: {{, in jet [[]
    #[arg(long, value_name = "TEXT")]
    left_delimiter: Option<String>,

    /// What closes an action in a template [default: }}, in jet ]]]
    #[arg(long, value_name = "TEXT")]
    right_delimiter: Option<String>,

    /// The template language
    #[arg(long, value_parser = ["go", "jet", "jinja"], default_value = "jet")]
    engine: String,

    /// A command for each written file whose name matches; {} in it is the file
    #[arg(long, value_name = "PATTERN=TOOL")]
    post: Vec<String>,

    /// Removes files of the target that no template makes
    #[arg(long)]
    purge: bool,

    #[command(flatten)]
    common: CommonArgs,
}

impl Args {
    pub(super) fn resource(self, host: Host) -> Result<Resource, CliError> {
        let source = match self.source {
            Some(source) if url_scheme(&source).is_some() => source,
            Some(source) => existing_source(host, &source)?,
            None => String::new(),
        };
        let scaffold = Scaffold {
            source,
            skip_empty: self.skip_empty,
            left_delimiter: self.left_delimiter.unwrap_or_default(),
            right_delimiter: self.right_delimiter.unwrap_or_default(),
            engine: self.engine,
            data: None,
            purge: self.purge,
            post: self
                .post
                .iter()
                .map(|step| post(step))
                .collect::<Result<_, _>>()?,
        };
        let name = host.path(&self.name)?;
        let mut resource = Resource::new(name, self.ensure, Properties::Scaffold(scaffold));
        self.common.fill(&mut resource);
        Ok(resource)
    }
}

/// Reads one `PATTERN=TOOL`.
fn post(step: &str) -> Result<BTreeMap<String, String>, CliError> {
    match step.split_once('=') {
        Some((pattern, tool)) => Ok(BTreeMap::from([(pattern.into(), tool.into())])),
        None => Err(CliError::usage(format!(
            "expected PATTERN=TOOL, got '{step}'"
        ))),
    }
}

/// Returns the path of a directory or archive, which is there if it is ours to see.
fn existing_source(host: Host, path: &str) -> Result<String, CliError> {
    let path = host.path(path)?;
    if host == Host::Remote {
        return Ok(path);
    }
    match files::inspect(path.as_ref(), true).map_err(CliError::usage)? {
        Some(found) if found.kind == FileKind::Directory => Ok(path),
        Some(_) if ArchiveKind::of(&path).is_some() => Ok(path),
        Some(_) => Err(CliError::usage(format!("path '{path}' is not a directory"))),
        None => Err(CliError::usage(format!("path '{path}' does not exist"))),
    }
}
