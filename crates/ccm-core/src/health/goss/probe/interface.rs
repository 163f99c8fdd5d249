//! Type `interface`: addresses and MTU of network interfaces, from the facts.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::document::Entry;
use super::{
    Attribute, AttributeReader, FirstAttribute, InspectError, ProbeContext, ResourceType,
    not_implemented,
};
use crate::facts::{FactPaths, Gatherer};
use crate::model::Value;
use crate::system::SystemClock;

pub(super) const RESOURCE_TYPE: ResourceType = ResourceType {
    key: "interface",
    name: "Interface",
    target: "name",
    settings: &[],
    attributes: &[
        Attribute::new("exists"),
        Attribute::new("addrs"),
        Attribute::new("mtu"),
    ],
    first: FirstAttribute::Prerequisite,
    inspect,
};

fn inspect<'a>(
    entry: &'a Entry,
    _: &'a ProbeContext<'a>,
) -> Result<AttributeReader<'a>, InspectError> {
    let name = entry.target();
    let interface = find(&name)?;
    Ok(Box::new(move |attribute| {
        let interface = match (attribute, &interface) {
            ("exists", interface) => return Ok(interface.is_some().into()),
            (_, Some(interface)) => interface,
            (_, None) => return Err(InspectError::NoInterface(name.clone())),
        };
        let list = |key| interface.get(key).and_then(Value::as_list);
        match attribute {
            "addrs" => {
                let addresses = list("addrs").unwrap_or_default().iter();
                Ok(addresses
                    .filter_map(|item| item.get("addr").cloned())
                    .collect())
            }
            "mtu" => Ok(interface.get("mtu").cloned().unwrap_or_default()),
            other => not_implemented(other),
        }
    }))
}

/// Returns a network interface. Custom facts are not used.
fn find(name: &str) -> Result<Option<Value>, InspectError> {
    let paths = FactPaths {
        config: Vec::new(),
        ..FactPaths::from_env(&BTreeMap::new())
    };
    let facts = Gatherer::new(paths, Arc::new(SystemClock));
    let network = facts.section("network").unwrap_or_default();
    if let Some(reason) = facts.warnings().into_iter().next() {
        return Err(InspectError::Facts(reason));
    }
    let interfaces = network.get("interfaces").and_then(Value::as_list);
    let is_wanted = |item: &&Value| item.get("name").and_then(Value::as_str) == Some(name);
    Ok(interfaces
        .unwrap_or_default()
        .iter()
        .find(is_wanted)
        .cloned())
}
