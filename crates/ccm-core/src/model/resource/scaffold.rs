//! Properties of scaffolds: a directory or archive of templates, rendered to a target directory.

use ccm_template::Engine;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Common, FieldVisitor, InvalidProperty, TemplateField, check_data, check_path, is_false, text,
};
use crate::model::secret::{REDACTED, serialize_url};
use crate::model::text::quote;
use crate::model::value::Value;

/// Properties of a scaffold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scaffold {
    /// Directory, archive, or URL of an archive.
    #[serde(serialize_with = "serialize_url")]
    pub source: String,
    #[serde(skip_serializing_if = "is_false")]
    pub skip_empty: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub left_delimiter: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub right_delimiter: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub engine: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    #[serde(skip_serializing_if = "is_false")]
    pub purge: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub post: Vec<BTreeMap<String, String>>,
}

impl Scaffold {
    pub(super) fn complete(&mut self, common: &Common) -> Result<(), InvalidProperty> {
        if !matches!(common.ensure.as_str(), "present" | "absent") {
            return Err(InvalidProperty::new(
                "ensure",
                "invalid ensure value: must be one of \"present\" or \"absent\"",
            ));
        }
        if !common.name.starts_with('/') {
            return Err(InvalidProperty::new(
                "name",
                "name must be an absolute path",
            ));
        }
        let text = "name must be a canonical path";
        check_path("name", &common.name, text, text)?;
        if self.source.is_empty() {
            return Err(InvalidProperty::new("source", "source cannot be empty"));
        }
        if self.engine.is_empty() {
            self.engine = "jet".into();
        }
        let Some(engine) = Engine::parse(&self.engine) else {
            return Err(InvalidProperty::new(
                "engine",
                "engine must be one of \"go\", \"jet\" or \"jinja\"",
            ));
        };
        let (left, right) = engine.delimiters();
        if self.left_delimiter.is_empty() {
            self.left_delimiter = left.into();
        }
        if self.right_delimiter.is_empty() {
            self.right_delimiter = right.into();
        }
        if self.post.iter().any(|step| step.len() != 1) {
            let message = "post entries must have one key, a pattern, and its command";
            return Err(InvalidProperty::new("post", message));
        }
        for (key, command) in self.post.iter().flatten() {
            if key.is_empty() {
                return Err(InvalidProperty::new("post", "post keys cannot be empty"));
            }
            if command.trim().is_empty() {
                let message = format!("post value for key {} cannot be empty", quote(key));
                return Err(InvalidProperty::new("post", message));
            }
        }
        check_data(self.data.as_ref())
    }

    pub(super) fn visit_fields<E>(&mut self, visit: &mut FieldVisitor<'_, E>) -> Result<(), E> {
        text("Source", &mut self.source, visit)?;
        if let Some(value) = &mut self.data {
            visit("Data", "", TemplateField::Data { value, keys: true })?;
        }
        for (index, step) in self.post.iter_mut().enumerate() {
            for (key, command) in step {
                visit(
                    "Post",
                    &format!("[{index}][{key}]"),
                    TemplateField::Text(command),
                )?;
            }
        }
        Ok(())
    }

    pub(super) fn redact(&mut self) {
        if self.data.is_some() {
            self.data = Some(REDACTED.into());
        }
        for command in self.post.iter_mut().flat_map(BTreeMap::values_mut) {
            *command = REDACTED.into();
        }
    }
}
