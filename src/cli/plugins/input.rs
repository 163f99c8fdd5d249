//! Arguments and flags of plugin commands: types, validation and values for templates.
//!
//! A value comes from the command line, else from the environment, else from the default; all three
//! are validated.

use std::path::Path;

use crate::cli::CliError;
use ccm_core::hiera;
use ccm_core::system::files::{self, FileKind};
use ccm_value::Value;

/// Flags that every command has.
const RESERVED: [&str; 3] = ["help", "prompt", "no-prompt"];

/// Positional argument or flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputKind {
    Argument,
    Flag,
}

/// Type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputType {
    Text,
    Bool,
    Counter,
    ExistingFile,
    ExistingDirectory,
    /// Integer with this number of bits.
    Signed(u32),
    Unsigned(u32),
    Float,
}

impl InputType {
    /// Returns the type with this name in a definition.
    pub(super) fn named(word: &str) -> Option<Self> {
        Some(match word.to_lowercase().as_str() {
            "" | "string" => Self::Text,
            "bool" => Self::Bool,
            "counter" => Self::Counter,
            "existing_file" => Self::ExistingFile,
            "existing_dir" => Self::ExistingDirectory,
            "int" | "integer" | "int64" => Self::Signed(64),
            "int8" => Self::Signed(8),
            "int16" => Self::Signed(16),
            "int32" => Self::Signed(32),
            "uint" | "uint64" => Self::Unsigned(64),
            "uint8" => Self::Unsigned(8),
            "uint16" => Self::Unsigned(16),
            "uint32" => Self::Unsigned(32),
            "float" | "float32" | "float64" => Self::Float,
            _ => return None,
        })
    }

    /// Parses a value for templates.
    fn read(self, text: &str) -> Result<Value, CliError> {
        match self {
            Self::Text => Ok(text.into()),
            Self::Bool => match text {
                "true" | "1" | "t" | "T" | "TRUE" | "True" => Ok(Value::Bool(true)),
                "false" | "0" | "f" | "F" | "FALSE" | "False" | "" => Ok(Value::Bool(false)),
                _ => Err(CliError::usage("expected true or false")),
            },
            Self::Signed(bits) => text
                .parse::<i64>()
                .ok()
                .filter(|number| *number >> (bits - 1) == 0 || *number >> (bits - 1) == -1)
                .map(Value::Int)
                .ok_or_else(|| CliError::usage(format!("expected a {bits} bit integer"))),
            Self::Counter => Self::Unsigned(64).read(text),
            Self::Unsigned(bits) => text
                .parse::<u64>()
                .ok()
                .filter(|number| bits == 64 || *number >> bits == 0)
                .map(|number| i64::try_from(number).map_or(Value::Uint(number), Value::Int))
                .ok_or_else(|| {
                    CliError::usage(format!("expected an unsigned integer of {bits} bits"))
                }),
            Self::Float => text
                .parse::<f64>()
                .map(Value::Float)
                .map_err(|_| CliError::usage("expected a number")),
            Self::ExistingFile => existing(text, FileKind::Regular, "file"),
            Self::ExistingDirectory => existing(text, FileKind::Directory, "directory"),
        }
    }

    /// Returns the value for templates if none was given.
    fn zero_value(self) -> Value {
        match self {
            Self::Text | Self::ExistingFile | Self::ExistingDirectory => "".into(),
            Self::Bool => Value::Bool(false),
            Self::Counter | Self::Signed(_) | Self::Unsigned(_) => Value::Int(0),
            Self::Float => Value::Float(0.0),
        }
    }
}

fn existing(text: &str, kind: FileKind, kind_name: &str) -> Result<Value, CliError> {
    match files::inspect(Path::new(text), true) {
        Ok(Some(found)) if found.kind == kind => Ok(text.into()),
        Ok(_) => Err(CliError::usage(format!(
            "{kind_name} {text} does not exist"
        ))),
        Err(err) => Err(CliError::usage(err)),
    }
}

/// Argument or flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Input {
    pub(super) name: String,
    pub(super) kind: InputKind,
    pub(super) description: String,
    pub(super) required: bool,
    pub(super) default: Option<String>,
    pub(super) choices: Vec<String>,
    pub(super) type_name: InputType,
    /// Validation expression.
    pub(super) validate: Option<String>,
    pub(super) placeholder: Option<String>,
    /// Environment variable that sets it.
    pub(super) env: Option<String>,
    pub(super) short: Option<char>,
}

impl Input {
    /// Returns whether the name is reserved for a flag of every command.
    pub(super) fn is_reserved(&self) -> bool {
        RESERVED.contains(&self.name.as_str()) || self.short == Some('h')
    }

    /// Returns whether it is a flag without a value.
    pub(super) fn is_switch(&self) -> bool {
        self.kind == InputKind::Flag && self.type_name == InputType::Bool
    }

    /// Returns whether it is a switch that is on by default, which has a `--no-` flag.
    pub(super) fn is_on_by_default(&self) -> bool {
        let default = self
            .default
            .as_deref()
            .map(|text| InputType::Bool.read(text));
        self.is_switch() && matches!(default, Some(Ok(Value::Bool(true))))
    }

    /// Returns the value for templates.
    pub(super) fn value(
        &self,
        given: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Value, CliError> {
        let inherited = || self.env.as_deref().and_then(variable);
        let text = given.map(str::to_owned).or_else(inherited);
        let Some(text) = text.or_else(|| self.default.clone()) else {
            if self.required {
                return Err(CliError::usage(format!("{} is required", self.label())));
            }
            return Ok(self.type_name.zero_value());
        };
        let invalid = |reason: String| CliError::usage(reason).at(self.label());
        if !self.choices.is_empty() && !self.choices.contains(&text) {
            let choices = self.choices.join(", ");
            return Err(invalid(format!("{text:?} is not one of {choices}")));
        }
        let value = self
            .type_name
            .read(&text)
            .map_err(|reason| invalid(format!("{reason}, got {text:?}")))?;
        match self
            .validate
            .as_deref()
            .map(|it| hiera::check_value(&text.as_str().into(), it))
        {
            None | Some(Ok(true)) => Ok(value),
            Some(Ok(false)) => Err(invalid(format!("{text:?} does not pass validation"))),
            Some(Err(err)) => Err(CliError::usage(err).at(self.label())),
        }
    }

    /// Returns the name as shown in errors.
    fn label(&self) -> String {
        match self.kind {
            InputKind::Argument => format!("argument <{}>", self.name),
            InputKind::Flag => format!("flag --{}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flag(type_name: InputType) -> Input {
        Input {
            name: "port".into(),
            kind: InputKind::Flag,
            description: String::new(),
            required: false,
            default: None,
            choices: Vec::new(),
            type_name,
            validate: None,
            placeholder: None,
            env: Some("PORT".into()),
            short: None,
        }
    }

    fn no_variable(_: &str) -> Option<String> {
        None
    }

    fn error(value: Result<Value, CliError>) -> String {
        value.unwrap_err().to_string()
    }

    #[test]
    fn values_override_the_environment_and_the_default() {
        let mut port = flag(InputType::Signed(64));
        assert_eq!(port.value(None, no_variable).unwrap(), Value::Int(0));
        port.default = Some("1".into());
        assert_eq!(port.value(None, no_variable).unwrap(), Value::Int(1));
        let variable = |name: &str| (name == "PORT").then(|| "2".into());
        assert_eq!(port.value(None, variable).unwrap(), Value::Int(2));
        assert_eq!(port.value(Some("3"), variable).unwrap(), Value::Int(3));
    }

    #[test]
    fn numbers_fit_their_type() {
        for (type_name, fits, not) in [
            (InputType::Signed(8), "-128", "128"),
            (InputType::Signed(16), "32767", "-32769"),
            (
                InputType::Signed(64),
                "-9223372036854775808",
                "9223372036854775808",
            ),
            (InputType::Unsigned(8), "255", "256"),
            (InputType::Unsigned(64), "18446744073709551615", "-1"),
            (InputType::Float, "1e3", "much"),
            (InputType::Bool, "true", "maybe"),
            (InputType::ExistingFile, "/proc/version", "/proc"),
            (InputType::ExistingDirectory, "/proc", "/proc/version"),
        ] {
            assert!(type_name.read(fits).is_ok(), "{type_name:?} {fits}");
            assert!(type_name.read(not).is_err(), "{type_name:?} {not}");
        }
    }

    #[test]
    fn errors_name_the_flag() {
        let mut port = flag(InputType::Text);
        port.required = true;
        assert_eq!(
            error(port.value(None, no_variable)),
            "flag --port is required"
        );
        port.choices = vec!["a".into(), "b".into()];
        assert_eq!(
            error(port.value(Some("c"), no_variable)),
            "flag --port: \"c\" is not one of a, b"
        );
        port.choices.clear();
        port.validate = Some("is_shellsafe(value)".into());
        assert_eq!(port.value(Some("ok"), no_variable).unwrap(), "ok".into());
        assert!(port.value(Some("$(rm)"), no_variable).is_err());
        port.validate = Some("value +".into());
        assert!(port.value(Some("ok"), no_variable).is_err());
    }
}
