//! Type `command`: exit code and output of a shell command.
//!
//! Unlike Nagios plugins, commands have the environment and working directory of the run, as in
//! goss. Output is tested whatever the exit code is.

use std::borrow::Cow;

use super::super::document::Entry;
use super::{
    Attribute, AttributeReader, FirstAttribute, InspectError, ProbeContext, ResourceType, Setting,
    not_implemented,
};
use crate::model::Value;
use crate::system::{Command, RunError};

/// Limit of captured output, per stream.
const MAX_OUTPUT: usize = 16 * 1024 * 1024;

pub(super) const RESOURCE_TYPE: ResourceType = ResourceType {
    key: "command",
    name: "Command",
    target: "exec",
    settings: &[Setting::TIMEOUT],
    attributes: &[
        Attribute::new("exit-status"),
        Attribute::stream("stdout"),
        Attribute::stream("stderr"),
    ],
    first: FirstAttribute::Required,
    inspect,
};

fn inspect<'a>(
    entry: &'a Entry,
    context: &'a ProbeContext<'a>,
) -> Result<AttributeReader<'a>, InspectError> {
    let limit = context.limit(entry, 10_000);
    let environ = context.probes.env.environ.as_map();
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
    let output = context
        .probes
        .runner
        .run(&command)
        .map_err(|err| match err {
            cause @ RunError::TimedOut { .. } => InspectError::CommandTimedOut { limit, cause },
            other => other.into(),
        })?;
    let complete = |text: Cow<'_, str>, is_truncated: bool| {
        if is_truncated {
            return Err(InspectError::LongOutput(MAX_OUTPUT));
        }
        Ok(Value::from(text.as_ref()))
    };
    Ok(Box::new(move |attribute| match attribute {
        "exit-status" => Ok(i64::from(output.code).into()),
        "stdout" => complete(output.stdout_text(), output.stdout_truncated),
        "stderr" => complete(output.stderr_text(), output.stderr_truncated),
        other => not_implemented(other),
    }))
}
