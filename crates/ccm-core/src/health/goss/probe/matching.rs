//! Type `matching`: data in the rules themselves, to test template results.

use super::super::document::Entry;
use super::{
    Attribute, AttributeReader, FirstAttribute, InspectError, ProbeContext, ResourceType, Setting,
    not_implemented,
};
use crate::model::Value;

pub(super) const RESOURCE_TYPE: ResourceType = ResourceType {
    key: "matching",
    name: "Matching",
    target: "",
    settings: &[("content", Setting::Data), ("as-reader", Setting::Flag)],
    attributes: &[Attribute::new("matches")],
    first: FirstAttribute::Required,
    inspect,
};

fn inspect<'a>(
    entry: &'a Entry,
    _: &'a ProbeContext<'a>,
) -> Result<AttributeReader<'a>, InspectError> {
    Ok(Box::new(move |attribute| match attribute {
        "matches" => {
            let content = entry.data("content").cloned().unwrap_or_default();
            if entry.flag("as-reader") {
                return Ok(Value::from(content.to_string()));
            }
            Ok(content)
        }
        other => not_implemented(other),
    }))
}
