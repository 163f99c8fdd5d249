//! Parser of goss documents: types, ids and attributes become testable entries.
//!
//! Types and attributes that are not in the tables of `probe` are errors. Expected values are
//! parsed into matchers; an invalid matcher fails only its own rule.

use super::matcher::{MatchError, Matcher};
use super::probe::{Attribute, FirstAttribute, RESOURCE_TYPES, ResourceType, Setting};
use crate::health::ProbeError;
use crate::model::document::{DocumentError, unknown_name};
use crate::model::secret::redact_url;
use crate::model::value::{Map, Value};
use crate::system::FileError;
use crate::system::files::GlobError;

/// Attributes of every type.
const COMMON: [&str; 3] = ["title", "meta", "skip"];

/// Invalid rules.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    #[error("goss rules must be a mapping of types, not a {0}")]
    NotAMapping(&'static str),
    #[error("{0}")]
    UnknownType(String),
    #[error("goss type \"{0}\" is not supported")]
    Unsupported(String),
    #[error("{0} must be a mapping of ids, not a {1}")]
    NotIds(&'static str, &'static str),
    #[error("Could not parse resource {0}:{1}")]
    NoAttributes(&'static str, String),
    #[error("invalid Attribute for {resource_type}:{id}: {attribute}")]
    UnknownAttribute {
        resource_type: &'static str,
        id: String,
        attribute: String,
    },
    #[error("invalid value for {resource_type}:{id}: {setting} must be {wanted}")]
    Setting {
        resource_type: &'static str,
        id: String,
        setting: String,
        wanted: &'static str,
    },
    #[error("no matched files were found: {0:?}")]
    NoFile(String),
    #[error("could not read goss file {file}: {cause}")]
    File {
        file: String,
        #[source]
        cause: IncludeError,
    },
    #[error("max depth of {0} reached, possibly due to dependency loop in goss file")]
    TooDeep(usize),
    #[error("more than {0} goss files are included")]
    TooManyFiles(usize),
}

/// A rule file that cannot be included.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum IncludeError {
    Read(#[from] FileError),
    Pattern(#[from] GlobError),
    Parse(#[from] DocumentError),
    Rules(Box<ProbeError>),
}

/// A resource and its expected attributes.
#[derive(Debug)]
pub(super) struct Entry {
    pub resource_type: &'static ResourceType,
    id: String,
    settings: Map,
    pub skip: bool,
    /// In the order of the type's table.
    pub expectations: Vec<Expectation>,
}

/// The expected value of an attribute.
#[derive(Debug)]
pub(super) struct Expectation {
    pub attribute: &'static Attribute,
    /// The value in the document.
    pub wanted: Value,
    pub matcher: Result<Matcher, MatchError>,
}

/// Parses rules into entries, sorted by type and id.
pub(super) fn parse(rules: &Value) -> Result<Vec<Entry>, RuleError> {
    let types = rules.as_map().ok_or(RuleError::NotAMapping(rules.kind()))?;
    let mut entries = Vec::new();
    for (key, ids) in types {
        let resource_type = find_type(key)?;
        if ids.is_null() {
            continue;
        }
        let ids = ids
            .as_map()
            .ok_or(RuleError::NotIds(resource_type.key, ids.kind()))?;
        for (id, attributes) in ids {
            entries.push(Entry::parse(resource_type, id, attributes)?);
        }
    }
    Ok(entries)
}

fn find_type(key: &str) -> Result<&'static ResourceType, RuleError> {
    if let Some(resource_type) = RESOURCE_TYPES
        .iter()
        .find(|resource_type| resource_type.key == key)
    {
        return Ok(resource_type);
    }
    if key == "registry" {
        return Err(RuleError::Unsupported(key.to_owned()));
    }
    let known = RESOURCE_TYPES.map(|resource_type| resource_type.key);
    let message = unknown_name("goss type", key, &known);
    Err(RuleError::UnknownType(message))
}

impl Entry {
    /// Parses one entry of a document.
    pub(super) fn parse(
        resource_type: &'static ResourceType,
        id: &str,
        attributes: &Value,
    ) -> Result<Self, RuleError> {
        let attributes = attributes
            .as_map()
            .ok_or_else(|| RuleError::NoAttributes(resource_type.name, id.to_owned()))?;
        let mut settings = Map::new();
        for (name, value) in attributes {
            if resource_type.expects(name) {
                continue;
            }
            let setting = match name.as_ref() {
                "skip" => Setting::Flag,
                known if COMMON.contains(&known) => continue,
                _ => resource_type
                    .setting(name)
                    .ok_or_else(|| RuleError::UnknownAttribute {
                        resource_type: resource_type.name,
                        id: id.to_owned(),
                        attribute: name.as_ref().into(),
                    })?,
            };
            if value.is_null() {
                continue;
            }
            if !setting.accepts(value) {
                return Err(RuleError::Setting {
                    resource_type: resource_type.name,
                    id: id.to_owned(),
                    setting: name.as_ref().into(),
                    wanted: setting.wanted(),
                });
            }
            settings.insert(name.clone(), value.clone());
        }
        let skip = settings.get("skip") == Some(&Value::Bool(true));
        Ok(Self {
            resource_type,
            id: id.to_owned(),
            settings,
            skip,
            expectations: expectations(resource_type, attributes),
        })
    }

    /// Returns the target: the setting of the entry, or its id.
    pub(super) fn target(&self) -> String {
        self.named_target().unwrap_or_else(|| self.id.clone())
    }

    fn named_target(&self) -> Option<String> {
        self.text(self.resource_type.target)
            .filter(|text| !text.is_empty())
    }

    /// Returns type and id, with the target if it differs. Passwords in URLs are redacted.
    pub(super) fn label(&self) -> String {
        let Self {
            resource_type, id, ..
        } = self;
        let shown = redact_url(id);
        match self.named_target() {
            Some(target) if target != *id && resource_type.target != "exec" => {
                format!("{}: {shown}: {}", resource_type.name, redact_url(&target))
            }
            _ => format!("{}: {shown}", resource_type.name),
        }
    }

    /// Whether an attribute has an expectation.
    pub(super) fn expects(&self, attribute: &str) -> bool {
        self.expectations
            .iter()
            .any(|expectation| expectation.attribute.name == attribute)
    }

    /// Returns a setting unchanged.
    pub(super) fn data(&self, name: &str) -> Option<&Value> {
        self.settings.get(name)
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.data(name).map(ToString::to_string)
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.data(name) == Some(&Value::Bool(true))
    }

    /// Returns a positive number; zero means the default and returns `None`.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        match self.data(name)? {
            Value::Int(number) => u64::try_from(*number).ok().filter(|number| *number > 0),
            _ => None,
        }
    }

    pub(super) fn texts(&self, name: &str) -> Vec<String> {
        let list = self.data(name).and_then(Value::as_list);
        list.unwrap_or_default()
            .iter()
            .map(ToString::to_string)
            .collect()
    }
}

fn expectations(resource_type: &'static ResourceType, attributes: &Map) -> Vec<Expectation> {
    // With `as-reader`, data is matched like file content.
    let is_reader = attributes.get("as-reader") == Some(&Value::Bool(true));
    let mut expectations = Vec::new();
    for (index, attribute) in resource_type.attributes.iter().enumerate() {
        let given = |name: &str| attributes.get(name).filter(|value| !value.is_null());
        let wanted = given(attribute.name).or_else(|| attribute.old_name.and_then(given));
        let matcher = match wanted {
            // An empty list of line patterns tests nothing.
            Some(Value::List(list)) if attribute.is_stream && list.is_empty() => continue,
            Some(list @ Value::List(_)) if attribute.is_stream || is_reader => {
                Matcher::patterns(list)
            }
            Some(wanted) => Matcher::parse(wanted),
            None if index == 0 && resource_type.first != FirstAttribute::Optional => {
                Err(MatchError::Missing)
            }
            None => continue,
        };
        expectations.push(Expectation {
            attribute,
            wanted: wanted.cloned().unwrap_or_default(),
            matcher,
        });
    }
    expectations
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(json: &str) -> Value {
        serde_json::from_str(json).unwrap()
    }

    fn error(json: &str) -> String {
        parse(&value(json)).unwrap_err().to_string()
    }

    #[test]
    fn unknown_names_are_errors() {
        for (rules, text) in [
            (
                r#"{"file": {"/x": {"exists": true, "colour": 1}}}"#,
                "invalid Attribute for File:/x: colour",
            ),
            (
                r#"{"kernel-param": {"a.b": {"size": 1}}}"#,
                "invalid Attribute for KernelParam:a.b: size",
            ),
            (
                r#"{"files": {}}"#,
                "unknown goss type \"files\", did you mean \"file\"?",
            ),
            (
                r#"{"registry": {"a": {}}}"#,
                "goss type \"registry\" is not supported",
            ),
            (
                r#"{"file": ["/x"]}"#,
                "file must be a mapping of ids, not a sequence",
            ),
            (
                r#"{"file": {"/x": null}}"#,
                "Could not parse resource File:/x",
            ),
            (
                "[]",
                "goss rules must be a mapping of types, not a sequence",
            ),
            (
                r#"{"command": {"true": {"exit-status": 0, "timeout": "soon"}}}"#,
                "invalid value for Command:true: timeout must be a whole number of milliseconds",
            ),
            (
                r#"{"file": {"/x": {"skip": "yes"}}}"#,
                "invalid value for File:/x: skip must be true or false",
            ),
        ] {
            assert_eq!(error(rules), text);
        }
    }

    #[test]
    fn title_meta_and_skip_belong_to_every_type() {
        for resource_type in RESOURCE_TYPES {
            let rules = format!(
                r#"{{"{}": {{"x": {{"title": "t", "meta": {{"a": 1}}, "skip": true}}}}}}"#,
                resource_type.key
            );
            let entries = parse(&value(&rules)).unwrap();
            assert!(entries[0].skip, "{}", resource_type.key);
        }
    }

    #[test]
    fn a_required_attribute_that_is_missing_fails_its_own_rule() {
        let entries = parse(&value(r#"{"file": {"/x": {"mode": "0644"}}}"#)).unwrap();
        let expectations = &entries[0].expectations;
        assert_eq!(expectations.len(), 2);
        assert_eq!(
            expectations[0].matcher.as_ref().unwrap_err().to_string(),
            "Syntax Error: Missing required attribute"
        );
        assert!(expectations[1].matcher.is_ok());
    }

    #[test]
    fn an_entry_without_expectations_gives_no_test() {
        let entries = parse(&value(r#"{"service": {"x": {}}, "file": null}"#)).unwrap();
        assert!(entries[0].expectations.is_empty());
    }

    #[test]
    fn an_empty_list_of_line_patterns_asserts_nothing() {
        let rules = r#"{"command": {"true": {"exit-status": 0, "stdout": [], "stderr": ["x"]}}}"#;
        let entries = parse(&value(rules)).unwrap();
        let names: Vec<_> = entries[0]
            .expectations
            .iter()
            .map(|expectation| expectation.attribute.name)
            .collect();
        assert_eq!(names, ["exit-status", "stderr"]);
    }

    #[test]
    fn a_label_names_the_target_if_it_is_not_the_id() {
        let label = |rules: &str| parse(&value(rules)).unwrap()[0].label();
        assert_eq!(
            label(r#"{"file": {"motd": {"exists": true, "path": "/etc/motd"}}}"#),
            "File: motd: /etc/motd"
        );
        assert_eq!(
            label(r#"{"file": {"/etc/motd": {"exists": true, "path": ""}}}"#),
            "File: /etc/motd"
        );
        assert_eq!(
            label(r#"{"http": {"http://u:p@x/": {"status": 200, "url": "http://v:q@y/"}}}"#),
            "HTTP: http://REDACTED@x/: http://REDACTED@y/"
        );
    }

    /// Returns random data that sometimes resembles rules.
    fn anything() -> impl Strategy<Value = Value> {
        let word = prop::sample::select(vec![
            "file", "port", "exists", "and", "or", "not", "gjson", "have-len", "/a/", "!x", "1.x",
        ]);
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            word.clone().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 40, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((word.clone(), inner), 0..4)
                    .prop_map(|entries| entries.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_data_is_parsed_or_refused(rules in anything(), wanted in anything(), actual in anything()) {
            let _ = parse(&rules);
            if let Ok(matcher) = Matcher::parse(&wanted) {
                let _ = matcher.check(&actual);
            }
            let attributes = [("exists", wanted)].into_iter().collect();
            let ids = [("/x", attributes)].into_iter().collect();
            let rules: Value = [("file", ids)].into_iter().collect();
            prop_assert_eq!(parse(&rules).unwrap().len(), 1);
        }
    }
}
