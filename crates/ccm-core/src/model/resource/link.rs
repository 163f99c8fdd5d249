//! Properties of symbolic links.

use serde::{Deserialize, Serialize};

use super::{
    Common, FieldVisitor, InvalidProperty, check_path, check_present_or_absent, is_false, text,
};

/// Longest target that Linux stores, in bytes.
const MAX_TARGET: usize = 4095;

/// Properties of a symbolic link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Link {
    /// Text of the link, kept as written; a relative one starts at the directory of the link.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// Replaces or removes a file or directory that is in the way.
    #[serde(skip_serializing_if = "is_false")]
    pub force: bool,
}

impl Link {
    pub(super) fn validate(&self, common: &Common) -> Result<(), InvalidProperty> {
        check_present_or_absent(common)?;
        check_path(
            "name",
            &common.name,
            "link path must be canonical",
            "link path must be absolute",
        )?;
        if common.name == "/" {
            let message = "the filesystem root cannot be a link";
            return Err(InvalidProperty::new("name", message));
        }
        let invalid = |message: &str| Err(InvalidProperty::new("target", message));
        match self.target.as_str() {
            "" if common.ensure == "present" => invalid("target cannot be empty"),
            target if target.contains('\0') => invalid("target contains a null character"),
            target if target.len() > MAX_TARGET => invalid("target is longer than 4095 bytes"),
            _ => Ok(()),
        }
    }

    pub(super) fn visit_fields<E>(&mut self, visit: &mut FieldVisitor<'_, E>) -> Result<(), E> {
        text("Target", &mut self.target, visit)
    }
}
