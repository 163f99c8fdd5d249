//! Network interfaces, their addresses and sizes, as the facts know them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::document::Entry;
use super::{Attribute, Family, First, Look, LookError, World, unanswered};
use crate::facts::{Gatherer, Places};
use crate::model::Value;
use crate::system::SystemClock;

pub(super) const FAMILY: Family = Family {
    key: "interface",
    name: "Interface",
    target: "name",
    settings: &[],
    attributes: &[
        Attribute::new("exists"),
        Attribute::new("addrs"),
        Attribute::new("mtu"),
    ],
    first: First::Gate,
    look,
};

fn look<'a>(entry: &'a Entry, _: &'a World<'a>) -> Result<Look<'a>, LookError> {
    let name = entry.target();
    let interface = find(&name)?;
    Ok(Box::new(move |attribute| {
        let interface = match (attribute, &interface) {
            ("exists", interface) => return Ok(interface.is_some().into()),
            (_, Some(interface)) => interface,
            (_, None) => return Err(LookError::NoInterface(name.clone())),
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
            other => unanswered(other),
        }
    }))
}

/// Returns an interface of this machine. An administrator's own facts have no say here.
fn find(name: &str) -> Result<Option<Value>, LookError> {
    let places = Places {
        config: Vec::new(),
        ..Places::from_env(&BTreeMap::new())
    };
    let facts = Gatherer::new(places, Arc::new(SystemClock));
    let network = facts.section("network").unwrap_or_default();
    if let Some(reason) = facts.warnings().into_iter().next() {
        return Err(LookError::Facts(reason));
    }
    let interfaces = network.get("interfaces").and_then(Value::as_list);
    let is_wanted = |item: &&Value| item.get("name").and_then(Value::as_str) == Some(name);
    Ok(interfaces
        .unwrap_or_default()
        .iter()
        .find(is_wanted)
        .cloned())
}
