//! Picks and merges the parts of a document that the facts call for.
//!
//! Expressions here see facts and nothing else: data that depended on other data, files or
//! stores would depend on the order of merging. Where a document comes from is for `sources`;
//! what is laid over its data afterwards, for `layers`.

use crate::hiera::HieraError;
use crate::model::Value;
use crate::model::value::Map;
use ccm_template::Env;
use ccm_template::env::Facts;
use ccm_template::expand::{self, Nulls};
use ccm_template::expr::{Cache, ExprError};

/// The key that holds the base data unless a caller says otherwise.
pub const DATA_KEY: &str = "data";

/// The only level of a document without a hierarchy.
const DEFAULT_LEVEL: &str = "default";

/// How many values all merges of one document may touch. An order that names one level over and
/// over would otherwise concatenate its lists without end.
const MAX_MERGED: usize = 20_000_000;

/// Returns the data of a document under these facts. `data_key` names the base data; an empty
/// name means [`DATA_KEY`]. The document itself is never changed.
pub fn resolve(document: &Value, facts: &Facts, data_key: &str) -> Result<Value, HieraError> {
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
    let mut data = match base {
        Some(base) => expander
            .expand(base)
            .map_err(|cause| HieraError::Expression {
                place: data_key.into(),
                cause,
            })?,
        None => Value::empty_map(),
    };
    let mut budget = MAX_MERGED;
    for entry in &hierarchy.order {
        let level = expander.level(entry)?;
        let Some(level) = level.filter(|level| base.is_none() || level != data_key) else {
            continue;
        };
        let Some(over) = overrides.get(level.as_str()) else {
            continue;
        };
        if over.as_map().is_none() {
            continue;
        }
        let over = expander
            .expand(over)
            .map_err(|cause| HieraError::Expression {
                place: format!("overrides {level:?}"),
                cause,
            })?;
        match hierarchy.merge {
            Merge::First => return Ok(data.merge_shallow(&over)),
            Merge::Deep => {
                if !(spend(&data, &mut budget) && spend(&over, &mut budget)) {
                    return Err(HieraError::TooLarge { level });
                }
                data = data.merge_deep(&over);
            }
            Merge::Unknown(mode) => return Err(HieraError::Merge(mode)),
        }
    }
    Ok(data)
}

/// Returns the name of the base data.
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
    /// The first level that has an override replaces whole top keys, and ends the search.
    First,
    /// Every level that has an override is merged over the former ones.
    Deep,
    /// A mistake, but one that nobody notices before a level matches.
    Unknown(String),
}

impl<'a> Hierarchy<'a> {
    fn read(section: Option<&'a Value>) -> Result<Self, HieraError> {
        let Some(section) = section else {
            return Ok(Self {
                order: vec![DEFAULT_LEVEL],
                merge: Merge::First,
            });
        };
        let section = section.as_map().ok_or(HieraError::Hierarchy)?;
        let order = section.get("order").and_then(Value::as_list);
        let order = order.ok_or(HieraError::Order)?;
        let order: Option<Vec<_>> = order.iter().map(Value::as_str).collect();
        let merge = section.get("merge").and_then(Value::as_str).unwrap_or("");
        Ok(Self {
            order: order.ok_or(HieraError::OrderEntry)?,
            merge: match merge.to_lowercase().as_str() {
                "" | "first" => Merge::First,
                "deep" => Merge::Deep,
                other => Merge::Unknown(other.into()),
            },
        })
    }
}

/// Expands texts in an environment of facts alone.
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

    fn expand(&self, section: &Value) -> Result<Value, ExprError> {
        let section = normalize(section);
        expand::expand_value(&section, Nulls::Keep, &self.env, &self.programs)
    }

    /// Returns the level an entry stands for, unless the facts it asks for are all missing.
    fn level(&self, entry: &str) -> Result<Option<String>, HieraError> {
        expand::resolve_match(entry, &self.env, &self.programs)
            .map(|found| found.matched.then(|| found.text.into_owned()))
            .map_err(|cause| HieraError::Expression {
                place: format!("hierarchy.order {entry:?}"),
                cause,
            })
    }
}

/// Returns a value with whole floats as integers: JSON knows only floats, and a port is no float.
/// Parts without any are shared, not copied.
pub fn normalize(value: &Value) -> Value {
    normalized(value).unwrap_or_else(|| value.clone())
}

/// Returns what became of a value, or nothing when it stays as it is.
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
                    if let Some(place) = list.get_mut(at) {
                        *place = item;
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

/// Both bounds are powers of two, which floats hold exactly.
fn fits_i64(number: f64) -> bool {
    (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&number)
}

/// Takes the size of a value from a budget; tells whether it was enough.
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
    fn the_level_named_like_the_base_data_is_passed_over() {
        let document = "hierarchy: {order: [data]}\ndata: {a: 1}\noverrides: {data: {a: 2}}";
        assert_eq!(resolved(document, "{}").unwrap(), data("{a: 1}"));
        let document = "hierarchy: {order: [data]}\noverrides: {data: {a: 2}}";
        assert_eq!(resolved(document, "{}").unwrap(), data("{a: 2}"));
    }

    #[test]
    fn an_override_that_is_no_map_is_passed_over() {
        let document = "hierarchy: {order: [a, b]}\noverrides: {a: 1, b: {x: 2}}";
        assert_eq!(resolved(document, "{}").unwrap(), data("{x: 2}"));
    }

    #[test]
    fn empty_documents_data_and_overrides_give_an_empty_map() {
        for document in ["", "data:", "data: [1]", "overrides:\ndata: {}"] {
            assert_eq!(resolved(document, "{}").unwrap(), Value::empty_map());
        }
    }

    #[test]
    fn sections_of_the_wrong_kind_are_named() {
        assert_eq!(
            error("- a"),
            "root document must be a map, found a sequence"
        );
        assert_eq!(error("hierarchy:"), "hierarchy section is required");
        assert_eq!(error("hierarchy: {}"), "hierarchy.order must be a list");
        assert_eq!(
            error("overrides: nope"),
            "overrides must be a map, found a string"
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
    fn a_merge_mode_that_is_no_text_means_first() {
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
    fn expressions_see_facts_and_no_data() {
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
    fn the_document_is_left_as_it_was() {
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
    fn a_level_merged_too_often_is_refused() {
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
