//! `ccm ensure line`: flags of line resources.

use clap::ValueHint;

use super::{CliError, CommonArgs, Target};
use ccm_core::model::resource::{Line, Properties, Resource};

/// Management of a line or block in a file
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Path of the file; with --path, any name
    #[arg(value_hint = ValueHint::FilePath)]
    name: String,

    /// Ensure value: present or absent
    #[arg(default_value = "present")]
    ensure: String,

    /// Path of the file [default: the name]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    path: Option<String>,

    /// Line to add or remove; templates are rendered
    #[arg(long, value_name = "TEXT", conflicts_with = "block")]
    line: Option<String>,

    /// Regular expression of the line to replace, or of the lines to remove
    #[arg(long = "match", value_name = "REGEX", conflicts_with = "block")]
    pattern: Option<String>,

    /// Lines to keep between two markers; templates are rendered
    #[arg(long, value_name = "TEXT")]
    block: Option<String>,

    /// Add it after the last line that matches
    #[arg(long, value_name = "REGEX", conflicts_with = "before")]
    after: Option<String>,

    /// Add it before the first line that matches
    #[arg(long, value_name = "REGEX")]
    before: Option<String>,

    /// Comment syntax of the markers: a prefix (# if not given), or a text with % for the marker
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,

    #[command(flatten)]
    common: CommonArgs,
}

impl Args {
    pub(super) fn resource(self, target: Target<'_>) -> Result<Resource, CliError> {
        let (name, path) = match self.path {
            Some(path) => (self.name, target.path(&path)?),
            None => (target.path(&self.name)?, String::new()),
        };
        let line = Line {
            path,
            pattern: self.pattern.unwrap_or_default(),
            line: self.line,
            block: self.block,
            after: self.after.unwrap_or_default(),
            before: self.before.unwrap_or_default(),
            comment: self.comment.unwrap_or_default(),
        };
        let mut resource = Resource::new(name, self.ensure, Properties::Line(line));
        self.common.fill(&mut resource);
        Ok(resource)
    }
}
