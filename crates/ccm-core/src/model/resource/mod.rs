//! Resources as declared: properties by type, with defaults, validation, and the fields that may
//! contain expressions.
//!
//! Does not inspect the node: whether a provider or a path exists is checked in [`crate::resource`].
//! Reading resources from documents is in [`decode`].

mod account;
mod apply;
mod archive;
mod common;
pub mod decode;
mod exec;
mod file;
mod line;
mod link;
pub(crate) mod locate;
mod package;
mod scaffold;
mod service;

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;

use serde::Serialize;

pub use account::{Group, NEVER, User};
pub use apply::Apply;
pub use archive::{Archive, ArchiveFormat};
pub use common::{Common, Control};
pub use exec::Exec;
pub use file::{File, FileEnsure, parse_mode};
pub use line::Line;
pub use link::Link;
pub use package::{Package, UpdateIndex, module_path};
pub use scaffold::Scaffold;
pub use service::Service;

use super::document::{DocumentError, Node, field_names, from_entries};
use super::id::{TypeName, for_each_type};
use super::registration::Port;
use super::secret::{redact_urls, redact_urls_in};
use super::value::Value;

/// Invalid property of a resource.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidProperty {
    /// Name of the property, to find its line in the document.
    pub property: &'static str,
    pub message: String,
    /// Upstream reports this when it builds the resource, with the resource's name in the message.
    pub names_resource: bool,
}

impl InvalidProperty {
    pub fn new(property: &'static str, message: impl Into<String>) -> Self {
        Self {
            property,
            message: message.into(),
            names_resource: false,
        }
    }

    /// Returns the message with the name of the property, unless it has it.
    pub fn full_message(&self) -> String {
        let Self {
            property, message, ..
        } = self;
        match message.as_str() {
            "invalid require properties" => "an item of require is not a reference".into(),
            message if *property == "name" || message.contains(property) => message.into(),
            message => format!("property {property:?}: {message}"),
        }
    }

    fn when_built(property: &'static str, message: impl Into<String>) -> Self {
        Self {
            names_resource: true,
            ..Self::new(property, message)
        }
    }
}

/// One declared resource.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Resource {
    #[serde(flatten)]
    pub common: Common,
    #[serde(flatten)]
    pub properties: Properties,
}

macro_rules! properties {
    ($($variant:ident = $name:literal,)+) => {
        /// Type-specific properties.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(untagged)]
        pub enum Properties {
            $($variant($variant),)+
        }

        impl Properties {
            pub fn type_name(&self) -> TypeName {
                match self {
                    $(Self::$variant(_) => TypeName::$variant,)+
                }
            }

            /// Returns the names of the type-specific properties.
            fn names(type_name: TypeName) -> &'static [&'static str] {
                match type_name {
                    $(TypeName::$variant => field_names::<$variant>(),)+
                }
            }

            /// Reads the type-specific properties.
            fn read<'a>(
                type_name: TypeName,
                entries: impl Iterator<Item = &'a (Node, Node)>,
            ) -> Result<Self, DocumentError> {
                Ok(match type_name {
                    $(TypeName::$variant => Self::$variant(from_entries(entries)?),)+
                })
            }
        }
    };
}
for_each_type!(properties);

/// Time at which the expressions of a field are resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// When the resource is read.
    Early,
    /// Just before the resource is applied, after its control gate.
    Deferred,
}

/// Field of a resource that may contain expressions.
pub(crate) enum TemplateField<'a> {
    /// Resolves to text.
    Text(&'a mut String),
    /// Nested data: every text in it resolves to a typed value; with `keys`, also top-level keys.
    Data { value: &'a mut Value, keys: bool },
    /// Resolves to a number.
    Port(&'a mut Port),
}

/// Visitor of fields: gets the field's name as redacted in errors, a suffix such as `[2]`, and the field.
pub(crate) type FieldVisitor<'v, E> =
    dyn FnMut(&str, &str, TemplateField<'_>) -> Result<(), E> + 'v;

impl Resource {
    /// Returns a resource with only a name, an ensure value and type-specific properties.
    pub fn new(name: impl Into<String>, ensure: impl Into<String>, properties: Properties) -> Self {
        Self {
            common: Common {
                name: name.into(),
                ensure: ensure.into(),
                ..Common::default()
            },
            properties,
        }
    }

    pub fn type_name(&self) -> TypeName {
        self.properties.type_name()
    }

    /// Returns `type#name` for display. Secrets of URLs in the name are redacted: the name of an exec
    /// may be its command.
    pub fn label(&self) -> String {
        format!("{}#{}", self.type_name(), redact_urls(&self.common.name))
    }

    /// Returns the command line of an exec.
    pub fn command_line(&self) -> Option<&str> {
        match &self.properties {
            Properties::Exec(exec) if exec.command.is_empty() => Some(&self.common.name),
            Properties::Exec(exec) => Some(&exec.command),
            _ => None,
        }
    }

    /// Returns what the rules of a policy compare with their names: the path of the file for a line,
    /// otherwise the name.
    pub fn policy_name(&self) -> &str {
        match &self.properties {
            Properties::Line(line) => line.file(&self.common.name),
            _ => &self.common.name,
        }
    }

    /// Returns the references whose change refreshes this resource.
    pub fn subscribe(&self) -> &[String] {
        match &self.properties {
            Properties::Service(service) => &service.subscribe,
            Properties::Exec(exec) => &exec.subscribe,
            Properties::Apply(_)
            | Properties::Archive(_)
            | Properties::File(_)
            | Properties::Group(_)
            | Properties::Line(_)
            | Properties::Link(_)
            | Properties::Package(_)
            | Properties::Scaffold(_)
            | Properties::User(_) => &[],
        }
    }

    /// Fills in defaults and validates; returns the first error, in upstream's order.
    pub fn complete(&mut self) -> Result<(), InvalidProperty> {
        let Self { common, properties } = self;
        if common.ensure.is_empty() {
            common.ensure = match properties {
                Properties::Service(_) => "running".into(),
                Properties::Exec(_)
                | Properties::Apply(_)
                | Properties::Group(_)
                | Properties::Line(_)
                | Properties::Link(_)
                | Properties::User(_) => "present".into(),
                Properties::Archive(_)
                | Properties::File(_)
                | Properties::Package(_)
                | Properties::Scaffold(_) => String::new(),
            };
        }
        common.complete()?;
        match properties {
            Properties::Apply(apply) => apply.validate(common),
            Properties::Archive(archive) => archive.validate(common),
            Properties::Exec(exec) => exec.validate(common),
            Properties::File(file) => file.validate(common),
            Properties::Group(group) => group.validate(common),
            Properties::Line(line) => line.validate(common),
            Properties::Link(link) => link.validate(common),
            Properties::Package(package) => package.validate(common),
            Properties::Scaffold(scaffold) => scaffold.complete(common),
            Properties::Service(service) => service.validate(common),
            Properties::User(user) => user.validate(common),
        }
    }

    /// Calls `visit` for every field of a phase that may contain expressions.
    pub(crate) fn visit_fields<E>(
        &mut self,
        phase: Phase,
        visit: &mut FieldVisitor<'_, E>,
    ) -> Result<(), E> {
        if phase == Phase::Early {
            self.common.visit_fields(visit)?;
        }
        match &mut self.properties {
            Properties::File(file) => file.visit_fields(phase, visit),
            Properties::Exec(exec) => exec.visit_fields(phase, visit),
            Properties::Line(line) => line.visit_fields(phase, visit),
            // The other types have no deferred fields.
            _ if phase == Phase::Deferred => Ok(()),
            Properties::Apply(apply) => apply.visit_fields(visit),
            Properties::Archive(archive) => archive.visit_fields(visit),
            Properties::Scaffold(scaffold) => scaffold.visit_fields(visit),
            Properties::Service(service) => list("Subscribe", &mut service.subscribe, visit),
            Properties::Group(_) => Ok(()),
            Properties::Link(link) => link.visit_fields(visit),
            Properties::Package(package) => package.visit_fields(visit),
            Properties::User(user) => user.visit_fields(visit),
        }
    }

    /// Returns the texts that are resolved just before the resource is applied.
    pub(crate) fn deferred_texts(&self) -> impl Iterator<Item = &str> {
        let (mut file, mut exec, mut line) = (None, None, None);
        match &self.properties {
            Properties::File(properties) => file = Some(properties),
            Properties::Exec(properties) => exec = Some(properties),
            Properties::Line(properties) => line = Some(properties),
            Properties::Apply(_)
            | Properties::Archive(_)
            | Properties::Group(_)
            | Properties::Link(_)
            | Properties::Package(_)
            | Properties::Scaffold(_)
            | Properties::Service(_)
            | Properties::User(_) => {}
        }
        let file = file.into_iter().flat_map(File::deferred_texts);
        let exec = exec.into_iter().flat_map(Exec::deferred_texts);
        let line = line.into_iter().flat_map(Line::deferred_texts);
        file.chain(exec).chain(line)
    }

    /// Returns the resource for events: sensitive properties and the secrets of URLs are redacted.
    pub fn redacted(self: &Arc<Self>) -> Arc<Self> {
        if !self.common.sensitive && !self.may_hold_url() {
            return Arc::clone(self);
        }
        let mut redacted = Self::clone(self);
        if redacted.common.sensitive {
            redacted.common.redact();
            match &mut redacted.properties {
                Properties::File(file) => file.redact(),
                Properties::Exec(exec) => exec.redact(),
                Properties::Apply(apply) => apply.redact(),
                Properties::Scaffold(scaffold) => scaffold.redact(),
                Properties::Line(line) => line.redact(),
                Properties::Archive(_)
                | Properties::Group(_)
                | Properties::Link(_)
                | Properties::Package(_)
                | Properties::Service(_)
                | Properties::User(_) => {}
            }
        }
        redacted.redact_urls();
        Arc::new(redacted)
    }

    /// Reports whether the resource may contain a URL; avoids a copy of the many that have none.
    fn may_hold_url(&self) -> bool {
        let is_url = |text: &str| text.contains("://");
        match &self.properties {
            Properties::Apply(_) | Properties::Archive(_) | Properties::Scaffold(_) => return true,
            Properties::Link(link) if is_url(&link.target) => return true,
            Properties::Exec(_) | Properties::File(_) | Properties::Line(_) => {}
            Properties::Link(_) | Properties::Package(_) | Properties::Service(_) => {}
            Properties::Group(_) | Properties::User(_) => {}
        }
        let references = self.common.require.iter().chain(self.subscribe());
        is_url(&self.common.name)
            || !self.common.health_checks.is_empty()
            || references.map(String::as_str).any(is_url)
            || self.deferred_texts().any(is_url)
    }

    fn redact_urls(&mut self) {
        for check in &mut self.common.health_checks {
            check.goss_rules = check.goss_rules.as_ref().map(redact_urls_in);
        }
        for reference in &mut self.common.require {
            *reference = redact_urls(reference).into_owned();
        }
        for phase in [Phase::Early, Phase::Deferred] {
            let visited: Result<(), Infallible> = self.visit_fields(phase, &mut |_, _, field| {
                match field {
                    TemplateField::Text(text) => {
                        if let Cow::Owned(redacted) = redact_urls(text) {
                            *text = redacted;
                        }
                    }
                    TemplateField::Data { value, .. } => *value = redact_urls_in(value),
                    TemplateField::Port(_) => {}
                }
                Ok(())
            });
            // The visitor never fails.
            let Ok(()) = visited;
        }
    }
}

/// Visits one text.
fn text<E>(field: &str, text: &mut String, visit: &mut FieldVisitor<'_, E>) -> Result<(), E> {
    visit(field, "", TemplateField::Text(text))
}

/// Visits every text of a list.
fn list<E>(field: &str, texts: &mut [String], visit: &mut FieldVisitor<'_, E>) -> Result<(), E> {
    for (index, text) in texts.iter_mut().enumerate() {
        visit(field, &format!("[{index}]"), TemplateField::Text(text))?;
    }
    Ok(())
}

/// Serde helper: skips false.
fn is_false(flag: &bool) -> bool {
    !flag
}

/// Rejects a path that is not clean or not absolute.
fn check_path(
    property: &'static str,
    path: &str,
    not_clean: &str,
    not_absolute: &str,
) -> Result<(), InvalidProperty> {
    if super::text::clean_path(path) != path {
        return Err(InvalidProperty::new(property, not_clean));
    }
    if !path.starts_with('/') {
        return Err(InvalidProperty::new(property, not_absolute));
    }
    Ok(())
}

/// Rejects ensure values other than `present` and `absent`.
fn check_present_or_absent(common: &Common) -> Result<(), InvalidProperty> {
    match common.ensure.as_str() {
        "present" | "absent" => Ok(()),
        _ => Err(InvalidProperty::new(
            "ensure",
            "invalid ensure value: must be one of \"present\" or \"absent\"",
        )),
    }
}

/// Rejects data that is not a mapping or null.
fn check_data(data: Option<&Value>) -> Result<(), InvalidProperty> {
    match data {
        None | Some(Value::Map(_) | Value::Null) => Ok(()),
        Some(other) => {
            let message = format!("{} was used where mapping is expected", other.kind());
            Err(InvalidProperty::new("data", message))
        }
    }
}

/// Rejects empty owners and groups.
fn check_owner(owner: &str, group: &str) -> Result<(), InvalidProperty> {
    if owner.is_empty() {
        return Err(InvalidProperty::new("owner", "owner cannot be empty"));
    }
    if group.is_empty() {
        return Err(InvalidProperty::new("group", "group cannot be empty"));
    }
    Ok(())
}

/// Reports whether a character is forbidden in package and service names and in versions.
fn is_dangerous(c: char) -> bool {
    matches!(
        c,
        ';' | '&'
            | '|'
            | '$'
            | '`'
            | '('
            | ')'
            | '['
            | ']'
            | '{'
            | '}'
            | '<'
            | '>'
            | '*'
            | '?'
            | '\''
            | '"'
            | '\\'
            | '!'
            | '\n'
            | '\t'
            | '\r'
    )
}

/// Rejects names that a package manager or systemctl could interpret as an option or a pattern.
fn check_name_characters(what: &str, name: &str) -> Result<(), InvalidProperty> {
    let quoted = || super::text::quote(name);
    if name.contains(is_dangerous) {
        let message = format!("{what} name contains dangerous characters: {}", quoted());
        return Err(InvalidProperty::new("name", message));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._+:~-".contains(c);
    if !name.chars().all(allowed) {
        let message = format!(
            "{what} name contains invalid characters: {} (allowed: alphanumeric, ._+:~-)",
            quoted()
        );
        return Err(InvalidProperty::new("name", message));
    }
    if name.starts_with('-') {
        let message = format!("{what} name must not start with a hyphen: {}", quoted());
        return Err(InvalidProperty::new("name", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
