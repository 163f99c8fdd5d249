//! Run-time values of Go templates.
//!
//! Plain data ([`Value`]) is converted to a [`Datum`], which keeps Go's types apart: `int` and
//! `int64`, `[]string` and `[]interface {}`. Dicts are shared and mutable, so `set` changes every
//! reference to a dict; lists are immutable.
//!
//! Recursive operations are counted by the [`Meter`] and stop at [`MAX_DEPTH`], because a template
//! can build values far larger or deeper than its own text.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use super::limits::Meter;
use super::version::Version;
use crate::CallError;
use crate::time::Time;
use ccm_value::Value;
use ccm_value::value::go_float;

/// Maximum nesting of lists and dicts in recursive operations.
const MAX_DEPTH: usize = 100;

/// Entries of a dict, sorted by key.
pub(super) type Entries = BTreeMap<Arc<str>, Datum>;

/// A run-time value.
#[derive(Clone, Debug, Default)]
pub(super) enum Datum {
    #[default]
    Nil,
    Bool(bool),
    /// Go's `int`: literals, lengths, plain data.
    Int(i64),
    /// Go's `int64`: results of sprig's arithmetic.
    Int64(i64),
    Uint(u64),
    Float(f64),
    Str(Arc<str>),
    List(Rc<List>),
    Dict(Rc<Dict>),
    Time(Time),
    Version(Rc<Version>),
}

/// Go's element type of a list or dict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    Any,
    Text,
    Int,
    Lists,
}

impl Element {
    fn type_name(self) -> &'static str {
        match self {
            Self::Any => "interface {}",
            Self::Text => "string",
            Self::Int => "int",
            Self::Lists => "[]interface {}",
        }
    }
}

#[derive(Debug)]
pub(super) struct List {
    pub of: Element,
    pub items: Vec<Datum>,
}

#[derive(Debug)]
pub(super) struct Dict {
    pub of: Element,
    pub entries: RefCell<Entries>,
}

impl Datum {
    /// Converts plain data; integers become Go's `int`.
    pub(super) fn from_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::Nil,
            Value::Bool(value) => Self::Bool(*value),
            Value::Int(value) => Self::Int(*value),
            Value::Uint(value) => Self::Uint(*value),
            Value::Float(value) => Self::Float(*value),
            Value::Str(text) => Self::Str(text.clone()),
            Value::List(list) => Self::list(list.iter().map(Self::from_value).collect()),
            Value::Map(map) => Self::dict(
                map.iter()
                    .map(|(key, value)| (key.clone(), Self::from_value(value)))
                    .collect(),
            ),
        }
    }

    /// Converts to plain data; times and versions become text.
    pub(super) fn to_value(&self, meter: &Meter) -> Result<Value, CallError> {
        self.to_value_at(meter, 0)
    }

    fn to_value_at(&self, meter: &Meter, level: usize) -> Result<Value, CallError> {
        step(meter, level)?;
        Ok(match self {
            Self::Nil => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(value) | Self::Int64(value) => Value::Int(*value),
            Self::Uint(value) => Value::from(*value),
            Self::Float(value) => Value::Float(*value),
            Self::Str(text) => Value::Str(text.clone()),
            Self::List(list) => list
                .items
                .iter()
                .map(|item| item.to_value_at(meter, level + 1))
                .collect::<Result<_, _>>()?,
            Self::Dict(dict) => {
                let mut pairs = Vec::new();
                for (key, item) in dict.entries.borrow().iter() {
                    pairs.push((key.clone(), item.to_value_at(meter, level + 1)?));
                }
                pairs.into_iter().collect()
            }
            Self::Time(time) => time.rfc3339().into(),
            Self::Version(version) => version.to_string().into(),
        })
    }

    pub(super) fn text(text: impl Into<Arc<str>>) -> Self {
        Self::Str(text.into())
    }

    pub(super) fn list(items: Vec<Datum>) -> Self {
        Self::list_of(Element::Any, items)
    }

    pub(super) fn list_of(of: Element, items: Vec<Datum>) -> Self {
        Self::List(Rc::new(List { of, items }))
    }

    pub(super) fn strings<T: Into<Arc<str>>>(items: impl IntoIterator<Item = T>) -> Self {
        Self::list_of(Element::Text, items.into_iter().map(Self::text).collect())
    }

    pub(super) fn dict(entries: Entries) -> Self {
        Self::dict_of(Element::Any, entries)
    }

    pub(super) fn dict_of(of: Element, entries: Entries) -> Self {
        let entries = RefCell::new(entries);
        Self::Dict(Rc::new(Dict { of, entries }))
    }

    /// Returns whether the value counts as true in `if`.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Nil => false,
            Self::Bool(value) => *value,
            Self::Int(value) | Self::Int64(value) => *value != 0,
            Self::Uint(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Str(text) => !text.is_empty(),
            Self::List(list) => !list.items.is_empty(),
            Self::Dict(dict) => !dict.entries.borrow().is_empty(),
            Self::Time(_) | Self::Version(_) => true,
        }
    }

    /// Returns the type name, as Go's `%T` prints it.
    pub(super) fn type_name(&self) -> String {
        match self {
            Self::Nil => "<nil>".into(),
            Self::Bool(_) => "bool".into(),
            Self::Int(_) => "int".into(),
            Self::Int64(_) => "int64".into(),
            Self::Uint(_) => "uint64".into(),
            Self::Float(_) => "float64".into(),
            Self::Str(_) => "string".into(),
            Self::List(list) => format!("[]{}", list.of.type_name()),
            Self::Dict(dict) => format!("map[string]{}", dict.of.type_name()),
            Self::Time(_) => "time.Time".into(),
            Self::Version(_) => "*semver.Version".into(),
        }
    }

    /// Returns the name of Go's `reflect.Kind`.
    pub(super) fn kind_name(&self) -> &'static str {
        match self {
            Self::Nil => "invalid",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Int64(_) => "int64",
            Self::Uint(_) => "uint64",
            Self::Float(_) => "float64",
            Self::Str(_) => "string",
            Self::List(_) => "slice",
            Self::Dict(_) => "map",
            Self::Time(_) => "struct",
            Self::Version(_) => "ptr",
        }
    }

    /// Writes the value in the format of Go's `%v`.
    pub(super) fn print(&self, out: &mut String, meter: &Meter) -> Result<(), CallError> {
        self.print_at(out, meter, 0)
    }

    /// Returns the value in the format of Go's `%v`.
    pub(super) fn printed(&self, meter: &Meter) -> Result<String, CallError> {
        let mut out = String::new();
        self.print(&mut out, meter)?;
        Ok(out)
    }

    fn print_at(&self, out: &mut String, meter: &Meter, level: usize) -> Result<(), CallError> {
        step(meter, level)?;
        match self {
            Self::Nil => out.push_str("<nil>"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Int(value) | Self::Int64(value) => out.push_str(&value.to_string()),
            Self::Uint(value) => out.push_str(&value.to_string()),
            Self::Float(value) => out.push_str(&go_float(*value)),
            Self::Str(text) => {
                meter.spend(text.len())?;
                out.push_str(text);
            }
            Self::List(list) => {
                out.push('[');
                for (index, item) in list.items.iter().enumerate() {
                    if index > 0 {
                        out.push(' ');
                    }
                    item.print_at(out, meter, level + 1)?;
                }
                out.push(']');
            }
            Self::Dict(dict) => {
                out.push_str("map[");
                for (index, (key, item)) in dict.entries.borrow().iter().enumerate() {
                    if index > 0 {
                        out.push(' ');
                    }
                    meter.spend(key.len())?;
                    out.push_str(key);
                    out.push(':');
                    item.print_at(out, meter, level + 1)?;
                }
                out.push(']');
            }
            Self::Time(time) => out.push_str(&time.to_string()),
            Self::Version(version) => out.push_str(&version.to_string()),
        }
        Ok(())
    }

    /// Returns whether two values are equal by Go's `reflect.DeepEqual`, which compares types too.
    pub(super) fn deep_equal(&self, other: &Self, meter: &Meter) -> Result<bool, CallError> {
        self.deep_equal_at(other, meter, 0)
    }

    fn deep_equal_at(&self, other: &Self, meter: &Meter, level: usize) -> Result<bool, CallError> {
        step(meter, level)?;
        Ok(match (self, other) {
            (Self::Nil, Self::Nil) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Int(a), Self::Int(b)) | (Self::Int64(a), Self::Int64(b)) => a == b,
            (Self::Uint(a), Self::Uint(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a == b,
            (Self::Str(a), Self::Str(b)) => a == b,
            (Self::List(a), Self::List(b)) => {
                if a.of != b.of || a.items.len() != b.items.len() {
                    return Ok(false);
                }
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.deep_equal_at(b, meter, level + 1)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Dict(a), Self::Dict(b)) => {
                let (a_entries, b_entries) = (a.entries.borrow(), b.entries.borrow());
                if a.of != b.of || a_entries.len() != b_entries.len() {
                    return Ok(false);
                }
                for ((a_key, a), (b_key, b)) in a_entries.iter().zip(b_entries.iter()) {
                    if a_key != b_key || !a.deep_equal_at(b, meter, level + 1)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Time(a), Self::Time(b)) => a == b,
            (Self::Version(a), Self::Version(b)) => a == b,
            _ => false,
        })
    }

    /// Returns a copy that shares no dict with the original.
    pub(super) fn deep_copy(&self, meter: &Meter) -> Result<Self, CallError> {
        self.deep_copy_at(meter, 0)
    }

    fn deep_copy_at(&self, meter: &Meter, level: usize) -> Result<Self, CallError> {
        step(meter, level)?;
        Ok(match self {
            Self::List(list) => Self::list_of(
                list.of,
                list.items
                    .iter()
                    .map(|item| item.deep_copy_at(meter, level + 1))
                    .collect::<Result<_, _>>()?,
            ),
            Self::Dict(dict) => {
                let mut copy = Entries::new();
                for (key, item) in dict.entries.borrow().iter() {
                    copy.insert(key.clone(), item.deep_copy_at(meter, level + 1)?);
                }
                Self::dict_of(dict.of, copy)
            }
            plain => plain.clone(),
        })
    }

    /// Returns whether `dict` is this value or nested anywhere inside it. A dict that contained
    /// itself could never be printed or freed.
    pub(super) fn contains_dict(&self, dict: &Rc<Dict>) -> bool {
        let mut seen = HashSet::new();
        let mut open = vec![self.clone()];
        while let Some(datum) = open.pop() {
            match &datum {
                Self::List(list) if seen.insert(Rc::as_ptr(list).cast::<()>()) => {
                    open.extend(list.items.iter().cloned());
                }
                Self::Dict(found) if Rc::ptr_eq(found, dict) => return true,
                Self::Dict(found) if seen.insert(Rc::as_ptr(found).cast::<()>()) => {
                    open.extend(found.entries.borrow().values().cloned());
                }
                _ => {}
            }
        }
        false
    }

    /// Compares two values for `lt`; fails if their types are not comparable.
    pub(super) fn compare(&self, other: &Self) -> Result<Ordering, CallError> {
        let incomparable = || "invalid type for comparison".to_owned();
        match (self.basic(), other.basic()) {
            (Some(Basic::Int(a)), Some(Basic::Int(b))) => Ok(a.cmp(&b)),
            (Some(Basic::Text(a)), Some(Basic::Text(b))) => Ok(a.cmp(b)),
            // A NaN is neither less nor greater; `Greater` makes `lt` false, as in Go.
            (Some(Basic::Float(a)), Some(Basic::Float(b))) => {
                Ok(a.partial_cmp(&b).unwrap_or(Ordering::Greater))
            }
            (None, _) | (_, None) | (Some(Basic::Bool(_)), Some(Basic::Bool(_))) => {
                Err(incomparable().into())
            }
            _ => Err(self.mismatch(other).into()),
        }
    }

    /// Compares two values for `eq`; fails if their types are not comparable.
    pub(super) fn equals(&self, other: &Self) -> Result<bool, CallError> {
        match (self.basic(), other.basic()) {
            (Some(a), Some(b)) => match (a, b) {
                (Basic::Bool(a), Basic::Bool(b)) => Ok(a == b),
                (Basic::Int(a), Basic::Int(b)) => Ok(a == b),
                (Basic::Float(a), Basic::Float(b)) => Ok(a == b),
                (Basic::Text(a), Basic::Text(b)) => Ok(a == b),
                _ => Err(self.mismatch(other).into()),
            },
            (None, None) => match (self, other) {
                (Self::Nil, other) | (other, Self::Nil) => Ok(matches!(other, Self::Nil)),
                (Self::Time(a), Self::Time(b)) => Ok(a == b),
                (Self::Version(a), Self::Version(b)) => Ok(Rc::ptr_eq(a, b)),
                _ => Err(format!("non-comparable type {}", self.type_name()).into()),
            },
            _ if matches!(self, Self::Nil) || matches!(other, Self::Nil) => Ok(false),
            _ => Err(self.mismatch(other).into()),
        }
    }

    fn mismatch(&self, other: &Self) -> String {
        format!(
            "incompatible types for comparison: {} and {}",
            self.type_name(),
            other.type_name()
        )
    }

    fn basic(&self) -> Option<Basic<'_>> {
        Some(match self {
            Self::Bool(value) => Basic::Bool(*value),
            Self::Int(value) | Self::Int64(value) => Basic::Int((*value).into()),
            Self::Uint(value) => Basic::Int((*value).into()),
            Self::Float(value) => Basic::Float(*value),
            Self::Str(text) => Basic::Text(text),
            _ => return None,
        })
    }
}

/// Basic kinds of `eq` and `lt`; signed and unsigned integers compare by value.
enum Basic<'a> {
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(&'a str),
}

fn step(meter: &Meter, level: usize) -> Result<(), CallError> {
    if level > MAX_DEPTH {
        return Err(format!("value is nested deeper than {MAX_DEPTH} levels").into());
    }
    Ok(meter.step()?)
}

/// Frees nested values iteratively, because they may be nested deeper than the stack allows.
impl Drop for List {
    fn drop(&mut self) {
        free(std::mem::take(&mut self.items));
    }
}

impl Drop for Dict {
    fn drop(&mut self) {
        free(
            std::mem::take(self.entries.get_mut())
                .into_values()
                .collect(),
        );
    }
}

fn free(mut open: Vec<Datum>) {
    while let Some(datum) = open.pop() {
        match datum {
            Datum::List(mut list) => {
                if let Some(list) = Rc::get_mut(&mut list) {
                    open.append(&mut list.items);
                }
            }
            Datum::Dict(mut dict) => {
                if let Some(dict) = Rc::get_mut(&mut dict) {
                    open.extend(std::mem::take(dict.entries.get_mut()).into_values());
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_nested_deeper_than_the_stack_is_freed() {
        let mut nested = Datum::list(Vec::new());
        for _ in 0..200_000 {
            nested = Datum::list(vec![nested]);
        }
        assert!(nested.printed(&Meter::default()).is_err());
    }

    #[test]
    fn deep_equality_distinguishes_int_and_int64() {
        let meter = Meter::default();
        assert_eq!(
            Datum::Int(1).deep_equal(&Datum::Int64(1), &meter),
            Ok(false)
        );
        assert_eq!(Datum::Int(1).equals(&Datum::Int64(1)), Ok(true));
    }

    #[test]
    fn contains_dict_visits_a_shared_value_once() {
        let mut shared = Datum::list(Vec::new());
        for _ in 0..80 {
            shared = Datum::list(vec![shared.clone(), shared]);
        }
        let other = Rc::new(Dict {
            of: Element::Any,
            entries: RefCell::default(),
        });
        assert!(!shared.contains_dict(&other));
    }
}
