//! Properties of a line or a marked block in a file.

use serde::{Deserialize, Serialize};

use super::{
    Common, FieldVisitor, InvalidProperty, Phase, check_path, check_present_or_absent, text,
};
use crate::model::secret::REDACTED;

/// Comment prefix of markers that declare none.
const DEFAULT_COMMENT: &str = "#";

/// Properties of a line or a marked block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Line {
    /// Path of the file; the name of the resource if empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Regular expression of the line that `line` replaces, or of the lines to remove.
    #[serde(rename = "match", skip_serializing_if = "String::is_empty")]
    pub pattern: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    /// Lines between two markers that carry the name of the resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<String>,
    /// Regular expression; a new line or block goes after its last match.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub after: String,
    /// Regular expression; a new line or block goes before its first match.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub before: String,
    /// Comment syntax of the markers: a prefix, or a text with `%` for the marker.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub comment: String,
}

impl Line {
    /// Returns the path of the file.
    pub(crate) fn file<'a>(&'a self, name: &'a str) -> &'a str {
        match self.path.as_str() {
            "" => name,
            path => path,
        }
    }

    /// Returns the lines that begin and end the block of this name.
    pub(crate) fn markers(&self, name: &str) -> (String, String) {
        let comment = match self.comment.as_str() {
            "" => DEFAULT_COMMENT,
            comment => comment,
        };
        let marker = |word: &str| match comment.split_once('%') {
            Some((start, end)) => format!("{start}{word} ccm {name}{end}"),
            None => format!("{comment} {word} ccm {name}"),
        };
        (marker("BEGIN"), marker("END"))
    }

    pub(super) fn validate(&self, common: &Common) -> Result<(), InvalidProperty> {
        check_present_or_absent(common)?;
        let is_line_break = |c: char| matches!(c, '\n' | '\r');
        if common.name.contains(is_line_break) {
            let message = "name of a line must not contain line breaks";
            return Err(InvalidProperty::new("name", message));
        }
        let property = match self.path.is_empty() {
            true => "name",
            false => "path",
        };
        check_path(
            property,
            self.file(&common.name),
            "path of the file must be canonical",
            "path of the file must be absolute; set path if the name is not the path",
        )?;
        let has_match = !self.pattern.is_empty();
        let conflict = match (&self.line, &self.block) {
            (Some(_), Some(_)) => Some(("block", "'line' and 'block' are mutually exclusive")),
            (_, Some(_)) if has_match => Some(("match", "'match' is only valid with 'line'")),
            (None, None) if common.ensure == "present" => {
                Some(("line", "one of 'line' or 'block' is required"))
            }
            (None, None) if !has_match => {
                Some(("line", "one of 'line', 'match' or 'block' is required"))
            }
            (None, _) | (Some(_), _) if !self.after.is_empty() && !self.before.is_empty() => {
                Some(("before", "'after' and 'before' are mutually exclusive"))
            }
            _ => None,
        };
        if let Some((property, message)) = conflict {
            return Err(InvalidProperty::new(property, message));
        }
        if self.line.as_deref() == Some("") {
            return Err(InvalidProperty::new("line", "line cannot be empty"));
        }
        if self.comment.contains(is_line_break) {
            let message = "comment must not contain line breaks";
            return Err(InvalidProperty::new("comment", message));
        }
        for (property, expression) in [
            ("match", &self.pattern),
            ("after", &self.after),
            ("before", &self.before),
        ] {
            regex::bytes::Regex::new(expression).map_err(|err| {
                InvalidProperty::new(property, format!("{property}: {}", one_line(&err)))
            })?;
        }
        Ok(())
    }

    pub(super) fn visit_fields<E>(
        &mut self,
        phase: Phase,
        visit: &mut FieldVisitor<'_, E>,
    ) -> Result<(), E> {
        match phase {
            Phase::Early => {
                text("Path", &mut self.path, visit)?;
                text("Match", &mut self.pattern, visit)?;
                text("After", &mut self.after, visit)?;
                text("Before", &mut self.before, visit)?;
                text("Comment", &mut self.comment, visit)
            }
            Phase::Deferred => {
                if let Some(line) = &mut self.line {
                    text("Line", line, visit)?;
                }
                match &mut self.block {
                    Some(block) => text("Block", block, visit),
                    None => Ok(()),
                }
            }
        }
    }

    pub(super) fn deferred_texts(&self) -> impl Iterator<Item = &str> {
        self.line
            .as_deref()
            .into_iter()
            .chain(self.block.as_deref())
    }

    pub(super) fn redact(&mut self) {
        for text in [&mut self.line, &mut self.block].into_iter().flatten() {
            *text = REDACTED.into();
        }
        if !self.pattern.is_empty() {
            self.pattern = REDACTED.into();
        }
    }
}

/// Returns the last line of an error: those of expressions draw the position below the text.
fn one_line(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.trim_start_matches("error: ").to_owned()
}
