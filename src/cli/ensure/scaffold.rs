//! `ccm ensure scaffold`: flags of scaffold resources.

use std::collections::BTreeMap;

use clap::ValueHint;

use super::{CliError, CommonArgs, Target};
use ccm_core::model::resource::{ArchiveFormat, Properties, Resource, Scaffold};
use ccm_core::system::files::{self, FileKind};
use ccm_value::text::url_scheme;

/// Scaffold management
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Target directory to render into
    #[arg(value_hint = ValueHint::DirPath)]
    name: String,

    /// Source directory of templates, or a .zip, .tar.gz, .tgz or .tar of one; also from an http or
    /// https URL
    #[arg(value_hint = ValueHint::AnyPath)]
    source: Option<String>,

    /// Ensure value: present or absent
    #[arg(default_value = "present")]
    ensure: String,

    /// Do not create empty files
    #[arg(long, overrides_with = "no_skip_empty")]
    skip_empty: bool,

    /// Create empty files (the default)
    #[arg(long, hide = true)]
    no_skip_empty: bool,

    /// Left template delimiter [default: {{, for jet [[]
    #[arg(long, value_name = "TEXT")]
    left_delimiter: Option<String>,

    /// Right template delimiter [default: }}, for jet ]]]
    #[arg(long, value_name = "TEXT")]
    right_delimiter: Option<String>,

    /// Template engine to use
    #[arg(long, value_parser = ["go", "jet", "jinja"], default_value = "jet")]
    engine: String,

    /// Post-processing command for files that match; {} is replaced by the file; repeatable
    #[arg(long, value_name = "PATTERN=TOOL")]
    post: Vec<String>,

    /// Remove files in the target that are not part of the scaffold
    #[arg(long)]
    purge: bool,

    #[command(flatten)]
    common: CommonArgs,
}

impl Args {
    pub(super) fn resource(self, target: Target<'_>) -> Result<Resource, CliError> {
        let source = match self.source {
            Some(source) if url_scheme(&source).is_some() => source,
            Some(source) => existing_source(target, &source)?,
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
        let name = target.path(&self.name)?;
        let mut resource = Resource::new(name, self.ensure, Properties::Scaffold(scaffold));
        self.common.fill(&mut resource);
        Ok(resource)
    }
}

/// Parses `PATTERN=TOOL`.
fn post(step: &str) -> Result<BTreeMap<String, String>, CliError> {
    match step.split_once('=') {
        Some((pattern, tool)) => Ok(BTreeMap::from([(pattern.into(), tool.into())])),
        None => Err(CliError::usage(format!(
            "expected PATTERN=TOOL, got '{step}'"
        ))),
    }
}

/// Returns the path of a directory or archive; on a local target it must exist.
fn existing_source(target: Target<'_>, path: &str) -> Result<String, CliError> {
    let path = target.path(path)?;
    if matches!(target, Target::Remote) {
        return Ok(path);
    }
    match files::inspect(path.as_ref(), true).map_err(CliError::usage)? {
        Some(found) if found.kind == FileKind::Directory => Ok(path),
        Some(_) if ArchiveFormat::from_name(&path).is_some() => Ok(path),
        Some(_) => Err(CliError::usage(format!("path '{path}' is not a directory"))),
        None => Err(CliError::usage(format!("path '{path}' does not exist"))),
    }
}
