//! What a person may give to a command: how it is typed, checked, and seen by templates.
//!
//! What is given wins over the environment, and that over the default. All three are checked the
//! same way.

use std::path::Path;

use crate::cli::CliError;
use ccm_core::hiera;
use ccm_core::system::files::{self, FileKind};
use ccm_value::Value;

/// Flags that every command has.
const TAKEN: [&str; 3] = ["help", "prompt", "no-prompt"];

/// By place or by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Argument,
    Flag,
}

/// What a text must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputType {
    Text,
    Bool,
    Counter,
    ExistingFile,
    ExistingDirectory,
    /// A whole number of so many bits.
    Signed(u32),
    Unsigned(u32),
    Float,
}

impl InputType {
    /// Returns the type that a definition calls so.
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

    /// Returns what templates see of a text.
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
                .ok_or_else(|| CliError::usage(format!("expected a whole number of {bits} bits"))),
            Self::Counter => Self::Unsigned(64).read(text),
            Self::Unsigned(bits) => text
                .parse::<u64>()
                .ok()
                .filter(|number| bits == 64 || *number >> bits == 0)
                .map(|number| i64::try_from(number).map_or(Value::Uint(number), Value::Int))
                .ok_or_else(|| {
                    CliError::usage(format!("expected a whole number from 0, of {bits} bits"))
                }),
            Self::Float => text
                .parse::<f64>()
                .map(Value::Float)
                .map_err(|_| CliError::usage("expected a number")),
            Self::ExistingFile => there(text, FileKind::Regular, "a file"),
            Self::ExistingDirectory => there(text, FileKind::Directory, "a directory"),
        }
    }

    /// Returns what templates see where nothing was given.
    fn nothing(self) -> Value {
        match self {
            Self::Text | Self::ExistingFile | Self::ExistingDirectory => "".into(),
            Self::Bool => Value::Bool(false),
            Self::Counter | Self::Signed(_) | Self::Unsigned(_) => Value::Int(0),
            Self::Float => Value::Float(0.0),
        }
    }
}

fn there(text: &str, kind: FileKind, what: &str) -> Result<Value, CliError> {
    match files::inspect(Path::new(text), true) {
        Ok(Some(found)) if found.kind == kind => Ok(text.into()),
        Ok(_) => Err(CliError::usage(format!(
            "there is no such thing as {what} {text}"
        ))),
        Err(err) => Err(CliError::usage(err)),
    }
}

/// An argument or a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Input {
    pub(super) name: String,
    pub(super) sort: Sort,
    pub(super) description: String,
    pub(super) required: bool,
    pub(super) default: Option<String>,
    pub(super) choices: Vec<String>,
    pub(super) type_name: InputType,
    /// An expression that says whether it takes a value.
    pub(super) validate: Option<String>,
    pub(super) placeholder: Option<String>,
    /// The variable that stands for it.
    pub(super) env: Option<String>,
    pub(super) short: Option<char>,
}

impl Input {
    /// Whether every command has a flag of this name.
    pub(super) fn is_taken(&self) -> bool {
        TAKEN.contains(&self.name.as_str()) || self.short == Some('h')
    }

    /// Whether it is given by being there.
    pub(super) fn is_switch(&self) -> bool {
        self.sort == Sort::Flag && self.type_name == InputType::Bool
    }

    /// Whether it is on unless told otherwise, so that it has an opposite.
    pub(super) fn is_on_by_default(&self) -> bool {
        let default = self
            .default
            .as_deref()
            .map(|text| InputType::Bool.read(text));
        self.is_switch() && matches!(default, Some(Ok(Value::Bool(true))))
    }

    /// Returns what templates see of what was given, if anything was.
    pub(super) fn value(
        &self,
        given: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Value, CliError> {
        let inherited = || self.env.as_deref().and_then(variable);
        let text = given.map(str::to_owned).or_else(inherited);
        let Some(text) = text.or_else(|| self.default.clone()) else {
            if self.required {
                return Err(CliError::usage(format!("{} is required", self.shown())));
            }
            return Ok(self.type_name.nothing());
        };
        let wrong = |reason: String| CliError::usage(reason).at(self.shown());
        if !self.choices.is_empty() && !self.choices.contains(&text) {
            let choices = self.choices.join(", ");
            return Err(wrong(format!("{text:?} is not one of {choices}")));
        }
        let value = self
            .type_name
            .read(&text)
            .map_err(|reason| wrong(format!("{reason}, not {text:?}")))?;
        match self
            .validate
            .as_deref()
            .map(|it| hiera::check_value(&text, it))
        {
            None | Some(Ok(true)) => Ok(value),
            Some(Ok(false)) => Err(wrong(format!("{text:?} is not accepted"))),
            Some(Err(err)) => Err(CliError::usage(err).at(self.shown())),
        }
    }

    /// Returns how people type it.
    fn shown(&self) -> String {
        match self.sort {
            Sort::Argument => format!("argument <{}>", self.name),
            Sort::Flag => format!("flag --{}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flag(type_name: InputType) -> Input {
        Input {
            name: "port".into(),
            sort: Sort::Flag,
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

    fn nobody(_: &str) -> Option<String> {
        None
    }

    fn told(value: Result<Value, CliError>) -> String {
        value.unwrap_err().to_string()
    }

    #[test]
    fn what_is_given_wins_over_the_environment_and_that_over_the_default() {
        let mut port = flag(InputType::Signed(64));
        assert_eq!(port.value(None, nobody).unwrap(), Value::Int(0));
        port.default = Some("1".into());
        assert_eq!(port.value(None, nobody).unwrap(), Value::Int(1));
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
    fn what_is_not_allowed_is_told_with_the_name_of_the_flag() {
        let mut port = flag(InputType::Text);
        port.required = true;
        assert_eq!(told(port.value(None, nobody)), "flag --port is required");
        port.choices = vec!["a".into(), "b".into()];
        assert_eq!(
            told(port.value(Some("c"), nobody)),
            "flag --port: \"c\" is not one of a, b"
        );
        port.choices.clear();
        port.validate = Some("is_shellsafe(value)".into());
        assert_eq!(port.value(Some("ok"), nobody).unwrap(), "ok".into());
        assert!(port.value(Some("$(rm)"), nobody).is_err());
        port.validate = Some("value +".into());
        assert!(port.value(Some("ok"), nobody).is_err());
    }
}
