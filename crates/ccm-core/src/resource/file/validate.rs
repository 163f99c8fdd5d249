//! Validation of a new file by a command, before it replaces the old one.

use std::path::Path;
use std::time::Duration;

use super::super::error::MAX_ERROR_LINES;
use super::super::{ErrorOutput, Host, ResourceError};
use crate::model::text::split_words;
use crate::system::Command;

/// The timeout of the command.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Runs the command line on a file; `%` is its path.
pub(super) fn validate(
    line: &str,
    path: &Path,
    sensitive: bool,
    host: Host<'_>,
) -> Result<(), ResourceError> {
    let path = path.to_string_lossy();
    let mut words = split_words(line)?.into_iter();
    let program = words.next().unwrap_or_default();
    let args = words.map(|word| word.replace('%', &path));
    let command = Command {
        timeout: Some(TIMEOUT),
        supervised: true,
        keeps_end: true,
        ..Command::new(program.replace('%', &path), args)
    };
    let output = host.runner.run(&command)?;
    if output.is_success() {
        return Ok(());
    }
    let lines = match sensitive {
        // A validator quotes the lines that it refuses.
        true => Vec::new(),
        false => output.printed().last_lines(MAX_ERROR_LINES),
    };
    Err(ResourceError::Invalidated {
        code: output.code,
        error_output: ErrorOutput::new(lines),
    })
}
