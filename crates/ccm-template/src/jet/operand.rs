//! Run-time values: data, and the few things that are not data.
//!
//! Null is a value of a document and prints `<nil>`; [`Item::Missing`] is the absence of a value
//! and prints nothing. Type names are Go's, because Jet's messages contain them. Arithmetic is in
//! `operate`.

use std::sync::Arc;

use super::builtins::Builtin;
use crate::env::Function;
use crate::go_names::go_type;
use ccm_value::Value;

/// Result of an expression.
#[derive(Clone)]
pub(super) enum Item {
    Missing,
    Data(Value),
    /// Text that is not UTF-8, produced by an escape or by cutting a character.
    Bytes(Arc<[u8]>),
    /// The integers from the first up to the second, exclusive.
    Ints(i64, i64),
    /// A boolean that prints nothing.
    SilentBool(bool),
    /// The error variable of `catch`.
    Error(Arc<str>),
    Function(Box<Callable>),
}

/// A callable value.
#[derive(Clone)]
pub(super) enum Callable {
    Builtin(Builtin),
    /// An environment function; as a method it gets the receiver as first argument.
    Env {
        name: &'static str,
        function: Function,
        receiver: Option<Value>,
    },
    /// `err.Error`
    ErrorText(Arc<str>),
}

impl From<Callable> for Item {
    fn from(function: Callable) -> Self {
        Self::Function(Box::new(function))
    }
}

impl Item {
    /// Creates text from bytes: data if they are UTF-8, else bytes.
    pub(super) fn from_bytes(text: Vec<u8>) -> Self {
        match String::from_utf8(text) {
            Ok(text) => Self::Data(text.into()),
            Err(error) => Self::Bytes(error.into_bytes().into()),
        }
    }

    /// Converts the result of a function; null becomes no value.
    pub(super) fn from_result(value: Value) -> Self {
        match value {
            Value::Null => Self::Missing,
            value => Self::Data(value),
        }
    }

    /// Returns the bytes of text; `None` for other items.
    pub(super) fn as_text(&self) -> Option<&[u8]> {
        match self {
            Self::Data(Value::Str(text)) => Some(text.as_bytes()),
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns whether there is a value other than null.
    pub(super) fn is_set(&self) -> bool {
        !matches!(self, Self::Missing | Self::Data(Value::Null))
    }

    /// Returns whether the value counts as true. Empty lists and maps do.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Missing => false,
            Self::SilentBool(value) => *value,
            Self::Bytes(bytes) => !bytes.is_empty(),
            Self::Ints(..) | Self::Error(_) | Self::Function(_) => true,
            Self::Data(value) => match value {
                Value::Null => false,
                Value::Bool(value) => *value,
                Value::Int(number) => *number != 0,
                Value::Uint(number) => *number != 0,
                Value::Float(number) => *number != 0.0,
                Value::Str(text) => !text.is_empty(),
                Value::List(_) | Value::Map(_) => true,
            },
        }
    }

    /// Returns the Go type name.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Missing => "<invalid>",
            Self::Data(value) => go_type(value),
            Self::Bytes(_) => "string",
            Self::Ints(..) => "ints",
            Self::SilentBool(_) => "bool",
            Self::Error(_) => "error",
            Self::Function(_) => "func",
        }
    }

    /// Returns the name of Go's `reflect.Kind`.
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

/// Formats a float as an action prints it: shortest digits, never an exponent.
pub(super) fn plain_float(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    format!("{value}")
}

/// Maximum size of a value built by a template, counted as if nothing were shared: a list of two
/// equal lists of two equal lists … doubles with every line of a template.
const MAX_VALUE_SIZE: usize = 16 * 1024 * 1024;
/// Maximum nesting of such a value; walking and dropping it uses stack.
const MAX_VALUE_DEPTH: usize = 200;

/// A value exceeds the limits of values built by a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SizeError {
    #[error("a value nests deeper than {MAX_VALUE_DEPTH}")]
    Depth,
    #[error("a value is larger than {MAX_VALUE_SIZE} bytes")]
    Size,
}

/// Returns the size of a value: its entries and the bytes of its text.
pub(super) fn size_of(value: &Value) -> Result<usize, SizeError> {
    let mut size = 0;
    add_size(value, 0, &mut size)?;
    Ok(size)
}

fn add_size(value: &Value, depth: usize, size: &mut usize) -> Result<(), SizeError> {
    if depth > MAX_VALUE_DEPTH {
        return Err(SizeError::Depth);
    }
    *size += 1 + value.as_str().map_or(0, str::len);
    if *size > MAX_VALUE_SIZE {
        return Err(SizeError::Size);
    }
    match value {
        Value::List(list) => {
            for item in list.iter() {
                add_size(item, depth + 1, size)?;
            }
        }
        Value::Map(map) => {
            for (key, item) in map.iter() {
                *size += key.len();
                add_size(item, depth + 1, size)?;
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
        assert_eq!(size_of(&value), Err(SizeError::Size));
    }

    #[test]
    fn a_value_that_nests_too_deep_is_refused() {
        let mut value = Value::Null;
        for _ in 0..300 {
            value = vec![value].into();
        }
        assert_eq!(size_of(&value), Err(SizeError::Depth));
    }
}
