//! Data in the rules themselves: a way to test what a template yields.

use super::super::document::Entry;
use super::{Attribute, Family, First, Look, LookError, Setting, World, unanswered};
use crate::model::Value;

pub(super) const FAMILY: Family = Family {
    key: "matching",
    name: "Matching",
    target: "",
    settings: &[("content", Setting::Data), ("as-reader", Setting::Flag)],
    attributes: &[Attribute::new("matches")],
    first: First::Required,
    look,
};

fn look<'a>(entry: &'a Entry, _: &'a World<'a>) -> Result<Look<'a>, LookError> {
    Ok(Box::new(move |attribute| match attribute {
        "matches" => {
            let content = entry.data("content").cloned().unwrap_or_default();
            if entry.flag("as-reader") {
                return Ok(Value::from(content.to_string()));
            }
            Ok(content)
        }
        other => unanswered(other),
    }))
}
