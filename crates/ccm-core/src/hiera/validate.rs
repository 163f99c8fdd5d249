//! Validation of data against the rules in its document's comments.
//!
//! Runs once, on the merged data, and reports all failures. The functions of validation expressions
//! are in `validators`.

use std::fmt;

use super::annotations::{KeyPath, Rule};
use super::validators::{CheckError, check_value};
use crate::model::Value;
use crate::model::secret::is_sealed;
use crate::model::text::quote;

/// Failures of the validation of data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct InvalidData {
    pub failures: Vec<Failure>,
}

/// Failed rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The value is missing, null or empty text.
    Required(KeyPath),
    /// The expression is false.
    Invalid { path: KeyPath, validation: String },
    /// The expression failed, or is false with a reason.
    Failed {
        path: KeyPath,
        validation: String,
        cause: CheckError,
    },
}

impl fmt::Display for InvalidData {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, failure) in self.failures.iter().enumerate() {
            if index > 0 {
                out.write_str("\n")?;
            }
            failure.fmt(out)?;
        }
        Ok(())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = |path: &KeyPath| quote(&path.to_string());
        match self {
            Self::Required(path) => {
                write!(out, "key {} is required but has no value", key(path))
            }
            Self::Invalid { path, validation } => {
                let code = quote(validation);
                write!(out, "key {} failed validation {code}", key(path))
            }
            Self::Failed {
                path,
                validation,
                cause,
            } => {
                let code = quote(validation);
                write!(out, "key {} validation {code} failed: {cause}", key(path))
            }
        }
    }
}

/// Validates data; the error contains every failed rule.
pub fn validate(data: &Value, rules: &[Rule]) -> Result<(), InvalidData> {
    validate_secret(data, data, rules)
}

/// Validates data with secrets; `redacted` is the same data without them. Reasons of failures, which
/// may quote the value, are left out for secrets.
pub fn validate_secret(data: &Value, redacted: &Value, rules: &[Rule]) -> Result<(), InvalidData> {
    let failed = rules.iter().flat_map(|rule| failures(data, rule));
    let failures: Vec<_> = failed
        .map(|failure| match failure {
            Failure::Failed {
                path, validation, ..
            } if path.find(data) != path.find(redacted) => Failure::Invalid { path, validation },
            other => other,
        })
        .collect();
    if failures.is_empty() {
        Ok(())
    } else {
        Err(InvalidData { failures })
    }
}

fn failures(data: &Value, rule: &Rule) -> impl Iterator<Item = Failure> {
    let value = rule.path.find(data).unwrap_or(&Value::Null);
    let is_missing = value.is_null() || value.as_str() == Some("");
    let required = (rule.required && is_missing).then(|| Failure::Required(rule.path.clone()));
    let invalid = rule
        .validation
        .as_deref()
        .and_then(|validation| invalid_value(value, validation, &rule.path));
    required.into_iter().chain(invalid)
}

/// Validates one value; null, lists, maps and encrypted values are not validated.
fn invalid_value(value: &Value, validation: &str, path: &KeyPath) -> Option<Failure> {
    if matches!(value, Value::Null | Value::List(_) | Value::Map(_)) {
        return None;
    }
    if value.as_str().is_some_and(is_sealed) {
        return None;
    }
    let (path, code) = (path.clone(), validation.to_owned());
    match check_value(value, validation) {
        Ok(true) => None,
        Ok(false) => Some(Failure::Invalid {
            path,
            validation: code,
        }),
        Err(cause) => Some(Failure::Failed {
            path,
            validation: code,
            cause,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::document;

    fn rule(path: &str, required: bool, validation: &str) -> Rule {
        Rule {
            path: path.parse().unwrap(),
            required,
            validation: (!validation.is_empty()).then(|| validation.to_owned()),
        }
    }

    fn outcome(data: &str, rules: &[Rule]) -> String {
        let data = document::parse(data).unwrap().to_value();
        validate(&data, rules).map_or_else(|err| err.to_string(), |()| "fine".into())
    }

    #[test]
    fn a_required_value_must_not_be_missing_null_or_empty() {
        for value in ["false", "0", "[]", "{}", "x"] {
            let data = format!("a: {value}");
            assert_eq!(outcome(&data, &[rule("a", true, "")]), "fine");
        }
        for data in ["{}", "a:", "a: ''"] {
            assert_eq!(
                outcome(data, &[rule("a", true, "")]),
                "key \"a\" is required but has no value"
            );
        }
    }

    #[test]
    fn every_failure_is_reported_on_its_own_line() {
        let rules = [
            rule("a", true, ""),
            rule("web.port", false, "isInt(value)"),
            rule("b", false, "isIPv4(value)"),
        ];
        assert_eq!(
            outcome("{web: {port: x}, b: 1}", &rules),
            "key \"a\" is required but has no value\n\
             key \"web.port\" failed validation \"isInt(value)\"\n\
             key \"b\" validation \"isIPv4(value)\" failed: 1 is not an IPv4 address"
        );
    }

    #[test]
    fn empty_text_is_validated_even_if_required() {
        let text = outcome("a: ''", &[rule("a", true, "isInt(value)")]);
        assert_eq!(text.lines().count(), 2);
    }

    #[test]
    fn missing_values_lists_and_maps_are_not_validated() {
        for data in ["{}", "a:", "a: [1]", "a: {b: 1}"] {
            assert_eq!(outcome(data, &[rule("a", false, "false")]), "fine");
        }
    }

    #[test]
    fn values_are_validated_as_text() {
        let code = "value == '8080' && Value == value";
        assert_eq!(outcome("a: 8080", &[rule("a", false, code)]), "fine");
        assert_eq!(
            outcome("a: 1e-7", &[rule("a", false, "value == '1e-7'")]),
            "fine"
        );
    }
}
