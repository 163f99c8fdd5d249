//! Manifests: data and ordered resources, read from a document into a value that needs nothing
//! more but the fields that are resolved just before use.
//!
//! Fetches nothing: the caller brings the text and the directory it came from. Every fault is
//! reported, each with its file, line and column, before anything is touched.

use std::fmt;
use std::sync::Arc;

use serde_json::json;

use crate::model::document::{DocumentError, Mark, Node, parse, unknown_name};
use crate::model::resource::decode::{self, Declared};
use crate::model::resource::{Phase, Resource};
use crate::model::{TypeName, Value};
use crate::template::expand::Nulls;
use crate::template::expr::Cache;
use crate::template::{Env, expand, resolve};

/// What a manifest's top level may hold; keys that start with `x-` or `.` are for anchors.
const TOP_KEYS: [&str; 4] = ["data", "hierarchy", "overrides", "ccm"];

const CCM_KEYS: [&str; 5] = [
    "fail_on_error",
    "post_message",
    "pre_message",
    "resources",
    "resources_jet_file",
];

/// A manifest, ready to run.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    /// Where it came from, as people see it.
    pub source: String,
    pub fail_on_error: bool,
    pub pre_message: String,
    pub post_message: String,
    pub data: Value,
    pub resources: Vec<Arc<Resource>>,
}

/// Everything that is wrong with a manifest.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct ManifestError {
    pub problems: Vec<Problem>,
}

/// One thing that is wrong with a manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub source: String,
    pub mark: Mark,
    /// The resource it belongs to.
    pub label: Option<String>,
    pub message: String,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                out.write_str("\n")?;
            }
            problem.fmt(out)?;
        }
        Ok(())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} (", self.message)?;
        if let Some(label) = &self.label {
            write!(out, "{label} at ")?;
        }
        match self.mark {
            Mark { line: 0, .. } => write!(out, "{})", self.source),
            Mark { line, column } => write!(out, "{}:{line}:{column})", self.source),
        }
    }
}

/// Reads a manifest. `env` is what its templates see; the manifest's own data, with `over` laid
/// over it, goes into it.
pub fn load(
    text: &str,
    source: &str,
    over: Option<&Value>,
    env: &mut Env,
    programs: &Cache,
) -> Result<Manifest, ManifestError> {
    let mut reader = Reader {
        source,
        over,
        problems: Vec::new(),
    };
    let manifest = match parse(text) {
        Ok(document) => reader.read(&document, env, programs),
        Err(err) => {
            reader.report(err.mark, None, err.message);
            None
        }
    };
    match manifest {
        Some(manifest) if reader.problems.is_empty() => Ok(manifest),
        _ => Err(ManifestError {
            problems: reader.problems,
        }),
    }
}

struct Reader<'a> {
    source: &'a str,
    over: Option<&'a Value>,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn report(&mut self, mark: Mark, label: Option<String>, message: impl Into<String>) {
        self.problems.push(Problem {
            source: self.source.into(),
            mark,
            label,
            message: message.into(),
        });
    }

    fn read(&mut self, document: &Node, env: &mut Env, programs: &Cache) -> Option<Manifest> {
        let Some(entries) = document.entries() else {
            let message = format!(
                "{} was used where mapping is expected",
                document.kind_name()
            );
            self.report(document.mark, None, message);
            return None;
        };
        self.check_keys("key", entries, &TOP_KEYS);
        match self.resolve_data(document, env, programs) {
            Ok(data) => env.data = data,
            Err(message) => {
                let mark = document.get("data").map_or(document.mark, |node| node.mark);
                self.report(mark, None, message);
                return None;
            }
        }
        let Some(section) = document.get("ccm") else {
            self.report(document.mark, None, "manifest must contain resources");
            return None;
        };
        let Some(entries) = section.entries() else {
            self.report(section.mark, None, "manifest must contain resources");
            return None;
        };
        self.check_keys("key", entries, &CCM_KEYS);
        let mut manifest = Manifest {
            source: self.source.into(),
            fail_on_error: self.flag(section, "fail_on_error"),
            data: env.data.clone(),
            ..Manifest::default()
        };
        manifest.post_message = self.message(section, "post_message", env, programs);
        manifest.pre_message = self.message(section, "pre_message", env, programs);
        self.read_resources(section, &mut manifest, env, programs);
        Some(manifest)
    }

    fn check_keys(&mut self, what: &str, entries: &[(Node, Node)], known: &[&str]) {
        for (key, _) in entries {
            let name = key.text().map_or("", |text| &**text);
            if !known.contains(&name) && !name.starts_with("x-") && !name.starts_with('.') {
                self.report(key.mark, None, unknown_name(what, name, known));
            }
        }
    }

    fn resolve_data(&self, document: &Node, env: &Env, programs: &Cache) -> Result<Value, String> {
        let data = document
            .get("data")
            .map_or_else(Value::empty_map, Node::to_value);
        let data = match data {
            Value::Map(_) => data,
            _ => Value::empty_map(),
        };
        let mut restricted = env.clone();
        restricted.restricted = true;
        restricted.default_on_missing = true;
        let data = expand::expand_value(&data, Nulls::Keep, &restricted, programs)
            .map_err(|err| err.to_string())?;
        Ok(match self.over {
            Some(over) => data.merge_deep(over),
            None => data,
        })
    }

    fn flag(&mut self, section: &Node, key: &str) -> bool {
        match section.get(key).map(|node| (node.mark, node.to_value())) {
            None | Some((_, Value::Null)) => false,
            Some((_, Value::Bool(flag))) => flag,
            Some((mark, other)) => {
                let message = format!("{key} must be true or false, not a {}", other.kind());
                self.report(mark, None, message);
                false
            }
        }
    }

    fn message(&mut self, section: &Node, key: &str, env: &Env, programs: &Cache) -> String {
        let Some(node) = section.get(key).filter(|node| !node.is_null()) else {
            return String::new();
        };
        let Some(text) = node.text() else {
            let message = format!("{key} must be text, not a {}", node.kind_name());
            self.report(node.mark, None, message);
            return String::new();
        };
        match expand::resolve_string(text, env, programs) {
            Ok(text) => text.into_owned(),
            Err(err) => {
                self.report(node.mark, None, format!("invalid {key} template: {err}"));
                String::new()
            }
        }
    }

    fn read_resources(
        &mut self,
        section: &Node,
        manifest: &mut Manifest,
        env: &Env,
        programs: &Cache,
    ) {
        let before = self.problems.len();
        let list = section.get("resources");
        let Some(entries) = list.and_then(Node::items) else {
            let mark = list.unwrap_or(section).mark;
            self.report(mark, None, "manifest must contain resources");
            return;
        };
        for (index, entry) in entries.iter().enumerate() {
            self.read_entry(index + 1, entry, manifest, env, programs);
        }
        if manifest.resources.is_empty() && self.problems.len() == before {
            self.report(section.mark, None, "manifest must contain resources");
        }
    }

    /// Reads one entry of the list, which holds one type and one or more resources of it.
    fn read_entry(
        &mut self,
        number: usize,
        entry: &Node,
        manifest: &mut Manifest,
        env: &Env,
        programs: &Cache,
    ) {
        let wrong = |message: &str| format!("invalid manifest resource {number}: {message}");
        let Some([(key, value)]) = entry.entries() else {
            let message = "an entry must be a mapping with one resource type";
            return self.report(entry.mark, None, wrong(message));
        };
        let type_name: TypeName = match key.text().map_or("", |text| &**text).parse() {
            Ok(type_name) => type_name,
            Err(err) => return self.report(key.mark, None, wrong(&unknown_type(&err))),
        };
        match decode::resources(type_name, value) {
            Err(DocumentError { mark, message }) => {
                self.report(mark, Some(type_name.to_string()), wrong(&message));
            }
            Ok(declared) => {
                for item in declared {
                    match self.finish(item, env, programs) {
                        Ok(resource) => manifest.resources.push(Arc::new(resource)),
                        Err((mark, label, message)) => {
                            self.report(mark, Some(label), wrong(&message));
                        }
                    }
                }
            }
        }
    }

    /// Resolves what can be resolved now, fills defaults and validates.
    fn finish(
        &self,
        mut item: Declared<'_>,
        env: &Env,
        programs: &Cache,
    ) -> Result<Resource, (Mark, String, String)> {
        let label = item.resource.label();
        resolve::resource(&mut item.resource, Phase::Early, env, programs)
            .map_err(|err| (item.mark, label.clone(), err.to_string()))?;
        item.resource
            .complete()
            .map_err(|err| (item.mark_of(err.property), label, err.to_string()))?;
        Ok(item.resource)
    }
}

fn unknown_type(err: &crate::model::id::UnknownType) -> String {
    let known = TypeName::ALL.map(TypeName::as_str);
    match crate::model::document::nearest(&err.0, &known) {
        Some(near) => format!("{err}, did you mean {near:?}?"),
        None => err.to_string(),
    }
}

impl Manifest {
    /// Returns the resolved manifest as a document; deferred expressions are still in it.
    pub fn render(&self) -> Result<serde_json::Value, serde_json::Error> {
        let mut resources = Vec::with_capacity(self.resources.len());
        for resource in &self.resources {
            let mut entry = serde_json::Map::new();
            let properties = serde_json::to_value(resource.shown())?;
            entry.insert(resource.type_name().to_string(), properties);
            resources.push(serde_json::Value::Object(entry));
        }
        Ok(json!({
            "ccm": { "fail_on_error": self.fail_on_error, "resources": resources },
            "data": self.data,
        }))
    }
}
