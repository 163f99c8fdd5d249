//! Inputs of the actions: converts the validated data of a request to what the engine takes.

use std::time::Duration;

use serde_json::{Map, Value};

use super::ddl::{self, Action, Ddl};
use super::reply::Failure;
use ccm_core::engine::{Mode, resource_from_request};
use ccm_core::model::governor::{GovernorClaim, GovernorName, GovernorTimeout};
use ccm_core::model::request::{ENSURE_REQUEST, STATUS_REQUEST, parse_ensure, parse_status};
use ccm_core::model::resource::Resource;
use ccm_core::model::run::RunId;
use ccm_core::run::manifest_source::ManifestSource;
use ccm_value::json;

/// Part of the DDL's timeout, in seconds, that is left for starting the run and sending the reply.
const REPLY_MARGIN: u64 = 10;

/// Default time in seconds that `ensure` waits for its run.
const ENSURE_WAIT: u64 = 10;

/// Parsed inputs of an action.
#[derive(Clone, Debug)]
pub enum ActionInput {
    Apply(ApplyInput),
    Ensure(EnsureInput),
    /// Query for one fact; all facts without one.
    Facts(Option<String>),
    Ping,
    /// Run to report; the latest without one.
    RunStatus(Option<RunId>),
    Status(StatusInput),
}

/// Inputs of `apply`.
#[derive(Clone, Debug)]
pub struct ApplyInput {
    pub manifest: ManifestSource,
    pub mode: Mode,
    /// Data that overrides all other data.
    pub data: ccm_value::Value,
    /// Governor for manifests that name none.
    pub governor: Option<GovernorClaim>,
    /// Time to wait for the end of the run.
    pub wait: Duration,
}

/// Inputs of `ensure`.
#[derive(Clone, Debug)]
pub struct EnsureInput {
    /// Ensure request as JSON.
    pub request: String,
    pub resource: Resource,
    pub noop: bool,
    /// Time to wait for the end of the run.
    pub wait: Duration,
}

/// Inputs of `status`.
#[derive(Clone, Debug)]
pub struct StatusInput {
    /// `type#name`.
    pub label: String,
    /// Resource to inspect, or why there is none.
    pub resource: Result<Resource, String>,
}

impl ActionInput {
    /// Validates and parses the data of a request.
    pub fn parse(action: Action, data: &Value) -> Result<Self, Failure> {
        let data = match data {
            Value::Null => &Map::new(),
            Value::Object(data) => data,
            _ => return Err(Failure::invalid("the data of a request must be an object")),
        };
        ddl::check(action, data)?;
        match action {
            Action::Apply => ApplyInput::parse(data).map(Self::Apply),
            Action::Ensure => EnsureInput::parse(data).map(Self::Ensure),
            Action::Facts => Ok(Self::Facts(text(data, "query").map(Into::into))),
            Action::Ping => Ok(Self::Ping),
            Action::RunStatus => {
                let id = text(data, "run_id").map(str::parse).transpose();
                id.map(Self::RunStatus).map_err(Failure::invalid)
            }
            Action::Status => StatusInput::parse(data.clone()).map(Self::Status),
        }
    }
}

impl ApplyInput {
    fn parse(data: &Map<String, Value>) -> Result<Self, Failure> {
        let manifest = match (text(data, "source"), text(data, "manifest")) {
            (Some(source), None) => ManifestSource::Source(source.into()),
            (None, Some(manifest)) => ManifestSource::Text(manifest.into()),
            (None, None) => return Err(Failure::MissingData("source or manifest".into())),
            (Some(_), Some(_)) => {
                return Err(Failure::invalid("source and manifest exclude each other"));
            }
        };
        let mode = Mode {
            noop: flag(data, "noop"),
            health_check_only: flag(data, "health_check_only"),
            diff: false,
        };
        if mode.noop && mode.health_check_only {
            return Err(Failure::invalid(
                "noop and health_check_only exclude each other",
            ));
        }
        Ok(Self {
            manifest,
            mode,
            wait: wait_of(data, 0)?,
            data: plain(data.get("data"))?,
            governor: governor_of(data)?,
        })
    }
}

impl EnsureInput {
    fn parse(data: &Map<String, Value>) -> Result<Self, Failure> {
        let wait = wait_of(data, ENSURE_WAIT)?;
        let request = ensure_request(data)?;
        let resource = parse_ensure(&request).map_err(Failure::invalid)?;
        Ok(Self {
            request,
            resource,
            noop: flag(data, "noop"),
            wait,
        })
    }
}

impl StatusInput {
    fn parse(mut data: Map<String, Value>) -> Result<Self, Failure> {
        let mut properties = hash(&mut data, "properties");
        for key in ["name", "provider"] {
            if let Some(value) = data.get(key) {
                put_once(&mut properties, key, value)?;
            }
        }
        data.shift_remove("provider");
        data.insert("protocol".into(), STATUS_REQUEST.into());
        data.insert("properties".into(), properties.into());
        let request = json::compact(&data).map_err(Failure::unknown)?;
        let request = parse_status(&request).map_err(Failure::invalid)?;
        Ok(Self {
            label: format!("{}#{}", request.type_name, request.name),
            resource: resource_from_request(&request).map_err(|err| err.to_string()),
        })
    }
}

/// Returns the ensure request for the inputs as JSON.
fn ensure_request(data: &Map<String, Value>) -> Result<String, Failure> {
    let parts = ["type", "name", "ensure", "provider", "properties"];
    if let Some(request) = data.get("request") {
        if let Some(other) = parts.iter().find(|name| data.contains_key(**name)) {
            let text = format!("request and {other} exclude each other");
            return Err(Failure::InvalidData(text));
        }
        return json::compact(request).map_err(Failure::unknown);
    }
    for name in ["type", "name"] {
        if !data.contains_key(name) {
            return Err(Failure::MissingData(name.into()));
        }
    }
    let mut properties = hash(&mut data.clone(), "properties");
    for name in ["name", "ensure", "provider"] {
        if let Some(value) = data.get(name) {
            put_once(&mut properties, name, value)?;
        }
    }
    let request = serde_json::json!({
        "protocol": ENSURE_REQUEST,
        "type": data.get("type"),
        "properties": properties,
    });
    json::compact(&request).map_err(Failure::unknown)
}

/// Adds a property that is also an input; giving both is an error.
fn put_once(properties: &mut Map<String, Value>, name: &str, value: &Value) -> Result<(), Failure> {
    match properties.insert(name.into(), value.clone()) {
        None => Ok(()),
        Some(_) => {
            let text = format!("{name} is given twice, as an input and in properties");
            Err(Failure::InvalidData(text))
        }
    }
}

/// Returns the `wait` input.
fn wait_of(data: &Map<String, Value>, default: u64) -> Result<Duration, Failure> {
    let timeout = Ddl::embedded().map_err(Failure::unknown)?.metadata.timeout;
    let most = timeout.saturating_sub(REPLY_MARGIN);
    let seconds = match data.get("wait") {
        None => Some(default),
        Some(value) => value.as_u64().filter(|seconds| *seconds <= most),
    };
    let invalid = || Failure::invalid(format!("wait must be from 0 to {most} seconds"));
    Ok(Duration::from_secs(seconds.ok_or_else(invalid)?))
}

/// Returns the claim of the `governor` and `governor_timeout` inputs.
fn governor_of(data: &Map<String, Value>) -> Result<Option<GovernorClaim>, Failure> {
    let name = text(data, "governor").map(str::parse::<GovernorName>);
    let timeout = text(data, "governor_timeout").map(str::parse::<GovernorTimeout>);
    let timeout = timeout.transpose().map_err(Failure::invalid)?;
    match (name.transpose().map_err(Failure::invalid)?, timeout) {
        (Some(name), timeout) => Ok(Some(GovernorClaim {
            name,
            timeout: timeout.unwrap_or_default(),
        })),
        (None, Some(_)) => Err(Failure::invalid("governor_timeout requires governor")),
        (None, None) => Ok(None),
    }
}

fn text<'d>(data: &'d Map<String, Value>, name: &str) -> Option<&'d str> {
    data.get(name).and_then(Value::as_str)
}

fn flag(data: &Map<String, Value>, name: &str) -> bool {
    data.get(name).and_then(Value::as_bool).unwrap_or_default()
}

/// Removes a map from the inputs; returns an empty one if it is not given.
fn hash(data: &mut Map<String, Value>, name: &str) -> Map<String, Value> {
    match data.shift_remove(name) {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

/// Converts an input to a value for templates.
fn plain(value: Option<&Value>) -> Result<ccm_value::Value, Failure> {
    match value {
        Some(value) => serde_json::from_value(value.clone()).map_err(Failure::unknown),
        None => Ok(ccm_value::Value::Null),
    }
}
