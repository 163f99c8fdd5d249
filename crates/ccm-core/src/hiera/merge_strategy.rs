//! Merge strategies: how the values of a key are combined when one level is merged over another.
//!
//! `hierarchy.merge` may be a mapping from keys to strategies, such as `{vhosts: replace}`. Keys that it
//! does not name are merged deeply, or as the key `*` says.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::annotations::KeyPath;
use super::error::HieraError;
use crate::model::Value;
use crate::model::value::Map;

/// Key of `hierarchy.merge` for all keys that it does not name.
const OTHER_KEYS: &str = "*";

/// How the value of a key is combined with that of a lower level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MergeStrategy {
    /// Mappings are merged, lists are concatenated, other values are replaced.
    #[default]
    Deep,
    /// The value is replaced as a whole.
    Replace,
}

impl MergeStrategy {
    fn parse(text: &str) -> Option<Self> {
        match text.to_lowercase().as_str() {
            "deep" => Some(Self::Deep),
            "replace" => Some(Self::Replace),
            _ => None,
        }
    }
}

impl fmt::Display for MergeStrategy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Deep => "deep",
            Self::Replace => "replace",
        })
    }
}

/// Merge strategies of keys; by default all are merged deeply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MergeStrategies {
    /// Strategy of keys without their own.
    default: MergeStrategy,
    keys: Node,
}

/// Strategies of one key and of the keys below it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Node {
    strategy: Option<MergeStrategy>,
    below: BTreeMap<Arc<str>, Node>,
}

impl MergeStrategies {
    /// Reads the mapping of a `hierarchy.merge`.
    pub(super) fn read(entries: &Map) -> Result<Self, HieraError> {
        let mut strategies = Self::default();
        for (key, value) in entries {
            let strategy = value.as_str().and_then(MergeStrategy::parse);
            let strategy = strategy.ok_or_else(|| HieraError::MergeStrategy {
                key: key.to_string(),
                found: value.to_string(),
            })?;
            if &**key == OTHER_KEYS {
                strategies.default = strategy;
                continue;
            }
            let Ok(path) = key.parse::<KeyPath>();
            let mut node = &mut strategies.keys;
            for name in path.keys() {
                node = node.below.entry(name.into()).or_default();
            }
            node.strategy = Some(strategy);
        }
        Ok(strategies)
    }

    /// Merges data over other data.
    pub fn merge(&self, base: &Value, over: &Value) -> Value {
        match (base, over) {
            (Value::Map(base), Value::Map(over)) => {
                merge_maps(base, over, Some(&self.keys), self.default)
            }
            _ => over.clone(),
        }
    }

    /// Returns the strategy of a key, and the key of `hierarchy.merge` that sets it, if any does.
    pub fn of(&self, path: &KeyPath) -> (MergeStrategy, Option<String>) {
        let mut found = (self.default, None);
        if self.default != MergeStrategy::default() {
            found.1 = Some(OTHER_KEYS.to_owned());
        }
        let mut node = &self.keys;
        let mut passed = Vec::new();
        for name in path.keys() {
            let Some(next) = node.below.get(name) else {
                break;
            };
            node = next;
            passed.push(Arc::from(name));
            if let Some(strategy) = node.strategy {
                found = (strategy, Some(KeyPath(passed.clone()).to_string()));
            }
            if found.0 == MergeStrategy::Replace {
                break;
            }
        }
        found
    }
}

fn merge_maps(base: &Map, over: &Map, node: Option<&Node>, inherited: MergeStrategy) -> Value {
    let mut merged = base.clone();
    for (key, value) in over {
        let node = node.and_then(|node| node.below.get(key));
        let value = match merged.get(key) {
            Some(old) => merge_values(old, value, node, inherited),
            None => value.clone(),
        };
        merged.insert(key.clone(), value);
    }
    merged.into()
}

fn merge_values(
    base: &Value,
    over: &Value,
    node: Option<&Node>,
    inherited: MergeStrategy,
) -> Value {
    let strategy = node.and_then(|node| node.strategy).unwrap_or(inherited);
    match (strategy, base, over) {
        (MergeStrategy::Deep, Value::Map(base), Value::Map(over)) => {
            merge_maps(base, over, node, strategy)
        }
        (MergeStrategy::Deep, Value::List(base), Value::List(over)) => {
            base.iter().chain(over.iter()).cloned().collect()
        }
        _ => over.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::document;

    fn data(text: &str) -> Value {
        document::parse(text).unwrap().to_value()
    }

    fn strategies(text: &str) -> MergeStrategies {
        MergeStrategies::read(data(text).as_map().unwrap()).unwrap()
    }

    const BASE: &str = "{vhosts: [dev], pkgs: [a], web: {ports: [80], tls: {min: 1}}}";
    const OVER: &str = "{vhosts: [prod], pkgs: [b], web: {ports: [443], tls: {max: 3}}}";

    fn merged(rules: &str) -> Value {
        strategies(rules).merge(&data(BASE), &data(OVER))
    }

    #[test]
    fn keys_without_a_strategy_are_merged_deeply() {
        assert_eq!(merged("{}"), data(BASE).merge_deep(&data(OVER)));
    }

    #[test]
    fn a_replaced_key_has_the_value_of_the_last_level_only() {
        assert_eq!(
            merged("{vhosts: replace}"),
            data("{vhosts: [prod], pkgs: [a, b], web: {ports: [80, 443], tls: {min: 1, max: 3}}}")
        );
    }

    #[test]
    fn a_path_names_a_key_below_others() {
        assert_eq!(
            merged("{web.ports: Replace}"),
            data("{vhosts: [dev, prod], pkgs: [a, b], web: {ports: [443], tls: {min: 1, max: 3}}}")
        );
    }

    #[test]
    fn an_asterisk_names_all_other_keys() {
        assert_eq!(
            merged("{'*': replace, web: deep}"),
            data("{vhosts: [prod], pkgs: [b], web: {ports: [80, 443], tls: {min: 1, max: 3}}}")
        );
    }

    #[test]
    fn an_unknown_strategy_names_its_key() {
        let entries = data("{vhosts: concat}");
        assert_eq!(
            MergeStrategies::read(entries.as_map().unwrap())
                .unwrap_err()
                .to_string(),
            "unsupported merge strategy of key \"vhosts\": concat"
        );
    }

    #[test]
    fn the_strategy_of_a_key_is_that_of_the_nearest_key_above_it() {
        let rules = strategies("{'*': replace, web: deep, web.ports: replace, db.hosts: deep}");
        let of = |path: &str| rules.of(&path.parse().unwrap());
        assert_eq!(of("web.tls.min"), (MergeStrategy::Deep, Some("web".into())));
        assert_eq!(
            of("web.ports"),
            (MergeStrategy::Replace, Some("web.ports".into()))
        );
        assert_eq!(of("x.y"), (MergeStrategy::Replace, Some("*".into())));
        assert_eq!(
            of("db.hosts"),
            (MergeStrategy::Replace, Some("*".into())),
            "a replaced key replaces all keys below it"
        );
        assert_eq!(
            strategies("{}").of(&"a".parse().unwrap()),
            (MergeStrategy::Deep, None)
        );
    }
}
