//! Health checks: probes of a resource after it was applied, and their results.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::resource::InvalidProperty;
use super::secret::{REDACTED, serialize_text};
use super::text::{DurationError, parse_wait, quote};
use super::value::Value;

/// Health check of a resource, as declared in a manifest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a mapping")]
pub struct HealthCheck {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub command: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goss_rules: Option<Value>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub timeout: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub tries: i64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub try_sleep: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<CheckFormat>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Format of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckFormat {
    Nagios,
    Goss,
}

impl HealthCheck {
    /// Trims, fills in defaults and validates.
    pub fn complete(&mut self) -> Result<(), InvalidProperty> {
        let invalid = |message: String| InvalidProperty::new("health_checks", message);
        self.command = self.command.trim().to_owned();
        self.timeout().map_err(|err| invalid(err.to_string()))?;
        self.try_sleep().map_err(|err| invalid(err.to_string()))?;
        let format = match (!self.command.is_empty(), self.goss_rules.is_some()) {
            (true, true) => {
                return Err(invalid(
                    "'command' or 'goss_rules' are mutually exclusive".into(),
                ));
            }
            (true, false) if self.format == Some(CheckFormat::Goss) => {
                return Err(invalid(
                    "'format' must be 'nagios' when using 'command'".into(),
                ));
            }
            (false, true) if self.format == Some(CheckFormat::Nagios) => {
                return Err(invalid(
                    "'format' must be 'goss' when using 'goss_check'".into(),
                ));
            }
            (true, false) => CheckFormat::Nagios,
            (false, true) => CheckFormat::Goss,
            (false, false) => return Err(invalid("'format' flag is required".into())),
        };
        self.format = Some(format);
        if self.name.is_empty() {
            self.name = match format {
                CheckFormat::Goss => "goss".into(),
                CheckFormat::Nagios => {
                    let program = self.command.split_whitespace().next().unwrap_or_default();
                    program.rsplit('/').next().unwrap_or_default().to_owned()
                }
            };
        }
        if self.tries < 0 {
            return Err(invalid(format!(
                "tries must be at least 1, not {}",
                self.tries
            )));
        }
        Ok(())
    }

    /// Returns the timeout of one try, if set.
    pub fn timeout(&self) -> Result<Option<Duration>, CheckDurationError> {
        optional_wait("timeout", &self.timeout)
    }

    /// Returns the pause between tries, by default one second.
    pub fn try_sleep(&self) -> Result<Duration, CheckDurationError> {
        Ok(optional_wait("try sleep", &self.try_sleep)?.unwrap_or(Duration::from_secs(1)))
    }
}

/// Invalid duration of a health check.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {what} duration {}: {cause}", quote(.text))]
pub struct CheckDurationError {
    what: &'static str,
    text: String,
    #[source]
    cause: DurationError,
}

fn optional_wait(what: &'static str, text: &str) -> Result<Option<Duration>, CheckDurationError> {
    if text.is_empty() {
        return Ok(None);
    }
    let wait = parse_wait(text).map_err(|cause| CheckDurationError {
        what,
        text: text.into(),
        cause,
    })?;
    Ok(Some(wait))
}

/// Status of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthStatus {
    Ok,
    Warning,
    Critical,
    Unknown,
}

impl HealthStatus {
    /// Returns the status for a plugin's exit code.
    pub(crate) fn from_code(code: i64) -> Self {
        match code {
            0 => Self::Ok,
            1 => Self::Warning,
            2 => Self::Critical,
            _ => Self::Unknown,
        }
    }

    pub fn code(self) -> i64 {
        match self {
            Self::Ok => 0,
            Self::Warning => 1,
            Self::Critical => 2,
            Self::Unknown => 3,
        }
    }

    /// Reports whether the status fails the resource; a warning does not.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Critical | Self::Unknown)
    }
}

impl fmt::Display for HealthStatus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Ok => "OK",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
            Self::Unknown => "UNKNOWN",
        })
    }
}

impl Serialize for HealthStatus {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i64(self.code())
    }
}

/// Reads the code that upstream writes, and the text that its schema documents.
impl<'de> Deserialize<'de> for HealthStatus {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(match Value::deserialize(from)? {
            Value::Int(code) => Self::from_code(code),
            Value::Str(text) => match text.to_ascii_uppercase().as_str() {
                "OK" => Self::Ok,
                "WARNING" => Self::Warning,
                "CRITICAL" => Self::Critical,
                _ => Self::Unknown,
            },
            _ => Self::Unknown,
        })
    }
}

/// Result of one check, after all its tries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HealthResult {
    pub status: HealthStatus,
    #[serde(default)]
    pub tries: i64,
    /// Upstream writes `Output`; its schema documents `output`.
    #[serde(
        rename = "Output",
        alias = "output",
        default,
        serialize_with = "serialize_text"
    )]
    pub output: String,
}

impl HealthResult {
    /// Redacts the output of the probe; the status stays.
    pub(crate) fn redact_output(&mut self) {
        if !self.output.is_empty() {
            self.output = REDACTED.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::json;

    #[test]
    fn a_command_check_gets_format_and_name() {
        let mut check = HealthCheck {
            command: " /usr/lib/nagios/check_http -H localhost ".into(),
            ..HealthCheck::default()
        };
        check.complete().unwrap();
        assert_eq!(check.format, Some(CheckFormat::Nagios));
        assert_eq!(check.name, "check_http");
    }

    #[test]
    fn contradictory_properties_are_rejected() {
        let rules = || Some(Value::empty_map());
        let command = || "true".to_owned();
        let cases = [
            (
                HealthCheck {
                    command: command(),
                    goss_rules: rules(),
                    ..HealthCheck::default()
                },
                "'command' or 'goss_rules' are mutually exclusive",
            ),
            (
                HealthCheck {
                    command: command(),
                    format: Some(CheckFormat::Goss),
                    ..HealthCheck::default()
                },
                "'format' must be 'nagios' when using 'command'",
            ),
            (
                HealthCheck {
                    goss_rules: rules(),
                    format: Some(CheckFormat::Nagios),
                    ..HealthCheck::default()
                },
                "'format' must be 'goss' when using 'goss_check'",
            ),
            (HealthCheck::default(), "'format' flag is required"),
            (
                HealthCheck {
                    command: command(),
                    timeout: "soon".into(),
                    ..HealthCheck::default()
                },
                "invalid timeout duration \"soon\": invalid duration",
            ),
            (
                HealthCheck {
                    command: command(),
                    try_sleep: "x".into(),
                    ..HealthCheck::default()
                },
                "invalid try sleep duration \"x\": invalid duration",
            ),
        ];
        for (mut check, text) in cases {
            assert_eq!(check.complete().unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn a_result_writes_a_capital_output_and_reads_both() {
        let result = HealthResult {
            status: HealthStatus::Critical,
            tries: 3,
            output: "text".into(),
        };
        let text = r#"{"status":2,"tries":3,"Output":"text"}"#;
        assert_eq!(json::compact(&result).unwrap(), text);
        let documented = r#"{"status":"CRITICAL","tries":3,"output":"text"}"#;
        for text in [text, documented] {
            assert_eq!(serde_json::from_str::<HealthResult>(text).unwrap(), result);
        }
    }

    #[test]
    fn a_warning_is_no_failure() {
        assert!(!HealthStatus::Warning.is_failure());
        assert!(HealthStatus::Critical.is_failure());
        assert!(HealthStatus::Unknown.is_failure());
    }
}
