//! Reading of a manifest's document: data, messages, then resources, from a list in the document or
//! from a template file.

use std::collections::HashSet;
use std::sync::Arc;

use super::problems::Problems;
use super::{Checks, DataError, EntryError, Manifest, ManifestInput, ProblemKind, TemplateError};
use crate::hiera::{self, HieraError, InvalidData, KeyPath, Layers, ReadDataFile, ResolvedData};
use crate::manifest::resolve::{self, ResolveError};
use crate::model::document::{DocumentError, Mark, Node, parse};
use crate::model::governor::GovernorClaim;
use crate::model::resource::Phase;
use crate::model::resource::decode::{self, DeclaredResource};
use crate::model::{TypeName, Value};
use crate::secrets::{self, UnopenedValues, WithoutKey};
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
    let mut reader = Reader {
        programs,
        problems,
        has_data: true,
        secret_entries: SecretEntries::default(),
    };
    reader.read(document, input, env)
}

struct Reader<'a, 'p> {
    programs: &'a Cache,
    problems: &'a mut Problems<'p>,
    /// Whether the data could be resolved; without it expressions are not evaluated.
    has_data: bool,
    /// Which entries of a rendered list depend on secrets.
    secret_entries: SecretEntries,
}

/// Entries of a rendered list that depend on secrets, by number from 1.
#[derive(Default)]
enum SecretEntries {
    #[default]
    None,
    All,
    Some(HashSet<usize>),
}

impl SecretEntries {
    fn contains(&self, number: usize) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Some(numbers) => numbers.contains(&number),
        }
    }
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
        let read_data_file = input.read_data_file.unwrap_or(&hiera::no_data_files);
        match resolve_data(document, input.layers, read_data_file, env) {
            Ok((resolved, redacted)) => {
                levels = resolved.levels;
                self.open_data(document, resolved.data, redacted, input.checks, env);
                let redacted = env.secrets.forms.as_ref().map(|it| &it.redacted);
                let redacted = redacted.unwrap_or(&env.data);
                let rules = &annotations.rules;
                if self.has_data
                    && let Err(invalid) = hiera::validate_secret(&env.data, redacted, rules)
                {
                    self.report_failures(document, invalid);
                }
            }
            Err(err) => {
                match UnknownValue::in_chain(&err) {
                    Some(_) => env.unknown.data = true,
                    None => self.has_data = false,
                }
                let mark = hiera::locate(&err, input.text, document, hiera::DATA_KEY);
                self.problems.report(mark, None, DataError::from(err));
            }
        }
        let section = self.section(document)?;
        let before = self.problems.count();
        self.check_keys(section.entries().unwrap_or_default(), &CCM_KEYS);
        let mut manifest = Manifest {
            source: input.source.into(),
            fail_on_error: self.flag(section, "fail_on_error"),
            data: match &env.secrets.forms {
                Some(forms) => forms.redacted.clone(),
                None => env.data.clone(),
            },
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
        if manifest.resources.is_empty() && self.has_data && self.problems.count() == before {
            let list = section.entry("resources");
            let mark = list.map_or(section.mark, |(key, _)| key.mark);
            self.problems.report(mark, None, ProblemKind::NoResources);
        }
        Some(manifest)
    }

    /// Returns the `ccm` section.
    fn section<'n>(&mut self, document: &'n Node) -> Option<&'n Node> {
        let key = "ccm";
        let Some((name, section)) = document.entry(key).filter(|(_, node)| !node.is_null()) else {
            let mark = document
                .entry(key)
                .map_or(document.mark, |(name, _)| name.mark);
            self.problems.report(mark, None, ProblemKind::NoResources);
            return None;
        };
        if section.entries().is_none() {
            let found = section.kind_name();
            let kind = ProblemKind::SectionNotAMapping { key, found };
            self.problems.report(name.mark, None, kind);
            return None;
        }
        Some(section)
    }

    /// Sets the data of the environment, with its encrypted values opened, and reports each that can't be.
    /// `redacted` is the data without the secrets of a parent manifest.
    fn open_data(
        &mut self,
        document: &Node,
        sealed: Value,
        redacted: Option<Value>,
        checks: Checks,
        env: &mut Env,
    ) {
        let without_key = match checks {
            Checks::Run => WithoutKey::Refuse,
            Checks::All => WithoutKey::UsePlaceholders,
        };
        let Err(UnopenedValues(values)) = secrets::set_data(env, sealed, redacted, without_key)
        else {
            return;
        };
        self.has_data = false;
        for value in values {
            let Ok(path) = value.path.parse::<KeyPath>();
            let mark = hiera::locate_key(&path, document, hiera::DATA_KEY);
            let error = DataError::from(UnopenedValues(vec![value]));
            self.problems.report(mark, None, error);
        }
    }

    /// Reports each failed rule at its key.
    fn report_failures(&mut self, document: &Node, invalid: InvalidData) {
        for failure in invalid.failures {
            let mark = hiera::locate_failure(&failure, document, hiera::DATA_KEY);
            let failures = vec![failure];
            self.problems
                .report(mark, None, DataError::from(InvalidData { failures }));
        }
    }

    fn check_keys(&mut self, entries: &[(Node, Node)], known: &[&str]) {
        for (key, _) in entries {
            let name = key.text().map_or("", |text| &**text);
            if !known.contains(&name) && !name.starts_with("x-") && !name.starts_with('.') {
                let error = DocumentError::unknown_name(key.mark, "key", name, known);
                let kind = ProblemKind::UnknownName(error);
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
        if !self.has_data {
            return String::new();
        }
        let redacted = env.redacted();
        match expand::resolve_string(text, redacted.as_ref().unwrap_or(env), self.programs) {
            Ok(text) => text.into_owned(),
            Err(cause) => {
                self.problems
                    .report(mark, None, ProblemKind::Message { key, cause });
                String::new()
            }
        }
    }

    fn read_resources(&mut self, section: &Node, manifest: &mut Manifest, env: &Env) {
        let list = section.get("resources");
        if let Some((file, engine, mark)) = self.template(section) {
            if list.is_some() {
                return self.problems.report(mark, None, ProblemKind::TwoLists);
            }
            if self.has_data {
                self.read_rendered(file, engine, mark, manifest, env);
            }
        } else if let Some(list) = list {
            self.read_list(list, manifest, env);
        }
    }

    /// Reads the resources that a template renders; problems are located in its output.
    fn read_rendered(
        &mut self,
        file: &str,
        engine: Engine,
        mark: Mark,
        manifest: &mut Manifest,
        env: &Env,
    ) {
        let template = match read_template(file, env) {
            Ok(template) => template,
            Err(err) => return self.problems.report(mark, None, err),
        };
        let rendered = match render(file, engine, &template, env) {
            Ok(rendered) => rendered,
            Err(err) => return self.problems.report_template(mark, file, &template, err),
        };
        self.secret_entries =
            secret_entries(&rendered, |env| render(file, engine, &template, env), env);
        let document = parse(&rendered);
        self.problems.set_rendered(file, template, rendered, mark);
        match document {
            Ok(document) => self.read_list(&document, manifest, env),
            Err(cause) => {
                let mark = cause.mark;
                let file = file.to_owned();
                let err = TemplateError::Output { file, cause };
                self.problems.report_resource(mark, None, false, err);
            }
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
                let known = ["jet", "go", "jinja"];
                let error = DocumentError::unknown_name(mark, "engine", name, &known);
                self.problems
                    .report(mark, None, ProblemKind::UnknownName(error));
                Engine::Jet
            }),
        };
        Some((file, engine, mark))
    }

    fn read_list(&mut self, list: &Node, manifest: &mut Manifest, env: &Env) {
        let Some(entries) = list.items() else {
            // An empty list is reported with the other manifests without resources.
            if !list.is_null() {
                let kind = ProblemKind::NotAList(list.kind_name());
                self.problems.report_resource(list.mark, None, false, kind);
            }
            return;
        };
        for (index, entry) in entries.iter().enumerate() {
            self.read_entry(index + 1, entry, manifest, env);
        }
    }

    /// Reads one entry of the list: one type, with one or more resources.
    fn read_entry(&mut self, number: usize, entry: &Node, manifest: &mut Manifest, env: &Env) {
        let invalid_entry = |cause| ProblemKind::Resource { number, cause };
        let Some([(key, value)]) = entry.entries() else {
            let unindented = unindented_type(entry);
            let kind = invalid_entry(EntryError::NotOneType { unindented });
            let is_hidden = decode::is_sensitive(entry);
            return self
                .problems
                .report_resource(entry.mark, None, is_hidden, kind);
        };
        let type_name: TypeName = match key.text().map_or("", |text| &**text).parse() {
            Ok(type_name) => type_name,
            Err(cause) => {
                let kind = invalid_entry(EntryError::Type { cause });
                return self.problems.report_resource(key.mark, None, false, kind);
            }
        };
        let declared = match decode::read_resources(type_name, value) {
            Ok(declared) => declared,
            Err(err) => {
                self.problems.add_invalid(type_name, value);
                let (mark, is_hidden) = (err.mark, decode::is_sensitive(value));
                let kind = invalid_entry(EntryError::Document(err));
                let label = Some(type_name.to_string());
                return self.problems.report_resource(mark, label, is_hidden, kind);
            }
        };
        // Once per list, which may be long.
        let has_secrets = decode::is_sensitive(value);
        for mut item in declared {
            item.resource.common.sensitive |= self.secret_entries.contains(number);
            let label = item.resource.label();
            let is_hidden = item.resource.common.sensitive || has_secrets;
            match self.complete(&mut item, env) {
                Ok(unknown) => {
                    for error in unknown {
                        let kind = invalid_entry(EntryError::Resolve(error));
                        let label = Some(label.clone());
                        self.problems
                            .report_resource(item.mark, label, is_hidden, kind);
                    }
                    manifest.resources.push(Arc::new(item.resource));
                    manifest.marks.push(item.mark);
                }
                Err(err) => {
                    let mark = match &err {
                        EntryError::Invalid(invalid) => item.property_mark(invalid.property),
                        EntryError::Resolve(err) => item.property_mark(err.property()),
                        _ => item.mark,
                    };
                    self.problems.add_invalid_label(label.clone(), item.mark);
                    let kind = invalid_entry(err);
                    self.problems
                        .report_resource(mark, Some(label), is_hidden, kind);
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
        let mut unknown = Vec::new();
        if self.has_data {
            unknown = resolve::resolve_known(resource, Phase::Early, env, self.programs)?;
        } else if resolve::has_early_expressions(resource) {
            // The data is invalid, which is reported already.
            return Ok(unknown);
        }
        match resource.complete() {
            Err(invalid) if !is_unresolved(invalid.property, &unknown) => Err(invalid.into()),
            _ => Ok(unknown),
        }
    }
}

/// Returns the type of an entry whose properties are beside the type instead of below it.
fn unindented_type(entry: &Node) -> Option<String> {
    let (key, value) = entry.entries()?.first()?;
    let name = key.text()?;
    let is_type = name.parse::<TypeName>().is_ok() && value.is_null();
    is_type.then(|| name.to_string())
}

/// Reports whether a property is among the unresolved fields, whose names have no underscores.
fn is_unresolved(property: &str, unknown: &[ResolveError]) -> bool {
    let property = property.replace('_', "");
    let mut fields = unknown.iter().map(ResolveError::property);
    fields.any(|field| field.eq_ignore_ascii_case(&property))
}

/// Resolves the document's data and merges the other layers over it. Also returns the data without the
/// secrets of a parent manifest, if it has some.
fn resolve_data(
    document: &Node,
    mut layers: Layers,
    read_data_file: &ReadDataFile<'_>,
    env: &Env,
) -> Result<(ResolvedData, Option<Value>), HieraError> {
    // Only the data sections are converted: there may be many resources.
    let parts: Value = ["hierarchy", hiera::DATA_KEY, "overrides"]
        .into_iter()
        .filter_map(|key| Some((key, document.get(key)?.to_value())))
        .collect();
    hiera::check_sections(&parts)?;
    let own = hiera::resolve_levels(&parts, &env.facts, hiera::DATA_KEY, read_data_file)?;
    layers.document = own.data.clone();
    layers.strategies = own.strategies.clone();
    let data = layers.merge();
    Ok((ResolvedData { data, ..own }, layers.merge_redacted()))
}

/// Returns the entries of a rendered list that differ if it is rendered without secrets.
fn secret_entries(
    rendered: &str,
    render: impl FnOnce(&Env) -> Result<String, TemplateError>,
    env: &Env,
) -> SecretEntries {
    let redacted = match env.redacted() {
        Some(redacted) if env.secrets.has_opened() => redacted,
        _ => return SecretEntries::None,
    };
    let redacted = match render(&redacted) {
        Ok(redacted) if redacted == rendered => return SecretEntries::None,
        Ok(redacted) => redacted,
        Err(_) => return SecretEntries::All,
    };
    let values = |text: &str| {
        let list = parse(text).ok()?.to_value();
        Some(list.as_list()?.to_vec())
    };
    match (values(rendered), values(&redacted)) {
        (Some(real), Some(redacted)) if real.len() == redacted.len() => {
            let pairs = (1..).zip(real.iter().zip(&redacted));
            SecretEntries::Some(pairs.filter(|(_, (a, b))| a != b).map(|(n, _)| n).collect())
        }
        _ => SecretEntries::All,
    }
}

/// Reads the file of a template of resources.
fn read_template(file: &str, env: &Env) -> Result<String, TemplateError> {
    let Some(read) = &env.read_file else {
        return Err(TemplateError::NoDirectory);
    };
    read(&env.working_dir.join(file)).map_err(|err| TemplateError::Read(err.to_string()))
}

/// Renders a template of resources.
fn render(file: &str, engine: Engine, text: &str, env: &Env) -> Result<String, TemplateError> {
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
    Ok(rendered)
}
