//! Reads a manifest's document: data first, then messages, then resources in order, from a list
//! in the document or from a template beside it.

use std::sync::Arc;

use super::{Input, Manifest, Problems};
use crate::hiera::{self, Annotations, Layers};
use crate::model::document::{DocumentError, Mark, Node, nearest, parse, unknown_name};
use crate::model::governor::Claim;
use crate::model::id::UnknownType;
use crate::model::resource::decode::{self, Declared};
use crate::model::resource::{Engine, Phase, Resource};
use crate::model::{TypeName, Value};
use crate::template::engines::{self, Template};
use crate::template::expr::Cache;
use crate::template::{Env, expand, resolve};

/// What a manifest's top level may hold; keys that start with `x-` or `.` are for anchors.
const TOP_KEYS: [&str; 5] = ["data", "hierarchy", "overrides", "ccm", "governor"];

const CCM_KEYS: [&str; 7] = [
    "engine",
    "fail_on_error",
    "post_message",
    "pre_message",
    "resources",
    "resources_jet_file",
    "resources_template",
];

/// Reads a manifest; what is wrong goes to `problems`.
pub(super) fn manifest(
    document: &Node,
    input: Input<'_>,
    env: &mut Env,
    programs: &Cache,
    problems: &mut Problems<'_>,
) -> Option<Manifest> {
    let mut reader = Reader { programs, problems };
    reader.read(document, input, env)
}

struct Reader<'a, 'p> {
    programs: &'a Cache,
    problems: &'a mut Problems<'p>,
}

impl Reader<'_, '_> {
    fn read(&mut self, document: &Node, input: Input<'_>, env: &mut Env) -> Option<Manifest> {
        let Some(entries) = document.entries() else {
            let found = document.kind_name();
            let message = format!("{found} was used where mapping is expected");
            self.problems.report(document.mark, None, message);
            return None;
        };
        self.check_keys(entries, &TOP_KEYS);
        let annotations = hiera::annotations(input.text, hiera::DATA_KEY);
        match resolve_data(document, input.layers, &annotations, env) {
            Ok(data) => env.data = data,
            Err(message) => {
                let mark = document.get("data").map_or(document.mark, |node| node.mark);
                self.problems.report(mark, None, message);
                return None;
            }
        }
        let section = document.get("ccm").filter(|node| node.entries().is_some());
        let Some(section) = section else {
            let mark = document.get("ccm").unwrap_or(document).mark;
            self.problems
                .report(mark, None, "manifest must contain resources");
            return None;
        };
        self.check_keys(section.entries().unwrap_or_default(), &CCM_KEYS);
        let mut manifest = Manifest {
            source: self.problems.source.into(),
            fail_on_error: self.flag(section, "fail_on_error"),
            data: env.data.clone(),
            governor: self.governor(document),
            warnings: annotations
                .warnings
                .iter()
                .map(ToString::to_string)
                .collect(),
            ..Manifest::default()
        };
        manifest.post_message = self.message(section, "post_message", env);
        manifest.pre_message = self.message(section, "pre_message", env);
        self.read_resources(section, &mut manifest, env);
        Some(manifest)
    }

    fn check_keys(&mut self, entries: &[(Node, Node)], known: &[&str]) {
        for (key, _) in entries {
            let name = key.text().map_or("", |text| &**text);
            if !known.contains(&name) && !name.starts_with("x-") && !name.starts_with('.') {
                let message = unknown_name("key", name, known);
                self.problems.report(key.mark, None, message);
            }
        }
    }

    /// Returns the slot that the manifest asks for, if it does.
    fn governor(&mut self, document: &Node) -> Option<Claim> {
        match Claim::read(document.get("governor")?) {
            Ok(claim) => claim,
            Err(err) => {
                let message = format!("invalid governor: {}", err.message);
                self.problems.report(err.mark, None, message);
                None
            }
        }
    }

    fn flag(&mut self, section: &Node, key: &str) -> bool {
        match section.get(key).map(|node| (node.mark, node.to_value())) {
            None | Some((_, Value::Null)) => false,
            Some((_, Value::Bool(flag))) => flag,
            Some((mark, other)) => {
                let message = format!("{key} must be true or false, not a {}", other.kind());
                self.problems.report(mark, None, message);
                false
            }
        }
    }

    /// Returns a text of the section, if it is given.
    fn text<'n>(&mut self, section: &'n Node, key: &str) -> Option<(&'n str, Mark)> {
        let node = section.get(key).filter(|node| !node.is_null())?;
        let text = node.text();
        if text.is_none() {
            let message = format!("{key} must be text, not a {}", node.kind_name());
            self.problems.report(node.mark, None, message);
        }
        text.map(|text| (&**text, node.mark))
    }

    fn message(&mut self, section: &Node, key: &str, env: &Env) -> String {
        let Some((text, mark)) = self.text(section, key) else {
            return String::new();
        };
        match expand::resolve_string(text, env, self.programs) {
            Ok(text) => text.into_owned(),
            Err(err) => {
                let message = format!("invalid {key} template: {err}");
                self.problems.report(mark, None, message);
                String::new()
            }
        }
    }

    fn read_resources(&mut self, section: &Node, manifest: &mut Manifest, env: &Env) {
        let before = self.problems.found.len();
        if let Some((file, engine, mark)) = self.template(section) {
            if section.get("resources").is_some() {
                let message = "jet_file and resources cannot be used together";
                return self.problems.report(mark, None, message);
            }
            match render(file, engine, env) {
                Ok(document) => self.read_list(&document, manifest, env),
                Err(message) => self.problems.report(mark, None, message),
            }
        } else if let Some(list) = section.get("resources") {
            self.read_list(list, manifest, env);
        }
        if manifest.resources.is_empty() && self.problems.found.len() == before {
            let message = "manifest must contain resources";
            self.problems.report(section.mark, None, message);
        }
    }

    /// Returns the template that the resources come from, if they do.
    fn template<'n>(&mut self, section: &'n Node) -> Option<(&'n str, Engine, Mark)> {
        if let Some((file, mark)) = self.text(section, "resources_jet_file") {
            return Some((file, Engine::Jet, mark));
        }
        let (file, mark) = self.text(section, "resources_template")?;
        let engine = match self.text(section, "engine") {
            None => Engine::Jet,
            Some((name, mark)) => Engine::parse(name).unwrap_or_else(|| {
                let message = unknown_name("engine", name, &["jet", "go", "jinja"]);
                self.problems.report(mark, None, message);
                Engine::Jet
            }),
        };
        Some((file, engine, mark))
    }

    fn read_list(&mut self, list: &Node, manifest: &mut Manifest, env: &Env) {
        let Some(entries) = list.items() else {
            let message = "manifest must contain resources";
            return self.problems.report(list.mark, None, message);
        };
        for (index, entry) in entries.iter().enumerate() {
            self.read_entry(index + 1, entry, manifest, env);
        }
    }

    /// Reads one entry of the list, which holds one type and one or more resources of it.
    fn read_entry(&mut self, number: usize, entry: &Node, manifest: &mut Manifest, env: &Env) {
        let wrong = |message: &str| format!("invalid manifest resource {number}: {message}");
        let Some([(key, value)]) = entry.entries() else {
            let message = "an entry must be a mapping with one resource type";
            return self.problems.report(entry.mark, None, wrong(message));
        };
        let type_name: TypeName = match key.text().map_or("", |text| &**text).parse() {
            Ok(type_name) => type_name,
            Err(err) => {
                let message = wrong(&unknown_type(&err));
                return self.problems.report(key.mark, None, message);
            }
        };
        match decode::resources(type_name, value) {
            Err(DocumentError { mark, message }) => {
                let label = Some(type_name.to_string());
                self.problems.report(mark, label, wrong(&message));
            }
            Ok(declared) => {
                for item in declared {
                    let mark = item.mark;
                    match self.finish(item, env) {
                        Ok(resource) => {
                            manifest.resources.push(Arc::new(resource));
                            manifest.marks.push(mark);
                        }
                        Err((mark, label, message)) => {
                            self.problems.report(mark, Some(label), wrong(&message));
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
    ) -> Result<Resource, (Mark, String, String)> {
        let label = item.resource.label();
        resolve::resource(&mut item.resource, Phase::Early, env, self.programs)
            .map_err(|err| (item.mark, label.clone(), err.to_string()))?;
        item.resource
            .complete()
            .map_err(|err| (item.mark_of(err.property), label, err.to_string()))?;
        Ok(item.resource)
    }
}

/// Resolves the document's data, lays the rest over it and checks the outcome.
fn resolve_data(
    document: &Node,
    mut layers: Layers,
    annotations: &Annotations,
    env: &Env,
) -> Result<Value, String> {
    // Resources may be many and are no data.
    let parts: Value = ["hierarchy", hiera::DATA_KEY, "overrides"]
        .into_iter()
        .filter_map(|key| Some((key, document.get(key)?.to_value())))
        .collect();
    layers.document =
        hiera::resolve(&parts, &env.facts, hiera::DATA_KEY).map_err(|err| err.to_string())?;
    let data = layers.merge();
    hiera::validate(&data, &annotations.rules).map_err(|err| err.to_string())?;
    Ok(data)
}

/// Renders a template of resources and reads the result.
fn render(file: &str, engine: Engine, env: &Env) -> Result<Node, String> {
    let Some(read) = &env.read_file else {
        return Err("jet_file requires a directory to be set".into());
    };
    let text = read(&env.working_dir.join(file)).map_err(|err| err.to_string())?;
    let template = Template {
        engine,
        name: file,
        text: text.as_bytes(),
        left: "",
        right: "",
    };
    let rendered = engines::render(template, env).map_err(|err| err.to_string())?;
    let rendered = String::from_utf8(rendered)
        .map_err(|_| format!("template {file} did not render to text"))?;
    if rendered.trim().is_empty() {
        return Err("resources jet template produced no output, check for syntax errors".into());
    }
    parse(&rendered).map_err(|err| {
        // Nobody has seen this text: show the line.
        let index = usize::try_from(err.mark.line).unwrap_or_default();
        let line = rendered.lines().nth(index.saturating_sub(1));
        let line = line.unwrap_or_default().trim();
        format!("the output of template {file}: {err} in `{line}`")
    })
}

fn unknown_type(err: &UnknownType) -> String {
    let known = TypeName::ALL.map(TypeName::as_str);
    match nearest(&err.0, &known) {
        Some(near) => format!("{err}, did you mean {near:?}?"),
        None => err.to_string(),
    }
}
