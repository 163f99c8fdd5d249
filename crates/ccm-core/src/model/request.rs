//! Requests and responses for a single resource (ensure, status), in JSON or YAML.

use serde::Serialize;

use super::diagnostic::{Diagnostic, Location};
use super::document::{DocumentError, Mark, Node, nearest, parse_message};
use super::event::TransactionEvent;
use super::id::{TypeName, UnknownType};
use super::output::CommandOutput;
use super::resource::decode::{self, DeclaredResource};
use super::resource::{InvalidProperty, Resource};
use super::state::State;
use super::text::quote;
use super::{Value, json};

pub const ENSURE_REQUEST: &str = "io.choria.ccm.v1.resource.ensure.request";
const ENSURE_RESPONSE: &str = "io.choria.ccm.v1.resource.ensure.response";
pub const STATUS_REQUEST: &str = "io.choria.ccm.v1.resource.status.request";
const STATUS_RESPONSE: &str = "io.choria.ccm.v1.resource.status.response";

/// Invalid request.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    #[error("invalid protocol {}", quote(.0))]
    Protocol(String),
    #[error("missing {0} in request")]
    Missing(&'static str),
    #[error("{0}")]
    Message(String),
    /// Error of a JSON request. The one-line form has no position, because most of these requests
    /// are written by programs.
    #[error("{}", .0.text())]
    Json(DocumentError),
    #[error(transparent)]
    Type(#[from] UnknownType),
    #[error(transparent)]
    Document(DocumentError),
    #[error("invalid manifest: {0}")]
    Manifest(#[source] DocumentError),
    #[error("invalid manifest: expected a mapping")]
    ManifestNotMapping,
    #[error("no resources found")]
    NoResources,
    #[error("multiple resources found")]
    ManyResources,
    #[error(transparent)]
    Invalid(#[from] InvalidProperty),
}

/// Parses an ensure request; the templates of the resource are not resolved.
pub fn parse_ensure(text: &str) -> Result<Resource, RequestError> {
    // Like upstream, a body that can't be parsed is reported as an invalid protocol.
    let body = parse_message(text).ok();
    let fields = RequestFields::parse(
        body.as_ref(),
        text,
        ENSURE_REQUEST,
        &["protocol", "type", "properties"],
    )?;
    let type_name = fields.text("type").ok_or(RequestError::Missing("type"))?;
    let properties = fields
        .field("properties")
        .ok_or(RequestError::Missing("properties"))?;
    fields.reject_unknown()?;
    let type_name: TypeName = type_name.parse()?;
    let mut all = decode::read_resources(type_name, properties)
        .map_err(|err| wrong_shape(properties, err))
        .map_err(|err| match err {
            RequestError::Document(err) if fields.is_json => RequestError::Json(err),
            err => err,
        })?;
    match all.pop() {
        None => Err(RequestError::NoResources),
        Some(_) if !all.is_empty() => Err(RequestError::ManyResources),
        Some(DeclaredResource { resource, .. }) => Ok(resource),
    }
}

/// Returns upstream's error for properties that are not a mapping; it shows them as a document.
fn wrong_shape(properties: &Node, err: DocumentError) -> RequestError {
    let value = properties.to_value();
    let found = match &value {
        Value::Map(_) => return RequestError::Document(err),
        Value::List(items) if !items.is_empty() => return RequestError::Document(err),
        Value::Int(_) | Value::Uint(_) => "int",
        Value::Float(_) => "float",
        Value::Bool(_) => "bool",
        other => other.kind(),
    };
    let shown = json::compact(&value).unwrap_or_default();
    RequestError::Message(format!(
        "[1:1] {found} was used where mapping is expected\n>  1 | {shown}\n       ^\n"
    ))
}

/// Parsed status request.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusRequest {
    pub type_name: TypeName,
    pub name: String,
    pub properties: Option<Node>,
}

/// Parses a status request.
pub fn parse_status(text: &str) -> Result<StatusRequest, RequestError> {
    let body = parse_message(text).ok();
    let fields = RequestFields::parse(
        body.as_ref(),
        text,
        STATUS_REQUEST,
        &["protocol", "type", "name", "properties"],
    )?;
    let type_name = fields.text("type").ok_or(RequestError::Missing("type"))?;
    let name = fields.text("name").ok_or(RequestError::Missing("name"))?;
    fields.reject_unknown()?;
    Ok(StatusRequest {
        type_name: type_name.parse()?,
        name: name.into(),
        properties: fields.field("properties").cloned(),
    })
}

/// Top-level fields of a request. JSON keys match in any case, as in Go.
struct RequestFields<'a> {
    entries: &'a [(Node, Node)],
    is_json: bool,
    known: &'static [&'static str],
}

impl<'a> RequestFields<'a> {
    fn parse(
        body: Option<&'a Node>,
        text: &str,
        protocol: &str,
        known: &'static [&'static str],
    ) -> Result<Self, RequestError> {
        let fields = Self {
            entries: body.and_then(Node::entries).unwrap_or_default(),
            is_json: super::document::is_json(text),
            known,
        };
        match fields.text("protocol") {
            Some(found) if found == protocol => Ok(fields),
            found => Err(RequestError::Protocol(found.unwrap_or_default().into())),
        }
    }

    fn matches(&self, found: &str, wanted: &str) -> bool {
        found == wanted || (self.is_json && found.eq_ignore_ascii_case(wanted))
    }

    fn field(&self, name: &str) -> Option<&'a Node> {
        self.entries
            .iter()
            .find(|(key, _)| key.text().is_some_and(|text| self.matches(text, name)))
            .map(|(_, value)| value)
    }

    /// Returns the text of a field; in JSON only of a string.
    fn text(&self, name: &str) -> Option<&'a str> {
        let node = self.field(name)?;
        let is_text = node.is_quoted() || (!self.is_json && !node.is_null());
        let text = node.text().filter(|_| is_text)?;
        Some(&**text).filter(|text| !text.is_empty())
    }

    fn reject_unknown(&self) -> Result<(), RequestError> {
        for (key, _) in self.entries {
            let found = key.text().map_or("", |text| &**text);
            if !self.known.iter().any(|name| self.matches(found, name)) {
                let error = DocumentError::unknown_name(key.mark, "field", found, self.known);
                return Err(RequestError::Json(error));
            }
        }
        Ok(())
    }
}

/// Name of a request in positions.
const REQUEST: &str = "request";

impl RequestError {
    /// Returns the error with its position in the text of the request.
    pub fn diagnostic(&self, text: &str) -> Diagnostic {
        let error = match (self, parse_message(text)) {
            (_, Err(error)) => error,
            (Self::Document(error) | Self::Json(error), _) => error.clone(),
            (_, Ok(body)) => self.locate(&body),
        };
        diagnostic(text, error)
    }

    /// Returns the error at the field that it is about.
    fn locate(&self, body: &Node) -> DocumentError {
        let start = Mark { line: 1, column: 1 };
        let mark = |name: &str| body.get(name).map_or(start, |node| node.mark);
        let error = |mark| DocumentError::new(mark, self.to_string());
        match self {
            Self::Protocol(_) => {
                error(mark("protocol")).with_help(format!("write protocol: {ENSURE_REQUEST}"))
            }
            Self::Missing(field) => error(mark(field)).with_help(format!("add {field}")),
            Self::Type(unknown) => {
                let types = TypeName::ALL.map(TypeName::as_str);
                let help = match nearest(&unknown.0, &types) {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => format!("expected one of {}", types.join(", ")),
                };
                error(mark("type")).with_help(help)
            }
            Self::Message(_) => {
                let message = "properties must be a mapping, or a list with one resource";
                DocumentError::new(mark("properties"), message)
                    .with_help("write properties: {name: NAME, …}")
            }
            Self::ManyResources | Self::NoResources => {
                error(mark("properties")).with_help("send one request for each resource")
            }
            _ => error(start),
        }
    }
}

/// Returns the diagnostic of an invalid property at its position in the text of a request.
pub fn property_diagnostic(text: &str, invalid: &InvalidProperty) -> Diagnostic {
    let found = parse_message(text).ok().and_then(|body| {
        let properties = body.get("properties")?;
        let declared = match properties.items() {
            Some(items) => &items.first()?.entries()?.first()?.1,
            None => properties,
        };
        let mark = declared.get(invalid.property).map(|node| node.mark);
        mark.or(Some(properties.mark))
    });
    diagnostic(
        text,
        DocumentError::new(found.unwrap_or_default(), invalid.full_message()),
    )
}

/// Returns a diagnostic without the source line of a sensitive resource.
fn diagnostic(text: &str, error: DocumentError) -> Diagnostic {
    let mut found = Diagnostic::of_document(REQUEST, text, &error);
    let properties = parse_message(text).ok();
    let properties = properties.as_ref().and_then(|body| body.get("properties"));
    if properties.is_some_and(decode::is_sensitive) {
        found.location = Location::without_line(REQUEST, error.mark);
    }
    found
}

/// Response: the requested state, or an error.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Response<T> {
    pub protocol: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<T>,
    /// Diff of changed files, if requested.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub diff: String,
    /// Output of a command that failed or has `logoutput`.
    #[serde(skip_serializing_if = "CommandOutput::is_empty")]
    pub output: CommandOutput,
}

/// Response to an ensure request.
pub type EnsureResponse = Response<TransactionEvent>;

/// Response to a status request.
pub type StatusResponse = Response<State>;

impl EnsureResponse {
    pub fn new(result: Result<TransactionEvent, String>) -> Self {
        Self::of(ENSURE_RESPONSE, result)
    }
}

impl StatusResponse {
    pub fn new(result: Result<State, String>) -> Self {
        Self::of(STATUS_RESPONSE, result)
    }
}

impl<T> Response<T> {
    fn of(protocol: &'static str, result: Result<T, String>) -> Self {
        let (state, error) = match result {
            Ok(state) => (Some(state), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            protocol,
            error,
            state,
            diff: String::new(),
            output: CommandOutput::default(),
        }
    }

    /// Returns the response with a diff.
    #[must_use]
    pub fn with_diff(self, diff: String) -> Self {
        Self { diff, ..self }
    }

    /// Returns the response with the output of a command.
    #[must_use]
    pub fn with_output(self, output: CommandOutput) -> Self {
        Self { output, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::json;

    fn ensure(rest: &str) -> Result<Resource, String> {
        let text = format!(r#"{{"protocol":"{ENSURE_REQUEST}",{rest}}}"#);
        parse_ensure(&text).map_err(|err| err.to_string())
    }

    #[test]
    fn a_documented_request_is_parsed_in_json_and_yaml() {
        let json = ensure(
            r#""type":"file","properties":{"name":"/srv/motd","ensure":"present","content":"hi\n"}"#,
        )
        .unwrap();
        let yaml = format!(
            "protocol: {ENSURE_REQUEST}\ntype: file\nproperties:\n  - /srv/motd:\n      ensure: present\n      content: \"hi\\n\"\n"
        );
        assert_eq!(parse_ensure(&yaml).unwrap(), json);
    }

    #[test]
    fn json_keys_match_in_any_case_and_yaml_keys_do_not() {
        let text = format!(
            r#"{{"Protocol":"{ENSURE_REQUEST}","TYPE":"exec","Properties":{{"name":"x"}}}}"#
        );
        assert!(parse_ensure(&text).is_ok());
        let text = format!("Protocol: {ENSURE_REQUEST}\ntype: exec\nproperties: {{name: x}}");
        assert_eq!(
            parse_ensure(&text).unwrap_err().to_string(),
            "invalid protocol \"\""
        );
    }

    #[test]
    fn an_unreadable_body_has_an_invalid_protocol() {
        for text in [
            "",
            "{",
            "[]",
            "[1]",
            "{\"protocol\": 5x}",
            "a: b: c",
            "null",
        ] {
            assert_eq!(
                parse_ensure(text).unwrap_err().to_string(),
                "invalid protocol \"\"",
                "{text}"
            );
        }
        assert_eq!(
            parse_ensure(r#"{"protocol":"x"}"#).unwrap_err().to_string(),
            "invalid protocol \"x\""
        );
    }

    #[test]
    fn each_invalid_request_has_its_message() {
        for (rest, error) in [
            (r#""x":1"#, "missing type in request"),
            (r#""type":"file""#, "missing properties in request"),
            (
                r#""type":"nope","properties":{}"#,
                "invalid resource: unknown resource type nope",
            ),
            (
                r#""type":"file","properties":null"#,
                "[1:1] null was used where mapping is expected\n>  1 | null\n       ^\n",
            ),
            (
                r#""type":"file","properties":[]"#,
                "[1:1] sequence was used where mapping is expected\n>  1 | []\n       ^\n",
            ),
            (
                r#""type":"file","properties":5"#,
                "[1:1] int was used where mapping is expected\n>  1 | 5\n       ^\n",
            ),
            (
                r#""type":"file","properties":"text""#,
                "[1:1] string was used where mapping is expected\n>  1 | \"text\"\n       ^\n",
            ),
            (
                r#""type":"file","properties":[{"a":{},"b":{}}]"#,
                "multiple resource names found in package resource",
            ),
            (
                r#""type":"file","properties":[{"defaults":{}},{"defaults":{}}]"#,
                "multiple defaults found in package resource",
            ),
            (
                r#""type":"file","properties":[{"defaults":{}}]"#,
                "no resources found",
            ),
            (
                r#""type":"file","properties":[{"/a":{}},{"/b":{}}]"#,
                "multiple resources found",
            ),
            (
                r#""type":"file","propertis":1,"properties":{}"#,
                "unknown field \"propertis\", did you mean \"properties\"?",
            ),
            (
                r#""type":"file","properties":{"name":"/a","contents":"x"}"#,
                "unknown property \"contents\", did you mean \"content\"?",
            ),
        ] {
            assert_eq!(ensure(rest).unwrap_err(), error);
        }
    }

    #[test]
    fn a_failed_request_has_an_error_and_no_state() {
        let response = EnsureResponse::new(Err("name is required".into()));
        assert_eq!(
            json::compact(&response).unwrap(),
            r#"{"protocol":"io.choria.ccm.v1.resource.ensure.response","error":"name is required"}"#
        );
    }

    #[test]
    fn a_status_request_names_a_type_and_a_resource() {
        let request = parse_status(&format!(
            r#"{{"protocol":"{STATUS_REQUEST}","type":"file","name":"/a"}}"#
        ))
        .unwrap();
        assert_eq!(
            (request.type_name, request.name.as_str()),
            (TypeName::File, "/a")
        );
        let error = parse_status(&format!(
            r#"{{"protocol":"{STATUS_REQUEST}","type":"file"}}"#
        ));
        assert_eq!(error.unwrap_err().to_string(), "missing name in request");
    }
}
