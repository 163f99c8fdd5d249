//! Common properties, which every resource type has.

use serde::{Deserialize, Serialize};

use super::{FieldVisitor, InvalidProperty, TemplateField, is_false, text};
use crate::model::health::HealthCheck;
use crate::model::id::Reference;
use crate::model::registration::Entry;
use crate::model::secret::REDACTED;

/// Common properties, in the order of serialization in events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Common {
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub alias: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ensure: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub provider: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub health_checks: Vec<HealthCheck>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub require: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<Control>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub register_when_stable: Vec<Entry>,
    /// Whether content, commands and data are hidden in events, logs and diffs. Not in upstream CCM.
    #[serde(skip_serializing_if = "is_false")]
    pub sensitive: bool,
}

/// Expressions that decide whether a resource is managed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a mapping")]
pub struct Control {
    #[serde(rename = "if", skip_serializing_if = "String::is_empty")]
    pub manage_if: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unless: String,
}

impl Common {
    pub(super) fn complete(&mut self) -> Result<(), InvalidProperty> {
        if self.name.is_empty() {
            return Err(InvalidProperty::new("name", "name is required"));
        }
        if self.ensure.is_empty() {
            return Err(InvalidProperty::new("ensure", "ensure is required"));
        }
        if self
            .require
            .iter()
            .any(|item| Reference::parse(item).is_none())
        {
            return Err(InvalidProperty::new(
                "require",
                "invalid require properties",
            ));
        }
        for (index, check) in self.health_checks.iter_mut().enumerate() {
            // The default name is the command, which is hidden for a sensitive resource.
            if self.sensitive && check.name.is_empty() && check.goss_rules.is_none() {
                check.name = format!("check {}", index + 1);
            }
            check.complete()?;
        }
        for entry in &self.register_when_stable {
            entry.validate().map_err(|err| {
                InvalidProperty::new("register_when_stable", format!("invalid resource: {err}"))
            })?;
        }
        Ok(())
    }

    /// Redacts control expressions, commands and rules of health checks, and annotations of
    /// registrations.
    pub(super) fn redact(&mut self) {
        if let Some(Control { manage_if, unless }) = &mut self.control {
            for code in [manage_if, unless] {
                if !code.is_empty() {
                    *code = REDACTED.into();
                }
            }
        }
        for check in &mut self.health_checks {
            if !check.command.is_empty() {
                check.command = REDACTED.into();
            }
            if check.goss_rules.is_some() {
                check.goss_rules = Some(REDACTED.into());
            }
        }
        let entries = self.register_when_stable.iter_mut();
        for text in entries.flat_map(|entry| entry.annotations.values_mut()) {
            *text = REDACTED.into();
        }
    }

    pub(super) fn visit_fields<E>(&mut self, visit: &mut FieldVisitor<'_, E>) -> Result<(), E> {
        text("Name", &mut self.name, visit)?;
        text("Alias", &mut self.alias, visit)?;
        text("Ensure", &mut self.ensure, visit)?;
        text("Provider", &mut self.provider, visit)?;
        for (index, check) in self.health_checks.iter_mut().enumerate() {
            for (field, slot) in [
                ("Command", &mut check.command),
                ("Name", &mut check.name),
                ("Timeout", &mut check.timeout),
                ("TrySleep", &mut check.try_sleep),
            ] {
                visit(
                    "HealthChecks",
                    &format!("[{index}].{field}"),
                    TemplateField::Text(slot),
                )?;
            }
        }
        for (index, entry) in self.register_when_stable.iter_mut().enumerate() {
            let suffix = |field: &str| format!("[{index}].{field}");
            for (field, slot) in [
                ("Cluster", &mut entry.cluster),
                ("Service", &mut entry.service),
                ("Protocol", &mut entry.protocol),
                ("Address", &mut entry.address),
            ] {
                visit(
                    "RegisterWhenStable",
                    &suffix(field),
                    TemplateField::Text(slot),
                )?;
            }
            for (key, slot) in &mut entry.annotations {
                let suffix = suffix(&format!("Annotations[{key}]"));
                visit("RegisterWhenStable", &suffix, TemplateField::Text(slot))?;
            }
            let port = TemplateField::Port(&mut entry.port);
            visit("RegisterWhenStable", &suffix("Port"), port)?;
        }
        Ok(())
    }
}
