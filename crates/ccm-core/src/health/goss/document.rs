//! Rules as data: type, id, attributes, read into entries that can be tested.
//!
//! Anything the tables of the probes do not know is an error, so a typing error is never a rule
//! that passes. What an attribute should be is turned into a matcher here; a matcher that makes no
//! sense fails its own rule and no other.

use super::matcher::{MatchError, Matcher};
use super::probe::{Attribute, FAMILIES, Family, First, Setting};
use crate::health::ProbeError;
use crate::model::document::{DocumentError, unknown_name};
use crate::model::secret::redact_url;
use crate::model::value::{Map, Value};
use crate::system::FileError;
use crate::system::files::GlobError;

/// The attributes every type has beside its own.
const COMMON: [&str; 3] = ["title", "meta", "skip"];

/// What is wrong with rules.
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
    #[error("invalid Attribute for {family}:{id}: {attribute}")]
    UnknownAttribute {
        family: &'static str,
        id: String,
        attribute: String,
    },
    #[error("invalid value for {family}:{id}: {setting} must be {wanted}")]
    Setting {
        family: &'static str,
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

/// Why a file of rules is not included.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum IncludeError {
    Read(#[from] FileError),
    Pattern(#[from] GlobError),
    Parse(#[from] DocumentError),
    Rules(Box<ProbeError>),
}

/// One thing, and what is expected of it.
#[derive(Debug)]
pub(super) struct Entry {
    pub family: &'static Family,
    id: String,
    settings: Map,
    pub skip: bool,
    /// In the order of the family's table.
    pub expectations: Vec<Expectation>,
}

/// What an attribute should be, or why that makes no sense.
#[derive(Debug)]
pub(super) struct Expectation {
    pub attribute: &'static Attribute,
    /// What its author wrote.
    pub wanted: Value,
    pub matcher: Result<Matcher, MatchError>,
}

/// Returns the entries of rules, sorted by type and id.
pub(super) fn read(rules: &Value) -> Result<Vec<Entry>, RuleError> {
    let types = rules.as_map().ok_or(RuleError::NotAMapping(rules.kind()))?;
    let mut entries = Vec::new();
    for (key, things) in types {
        let family = family(key)?;
        if things.is_null() {
            continue;
        }
        let things = things
            .as_map()
            .ok_or(RuleError::NotIds(family.key, things.kind()))?;
        for (id, attributes) in things {
            entries.push(Entry::read(family, id, attributes)?);
        }
    }
    Ok(entries)
}

fn family(key: &str) -> Result<&'static Family, RuleError> {
    if let Some(family) = FAMILIES.iter().find(|family| family.key == key) {
        return Ok(family);
    }
    if key == "registry" {
        return Err(RuleError::Unsupported(key.to_owned()));
    }
    let known = FAMILIES.map(|family| family.key);
    let complaint = unknown_name("goss type", key, &known);
    Err(RuleError::UnknownType(complaint))
}

impl Entry {
    /// Reads what a document says of one thing.
    pub(super) fn read(
        family: &'static Family,
        id: &str,
        attributes: &Value,
    ) -> Result<Self, RuleError> {
        let attributes = attributes
            .as_map()
            .ok_or_else(|| RuleError::NoAttributes(family.name, id.to_owned()))?;
        let mut settings = Map::new();
        for (name, value) in attributes {
            if family.expects(name) {
                continue;
            }
            let setting = match name.as_ref() {
                "skip" => Setting::Flag,
                known if COMMON.contains(&known) => continue,
                _ => family
                    .setting(name)
                    .ok_or_else(|| RuleError::UnknownAttribute {
                        family: family.name,
                        id: id.to_owned(),
                        attribute: name.as_ref().into(),
                    })?,
            };
            if value.is_null() {
                continue;
            }
            if !setting.accepts(value) {
                return Err(RuleError::Setting {
                    family: family.name,
                    id: id.to_owned(),
                    setting: name.as_ref().into(),
                    wanted: setting.wanted(),
                });
            }
            settings.insert(name.clone(), value.clone());
        }
        let skip = settings.get("skip") == Some(&Value::Bool(true));
        Ok(Self {
            family,
            id: id.to_owned(),
            settings,
            skip,
            expectations: expectations(family, attributes),
        })
    }

    /// Returns where to look: what the entry says, or its id.
    pub(super) fn target(&self) -> String {
        self.named_target().unwrap_or_else(|| self.id.clone())
    }

    fn named_target(&self) -> Option<String> {
        self.text(self.family.target)
            .filter(|text| !text.is_empty())
    }

    /// Returns the type and id, with the target if that is another. A URL shows no password.
    pub(super) fn label(&self) -> String {
        let Self { family, id, .. } = self;
        let shown = redact_url(id);
        match self.named_target() {
            Some(target) if target != *id && family.target != "exec" => {
                format!("{}: {shown}: {}", family.name, redact_url(&target))
            }
            _ => format!("{}: {shown}", family.name),
        }
    }

    /// Tells whether anything is expected of an attribute.
    pub(super) fn expects(&self, attribute: &str) -> bool {
        self.expectations
            .iter()
            .any(|expectation| expectation.attribute.name == attribute)
    }

    /// Returns a setting as it stands.
    pub(super) fn data(&self, name: &str) -> Option<&Value> {
        self.settings.get(name)
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.data(name).map(ToString::to_string)
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.data(name) == Some(&Value::Bool(true))
    }

    /// Returns a number that is not zero; zero stands for what is usual.
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

fn expectations(family: &'static Family, attributes: &Map) -> Vec<Expectation> {
    // Data that is to be read like a file is one.
    let is_reader = attributes.get("as-reader") == Some(&Value::Bool(true));
    let mut expectations = Vec::new();
    for (index, attribute) in family.attributes.iter().enumerate() {
        let given = |name: &str| attributes.get(name).filter(|value| !value.is_null());
        let wanted = given(attribute.name).or_else(|| attribute.old_name.and_then(given));
        let matcher = match wanted {
            // A list of line patterns that holds none asserts nothing.
            Some(Value::List(list)) if attribute.is_stream && list.is_empty() => continue,
            Some(list @ Value::List(_)) if attribute.is_stream || is_reader => {
                Matcher::patterns(list)
            }
            Some(wanted) => Matcher::parse(wanted),
            None if index == 0 && family.first != First::Optional => Err(MatchError::Missing),
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
        read(&value(json)).unwrap_err().to_string()
    }

    #[test]
    fn what_is_not_known_is_an_error_that_names_it() {
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
        for family in FAMILIES {
            let rules = format!(
                r#"{{"{}": {{"x": {{"title": "t", "meta": {{"a": 1}}, "skip": true}}}}}}"#,
                family.key
            );
            let entries = read(&value(&rules)).unwrap();
            assert!(entries[0].skip, "{}", family.key);
        }
    }

    #[test]
    fn a_required_attribute_that_is_missing_fails_its_own_rule() {
        let entries = read(&value(r#"{"file": {"/x": {"mode": "0644"}}}"#)).unwrap();
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
        let entries = read(&value(r#"{"service": {"x": {}}, "file": null}"#)).unwrap();
        assert!(entries[0].expectations.is_empty());
    }

    #[test]
    fn an_empty_list_of_line_patterns_asserts_nothing() {
        let rules = r#"{"command": {"true": {"exit-status": 0, "stdout": [], "stderr": ["x"]}}}"#;
        let entries = read(&value(rules)).unwrap();
        let names: Vec<_> = entries[0]
            .expectations
            .iter()
            .map(|expectation| expectation.attribute.name)
            .collect();
        assert_eq!(names, ["exit-status", "stderr"]);
    }

    #[test]
    fn a_label_names_the_target_if_it_is_not_the_id() {
        let label = |rules: &str| read(&value(rules)).unwrap()[0].label();
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

    /// Returns data that looks like rules now and then.
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
        fn any_data_is_read_or_refused(rules in anything(), wanted in anything(), actual in anything()) {
            let _ = read(&rules);
            if let Ok(matcher) = Matcher::parse(&wanted) {
                let _ = matcher.check(&actual);
            }
            let attributes = [("exists", wanted)].into_iter().collect();
            let things = [("/x", attributes)].into_iter().collect();
            let rules: Value = [("file", things)].into_iter().collect();
            prop_assert_eq!(read(&rules).unwrap().len(), 1);
        }
    }
}
