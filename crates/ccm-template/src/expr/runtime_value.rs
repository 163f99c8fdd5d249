//! Run-time values: plain data, plus types that exist only during evaluation.
//!
//! Times, durations and maps with non-text keys are converted to a plain [`Value`] at the end.
//! Lists built by an expression store their nesting depth, so that no loop can build one too deep
//! to print or drop.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;

use super::budget::Budget;
use crate::CallError;
use crate::go_names::go_type;
use crate::time::{Month, Time, Weekday, Zone, duration};
use ccm_value::Value;
use ccm_value::value::{Map, go_float};

/// Maximum nesting of a list built by an expression.
const MAX_NESTING: u32 = 500;

/// A value during evaluation.
#[derive(Clone, Debug)]
pub(super) enum Val {
    Plain(Value),
    /// A part of the facts; its maps also accept Go field names.
    Fact(Value),
    /// All facts; gathered only when more than one section is used.
    Facts,
    Environ,
    /// `$env`.
    Env,
    Time(Time),
    /// Nanoseconds.
    Duration(i64),
    Zone(Zone),
    Month(Month),
    Weekday(Weekday),
    List(Arc<List>),
    Dict(Arc<Dict>),
}

/// A list built by an expression.
#[derive(Debug)]
pub(super) struct List {
    pub(super) items: Vec<Val>,
    nesting: u32,
}

/// A map built by an expression.
#[derive(Debug)]
pub(super) struct Dict {
    pub(super) entries: BTreeMap<Key, Val>,
    /// Value of missing keys.
    pub(super) missing: Val,
    nesting: u32,
}

/// Key of a map built by an expression, sorted in the order in which Go prints maps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Null,
    Int(i64),
    Uint(u64),
    /// The bits of a float, transformed so that they sort like the number.
    Float(u64),
    Bool(bool),
    Text(Arc<str>),
    /// Any other comparable value, by its type and printed form.
    Other(&'static str, Arc<str>),
}

/// Error without a position; the caller adds it.
pub(super) type Reason = CallError;

pub(super) const MEMORY: &str = "memory budget exceeded";

impl Val {
    pub(super) const NULL: Self = Self::Plain(Value::Null);

    /// Returns the value if it is plain data.
    pub(super) fn plain(&self) -> Option<&Value> {
        match self {
            Self::Plain(value) | Self::Fact(value) => Some(value),
            _ => None,
        }
    }

    pub(super) fn is_null(&self) -> bool {
        self.plain().is_some_and(Value::is_null)
    }

    /// Creates a list; fails if it nests too deep.
    pub(super) fn list(items: Vec<Val>) -> Result<Self, Reason> {
        let nesting = nesting_of(items.iter())?;
        Ok(Self::List(Arc::new(List { items, nesting })))
    }

    /// Creates a map; fails if it nests too deep.
    pub(super) fn dict(entries: BTreeMap<Key, Val>) -> Result<Self, Reason> {
        Self::dict_with_default(entries, Self::NULL)
    }

    /// Creates a map of lists in which a missing key has an empty list.
    pub(super) fn groups(entries: BTreeMap<Key, Val>) -> Result<Self, Reason> {
        Self::dict_with_default(entries, Self::list(Vec::new())?)
    }

    fn dict_with_default(entries: BTreeMap<Key, Val>, missing: Val) -> Result<Self, Reason> {
        let nesting = nesting_of(entries.values())?;
        Ok(Self::Dict(Arc::new(Dict {
            entries,
            missing,
            nesting,
        })))
    }

    fn nesting(&self) -> u32 {
        match self {
            Self::List(list) => list.nesting,
            Self::Dict(dict) => dict.nesting,
            _ => 0,
        }
    }

    /// Returns the Go type name, used in error messages.
    pub(super) fn go_type(&self) -> &'static str {
        match self {
            Self::Plain(Value::Null) | Self::Fact(Value::Null) => "<nil>",
            Self::Plain(value) | Self::Fact(value) => go_type(value),
            Self::Facts => "map[string]interface {}",
            Self::Environ => "map[string]string",
            Self::Env => "environment",
            Self::Time(_) => "time.Time",
            Self::Duration(_) => "time.Duration",
            Self::Zone(_) => "*time.Location",
            Self::Month(_) => "time.Month",
            Self::Weekday(_) => "time.Weekday",
            Self::List(_) => "[]interface {}",
            Self::Dict(dict) => {
                if dict.is_text_keyed() {
                    "map[string]interface {}"
                } else {
                    "map[interface {}]interface {}"
                }
            }
        }
    }

    /// Returns the result of the `type` built-in.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Plain(value) | Self::Fact(value) => match value {
                Value::Null => "nil",
                Value::Bool(_) => "bool",
                Value::Int(_) => "int",
                Value::Uint(_) => "uint",
                Value::Float(_) => "float",
                Value::Str(_) => "string",
                Value::List(_) => "array",
                Value::Map(_) => "map",
            },
            Self::Facts | Self::Environ | Self::Dict(_) => "map",
            Self::Env => "struct",
            Self::List(_) => "array",
            Self::Time(_) => "time.Time",
            Self::Duration(_) => "time.Duration",
            Self::Zone(_) => "time.Location",
            Self::Month(_) => "time.Month",
            Self::Weekday(_) => "time.Weekday",
        }
    }

    /// Returns the text, or an error if this is not text.
    pub(super) fn text(&self) -> Result<&Arc<str>, Reason> {
        match self.plain() {
            Some(Value::Str(text)) => Ok(text),
            _ => Err(self.is_not("string")),
        }
    }

    /// Returns the boolean, or an error if this is not one.
    pub(super) fn bool(&self) -> Result<bool, Reason> {
        match self.plain() {
            Some(Value::Bool(value)) => Ok(*value),
            _ => Err(self.is_not("bool")),
        }
    }

    fn is_not(&self, wanted: &str) -> Reason {
        let found = if self.is_null() {
            "nil"
        } else {
            self.go_type()
        };
        format!("interface conversion: interface {{}} is {found}, not {wanted}").into()
    }

    /// Converts a number to an integer, truncating fractions.
    pub(super) fn int(&self) -> Result<i64, Reason> {
        match self.plain() {
            Some(Value::Int(value)) => Ok(*value),
            #[expect(clippy::cast_possible_wrap, reason = "Go wraps here too")]
            Some(Value::Uint(value)) => Ok(*value as i64),
            #[expect(clippy::cast_possible_truncation, reason = "saturates")]
            Some(Value::Float(value)) => Ok(*value as i64),
            _ => Err(format!("invalid operation: int({})", self.go_type()).into()),
        }
    }

    /// Converts a number to a float.
    pub(super) fn float(&self) -> Result<f64, Reason> {
        match self.number() {
            Some(number) => Ok(number.float()),
            None => Err(format!("invalid operation: float({})", self.go_type()).into()),
        }
    }

    pub(super) fn number(&self) -> Option<Number> {
        match self.plain()? {
            Value::Int(value) => Some(Number::Int(i128::from(*value))),
            Value::Uint(value) => Some(Number::Int(i128::from(*value))),
            Value::Float(value) => Some(Number::Float(*value)),
            _ => None,
        }
    }

    /// Returns the length of a list; `None` for other values.
    pub(super) fn list_len(&self) -> Option<usize> {
        match self {
            Self::List(list) => Some(list.items.len()),
            _ => self.plain()?.as_list().map(<[Value]>::len),
        }
    }

    /// Returns one item of a list. Items of facts stay facts.
    pub(super) fn item(&self, index: usize) -> Option<Val> {
        match self {
            Self::List(list) => list.items.get(index).cloned(),
            Self::Fact(value) => value.as_list()?.get(index).cloned().map(Self::Fact),
            _ => self
                .plain()?
                .as_list()?
                .get(index)
                .cloned()
                .map(Self::Plain),
        }
    }

    /// Returns all items of a list.
    pub(super) fn items(&self) -> Option<Vec<Val>> {
        let len = self.list_len()?;
        Some((0..len).filter_map(|index| self.item(index)).collect())
    }

    /// Converts to plain data, for the result of the expression.
    pub(super) fn into_value(self, budget: &mut Budget<'_>) -> Result<Value, Reason> {
        match self {
            Self::Plain(value) | Self::Fact(value) => Ok(value),
            Self::Facts => Ok(budget.facts()),
            Self::Environ => Ok(budget.environ()),
            Self::Env => Ok(budget.env_value()),
            Self::Time(time) => Ok(time.to_string().into()),
            Self::Duration(nanos) => Ok(duration::print(nanos).into()),
            Self::Zone(zone) => Ok(zone.to_string().into()),
            Self::Month(month) => Ok(month.to_string().into()),
            Self::Weekday(day) => Ok(day.to_string().into()),
            Self::List(list) => {
                budget.charge_steps(list.items.len())?;
                list.items
                    .iter()
                    .map(|item| item.clone().into_value(budget))
                    .collect::<Result<Vec<_>, _>>()
                    .map(Value::from)
            }
            Self::Dict(dict) => {
                budget.charge_steps(dict.entries.len())?;
                let mut map = Map::new();
                for (key, value) in &dict.entries {
                    map.insert(key.text(), value.clone().into_value(budget)?);
                }
                Ok(map.into())
            }
        }
    }
}

fn nesting_of<'a>(items: impl Iterator<Item = &'a Val>) -> Result<u32, Reason> {
    let nesting = items.map(Val::nesting).max().unwrap_or(0) + 1;
    if nesting > MAX_NESTING {
        Err("recursion depth exceeded".into())
    } else {
        Ok(nesting)
    }
}

impl Dict {
    pub(super) fn is_text_keyed(&self) -> bool {
        self.entries.keys().all(|key| matches!(key, Key::Text(_)))
    }
}

impl Key {
    /// Converts a value to a key; `None` for lists and maps.
    pub(super) fn new(value: &Val) -> Option<Self> {
        Some(match value {
            Val::Plain(value) | Val::Fact(value) => match value {
                Value::Null => Self::Null,
                Value::Bool(value) => Self::Bool(*value),
                Value::Int(value) => Self::Int(*value),
                Value::Uint(value) => Self::Uint(*value),
                Value::Float(value) => Self::Float(sortable_bits(*value)),
                Value::Str(text) => Self::Text(text.clone()),
                Value::List(_) | Value::Map(_) => return None,
            },
            Val::Time(_) | Val::Duration(_) | Val::Zone(_) | Val::Month(_) | Val::Weekday(_) => {
                Self::Other(value.go_type(), value.to_string().into())
            }
            _ => return None,
        })
    }

    /// Returns the key as text, for a map with text keys.
    pub(super) fn text(&self) -> Arc<str> {
        match self {
            Self::Null => "<nil>".into(),
            Self::Bool(value) => value.to_string().into(),
            Self::Int(value) => value.to_string().into(),
            Self::Uint(value) => value.to_string().into(),
            Self::Float(bits) => go_float(from_sortable_bits(*bits)).into(),
            Self::Text(text) | Self::Other(_, text) => text.clone(),
        }
    }

    /// Converts the key back to a value.
    pub(super) fn value(&self) -> Val {
        Val::Plain(match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(value) => Value::Int(*value),
            Self::Uint(value) => Value::Uint(*value),
            Self::Float(bits) => Value::Float(from_sortable_bits(*bits)),
            Self::Text(text) | Self::Other(_, text) => Value::Str(text.clone()),
        })
    }
}

fn sortable_bits(value: f64) -> u64 {
    let bits = value.to_bits();
    if value.is_sign_negative() {
        !bits
    } else {
        bits | (1 << 63)
    }
}

fn from_sortable_bits(bits: u64) -> f64 {
    f64::from_bits(match bits >> 63 {
        1 => bits & !(1 << 63),
        _ => !bits,
    })
}

/// A number in arithmetic.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    #[expect(
        clippy::cast_precision_loss,
        reason = "same loss of precision as in Go"
    )]
    pub(super) fn float(self) -> f64 {
        match self {
            Self::Int(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    /// Converts to a value; integers wrap as in Go.
    #[expect(clippy::cast_possible_truncation, reason = "Go wraps on overflow")]
    pub(super) fn val(self) -> Val {
        Val::Plain(match self {
            Self::Int(value) => Value::Int(value as i64),
            Self::Float(value) => Value::Float(value),
        })
    }
}

/// Prints as Go's `%v`. The maps of the environment are printed by [`Budget::print`].
impl fmt::Display for Val {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(value) | Self::Fact(value) => value.fmt(out),
            Self::Facts | Self::Environ | Self::Env => out.write_str(self.go_type()),
            Self::Time(time) => time.fmt(out),
            Self::Duration(nanos) => out.write_str(&duration::print(*nanos)),
            Self::Zone(zone) => zone.fmt(out),
            Self::Month(month) => month.fmt(out),
            Self::Weekday(day) => day.fmt(out),
            Self::List(list) => {
                out.write_char('[')?;
                for (index, item) in list.items.iter().enumerate() {
                    if index > 0 {
                        out.write_char(' ')?;
                    }
                    item.fmt(out)?;
                }
                out.write_char(']')
            }
            Self::Dict(dict) => {
                out.write_str("map[")?;
                for (index, (key, item)) in dict.entries.iter().enumerate() {
                    if index > 0 {
                        out.write_char(' ')?;
                    }
                    write!(out, "{}:{item}", key.text())?;
                }
                out.write_char(']')
            }
        }
    }
}

impl From<bool> for Val {
    fn from(value: bool) -> Self {
        Self::Plain(value.into())
    }
}

impl From<i64> for Val {
    fn from(value: i64) -> Self {
        Self::Plain(value.into())
    }
}

impl From<f64> for Val {
    fn from(value: f64) -> Self {
        Self::Plain(value.into())
    }
}

impl From<&str> for Val {
    fn from(text: &str) -> Self {
        Self::Plain(text.into())
    }
}

impl From<String> for Val {
    fn from(text: String) -> Self {
        Self::Plain(text.into())
    }
}

/// Converts a length to a value.
pub(super) fn count(len: usize) -> Val {
    Val::from(i64::try_from(len).unwrap_or(i64::MAX))
}
