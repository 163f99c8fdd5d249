//! Properties of nested manifests (type `apply`).

use serde::{Deserialize, Serialize};

use super::{Common, FieldVisitor, InvalidProperty, TemplateField, check_data, is_false};
use crate::model::secret::REDACTED;
use crate::model::text::url_scheme;
use crate::model::value::Value;

/// Properties of a nested manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Apply {
    #[serde(skip_serializing_if = "is_false")]
    pub noop: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub health_check_only: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub allow_apply: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// The data without secrets, if it has some.
    #[serde(skip)]
    pub redacted_data: Option<Value>,
}

impl Default for Apply {
    fn default() -> Self {
        Self {
            noop: false,
            health_check_only: false,
            allow_apply: true,
            data: None,
            redacted_data: None,
        }
    }
}

impl Apply {
    pub(super) fn validate(&self, common: &Common) -> Result<(), InvalidProperty> {
        if url_scheme(&common.name).is_some() {
            return Err(InvalidProperty::new(
                "name",
                "name must be a file path, not a URL",
            ));
        }
        if common.ensure != "present" {
            return Err(InvalidProperty::new(
                "ensure",
                "invalid ensure value: must be \"present\"",
            ));
        }
        check_data(self.data.as_ref())
    }

    pub(super) fn visit_fields<E>(&mut self, visit: &mut FieldVisitor<'_, E>) -> Result<(), E> {
        match &mut self.data {
            Some(value) => visit("Data", "", TemplateField::Data { value, keys: false }),
            None => Ok(()),
        }
    }

    pub(super) fn redact(&mut self) {
        if self.data.is_some() {
            self.data = Some(REDACTED.into());
        }
    }
}
