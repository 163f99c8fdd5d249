//! What an expression of a template can be: data, or one of the few things that are not data.
//!
//! The difference that matters most is between null, which a document can hold and which prints
//! `<nil>`, and [`Item::Missing`], which is the absence of any value and prints nothing.
//! Type names follow Go, because Jet's messages show them. Read `operate` for arithmetic.

use std::sync::Arc;

use super::builtins::Builtin;
use crate::env::Function;
use ccm_value::Value;

/// The result of an expression.
#[derive(Clone)]
pub(super) enum Item {
    Missing,
    Data(Value),
    /// Text that is not UTF-8: an escape or a cut through a character made it.
    Bytes(Arc<[u8]>),
    /// The whole numbers from the first up to, not including, the second.
    Ints(i64, i64),
    /// An answer that decides an `if` and prints nothing.
    Quiet(bool),
    /// What `catch` names.
    Failure(Arc<str>),
    Function(Box<Callable>),
}

/// What can be called.
#[derive(Clone)]
pub(super) enum Callable {
    Builtin(Builtin),
    /// A function of the environment; as a method it gets its receiver as first argument.
    Own {
        name: &'static str,
        function: Function,
        receiver: Option<Value>,
    },
    /// `err.Error`
    Reason(Arc<str>),
}

impl From<Callable> for Item {
    fn from(function: Callable) -> Self {
        Self::Function(Box::new(function))
    }
}

impl Item {
    /// Returns text as data when it is UTF-8, else as bytes.
    pub(super) fn from_bytes(text: Vec<u8>) -> Self {
        match String::from_utf8(text) {
            Ok(text) => Self::Data(text.into()),
            Err(error) => Self::Bytes(error.into_bytes().into()),
        }
    }

    /// Returns what a function answered; its null is no value at all.
    pub(super) fn from_answer(value: Value) -> Self {
        match value {
            Value::Null => Self::Missing,
            value => Self::Data(value),
        }
    }

    /// Returns the bytes of text, or nothing for other items.
    pub(super) fn as_text(&self) -> Option<&[u8]> {
        match self {
            Self::Data(Value::Str(text)) => Some(text.as_bytes()),
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns whether there is a value here, and not null.
    pub(super) fn is_set(&self) -> bool {
        !matches!(self, Self::Missing | Self::Data(Value::Null))
    }

    /// Returns whether this counts as true. Empty lists and maps do.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Missing => false,
            Self::Quiet(answer) => *answer,
            Self::Bytes(bytes) => !bytes.is_empty(),
            Self::Ints(..) | Self::Failure(_) | Self::Function(_) => true,
            Self::Data(value) => match value {
                Value::Null => false,
                Value::Bool(answer) => *answer,
                Value::Int(number) => *number != 0,
                Value::Uint(number) => *number != 0,
                Value::Float(number) => *number != 0.0,
                Value::Str(text) => !text.is_empty(),
                Value::List(_) | Value::Map(_) => true,
            },
        }
    }

    /// Returns the name that Go has for the type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Missing => "<invalid>",
            Self::Data(value) => go_type(value),
            Self::Bytes(_) => "string",
            Self::Ints(..) => "ints",
            Self::Quiet(_) => "bool",
            Self::Failure(_) => "error",
            Self::Function(_) => "func",
        }
    }

    /// Returns the name that Go has for the kind, which says less than the type.
    pub(super) fn kind_name(&self) -> &'static str {
        match self {
            Self::Missing => "invalid",
            Self::Data(Value::Null) => "interface",
            Self::Data(Value::List(_)) => "slice",
            Self::Data(Value::Map(_)) => "map",
            other => other.type_name(),
        }
    }
}

/// Returns the name that Go has for the type of a value.
pub(super) fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "interface {}",
        Value::Bool(_) => "bool",
        Value::Int(_) => "int",
        Value::Uint(_) => "uint64",
        Value::Float(_) => "float64",
        Value::Str(_) => "string",
        Value::List(_) => "[]interface {}",
        Value::Map(_) => "map[string]interface {}",
    }
}

/// Prints a float as an action does: shortest digits, never an exponent.
pub(super) fn plain_float(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    format!("{value}")
}

/// How much a value that a template builds may hold, counted as if nothing were shared: a list
/// of two equal lists of two equal lists … doubles with every line of a template.
const MAX_VALUE_WEIGHT: usize = 16 * 1024 * 1024;
/// How deep it may nest. Documents stay far below; walking and dropping values takes stack.
const MAX_VALUE_DEPTH: usize = 200;

/// A value is more than a template may build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WeightError {
    #[error("a value nests deeper than {MAX_VALUE_DEPTH}")]
    Depth,
    #[error("a value is larger than {MAX_VALUE_WEIGHT} bytes")]
    Size,
}

/// Returns what a value weighs: its entries and the bytes of its text.
pub(super) fn weigh(value: &Value) -> Result<usize, WeightError> {
    let mut weight = 0;
    add_weight(value, 0, &mut weight)?;
    Ok(weight)
}

fn add_weight(value: &Value, depth: usize, weight: &mut usize) -> Result<(), WeightError> {
    if depth > MAX_VALUE_DEPTH {
        return Err(WeightError::Depth);
    }
    *weight += 1 + value.as_str().map_or(0, str::len);
    if *weight > MAX_VALUE_WEIGHT {
        return Err(WeightError::Size);
    }
    match value {
        Value::List(list) => {
            for item in list.iter() {
                add_weight(item, depth + 1, weight)?;
            }
        }
        Value::Map(map) => {
            for (key, item) in map.iter() {
                *weight += key.len();
                add_weight(item, depth + 1, weight)?;
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_and_empty_text_are_false_but_empty_lists_and_maps_are_true() {
        let truth = |value: Value| Item::Data(value).is_true();
        assert!(!truth(Value::Null));
        assert!(!truth(0_i64.into()));
        assert!(!truth(0.0.into()));
        assert!(!truth("".into()));
        assert!(truth(Vec::new().into()));
        assert!(truth(Value::empty_map()));
        assert!(!Item::Missing.is_true());
    }

    #[test]
    fn printed_floats_have_no_exponent() {
        assert_eq!(plain_float(1e21), "1000000000000000000000");
        assert_eq!(plain_float(1e-7), "0.0000001");
        assert_eq!(plain_float(5.0), "5");
        assert_eq!(plain_float(f64::INFINITY), "+Inf");
    }

    #[test]
    fn a_value_that_doubles_at_each_level_is_refused() {
        let mut value = Value::from("x");
        for _ in 0..60 {
            value = vec![value.clone(), value].into();
        }
        assert_eq!(weigh(&value), Err(WeightError::Size));
    }

    #[test]
    fn a_value_that_nests_without_end_is_refused() {
        let mut value = Value::Null;
        for _ in 0..300 {
            value = vec![value].into();
        }
        assert_eq!(weigh(&value), Err(WeightError::Depth));
    }
}
