//! Type `service`: whether a systemd unit is running and enabled.

use super::super::document::Entry;
use super::{
    Attribute, AttributeReader, FirstAttribute, InspectError, ProbeContext, ResourceType,
    check_name, not_implemented,
};
use crate::model::Value;
use crate::system::Command;

/// Timeout of systemctl, in milliseconds.
const LIMIT: u64 = 10_000;

pub(super) const RESOURCE_TYPE: ResourceType = ResourceType {
    key: "service",
    name: "Service",
    target: "name",
    settings: &[],
    attributes: &[
        Attribute::new("enabled"),
        Attribute::new("running"),
        Attribute::new("runlevels"),
    ],
    first: FirstAttribute::Optional,
    inspect,
};

fn inspect<'a>(
    entry: &'a Entry,
    context: &'a ProbeContext<'a>,
) -> Result<AttributeReader<'a>, InspectError> {
    let name = entry.target();
    check_name("service", &name)?;
    let query = move |verb: &str| {
        // A path is not a unit name.
        if name.contains('/') {
            return Ok(false.into());
        }
        let command = Command {
            timeout: Some(context.limit(entry, LIMIT)),
            ..Command::new("systemctl", ["-q", verb, &name])
        };
        Ok(context.probes.runner.run(&command)?.is_success().into())
    };
    Ok(Box::new(move |attribute| match attribute {
        "enabled" => query("is-enabled"),
        "running" => query("is-active"),
        // systemd has no run levels.
        "runlevels" => Ok(Value::from(Vec::new())),
        other => not_implemented(other),
    }))
}
