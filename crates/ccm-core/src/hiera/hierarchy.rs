//! Hierarchy resolution: merges the overrides and data files that facts select over a document's data.
//!
//! Data files are read by a function of the caller. Expressions have access to facts only: data that depended on other data, files or stores would
//! depend on the merge order. Documents are parsed in `sources`; further data is merged in
//! `layers`, and `merge_strategy` says how.

use super::data_file::DataFile;
use super::error::HieraError;
use super::merge_strategy::MergeStrategies;
use super::sources::Document;
use crate::model::Value;
use crate::model::value::Map;
use ccm_template::Env;
use ccm_template::env::Facts;
use ccm_template::expand::{self, Nulls};
use ccm_template::expr::Cache;

/// Default key of the base data.
pub const DATA_KEY: &str = "data";

/// Level of a document without a hierarchy.
const DEFAULT_LEVEL: &str = "default";

/// Maximum number of values that the merges of one document may process: an order that repeats a
/// level concatenates its lists each time.
const MAX_MERGED: usize = 20_000_000;

/// Data of a document, and the levels it was taken from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResolvedData {
    pub data: Value,
    /// Names of the levels that gave data, in the order of merging.
    pub levels: Vec<String>,
    /// All levels that were considered, in the same order.
    pub trace: Vec<Level>,
    /// Whether only the first level with data is merged over the base data.
    pub is_first: bool,
    /// Merge strategies of the document, which also apply to data that is merged over it.
    pub strategies: MergeStrategies,
}

/// Level of a document: its base data, or an entry of the order.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// Entry of the order as written, or the key of the base data.
    pub entry: String,
    /// Name for the node's facts; the same as the entry if it has no expressions.
    pub name: String,
    pub outcome: LevelOutcome,
}

/// What a level contributed.
#[derive(Clone, Debug, PartialEq)]
pub enum LevelOutcome {
    /// Data of the base, an override or a data file, with its expressions expanded.
    Data(Value),
    /// All facts in the entry are missing or empty.
    FactsMissing,
    /// There is no override of this name.
    NoOverride,
    /// There is no data file of this name.
    NoFile,
    /// The override is not a mapping.
    NotAMapping,
    /// The name is that of the base data, which is merged first.
    IsBase,
    /// With `merge: first`, an earlier level matched.
    AfterFirst,
}

/// Reads a data file of the hierarchy; `None` if there is no such file.
pub type ReadDataFile<'a> = dyn Fn(&DataFile) -> Result<Option<Document>, HieraError> + 'a;

/// Reads no data file: the document has no directory.
pub fn no_data_files(_: &DataFile) -> Result<Option<Document>, HieraError> {
    Ok(None)
}

/// Returns the data of a document without data files for the given facts. `data_key` is the key of the
/// base data; an empty key means [`DATA_KEY`].
pub fn resolve(document: &Value, facts: &Facts, data_key: &str) -> Result<Value, HieraError> {
    resolve_levels(document, facts, data_key, &no_data_files).map(|resolved| resolved.data)
}

/// Returns the data of a document like [`resolve`], with its levels and data files.
pub fn resolve_levels(
    document: &Value,
    facts: &Facts,
    data_key: &str,
    read: &ReadDataFile<'_>,
) -> Result<ResolvedData, HieraError> {
    let empty = Map::new();
    let root = match document {
        Value::Map(map) => map,
        Value::Null => &empty,
        other => return Err(HieraError::Root(other.kind())),
    };
    let overrides = match root.get("overrides") {
        Some(Value::Map(map)) => map,
        None | Some(Value::Null) => &empty,
        Some(other) => return Err(HieraError::Overrides(other.kind())),
    };
    let hierarchy = Hierarchy::read(root.get("hierarchy"))?;
    let data_key = or_default(data_key);
    let base = root.get(data_key).filter(|data| data.as_map().is_some());
    let expander = Expander::new(facts);
    let sections = Sections {
        overrides,
        base: base.map(|_| data_key),
        expander: &expander,
        read,
    };
    let mut resolved = ResolvedData {
        data: Value::empty_map(),
        ..ResolvedData::default()
    };
    if let Some(base) = base {
        resolved.data = expander.expand(base, || data_key.into())?;
        resolved.add(Level {
            entry: data_key.into(),
            name: data_key.into(),
            outcome: LevelOutcome::Data(resolved.data.clone()),
        });
    }
    let mut budget = MAX_MERGED;
    let mut is_complete = false;
    for entry in &hierarchy.order {
        let level = match is_complete {
            true => Level::new(entry, entry, LevelOutcome::AfterFirst),
            false => sections.level(entry)?,
        };
        if let LevelOutcome::Data(over) = &level.outcome {
            match &hierarchy.merge {
                Merge::First => {
                    resolved.data = resolved.data.merge_shallow(over);
                    is_complete = true;
                }
                Merge::Deep(strategies) => {
                    if !(spend(&resolved.data, &mut budget) && spend(over, &mut budget)) {
                        return Err(HieraError::TooLarge { level: level.name });
                    }
                    resolved.data = strategies.merge(&resolved.data, over);
                }
                Merge::Unknown(mode) => return Err(HieraError::Merge(mode.clone())),
            }
        }
        resolved.add(level);
    }
    match hierarchy.merge {
        Merge::Deep(strategies) => resolved.strategies = strategies,
        Merge::First | Merge::Unknown(_) => resolved.is_first = true,
    }
    Ok(resolved)
}

impl ResolvedData {
    /// Returns the data with a function applied to the data of each level, such as one that redacts.
    #[must_use]
    pub fn map_data(mut self, change: impl Fn(&Value) -> Value) -> Self {
        self.data = change(&self.data);
        for level in &mut self.trace {
            if let LevelOutcome::Data(data) = &mut level.outcome {
                *data = change(data);
            }
        }
        self
    }

    fn add(&mut self, level: Level) {
        if matches!(level.outcome, LevelOutcome::Data(_)) {
            self.levels.push(level.name.clone());
        }
        self.trace.push(level);
    }
}

impl Level {
    fn new(entry: &str, name: &str, outcome: LevelOutcome) -> Self {
        Self {
            entry: entry.into(),
            name: name.into(),
            outcome,
        }
    }
}

/// What the levels of a document are taken from.
struct Sections<'a> {
    overrides: &'a Map,
    /// Key of the base data, if there is any.
    base: Option<&'a str>,
    expander: &'a Expander,
    read: &'a ReadDataFile<'a>,
}

impl Sections<'_> {
    /// Returns the level of an entry of the order. An override precedes a data file of the same name, as
    /// in documents that were written before there were data files.
    fn level(&self, entry: &str) -> Result<Level, HieraError> {
        let Some(name) = self.expander.level(entry)? else {
            return Ok(Level::new(entry, entry, LevelOutcome::FactsMissing));
        };
        let outcome = if self.base == Some(&name) {
            LevelOutcome::IsBase
        } else {
            match self.overrides.get(name.as_str()) {
                Some(over @ Value::Map(_)) => {
                    let section = || format!("overrides {name:?}");
                    LevelOutcome::Data(self.expander.expand(over, section)?)
                }
                Some(_) => LevelOutcome::NotAMapping,
                None if DataFile::is_entry(entry) => self.file(&name)?,
                None => LevelOutcome::NoOverride,
            }
        };
        Ok(Level::new(entry, &name, outcome))
    }

    fn file(&self, name: &str) -> Result<LevelOutcome, HieraError> {
        let file = DataFile::new(name)?;
        let Some(document) = (self.read)(&file)? else {
            return Ok(LevelOutcome::NoFile);
        };
        let located = |error: HieraError| document.locate(error, "");
        match &document.root {
            Value::Null => Ok(LevelOutcome::Data(Value::empty_map())),
            Value::Map(_) => {
                let expanded = self
                    .expander
                    .expand(&document.root, || format!("data file {name:?}"));
                expanded.map(LevelOutcome::Data).map_err(located)
            }
            other => Err(located(HieraError::DataFileRoot {
                file,
                found: other.kind(),
            })),
        }
    }
}

/// Rejects an unknown merge mode and overrides that are not maps, whether or not a level matches.
/// Upstream's schema of manifests does so; documents with data alone may contain both.
pub fn check_sections(document: &Value) -> Result<(), HieraError> {
    let section = document.get("hierarchy");
    if let Some(Merge::Unknown(mode)) = section.map(Merge::read).transpose()? {
        return Err(HieraError::Merge(mode));
    }
    let overrides = document.get("overrides").and_then(Value::as_map);
    for (level, data) in overrides.into_iter().flatten() {
        if !matches!(data, Value::Map(_) | Value::Null) {
            return Err(HieraError::Override {
                level: level.to_string(),
                found: data.kind(),
            });
        }
    }
    Ok(())
}

/// Returns the key of the base data.
pub(super) fn or_default(data_key: &str) -> &str {
    match data_key {
        "" => DATA_KEY,
        other => other,
    }
}

/// The `hierarchy` section.
struct Hierarchy<'a> {
    order: Vec<&'a str>,
    merge: Merge,
}

enum Merge {
    /// The first level with an override replaces top-level keys and ends the search.
    First,
    /// Every level with data is merged over the previous ones.
    Deep(MergeStrategies),
    /// Unsupported; reported only if a level matches.
    Unknown(String),
}

impl Merge {
    /// Returns the mode of a `hierarchy` section.
    fn read(section: &Value) -> Result<Self, HieraError> {
        let mode = match section.get("merge") {
            Some(Value::Map(keys)) => return MergeStrategies::read(keys).map(Self::Deep),
            mode => mode.and_then(Value::as_str).unwrap_or(""),
        };
        Ok(match mode.to_lowercase().as_str() {
            "" | "first" => Self::First,
            "deep" => Self::Deep(MergeStrategies::default()),
            other => Self::Unknown(other.into()),
        })
    }
}

impl<'a> Hierarchy<'a> {
    fn read(section: Option<&'a Value>) -> Result<Self, HieraError> {
        let Some(section) = section else {
            return Ok(Self {
                order: vec![DEFAULT_LEVEL],
                merge: Merge::First,
            });
        };
        let merge = Merge::read(section)?;
        let section = section.as_map().ok_or(HieraError::Hierarchy)?;
        let order = section.get("order").and_then(Value::as_list);
        let order = order.ok_or(HieraError::Order)?;
        let order: Option<Vec<_>> = order.iter().map(Value::as_str).collect();
        Ok(Self {
            order: order.ok_or(HieraError::OrderEntry)?,
            merge,
        })
    }
}

/// Expands texts with facts only.
struct Expander {
    env: Env,
    programs: Cache,
}

impl Expander {
    fn new(facts: &Facts) -> Self {
        Self {
            env: Env {
                facts: facts.clone(),
                data: Value::empty_map(),
                environ: Value::empty_map(),
                restricted: true,
                default_on_missing: true,
                ..Env::default()
            },
            programs: Cache::default(),
        }
    }

    /// Expands the texts of a section, which `name` names in errors.
    fn expand(&self, section: &Value, name: impl Fn() -> String) -> Result<Value, HieraError> {
        let section = normalize(section);
        expand::expand_value(&section, Nulls::Keep, &self.env, &self.programs).map_err(|cause| {
            HieraError::Expression {
                section: name(),
                cause,
            }
        })
    }

    /// Returns the level of an entry of the order; `None` if all facts in it are missing.
    fn level(&self, entry: &str) -> Result<Option<String>, HieraError> {
        expand::resolve_match(entry, &self.env, &self.programs)
            .map(|found| found.matched.then(|| found.text.into_owned()))
            .map_err(|cause| HieraError::Expression {
                section: format!("hierarchy.order {entry:?}"),
                cause,
            })
    }
}

/// Returns a value with integral floats converted to integers, as JSON does not distinguish them.
/// Unchanged parts are shared, not copied.
pub fn normalize(value: &Value) -> Value {
    normalized(value).unwrap_or_else(|| value.clone())
}

/// Returns the converted value, or `None` if nothing changes.
fn normalized(value: &Value) -> Option<Value> {
    match value {
        #[expect(clippy::cast_possible_truncation, reason = "only for what fits")]
        Value::Float(number) if number.fract() == 0.0 && fits_i64(*number) => {
            Some(Value::Int(*number as i64))
        }
        Value::List(list) => {
            let changed = |(at, item)| Some((at, normalized(item)?));
            let changes: Vec<_> = list.iter().enumerate().filter_map(changed).collect();
            (!changes.is_empty()).then(|| {
                let mut list = list.to_vec();
                for (at, item) in changes {
                    if let Some(slot) = list.get_mut(at) {
                        *slot = item;
                    }
                }
                list.into()
            })
        }
        Value::Map(map) => {
            let changes: Vec<_> = map
                .iter()
                .filter_map(|(key, item)| Some((key.clone(), normalized(item)?)))
                .collect();
            (!changes.is_empty()).then(|| {
                let mut map = Map::clone(map);
                map.extend(changes);
                map.into()
            })
        }
        _ => None,
    }
}

/// Reports whether a float is in the range of i64. Both bounds are exact powers of two.
fn fits_i64(number: f64) -> bool {
    (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&number)
}

/// Subtracts the size of a value from the budget; returns false if the budget is exceeded.
fn spend(value: &Value, budget: &mut usize) -> bool {
    let Some(left) = budget.checked_sub(1) else {
        return false;
    };
    *budget = left;
    match value {
        Value::List(list) => list.iter().all(|item| spend(item, budget)),
        Value::Map(map) => map.values().all(|item| spend(item, budget)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::document;

    fn data(text: &str) -> Value {
        document::parse(text).unwrap().to_value()
    }

    fn resolved(document: &str, facts: &str) -> Result<Value, HieraError> {
        resolve(&data(document), &Facts::Known(data(facts)), DATA_KEY)
    }

    fn error(document: &str) -> String {
        resolved(document, "{}").unwrap_err().to_string()
    }

    const LEVELS: &str = "
data: {log: info, pkgs: [a], web: {port: 80, tls: no}}
overrides:
  one: {pkgs: [b], web: {port: 81}}
  two: {log: ~, web: off}
";

    #[test]
    fn deep_merges_every_level_that_has_an_override() {
        let document = format!("hierarchy: {{order: [none, one, two], merge: Deep}}\n{LEVELS}");
        assert_eq!(
            resolved(&document, "{}").unwrap(),
            data("{log: ~, pkgs: [a, b], web: off}")
        );
    }

    #[test]
    fn first_stops_at_the_first_level_that_has_an_override() {
        let document = format!("hierarchy: {{order: [none, one, two]}}\n{LEVELS}");
        assert_eq!(
            resolved(&document, "{}").unwrap(),
            data("{log: info, pkgs: [b], web: {port: 81}}")
        );
    }

    #[test]
    fn the_level_with_the_key_of_the_base_data_is_skipped() {
        let document = "hierarchy: {order: [data]}\ndata: {a: 1}\noverrides: {data: {a: 2}}";
        assert_eq!(resolved(document, "{}").unwrap(), data("{a: 1}"));
        let document = "hierarchy: {order: [data]}\noverrides: {data: {a: 2}}";
        assert_eq!(resolved(document, "{}").unwrap(), data("{a: 2}"));
    }

    #[test]
    fn an_override_that_is_not_a_map_is_skipped() {
        let document = "hierarchy: {order: [a, b]}\noverrides: {a: 1, b: {x: 2}}";
        assert_eq!(resolved(document, "{}").unwrap(), data("{x: 2}"));
    }

    #[test]
    fn a_manifest_may_not_have_what_its_schema_excludes_even_if_no_level_matches() {
        let invalid = |text: &str| check_sections(&data(text)).unwrap_err().to_string();
        assert_eq!(
            invalid("hierarchy: {order: [default], merge: depp}\ndata: {a: 1}"),
            "unsupported merge mode: depp"
        );
        assert_eq!(
            invalid("overrides: {a: 5, b: {x: 2}}"),
            "overrides \"a\" must be a map, found a number"
        );
        for text in [
            "",
            "data: {a: 1}",
            "overrides: {a: {}, b: ~}\nhierarchy: {order: [], merge: Deep}",
        ] {
            check_sections(&data(text)).unwrap();
        }
    }

    #[test]
    fn empty_documents_data_and_overrides_give_an_empty_map() {
        for document in ["", "data:", "data: [1]", "overrides:\ndata: {}"] {
            assert_eq!(resolved(document, "{}").unwrap(), Value::empty_map());
        }
    }

    #[test]
    fn sections_of_the_wrong_type_are_reported() {
        assert_eq!(error("- a"), "root document must be a map, found a list");
        assert_eq!(error("hierarchy:"), "hierarchy section is required");
        assert_eq!(error("hierarchy: {}"), "hierarchy.order must be a list");
        assert_eq!(
            error("overrides: nope"),
            "overrides must be a map, found text"
        );
    }

    #[test]
    fn an_unknown_merge_mode_is_an_error_once_a_level_matches() {
        assert_eq!(
            error("hierarchy: {order: [x], merge: Middle}\noverrides: {x: {}}"),
            "unsupported merge mode: middle"
        );
    }

    #[test]
    fn a_merge_mode_that_is_not_text_means_first() {
        let document = "hierarchy: {order: [x, y], merge: 3}\noverrides: {x: {a: 1}, y: {b: 1}}";
        assert_eq!(resolved(document, "{}").unwrap(), data("{a: 1}"));
    }

    #[test]
    fn the_error_of_an_expression_names_its_section() {
        assert!(error("data: {a: '{{ nope() }}'}").starts_with("data: expr compile error"));
        assert!(
            error("hierarchy: {order: ['{{ 1 + }}']}")
                .starts_with("hierarchy.order \"{{ 1 + }}\": expr compile error")
        );
        assert!(
            error("overrides: {default: {a: '{{ nope }}'}}")
                .starts_with("overrides \"default\": expr compile error")
        );
    }

    #[test]
    fn expressions_have_access_to_facts_but_not_to_data() {
        let document = "data: {a: 1, b: '{{ Data.a }}', c: '{{ Facts.x }}'}";
        assert_eq!(
            resolved(document, "{x: [1]}").unwrap(),
            data("{a: 1, b: ~, c: [1]}")
        );
    }

    #[test]
    fn results_are_not_expanded_again() {
        let document = "data: {a: \"{{ lookup('facts.x') }}\"}";
        assert_eq!(
            resolved(document, "{x: '{{ 1 + 1 }}'}").unwrap(),
            data("{a: '{{ 1 + 1 }}'}")
        );
    }

    #[test]
    fn the_document_is_not_changed() {
        let document = data("data: {l: [1.0], s: '{{ 1 }}'}\noverrides: {default: {l: [2]}}");
        let before = document.clone();
        resolve(&document, &Facts::default(), "").unwrap();
        assert_eq!(document, before);
    }

    #[test]
    fn whole_floats_become_integers_when_they_fit() {
        let value = data("[1.0, -2.0, 1.5, 9223372036854775808.0, .inf, {a: [3.0]}]");
        assert_eq!(
            normalize(&value),
            data("[1, -2, 1.5, 9223372036854775808.0, .inf, {a: [3]}]")
        );
    }

    #[test]
    fn a_level_that_is_merged_too_often_is_an_error() {
        let order = vec!["a"; 20_000].join(",");
        let items = vec!["1"; 2_000].join(",");
        let document = format!(
            "hierarchy: {{order: [{order}], merge: deep}}\noverrides: {{a: {{l: [{items}]}}}}"
        );
        assert_eq!(
            error(&document),
            "the hierarchy merges too much data, at level \"a\""
        );
    }
}
