//! Properties of commands (type `exec`).

use std::fmt;
use std::time::Duration;

use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Common, FieldVisitor, InvalidProperty, Phase, is_false, list, text};
use crate::model::id::Reference;
use crate::model::secret::REDACTED;
use crate::model::text::{parse_wait, quote, split_words};

/// Properties of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Exec {
    /// Command line; if empty, the name is the command line.
    pub command: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cwd: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "exit_codes")]
    pub returns: Vec<i32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub timeout: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub creates: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub onlyif: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unless: String,
    #[serde(skip_serializing_if = "is_false")]
    pub refreshonly: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subscribe: Vec<String>,
    #[serde(skip_serializing_if = "is_false")]
    pub logoutput: bool,
}

/// Reads exit codes: numbers, or texts of numbers.
fn exit_codes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<i32>, D::Error> {
    struct ExitCode(i32);

    impl<'de> Deserialize<'de> for ExitCode {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_any(ExitCodeVisitor).map(Self)
        }
    }

    let codes = Vec::<ExitCode>::deserialize(deserializer)?;
    Ok(codes.into_iter().map(|code| code.0).collect())
}

struct ExitCodeVisitor;

impl Visitor<'_> for ExitCodeVisitor {
    type Value = i32;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an exit code")
    }

    fn visit_i64<E: de::Error>(self, code: i64) -> Result<i32, E> {
        i32::try_from(code).map_err(|_| E::invalid_value(Unexpected::Signed(code), &self))
    }

    fn visit_u64<E: de::Error>(self, code: u64) -> Result<i32, E> {
        i32::try_from(code).map_err(|_| E::invalid_value(Unexpected::Unsigned(code), &self))
    }

    fn visit_str<E: de::Error>(self, code: &str) -> Result<i32, E> {
        code.parse()
            .map_err(|_| E::invalid_value(Unexpected::Str(code), &self))
    }
}

impl Exec {
    /// Returns the timeout of the command, if set.
    pub fn timeout(&self) -> Result<Option<Duration>, InvalidProperty> {
        if self.timeout.is_empty() {
            return Ok(None);
        }
        match parse_wait(&self.timeout) {
            Ok(limit) if limit.is_zero() => Ok(None),
            Ok(limit) => Ok(Some(limit)),
            Err(err) => Err(InvalidProperty::new("timeout", err.to_string())),
        }
    }

    /// Returns the command lines of `onlyif` and `unless`.
    pub fn guards(&self) -> impl Iterator<Item = &str> {
        let all = [self.onlyif.as_str(), self.unless.as_str()];
        all.into_iter().filter(|line| !line.is_empty())
    }

    /// Reports whether the state of the machine decides if the command runs.
    pub fn is_guarded(&self) -> bool {
        !self.creates.is_empty() || self.guards().next().is_some() || self.refreshonly
    }

    /// Reports whether an exit code means success.
    pub fn accepts(&self, code: i32) -> bool {
        self.accepted().contains(&code)
    }

    /// Returns the exit codes that mean success.
    pub fn accepted(&self) -> &[i32] {
        if self.returns.is_empty() {
            &[0]
        } else {
            &self.returns
        }
    }

    pub(super) fn validate(&self, common: &Common) -> Result<(), InvalidProperty> {
        self.timeout()?;
        if !matches!(common.ensure.as_str(), "present" | "absent") {
            return Err(InvalidProperty::new(
                "ensure",
                "invalid ensure value: must be one of \"present\" or \"absent\"",
            ));
        }
        // The name must be a valid command line only if it is used as one.
        if self.command.is_empty() && common.provider != "shell" {
            match split_words(&common.name) {
                Err(err) => return Err(InvalidProperty::new("name", err.to_string())),
                Ok(words) if words.is_empty() => {
                    return Err(InvalidProperty::new("name", "invalid command"));
                }
                Ok(_) => {}
            }
        }
        for item in &self.subscribe {
            if Reference::parse(item).is_none() {
                let message = format!("invalid subscribe format {item}");
                return Err(InvalidProperty::new("subscribe", message));
            }
        }
        if !self.path.is_empty() {
            for directory in self.path.split(':') {
                if directory.is_empty() {
                    return Err(InvalidProperty::new(
                        "path",
                        "invalid path: empty directory in path",
                    ));
                }
                if !directory.starts_with('/') {
                    let message =
                        format!("invalid path: {} is not an absolute path", quote(directory));
                    return Err(InvalidProperty::new("path", message));
                }
            }
        }
        self.validate_environment(common.sensitive)
    }

    /// Validates the environment; an item with an expression is validated after it is resolved.
    fn validate_environment(&self, is_hidden: bool) -> Result<(), InvalidProperty> {
        for item in &self.environment {
            let problem = match item.split_once('=') {
                _ if item.contains("{{") || item.contains("${") => continue,
                None => "missing '='",
                Some(("", _)) => "empty key",
                Some((_, "")) => "empty value",
                Some((key, _)) if !is_variable_name(key) => "invalid key",
                Some(_) => continue,
            };
            let shown = if is_hidden { REDACTED } else { item };
            let message = format!("invalid environment variable {}: {problem}", quote(shown));
            return Err(InvalidProperty::new("environment", message));
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
                text("Timeout", &mut self.timeout, visit)?;
                list("Subscribe", &mut self.subscribe, visit)
            }
            Phase::Deferred => {
                text("Command", &mut self.command, visit)?;
                text("Cwd", &mut self.cwd, visit)?;
                list("Environment", &mut self.environment, visit)?;
                text("Creates", &mut self.creates, visit)?;
                text("OnlyIf", &mut self.onlyif, visit)?;
                text("Unless", &mut self.unless, visit)
            }
        }
    }

    pub(super) fn deferred_texts(&self) -> impl Iterator<Item = &str> {
        [
            &self.command,
            &self.cwd,
            &self.creates,
            &self.onlyif,
            &self.unless,
        ]
        .into_iter()
        .chain(&self.environment)
        .map(String::as_str)
    }

    pub(super) fn redact(&mut self) {
        for slot in [&mut self.command, &mut self.onlyif, &mut self.unless] {
            if !slot.is_empty() {
                *slot = REDACTED.into();
            }
        }
        for item in &mut self.environment {
            *item = match item.split_once('=') {
                Some((key, _)) if is_variable_name(key) => format!("{key}={REDACTED}"),
                _ => REDACTED.into(),
            };
        }
    }
}

/// Reports whether a text is a valid name of a shell variable.
fn is_variable_name(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(is_part)
}
