//! The value type of data, facts and all template engines.
//!
//! Maps are sorted by key, so that iteration and output are deterministic. Lists, maps and text are
//! reference-counted, so cloning is cheap. Printing follows Go's `%v`, which is the format of
//! interpolated values.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A map of values, sorted by key.
pub type Map = BTreeMap<Arc<str>, Value>;

/// Plain data of YAML and JSON documents.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    #[default]
    Null,
    Bool(bool),
    Int(i64),
    /// Only for integers above `i64::MAX`.
    Uint(u64),
    Float(f64),
    Str(Arc<str>),
    List(Arc<Vec<Value>>),
    Map(Arc<Map>),
}

impl Value {
    /// Returns an empty map.
    pub fn empty_map() -> Self {
        Self::Map(Arc::default())
    }

    /// Returns the entry of a map; `None` for other values.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.as_map()?.get(key)
    }

    pub fn as_map(&self) -> Option<&Map> {
        match self {
            Self::Map(map) => Some(map),
            _ => None,
        }
    }

    pub fn as_list(&self) -> Option<&[Value]> {
        match self {
            Self::List(list) => Some(list),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Returns the name of the value's type, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "boolean",
            Self::Int(_) | Self::Uint(_) => "integer",
            Self::Float(_) => "number",
            Self::Str(_) => "string",
            Self::List(_) => "sequence",
            Self::Map(_) => "mapping",
        }
    }

    /// Merges `over` into a copy of `self`: maps are merged recursively, lists are concatenated,
    /// anything else (null included) is replaced.
    pub fn merge_deep(&self, over: &Value) -> Value {
        match (self, over) {
            (Self::Map(base), Self::Map(over)) => {
                let mut merged = Map::clone(base);
                for (key, value) in over.iter() {
                    let value = match merged.get(key) {
                        Some(old) => old.merge_deep(value),
                        None => value.clone(),
                    };
                    merged.insert(key.clone(), value);
                }
                merged.into()
            }
            (Self::List(base), Self::List(over)) => {
                base.iter().chain(over.iter()).cloned().collect()
            }
            _ => over.clone(),
        }
    }

    /// Merges `over` into a copy of `self`, replacing whole top-level keys.
    pub fn merge_shallow(&self, over: &Value) -> Value {
        match (self, over) {
            (Self::Map(base), Self::Map(over)) => {
                let mut merged = Map::clone(base);
                merged.extend(over.iter().map(|(key, value)| (key.clone(), value.clone())));
                merged.into()
            }
            _ => over.clone(),
        }
    }
}

/// Prints as Go's `%v`.
impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => out.write_str("<nil>"),
            Self::Bool(value) => write!(out, "{value}"),
            Self::Int(value) => write!(out, "{value}"),
            Self::Uint(value) => write!(out, "{value}"),
            Self::Float(value) => out.write_str(&go_float(*value)),
            Self::Str(text) => out.write_str(text),
            Self::List(list) => {
                out.write_str("[")?;
                for (index, item) in list.iter().enumerate() {
                    if index > 0 {
                        out.write_str(" ")?;
                    }
                    item.fmt(out)?;
                }
                out.write_str("]")
            }
            Self::Map(map) => {
                out.write_str("map[")?;
                for (index, (key, item)) in map.iter().enumerate() {
                    if index > 0 {
                        out.write_str(" ")?;
                    }
                    write!(out, "{key}:{item}")?;
                }
                out.write_str("]")
            }
        }
    }
}

/// Formats a float as Go's `%v`: shortest digits, exponent form below 1e-4 and from 1e6.
pub fn go_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        i64::try_from(value).map_or(Self::Uint(value), Self::Int)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Str(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Str(text.into())
    }
}

impl From<Vec<Value>> for Value {
    fn from(list: Vec<Value>) -> Self {
        Self::List(Arc::new(list))
    }
}

impl From<Map> for Value {
    fn from(map: Map) -> Self {
        Self::Map(Arc::new(map))
    }
}

impl FromIterator<Value> for Value {
    fn from_iter<I: IntoIterator<Item = Value>>(items: I) -> Self {
        Self::List(Arc::new(items.into_iter().collect()))
    }
}

impl<K: Into<Arc<str>>> FromIterator<(K, Value)> for Value {
    fn from_iter<I: IntoIterator<Item = (K, Value)>>(entries: I) -> Self {
        let map: Map = entries
            .into_iter()
            .map(|(key, value)| (key.into(), value))
            .collect();
        map.into()
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => to.serialize_unit(),
            Self::Bool(value) => to.serialize_bool(*value),
            Self::Int(value) => to.serialize_i64(*value),
            Self::Uint(value) => to.serialize_u64(*value),
            Self::Float(value) => to.serialize_f64(*value),
            Self::Str(text) => to.serialize_str(text),
            Self::List(list) => list.serialize(to),
            Self::Map(map) => map.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = seq.next_element()? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, value)) = entries.next_entry::<String, Value>()? {
            map.insert(key.into(), value);
        }
        Ok(map.into())
    }
}
