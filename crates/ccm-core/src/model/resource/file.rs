//! Properties of files and directories: content, owner, group and mode.

use serde::{Deserialize, Serialize};

use super::{
    Common, FieldVisitor, InvalidProperty, Phase, check_owner, check_path, is_false, text,
};
use crate::model::secret::REDACTED;
use crate::model::text::{quote, split_words};

/// Properties of a file or directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// Content of the file; unmanaged if not set. An empty text is an empty file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// Template file that is rendered to the content, relative to the manifest.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub template: String,
    /// Engine of the template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub engine: String,
    /// Whether subdirectories of the source are copied, too; yes if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recurse: Option<bool>,
    /// Removes what is not in the source of a directory.
    #[serde(skip_serializing_if = "is_false")]
    pub purge: bool,
    /// Command line that checks the new file before it replaces the old one; `%` is its path.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub validate: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub owner: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mode: String,
    #[serde(skip_serializing_if = "is_false")]
    pub force: bool,
}

/// Ensure values of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileEnsure {
    Present,
    Absent,
    Directory,
}

impl FileEnsure {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "present" => Some(Self::Present),
            "absent" => Some(Self::Absent),
            "directory" => Some(Self::Directory),
            _ => None,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Absent => "absent",
            Self::Directory => "directory",
        }
    }
}

/// Returns the permission bits of an octal text such as `644`, `0644` or `0o644`.
pub fn parse_mode(mode: &str) -> Result<u32, InvalidProperty> {
    let digits = mode
        .strip_prefix("0o")
        .or_else(|| mode.strip_prefix("0O"))
        .unwrap_or(mode);
    let bits = match u32::from_str_radix(digits, 8) {
        Ok(bits) if !digits.starts_with('+') => bits,
        _ => {
            let message = format!("mode {} is not a valid octal number", quote(mode));
            return Err(InvalidProperty::when_built("mode", message));
        }
    };
    if bits > 0o777 {
        let message = format!("mode {} exceeds maximum value 0777", quote(mode));
        return Err(InvalidProperty::when_built("mode", message));
    }
    Ok(bits)
}

impl File {
    /// Reports whether the content is managed, not only the attributes.
    pub(crate) fn manages_content(&self) -> bool {
        self.content.is_some() || !self.source.is_empty() || !self.template.is_empty()
    }

    pub(super) fn validate(&self, common: &Common) -> Result<(), InvalidProperty> {
        let Some(ensure) = FileEnsure::parse(&common.ensure) else {
            return Err(InvalidProperty::new(
                "ensure",
                "invalid ensure value: must be one of \"present\", \"absent\" or \"directory\"",
            ));
        };
        check_path(
            "name",
            &common.name,
            "file path must be canonical",
            "file path must be absolute",
        )?;
        if self.force {
            if ensure != FileEnsure::Absent {
                let message = format!(
                    "'force: true' is only valid with 'ensure: absent', got 'ensure: {}'",
                    common.ensure
                );
                return Err(InvalidProperty::new("force", message));
            }
            if common.name == "/" {
                return Err(InvalidProperty::new(
                    "force",
                    "'force: true' cannot be used with the filesystem root",
                ));
            }
        }
        if self.content.is_some() && !self.source.is_empty() {
            return Err(InvalidProperty::new(
                "source",
                "'content' and 'source' are mutually exclusive",
            ));
        }
        self.validate_template(ensure)?;
        self.validate_tree(common, ensure)?;
        self.validate_command(ensure)?;
        if ensure != FileEnsure::Absent {
            check_owner(&self.owner, &self.group)?;
            if self.mode.is_empty() {
                return Err(InvalidProperty::new("mode", "mode cannot be empty"));
            }
        }
        if !self.mode.is_empty() {
            parse_mode(&self.mode)?;
        }
        Ok(())
    }

    fn validate_template(&self, ensure: FileEnsure) -> Result<(), InvalidProperty> {
        let invalid = |property, message: &str| Err(InvalidProperty::new(property, message));
        if self.template.is_empty() {
            return match self.engine.is_empty() {
                true => Ok(()),
                false => invalid("engine", "'engine' is only valid with 'template'"),
            };
        }
        if self.content.is_some() || !self.source.is_empty() {
            let message = "'template' cannot be used with 'content' or 'source'";
            return invalid("template", message);
        }
        if ensure == FileEnsure::Directory {
            let message = "'template' renders one file; use a scaffold for a directory";
            return invalid("template", message);
        }
        match self.engine.as_str() {
            "" | "go" | "jet" | "jinja" => Ok(()),
            _ => invalid(
                "engine",
                "engine must be one of \"go\", \"jet\" or \"jinja\"",
            ),
        }
    }

    fn validate_tree(&self, common: &Common, ensure: FileEnsure) -> Result<(), InvalidProperty> {
        let is_tree = ensure == FileEnsure::Directory && !self.source.is_empty();
        for (property, is_set) in [("recurse", self.recurse.is_some()), ("purge", self.purge)] {
            if is_set && !is_tree {
                let message =
                    format!("'{property}' is only valid with 'ensure: directory' and 'source'");
                return Err(InvalidProperty::new(property, message));
            }
        }
        if self.purge && common.name == "/" {
            let message = "'purge: true' cannot be used with the filesystem root";
            return Err(InvalidProperty::new("purge", message));
        }
        Ok(())
    }

    fn validate_command(&self, ensure: FileEnsure) -> Result<(), InvalidProperty> {
        let invalid = |message: &str| Err(InvalidProperty::new("validate", message));
        if self.validate.is_empty() {
            return Ok(());
        }
        if ensure != FileEnsure::Present || !self.manages_content() {
            return invalid("'validate' is only valid with content of a file");
        }
        match split_words(&self.validate) {
            Err(err) => invalid(&format!("validate: {err}")),
            Ok(words) if !words.iter().any(|word| word.contains('%')) => {
                invalid("validate must contain % for the path of the new file")
            }
            Ok(_) => Ok(()),
        }
    }

    pub(super) fn visit_fields<E>(
        &mut self,
        phase: Phase,
        visit: &mut FieldVisitor<'_, E>,
    ) -> Result<(), E> {
        match phase {
            Phase::Early => {
                text("Owner", &mut self.owner, visit)?;
                text("Group", &mut self.group, visit)?;
                text("Mode", &mut self.mode, visit)?;
                text("Engine", &mut self.engine, visit)?;
                text("Validate", &mut self.validate, visit)
            }
            Phase::Deferred => {
                if let Some(content) = &mut self.content {
                    text("Contents", content, visit)?;
                }
                text("Source", &mut self.source, visit)?;
                text("Template", &mut self.template, visit)
            }
        }
    }

    pub(super) fn deferred_texts(&self) -> impl Iterator<Item = &str> {
        let content = self.content.as_deref();
        let paths = [self.source.as_str(), self.template.as_str()];
        content.into_iter().chain(paths)
    }

    pub(super) fn redact(&mut self) {
        if let Some(content) = &mut self.content {
            *content = REDACTED.into();
        }
        if !self.validate.is_empty() {
            self.validate = REDACTED.into();
        }
    }
}
