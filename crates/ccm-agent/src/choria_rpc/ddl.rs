//! DDL of the agent, and validation of inputs against it.
//!
//! `ddl/ccm.json` is the single source. The server validates requests with its installed copy; the
//! agent validates them again with the embedded one, in case the installed copy was edited.

use std::collections::BTreeMap;

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::reply::Failure;
use ccm_value::document::unknown_name;

/// JSON DDL as it is installed.
pub const TEXT: &str = include_str!("../../../../ddl/ccm.json");

/// Input that Ruby clients add.
const CLIENT_INPUT: &str = "process_results";

/// RPC actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Apply,
    Ensure,
    Facts,
    Ping,
    RunStatus,
    Status,
}

impl Action {
    pub const ALL: [Self; 6] = [
        Self::Apply,
        Self::Ensure,
        Self::Facts,
        Self::Ping,
        Self::RunStatus,
        Self::Status,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Ensure => "ensure",
            Self::Facts => "facts",
            Self::Ping => "ping",
            Self::RunStatus => "run_status",
            Self::Status => "status",
        }
    }

    /// Returns the action with this name.
    pub fn named(name: &str) -> Result<Self, UnknownAction> {
        let found = Self::ALL.into_iter().find(|action| action.as_str() == name);
        found.ok_or_else(|| UnknownAction(name.into()))
    }
}

/// Unknown action name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", unknown_name("action", .0, &Action::ALL.map(Action::as_str)))]
pub struct UnknownAction(String);

/// Parsed DDL.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ddl {
    #[serde(rename = "$schema")]
    pub schema: String,
    pub metadata: Metadata,
    pub actions: Vec<ActionDdl>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    pub name: String,
    pub description: String,
    pub author: String,
    pub license: String,
    pub version: String,
    pub url: String,
    /// In seconds.
    pub timeout: u64,
    pub provider: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActionDdl {
    pub action: String,
    pub description: String,
    pub display: String,
    pub input: BTreeMap<String, Input>,
    pub output: BTreeMap<String, Output>,
    #[serde(default)]
    pub aggregate: Vec<Aggregate>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    pub prompt: String,
    pub description: String,
    pub optional: bool,
    #[serde(rename = "type")]
    pub value_type: ValueType,
    /// For strings: regular expression.
    #[serde(default)]
    pub validation: String,
    /// For strings: maximum length in bytes. Servers skip validation if it is zero.
    #[serde(default)]
    pub maxlength: usize,
    /// For lists: allowed values.
    #[serde(default)]
    pub list: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    pub description: String,
    pub display_as: String,
    #[serde(rename = "type", default)]
    pub value_type: Option<ValueType>,
    #[serde(default)]
    pub default: Option<Value>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Aggregate {
    pub function: String,
    /// Name of the output, then options.
    pub args: Vec<Value>,
}

/// Value types used by this DDL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueType {
    String,
    Integer,
    Boolean,
    List,
    #[serde(rename = "Hash")]
    Hash,
    #[serde(rename = "Array")]
    Array,
}

impl ValueType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Integer => "integer",
            Self::Boolean => "boolean",
            Self::List => "list",
            Self::Hash => "Hash",
            Self::Array => "Array",
        }
    }
}

impl Ddl {
    /// Returns the embedded DDL.
    pub fn embedded() -> Result<Self, serde_json::Error> {
        serde_json::from_str(TEXT)
    }

    /// Returns the definition of an action.
    pub fn action(&self, action: Action) -> Option<&ActionDdl> {
        let name = action.as_str();
        self.actions.iter().find(|found| found.action == name)
    }
}

/// Validates the inputs of an action; returns the first error.
pub fn check(action: Action, data: &Map<String, Value>) -> Result<(), Failure> {
    let ddl = Ddl::embedded().map_err(Failure::unknown)?;
    let known = ddl.action(action).map(|found| &found.input);
    let known = known.ok_or_else(|| Failure::unknown("the action is not in the DDL"))?;
    let names: Vec<&str> = known.keys().map(String::as_str).collect();
    let given = || data.keys().filter(|name| *name != CLIENT_INPUT);
    // Check for unknown names first: a mistyped name explains a missing input.
    if let Some(unknown) = given().find(|name| !known.contains_key(*name)) {
        return Err(if names.is_empty() {
            Failure::invalid(format!("{} takes no inputs", action.as_str()))
        } else {
            Failure::invalid(unknown_name("input", unknown, &names))
        });
    }
    for (name, input) in known {
        match data.get(name) {
            Some(value) => input.check(name, value)?,
            None if input.optional => {}
            None => return Err(Failure::MissingData(name.clone())),
        }
    }
    Ok(())
}

impl Input {
    fn check(&self, name: &str, value: &Value) -> Result<(), Failure> {
        let invalid = |reason: &str| Err(Failure::invalid(format!("{name} {reason}")));
        match (self.value_type, value) {
            (ValueType::String, Value::String(text)) if text.len() > self.maxlength => {
                invalid(&format!("is longer than {} bytes", self.maxlength))
            }
            (ValueType::String, Value::String(text)) => {
                let pattern = Regex::new(&self.validation).map_err(Failure::unknown)?;
                if pattern.is_match(text) {
                    Ok(())
                } else {
                    invalid(&format!("does not match {}", self.validation))
                }
            }
            (ValueType::List, Value::String(text)) if self.list.contains(text) => Ok(()),
            (ValueType::List, _) => invalid(&format!("must be one of {}", self.list.join(", "))),
            (ValueType::Integer, Value::Number(number)) if number.is_i64() => Ok(()),
            (ValueType::Boolean, Value::Bool(_))
            | (ValueType::Hash, Value::Object(_))
            | (ValueType::Array, Value::Array(_)) => Ok(()),
            (value_type, _) => invalid(&format!("must be of type {}", value_type.as_str())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::choria_rpc::outputs::{
        ApplyOutput, EnsureOutput, FactsOutput, PingOutput, StatusOutput,
    };
    use ccm_core::model::TypeName;
    use ccm_value::document::field_names;

    fn ddl() -> Ddl {
        Ddl::embedded().unwrap()
    }

    fn check_json(action: Action, data: Value) -> Result<(), (u8, String)> {
        let result = check(action, data.as_object().unwrap());
        result.map_err(|failure| {
            let reply = serde_json::to_value(crate::choria_rpc::reply::Reply::from(Err(failure)));
            let reply = reply.unwrap();
            let code = u8::try_from(reply["statuscode"].as_u64().unwrap()).unwrap();
            (code, reply["statusmsg"].as_str().unwrap().to_owned())
        })
    }

    #[test]
    fn the_ddl_matches_the_actions() {
        let names: Vec<String> = ddl().actions.into_iter().map(|a| a.action).collect();
        assert_eq!(names, Action::ALL.map(Action::as_str));
    }

    #[test]
    fn the_ddl_matches_the_outputs() {
        for action in Action::ALL {
            let fields = match action {
                Action::Apply | Action::RunStatus => field_names::<ApplyOutput>(),
                Action::Ensure => field_names::<EnsureOutput>(),
                Action::Facts => field_names::<FactsOutput>(),
                Action::Ping => field_names::<PingOutput>(),
                Action::Status => field_names::<StatusOutput>(),
            };
            let fields: BTreeSet<&str> = fields.iter().copied().collect();
            let ddl = ddl();
            let outputs = &ddl.action(action).unwrap().output;
            let outputs: BTreeSet<&str> = outputs.keys().map(String::as_str).collect();
            assert_eq!(outputs, fields, "{action:?}");
        }
    }

    #[test]
    fn the_metadata_has_the_version_and_provider() {
        let metadata = ddl().metadata;
        assert_eq!(metadata.version, env!("CARGO_PKG_VERSION"));
        assert_eq!(
            (metadata.name.as_str(), metadata.provider.as_str()),
            ("ccm", "external")
        );
    }

    #[test]
    fn every_string_has_a_length_and_an_anchored_pattern() {
        for action in ddl().actions {
            for (name, input) in action.input {
                if input.value_type == ValueType::String {
                    assert!(input.maxlength > 0, "{name}");
                    Regex::new(&input.validation).unwrap();
                    // In Ruby `^` and `$` match at line ends.
                    let is_whole =
                        input.validation.starts_with(r"\A") && input.validation.ends_with(r"\z");
                    assert!(is_whole || name == "manifest", "{name}");
                }
            }
        }
    }

    #[test]
    fn every_output_has_at_most_one_aggregate() {
        for action in ddl().actions {
            let mut seen = BTreeSet::new();
            for aggregate in &action.aggregate {
                let output = aggregate.args[0].as_str().unwrap();
                assert!(action.output.contains_key(output), "{output}");
                assert!(seen.insert(output), "{output}");
            }
        }
    }

    #[test]
    fn ensure_accepts_all_types() {
        let ddl = ddl();
        let input = &ddl.action(Action::Ensure).unwrap().input["type"];
        assert_eq!(input.list, TypeName::ALL.map(TypeName::as_str));
    }

    #[test]
    fn status_accepts_all_types_that_can_be_inspected() {
        let is_inspectable = |name: &TypeName| {
            let text = "/x".to_owned();
            ccm_core::engine::resource_to_inspect(*name, &text).is_ok()
                || ccm_core::engine::resource_to_inspect(*name, "x").is_ok()
        };
        let types: Vec<&str> = TypeName::ALL
            .iter()
            .filter(|name| is_inspectable(name))
            .map(|name| name.as_str())
            .collect();
        assert_eq!(
            ddl().action(Action::Status).unwrap().input["type"].list,
            types
        );
    }

    #[test]
    fn a_missing_input_is_named() {
        let missing = check_json(Action::Status, json!({"name": "/a"})).unwrap_err();
        assert_eq!(missing, (3, "type is required".into()));
    }

    #[test]
    fn invalid_inputs_have_specific_errors() {
        for (action, data, text) in [
            (
                Action::Status,
                json!({"typ": "file", "name": "/a"}),
                "unknown input \"typ\", did you mean \"type\"?",
            ),
            (Action::Ping, json!({"a": 1}), "ping takes no inputs"),
            (
                Action::Status,
                json!({"type": "exec", "name": "/a"}),
                "type must be one of archive, file, group, line, link, package, scaffold, service, user",
            ),
            (
                Action::Status,
                json!({"type": "file", "name": 5}),
                "name must be of type string",
            ),
            (
                Action::Status,
                json!({"type": "file", "name": "/a\nb"}),
                r"name does not match \A[^[:cntrl:]]+\z",
            ),
            (
                Action::Status,
                json!({"type": "file", "name": "x".repeat(4097)}),
                "name is longer than 4096 bytes",
            ),
            (
                Action::Apply,
                json!({"wait": 1.5}),
                "wait must be of type integer",
            ),
            (
                Action::Apply,
                json!({"noop": "true"}),
                "noop must be of type boolean",
            ),
            (
                Action::Apply,
                json!({"data": []}),
                "data must be of type Hash",
            ),
            (
                Action::RunStatus,
                json!({"run_id": "../x"}),
                r"run_id does not match \A[0-9A-Za-z]{27}\z",
            ),
        ] {
            assert_eq!(check_json(action, data), Err((4, text.into())));
        }
    }

    #[test]
    fn the_input_of_ruby_clients_is_ignored() {
        let data = json!({"process_results": true});
        assert_eq!(check_json(Action::Ping, data), Ok(()));
    }
}
