//! Commands: what a shell makes of a line, its exit code and what it prints.
//!
//! Unlike plugins, these see the environment of the run and start in its directory, as goss lets
//! them. The exit code does not gate the output: both are tested, whatever it is.

use std::borrow::Cow;

use super::super::document::Entry;
use super::{Attribute, Family, First, Look, LookError, Setting, World, unanswered};
use crate::model::Value;
use crate::system::{Command, RunError};

/// How much of each stream is searched.
const MAX_OUTPUT: usize = 16 * 1024 * 1024;

pub(super) const FAMILY: Family = Family {
    key: "command",
    name: "Command",
    target: "exec",
    settings: &[Setting::TIMEOUT],
    attributes: &[
        Attribute::new("exit-status"),
        Attribute::stream("stdout"),
        Attribute::stream("stderr"),
    ],
    first: First::Required,
    look,
};

fn look<'a>(entry: &'a Entry, world: &'a World<'a>) -> Result<Look<'a>, LookError> {
    let limit = world.limit(entry, 10_000);
    let environ = world.probes.env.environ.as_map();
    let command = Command {
        timeout: Some(limit),
        max_output: MAX_OUTPUT,
        cwd: std::env::current_dir().ok(),
        env: environ
            .into_iter()
            .flatten()
            .map(|(name, value)| (name.as_ref().to_owned(), value.to_string()))
            .collect(),
        ..Command::new("sh", ["-c".to_owned(), entry.target()])
    };
    let output = world.probes.runner.run(&command).map_err(|err| match err {
        cause @ RunError::TimedOut { .. } => LookError::CommandTimedOut { limit, cause },
        other => other.into(),
    })?;
    let whole = |text: Cow<'_, str>, is_cut: bool| {
        if is_cut {
            return Err(LookError::LongOutput(MAX_OUTPUT));
        }
        Ok(Value::from(text.as_ref()))
    };
    Ok(Box::new(move |attribute| match attribute {
        "exit-status" => Ok(i64::from(output.code).into()),
        "stdout" => whole(output.stdout_text(), output.stdout_truncated),
        "stderr" => whole(output.stderr_text(), output.stderr_truncated),
        other => unanswered(other),
    }))
}
