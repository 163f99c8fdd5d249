//! Properties of services: running or stopped, and independently enabled or disabled.

use serde::{Deserialize, Serialize};

use super::{Common, InvalidProperty, check_name_characters, is_false};
use crate::model::id::Reference;
use crate::model::text::quote;

/// Properties of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Service {
    /// Whether the service starts at boot; unmanaged if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subscribe: Vec<String>,
    /// Whether a refresh reloads instead of restarting, if the unit supports it. Not in upstream CCM.
    #[serde(skip_serializing_if = "is_false")]
    pub reload: bool,
}

impl Service {
    pub(super) fn validate(&self, common: &Common) -> Result<(), InvalidProperty> {
        if !matches!(common.ensure.as_str(), "running" | "stopped") {
            let message = format!(
                "invalid ensure value: invalid ensure property {} expects \"running\" or \"stopped\"",
                quote(&common.ensure)
            );
            return Err(InvalidProperty::new("ensure", message));
        }
        check_name_characters("service", &common.name)?;
        if self
            .subscribe
            .iter()
            .any(|item| Reference::parse(item).is_none())
        {
            return Err(InvalidProperty::new(
                "subscribe",
                "invalid subscribe format",
            ));
        }
        Ok(())
    }
}
