//! Decoding of resources from documents: one map that contains the name, or a list of one-key maps
//! with an optional `defaults` entry.
//!
//! An unknown property is an error that suggests the nearest valid one. An entry without a value has
//! no properties of its own; the defaults apply to it.

use super::{Common, Control, Properties, Resource, locate};
use crate::model::document::{DocumentError, Mark, Node, field_names, from_entries};
use crate::model::id::TypeName;

type Entry = (Node, Node);

/// Declared resource, with its position in the document.
#[derive(Debug)]
pub struct DeclaredResource<'a> {
    pub resource: Resource,
    /// Position of the resource: its name in a list, otherwise its map.
    pub mark: Mark,
    /// Properties of the entry; `None` for an entry without a value.
    properties: Option<&'a Node>,
}

impl DeclaredResource<'_> {
    /// Returns the position of a property, or of the resource if the property is not set. Names
    /// match in any case and without underscores, as upstream names fields in its errors.
    pub fn property_mark(&self, property: &str) -> Mark {
        let found = self
            .properties
            .and_then(|it| locate::property(it, property));
        found.map_or(self.mark, |value| value.mark)
    }
}

/// Reads all resources of one type from the document node below the type's name. The error quotes no
/// value if one of them may be sensitive.
pub fn read_resources(
    type_name: TypeName,
    node: &Node,
) -> Result<Vec<DeclaredResource<'_>>, DocumentError> {
    read_all(type_name, node).map_err(|err| match is_sensitive(node) {
        true => err.redacted(),
        false => err,
    })
}

fn read_all(type_name: TypeName, node: &Node) -> Result<Vec<DeclaredResource<'_>>, DocumentError> {
    if let Some(items) = node.items() {
        return list(type_name, node, items);
    }
    let Some(entries) = node.entries() else {
        return Err(not_a_mapping(node));
    };
    let resource = decode(type_name, None, entries, &[])?;
    Ok(vec![DeclaredResource {
        resource,
        mark: node.mark,
        properties: Some(node),
    }])
}

/// Returns the names of all properties of a type.
pub fn property_names(type_name: TypeName) -> Vec<&'static str> {
    let mut names = field_names::<Common>().to_vec();
    names.extend(Properties::names(type_name));
    names
}

/// Properties whose presence makes a resource one that errors must not quote.
const UNQUOTED: [&str; 3] = ["sensitive", "password", "headers"];

/// Reports whether a resource, or one of a list, may be sensitive or has a property that is a secret,
/// so that errors must not quote it.
pub fn is_sensitive(node: &Node) -> bool {
    let is_set = |node: &Node| UNQUOTED.iter().any(|name| node.get(name).is_some());
    let in_values = |node: &Node| {
        let values = node.entries().unwrap_or_default();
        values.iter().any(|(_, value)| is_set(value))
    };
    let items = node.items().unwrap_or_default();
    is_set(node) || in_values(node) || items.iter().any(in_values)
}

fn not_a_mapping(node: &Node) -> DocumentError {
    let message = format!("{} was used where mapping is expected", node.kind_name());
    DocumentError::new(node.mark, message)
}

fn list<'a>(
    type_name: TypeName,
    node: &Node,
    items: &'a [Node],
) -> Result<Vec<DeclaredResource<'a>>, DocumentError> {
    if items.is_empty() {
        return Err(not_a_mapping(node));
    }
    let mut defaults: Option<&[Entry]> = None;
    let mut named: Vec<(&str, Mark, Option<&Node>)> = Vec::with_capacity(items.len());
    for item in items {
        let entries = item.entries().ok_or_else(|| not_a_mapping(item))?;
        let [(key, value)] = entries else {
            return Err(DocumentError::new(
                item.mark,
                "multiple resource names found in package resource",
            ));
        };
        let name = key.text().map_or("", |text| &**text);
        let properties = (!value.is_null()).then_some(value);
        if name != "defaults" {
            named.push((name, key.mark, properties));
        } else if defaults.is_some() {
            return Err(DocumentError::new(
                key.mark,
                "multiple defaults found in package resource",
            ));
        } else {
            defaults = Some(entries_of(properties)?);
        }
    }
    let defaults = defaults.unwrap_or_default();
    named
        .into_iter()
        .map(|(name, mark, properties)| {
            let own = entries_of(properties)?;
            let resource =
                decode(type_name, Some(name), own, defaults).map_err(|err| err.at(mark))?;
            Ok(DeclaredResource {
                resource,
                mark,
                properties,
            })
        })
        .collect()
}

fn entries_of(node: Option<&Node>) -> Result<&[Entry], DocumentError> {
    match node {
        None => Ok(&[]),
        Some(node) => node.entries().ok_or_else(|| not_a_mapping(node)),
    }
}

/// Properties for which an explicit null removes the default.
const CLEARED_BY_NULL: [&str; 3] = ["content", "enable", "control"];

/// Decodes one resource: its own properties replace the defaults; `control` is merged by field.
fn decode(
    type_name: TypeName,
    name: Option<&str>,
    own: &[Entry],
    defaults: &[Entry],
) -> Result<Resource, DocumentError> {
    let common_names = field_names::<Common>();
    let own_names = Properties::names(type_name);
    let mut common: Vec<&Entry> = Vec::with_capacity(own.len());
    let mut specific: Vec<&Entry> = Vec::with_capacity(own.len());
    let mut given: Vec<(&str, bool)> = Vec::with_capacity(own.len());
    for (entries, are_defaults) in [(own, false), (defaults, true)] {
        for entry in entries {
            let (key, value) = entry;
            let property = key.text().map_or("", |text| &**text);
            let group = if common_names.contains(&property) {
                &mut common
            } else if own_names.contains(&property) {
                &mut specific
            } else {
                return Err(unknown_property(type_name, name, entry, own));
            };
            let is_null = value.is_null();
            if are_defaults {
                let taken = given.iter().any(|(name, is_null)| {
                    *name == property && (!is_null || CLEARED_BY_NULL.contains(name))
                });
                if taken || is_null {
                    continue;
                }
            } else {
                given.push((property, is_null));
                if is_null {
                    continue;
                }
            }
            group.push(entry);
        }
    }
    let mut common: Common = from_entries(common.into_iter())?;
    if let Some(control) = &mut common.control
        && given.contains(&("control", false))
    {
        fill_control(control, defaults)?;
    }
    if let Some(name) = name {
        common.name = name.into();
    }
    Ok(Resource {
        common,
        properties: Properties::read(type_name, specific.into_iter())?,
    })
}

/// Returns the error about an unknown property; a name with properties of its own belongs into a
/// list.
fn unknown_property(
    type_name: TypeName,
    name: Option<&str>,
    (key, value): &Entry,
    own: &[Entry],
) -> DocumentError {
    let property = key.text().map_or("", |text| &**text);
    let known = property_names(type_name);
    let is_property = |(key, _): &Entry| key.text().is_some_and(|text| known.contains(&&**text));
    let is_resource = value.entries().is_some() || value.is_null();
    if name.is_none() && is_resource && !own.iter().any(is_property) {
        let message =
            format!("resources with their names as keys must be a list below {type_name}");
        return DocumentError::new(key.mark, message).with_help(format!("write \"- {property}:\""));
    }
    DocumentError::unknown_name(key.mark, "property", property, &known)
}

/// Fills the unset fields of `control` from the defaults.
fn fill_control(control: &mut Control, defaults: &[Entry]) -> Result<(), DocumentError> {
    let inherited = defaults
        .iter()
        .find(|(key, _)| key.text().is_some_and(|text| &**text == "control"))
        .and_then(|(_, value)| value.entries());
    let Some(entries) = inherited else {
        return Ok(());
    };
    let inherited: Control = from_entries(entries.iter())?;
    if control.manage_if.is_empty() {
        control.manage_if = inherited.manage_if;
    }
    if control.unless.is_empty() {
        control.unless = inherited.unless;
    }
    Ok(())
}
