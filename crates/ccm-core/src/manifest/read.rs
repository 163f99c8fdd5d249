//! Reading of a manifest's document: data, messages, then resources, from a list in the document or
//! from a template file.

use std::sync::Arc;

use super::{DataError, EntryError, Manifest, ManifestInput, ProblemKind, Problems, TemplateError};
use crate::hiera::{self, Annotations, Layers, ResolvedData};
use crate::manifest::resolve::{self, ResolveError};
use crate::model::document::{Mark, Node, parse, unknown_name};
use crate::model::governor::GovernorClaim;
use crate::model::resource::Phase;
use crate::model::resource::decode::{self, DeclaredResource};
use crate::model::{TypeName, Value};
use ccm_template::engines::{self, Template};
use ccm_template::expr::Cache;
use ccm_template::{Engine, Env, UnknownValue, expand};

/// Keys of a manifest's top level; keys that start with `x-` or `.` are also allowed, for anchors.
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

/// Reads a manifest; problems are added to `problems`.
pub(super) fn manifest(
    document: &Node,
    input: ManifestInput<'_>,
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
    fn read(
        &mut self,
        document: &Node,
        input: ManifestInput<'_>,
        env: &mut Env,
    ) -> Option<Manifest> {
        let Some(entries) = document.entries() else {
            let kind = ProblemKind::NotAMapping(document.kind_name());
            self.problems.report(document.mark, None, kind);
            return None;
        };
        self.check_keys(entries, &TOP_KEYS);
        let annotations = hiera::parse_annotations(input.text, hiera::DATA_KEY);
        let mut levels = Vec::new();
        match resolve_data(document, input.layers, &annotations, env) {
            Ok(resolved) => {
                env.data = resolved.data;
                levels = resolved.levels;
            }
            Err(err) => {
                let mark = document.get("data").map_or(document.mark, |node| node.mark);
                let is_unknown = UnknownValue::in_chain(&err).is_some();
                self.problems.report(mark, None, err);
                if !is_unknown {
                    return None;
                }
                env.unknown.data = true;
            }
        }
        let section = document.get("ccm").filter(|node| node.entries().is_some());
        let Some(section) = section else {
            let mark = document.get("ccm").unwrap_or(document).mark;
            self.problems.report(mark, None, ProblemKind::NoResources);
            return None;
        };
        self.check_keys(section.entries().unwrap_or_default(), &CCM_KEYS);
        let mut manifest = Manifest {
            source: self.problems.source.into(),
            fail_on_error: self.flag(section, "fail_on_error"),
            data: env.data.clone(),
            levels,
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
                let kind = ProblemKind::UnknownName(unknown_name("key", name, known));
                self.problems.report(key.mark, None, kind);
            }
        }
    }

    /// Returns the manifest's governor claim, if it has one.
    fn governor(&mut self, document: &Node) -> Option<GovernorClaim> {
        match GovernorClaim::read(document.get("governor")?) {
            Ok(claim) => claim,
            Err(err) => {
                self.problems
                    .report(err.mark, None, ProblemKind::Governor(err));
                None
            }
        }
    }

    fn flag(&mut self, section: &Node, key: &'static str) -> bool {
        match section.get(key).map(|node| (node.mark, node.to_value())) {
            None | Some((_, Value::Null)) => false,
            Some((_, Value::Bool(flag))) => flag,
            Some((mark, other)) => {
                let found = other.kind();
                self.problems
                    .report(mark, None, ProblemKind::NotAFlag { key, found });
                false
            }
        }
    }

    /// Returns a text of the section and its position, if set.
    fn text<'n>(&mut self, section: &'n Node, key: &'static str) -> Option<(&'n str, Mark)> {
        let node = section.get(key).filter(|node| !node.is_null())?;
        let text = node.text();
        if text.is_none() {
            let found = node.kind_name();
            self.problems
                .report(node.mark, None, ProblemKind::NotText { key, found });
        }
        text.map(|text| (&**text, node.mark))
    }

    fn message(&mut self, section: &Node, key: &'static str, env: &Env) -> String {
        let Some((text, mark)) = self.text(section, key) else {
            return String::new();
        };
        match expand::resolve_string(text, env, self.programs) {
            Ok(text) => text.into_owned(),
            Err(cause) => {
                self.problems
                    .report(mark, None, ProblemKind::Message { key, cause });
                String::new()
            }
        }
    }

    fn read_resources(&mut self, section: &Node, manifest: &mut Manifest, env: &Env) {
        let before = self.problems.count();
        if let Some((file, engine, mark)) = self.template(section) {
            if section.get("resources").is_some() {
                return self.problems.report(mark, None, ProblemKind::TwoLists);
            }
            match render(file, engine, env) {
                Ok(document) => self.read_list(&document, manifest, env),
                Err(err) => self.problems.report(mark, None, err),
            }
        } else if let Some(list) = section.get("resources") {
            self.read_list(list, manifest, env);
        }
        if manifest.resources.is_empty() && self.problems.count() == before {
            self.problems
                .report(section.mark, None, ProblemKind::NoResources);
        }
    }

    /// Returns the template file of the resources and its engine, if set.
    fn template<'n>(&mut self, section: &'n Node) -> Option<(&'n str, Engine, Mark)> {
        if let Some((file, mark)) = self.text(section, "resources_jet_file") {
            return Some((file, Engine::Jet, mark));
        }
        let (file, mark) = self.text(section, "resources_template")?;
        let engine = match self.text(section, "engine") {
            None => Engine::Jet,
            Some((name, mark)) => Engine::parse(name).unwrap_or_else(|| {
                let text = unknown_name("engine", name, &["jet", "go", "jinja"]);
                self.problems
                    .report(mark, None, ProblemKind::UnknownName(text));
                Engine::Jet
            }),
        };
        Some((file, engine, mark))
    }

    fn read_list(&mut self, list: &Node, manifest: &mut Manifest, env: &Env) {
        let Some(entries) = list.items() else {
            return self
                .problems
                .report(list.mark, None, ProblemKind::NoResources);
        };
        for (index, entry) in entries.iter().enumerate() {
            self.read_entry(index + 1, entry, manifest, env);
        }
    }

    /// Reads one entry of the list: one type, with one or more resources.
    fn read_entry(&mut self, number: usize, entry: &Node, manifest: &mut Manifest, env: &Env) {
        let invalid_entry = |cause| ProblemKind::Resource { number, cause };
        let Some([(key, value)]) = entry.entries() else {
            let kind = invalid_entry(EntryError::NotOneType);
            return self.problems.report(entry.mark, None, kind);
        };
        let type_name: TypeName = match key.text().map_or("", |text| &**text).parse() {
            Ok(type_name) => type_name,
            Err(cause) => {
                let kind = invalid_entry(EntryError::Type { cause });
                return self.problems.report(key.mark, None, kind);
            }
        };
        match decode::read_resources(type_name, value) {
            Err(err) => {
                let label = Some(type_name.to_string());
                let mark = err.mark;
                self.problems
                    .report(mark, label, invalid_entry(EntryError::Document(err)));
            }
            Ok(declared) => {
                for mut item in declared {
                    let label = item.resource.label();
                    match self.complete(&mut item, env) {
                        Ok(unknown) => {
                            for error in unknown {
                                let kind = invalid_entry(EntryError::Resolve(error));
                                self.problems.report(item.mark, Some(label.clone()), kind);
                            }
                            manifest.resources.push(Arc::new(item.resource));
                            manifest.marks.push(item.mark);
                        }
                        Err(err) => {
                            let mark = match &err {
                                EntryError::Invalid(invalid) => {
                                    item.property_mark(invalid.property)
                                }
                                _ => item.mark,
                            };
                            self.problems.report(mark, Some(label), invalid_entry(err));
                        }
                    }
                }
            }
        }
    }

    /// Resolves early expressions, fills in defaults and validates. Returns the fields that need
    /// values that are not known.
    fn complete(
        &self,
        item: &mut DeclaredResource<'_>,
        env: &Env,
    ) -> Result<Vec<ResolveError>, EntryError> {
        let resource = &mut item.resource;
        let unknown = resolve::resolve_known(resource, Phase::Early, env, self.programs)?;
        match resource.complete() {
            Err(invalid) if !is_unresolved(invalid.property, &unknown) => Err(invalid.into()),
            _ => Ok(unknown),
        }
    }
}

/// Reports whether a property is among the unresolved fields, whose names have no underscores.
fn is_unresolved(property: &str, unknown: &[ResolveError]) -> bool {
    let property = property.replace('_', "");
    unknown.iter().any(|error| {
        let field = error.field.split('[').next().unwrap_or_default();
        field.eq_ignore_ascii_case(&property)
    })
}

/// Resolves the document's data, merges the other layers over it and validates the result.
fn resolve_data(
    document: &Node,
    mut layers: Layers,
    annotations: &Annotations,
    env: &Env,
) -> Result<ResolvedData, DataError> {
    // Only the data sections are converted: there may be many resources.
    let parts: Value = ["hierarchy", hiera::DATA_KEY, "overrides"]
        .into_iter()
        .filter_map(|key| Some((key, document.get(key)?.to_value())))
        .collect();
    hiera::check_sections(&parts)?;
    let own = hiera::resolve_levels(&parts, &env.facts, hiera::DATA_KEY)?;
    layers.document = own.data;
    let data = layers.merge();
    hiera::validate(&data, &annotations.rules)?;
    Ok(ResolvedData {
        data,
        levels: own.levels,
    })
}

/// Renders a template of resources and parses the result.
fn render(file: &str, engine: Engine, env: &Env) -> Result<Node, TemplateError> {
    let Some(read) = &env.read_file else {
        return Err(TemplateError::NoDirectory);
    };
    let text =
        read(&env.working_dir.join(file)).map_err(|err| TemplateError::Read(err.to_string()))?;
    let template = Template {
        engine,
        name: file,
        text: text.as_bytes(),
        left: "",
        right: "",
    };
    let rendered = engines::render(template, env)?;
    let rendered =
        String::from_utf8(rendered).map_err(|_| TemplateError::NotText(file.to_owned()))?;
    if rendered.trim().is_empty() {
        return Err(TemplateError::Empty);
    }
    parse(&rendered).map_err(|cause| {
        let index = usize::try_from(cause.mark.line).unwrap_or_default();
        let line = rendered.lines().nth(index.saturating_sub(1));
        TemplateError::Output {
            file: file.to_owned(),
            line: line.unwrap_or_default().trim().to_owned(),
            cause,
        }
    })
}
