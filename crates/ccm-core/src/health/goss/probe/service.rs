//! Services: whether systemd runs a unit and starts it at boot.

use super::super::document::Entry;
use super::{Attribute, Family, First, Look, LookError, World, check_name, unanswered};
use crate::model::Value;
use crate::system::Command;

/// How long systemd may take to answer, in milliseconds.
const LIMIT: u64 = 10_000;

pub(super) const FAMILY: Family = Family {
    key: "service",
    name: "Service",
    target: "name",
    settings: &[],
    attributes: &[
        Attribute::new("enabled"),
        Attribute::new("running"),
        Attribute::new("runlevels"),
    ],
    first: First::Optional,
    look,
};

fn look<'a>(entry: &'a Entry, world: &'a World<'a>) -> Result<Look<'a>, LookError> {
    let name = entry.target();
    check_name("service", &name)?;
    let asks = move |question: &str| {
        // A path names no unit.
        if name.contains('/') {
            return Ok(false.into());
        }
        let command = Command {
            timeout: Some(world.limit(entry, LIMIT)),
            ..Command::new("systemctl", ["-q", question, &name])
        };
        Ok(world.probes.runner.run(&command)?.is_success().into())
    };
    Ok(Box::new(move |attribute| match attribute {
        "enabled" => asks("is-enabled"),
        "running" => asks("is-active"),
        // Units belong to no run level.
        "runlevels" => Ok(Value::from(Vec::new())),
        other => unanswered(other),
    }))
}
