//! Explanation of a value: which level gave what, and how the levels were merged.

use serde::Serialize;

use super::annotations::KeyPath;
use super::hierarchy::{Level, LevelOutcome, ResolvedData};
use super::merge_strategy::{MergeStrategies, MergeStrategy};
use crate::model::Value;

/// How the value of a key came about.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    pub key: String,
    /// `first`, `deep` or `replace`.
    pub merge: String,
    /// Key of `hierarchy.merge` that sets the strategy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_key: Option<String>,
    /// Levels from the lowest to the highest.
    pub levels: Vec<LevelExplanation>,
    /// Merged value; absent if no level has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

/// Contribution of one level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LevelExplanation {
    /// Entry of the order as written, or the name of a layer.
    pub level: String,
    /// Name for the node's facts, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub effect: Effect,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Whether the value, or a part of it, is in the result.
    pub used: bool,
}

/// What a level does to the value of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Sets the value, which no lower level has.
    Sets,
    /// Adds to the mapping or list of lower levels.
    Adds,
    /// Replaces the value of lower levels.
    Replaces,
    /// Replaces a key above it, so that the value is gone.
    Removes,
    /// Matched, but has no value for the key.
    NoValue,
    /// The level did not match, for the reason that the name says.
    FactsMissing,
    NoOverride,
    NoFile,
    NotAMapping,
    IsBase,
    AfterFirst,
}

impl Effect {
    /// Returns the effect in words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Sets => "sets the value",
            Self::Adds => "adds to the value",
            Self::Replaces => "replaces the value",
            Self::Removes => "replaces a key above it, without this value",
            Self::NoValue => "has no value for the key",
            Self::FactsMissing => "does not match: its facts are missing or empty",
            Self::NoOverride => "does not match: no override of this name",
            Self::NoFile => "does not match: no file of this name",
            Self::NotAMapping => "does not match: the override is not a mapping",
            Self::IsBase => "does not match: it is the name of the base data",
            Self::AfterFirst => "does not match: an earlier level matched, and merge is first",
        }
    }
}

/// Explains the value of a key in the data of a document with further layers over it, each with its name.
pub fn explain(document: &ResolvedData, layers: &[(String, Value)], key: &KeyPath) -> Explanation {
    let (strategy, merge_key) = document.strategies.of(key);
    let mut merged = Merged {
        key,
        strategies: &document.strategies,
        data: Value::empty_map(),
        levels: Vec::new(),
    };
    for (
        index,
        Level {
            entry,
            name,
            outcome,
        },
    ) in document.trace.iter().enumerate()
    {
        let is_shallow = document.is_first && index > 0;
        let effect = match outcome {
            LevelOutcome::Data(over) => {
                merged.add(entry, name, over, is_shallow);
                continue;
            }
            LevelOutcome::FactsMissing => Effect::FactsMissing,
            LevelOutcome::NoOverride => Effect::NoOverride,
            LevelOutcome::NoFile => Effect::NoFile,
            LevelOutcome::NotAMapping => Effect::NotAMapping,
            LevelOutcome::IsBase => Effect::IsBase,
            LevelOutcome::AfterFirst => Effect::AfterFirst,
        };
        merged.push(entry, name, effect, None);
    }
    for (name, over) in layers {
        merged.add(name, name, over, false);
    }
    Explanation {
        key: key.to_string(),
        merge: match document.is_first {
            true => "first".into(),
            false => strategy.to_string(),
        },
        merge_key,
        value: key.find(&merged.data).cloned(),
        levels: merged.levels,
    }
}

/// Levels merged so far.
struct Merged<'a> {
    key: &'a KeyPath,
    strategies: &'a MergeStrategies,
    data: Value,
    levels: Vec<LevelExplanation>,
}

impl Merged<'_> {
    /// Merges a level with data; a shallow one replaces whole top-level keys.
    fn add(&mut self, entry: &str, name: &str, over: &Value, is_shallow: bool) {
        let effect = self.effect(over, is_shallow);
        if matches!(effect, Effect::Replaces | Effect::Removes) {
            for level in &mut self.levels {
                level.used = false;
            }
        }
        self.data = match is_shallow {
            true => self.data.merge_shallow(over),
            false => self.strategies.merge(&self.data, over),
        };
        let value = self.key.find(over).cloned();
        self.push(entry, name, effect, value);
    }

    fn push(&mut self, entry: &str, name: &str, effect: Effect, value: Option<Value>) {
        self.levels.push(LevelExplanation {
            level: entry.into(),
            name: (entry != name).then(|| name.into()),
            effect,
            used: value.is_some(),
            value,
        });
    }

    fn effect(&self, over: &Value, is_shallow: bool) -> Effect {
        let had_value = self.key.find(&self.data).is_some();
        let has_value = self.key.find(over).is_some();
        match (had_value, has_value) {
            (false, false) => Effect::NoValue,
            (false, true) => Effect::Sets,
            (true, _) if self.is_replaced(over, is_shallow) => match has_value {
                true => Effect::Replaces,
                false => Effect::Removes,
            },
            (true, true) => Effect::Adds,
            (true, false) => Effect::NoValue,
        }
    }

    /// Reports whether a level replaces the key or one above it.
    fn is_replaced(&self, over: &Value, is_shallow: bool) -> bool {
        let (mut base, mut over) = (&self.data, over);
        let mut above = KeyPath(Vec::new());
        for key in self.key.keys() {
            let (Some(old), Some(new)) = (base.get(key), over.get(key)) else {
                return false;
            };
            above.0.push(key.into());
            let is_mergeable = matches!(
                (old, new),
                (Value::Map(_), Value::Map(_)) | (Value::List(_), Value::List(_))
            );
            let (strategy, _) = self.strategies.of(&above);
            if is_shallow || !is_mergeable || strategy == MergeStrategy::Replace {
                return true;
            }
            (base, over) = (old, new);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hiera::{DATA_KEY, no_data_files, resolve_levels};
    use crate::model::document;
    use ccm_template::env::Facts;

    fn data(text: &str) -> Value {
        document::parse(text).unwrap().to_value()
    }

    fn explained(text: &str, layers: &[(&str, &str)], key: &str) -> Explanation {
        let facts = Facts::Known(data("{env: prod}"));
        let document = resolve_levels(&data(text), &facts, DATA_KEY, &no_data_files).unwrap();
        let layers: Vec<_> = layers
            .iter()
            .map(|(name, text)| ((*name).to_owned(), data(text)))
            .collect();
        explain(&document, &layers, &key.parse().unwrap())
    }

    /// Returns the levels as `name effect`, those in the result with a star.
    fn levels(explanation: &Explanation) -> Vec<String> {
        let shown = |it: &LevelExplanation| {
            let mark = if it.used { "*" } else { "" };
            format!(
                "{}{mark} {:?}",
                it.name.as_ref().unwrap_or(&it.level),
                it.effect
            )
        };
        explanation.levels.iter().map(shown).collect()
    }

    const DOCUMENT: &str = "
hierarchy:
  order: ['env:{{ Facts.env }}', 'role:{{ Facts.role }}', 'site.yaml', none, data]
  merge: {vhosts: replace}
data: {vhosts: [dev], pkgs: [a], web: {port: 80}}
overrides:
  env:prod: {vhosts: [prod], pkgs: [b], web: {tls: yes}}
";

    #[test]
    fn every_level_says_what_it_did() {
        let found = explained(DOCUMENT, &[("--data", "{pkgs: [c]}")], "pkgs");
        assert_eq!(
            levels(&found),
            [
                "data* Sets",
                "env:prod* Adds",
                "role:{{ Facts.role }} FactsMissing",
                "site.yaml NoFile",
                "none NoOverride",
                "data IsBase",
                "--data* Adds",
            ]
        );
        assert_eq!((found.merge.as_str(), found.merge_key), ("deep", None));
        assert_eq!(found.value, Some(data("[a, b, c]")));
    }

    #[test]
    fn a_replaced_value_is_not_used() {
        let found = explained(DOCUMENT, &[], "vhosts");
        assert_eq!(levels(&found)[..2], ["data Sets", "env:prod* Replaces"]);
        assert_eq!(found.merge_key.as_deref(), Some("vhosts"));
        assert_eq!(found.value, Some(data("[prod]")));
    }

    #[test]
    fn a_value_below_a_replaced_key_is_removed() {
        let found = explained(DOCUMENT, &[("--data", "{web: off}")], "web.port");
        assert_eq!(levels(&found)[0], "data Sets");
        assert_eq!(levels(&found)[6], "--data Removes");
        assert_eq!(found.value, None);
    }

    #[test]
    fn the_first_level_replaces_whole_keys() {
        let text = "
hierarchy: {order: [a, b]}
data: {web: {port: 80}}
overrides: {a: {web: {tls: yes}}, b: {web: {port: 81}}}
";
        let found = explained(text, &[], "web.port");
        assert_eq!(levels(&found), ["data Sets", "a Removes", "b AfterFirst"]);
        assert_eq!((found.merge.as_str(), found.value), ("first", None));
    }
}
