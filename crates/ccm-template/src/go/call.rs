//! Function calls: typed access to arguments, and argument counts.
//!
//! A [`Native`] is one row of the function tables in `builtin` and `sprig`. [`Args`] checks each
//! argument when the function reads it, and reports a wrong type in Go's words. It is strict about
//! text (`upper 5` fails) but, unlike Go, accepts `int` for `int64` and vice versa.

use std::rc::Rc;
use std::sync::Arc;

use super::datum::{Datum, Dict};
use super::limits::Meter;
use super::version::Version;
use crate::CallError;
use crate::env::Now;
use crate::time::Time;
use ccm_value::Value;

/// Result of a function call.
pub(super) type CallResult = Result<Datum, CallError>;

/// A built-in function and the number of its arguments.
#[derive(Clone, Copy)]
pub(super) struct Native {
    least: usize,
    most: Option<usize>,
    pub run: fn(&Args<'_>) -> CallResult,
}

/// Declares a function of exactly `count` arguments.
pub(super) fn takes(count: usize, run: fn(&Args<'_>) -> CallResult) -> Native {
    Native {
        least: count,
        most: Some(count),
        run,
    }
}

/// Declares a function of at least `least` arguments.
pub(super) fn takes_from(least: usize, run: fn(&Args<'_>) -> CallResult) -> Native {
    Native {
        least,
        most: None,
        run,
    }
}

impl Native {
    /// Checks the number of arguments.
    pub(super) fn check(&self, name: &str, given: usize) -> Result<(), CallError> {
        let least = self.least;
        if given < least && self.most.is_none() {
            return Err(format!(
                "wrong number of args for {name}: want at least {least} got {given}"
            )
            .into());
        }
        if given < least || self.most.is_some_and(|most| given > most) {
            return Err(
                format!("wrong number of args for {name}: want {least} got {given}").into(),
            );
        }
        Ok(())
    }
}

/// Context shared by all calls of one rendering.
pub(super) struct CallContext<'a> {
    pub meter: Meter,
    /// Environment variables for `env`: those of the root data, never those of the process.
    pub environ: Option<&'a Value>,
    /// Clock of the caller.
    pub now: Option<&'a Now>,
}

/// Evaluated arguments of one call.
pub(super) struct Args<'a> {
    pub context: &'a CallContext<'a>,
    pub values: &'a [Datum],
}

impl<'a> Args<'a> {
    pub(super) fn meter(&self) -> &'a Meter {
        &self.context.meter
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns an argument of any type; nil if absent.
    pub(super) fn any(&self, index: usize) -> &'a Datum {
        const NIL: &Datum = &Datum::Nil;
        self.values.get(index).unwrap_or(NIL)
    }

    /// Returns the arguments from `index` on.
    pub(super) fn from(&self, index: usize) -> &'a [Datum] {
        self.values.get(index..).unwrap_or(&[])
    }

    pub(super) fn str(&self, index: usize) -> Result<&'a str, CallError> {
        as_str(self.any(index))
    }

    pub(super) fn int(&self, index: usize) -> Result<i64, CallError> {
        match self.any(index) {
            Datum::Int(value) | Datum::Int64(value) => Ok(*value),
            // Go accepts a float constant without a fraction, such as `1e3`.
            #[expect(clippy::cast_possible_truncation, reason = "the float has no fraction")]
            Datum::Float(value) if value.fract() == 0.0 => Ok(*value as i64),
            other => Err(wrong("int", other).into()),
        }
    }

    pub(super) fn bool(&self, index: usize) -> Result<bool, CallError> {
        match self.any(index) {
            Datum::Bool(value) => Ok(*value),
            other => Err(wrong("bool", other).into()),
        }
    }

    pub(super) fn dict(&self, index: usize) -> Result<&'a Rc<Dict>, CallError> {
        as_dict(self.any(index))
    }

    pub(super) fn time(&self, index: usize) -> Result<&'a Time, CallError> {
        match self.any(index) {
            Datum::Time(time) => Ok(time),
            other => Err(wrong("time.Time", other).into()),
        }
    }

    pub(super) fn version(&self, index: usize) -> Result<&'a Version, CallError> {
        match self.any(index) {
            Datum::Version(version) => Ok(version),
            other => Err(wrong("*semver.Version", other).into()),
        }
    }

    /// Returns the items of a list; `doing` names the operation in the error message, as sprig
    /// does.
    pub(super) fn list(&self, index: usize, doing: &str) -> Result<&'a [Datum], CallError> {
        match self.any(index) {
            Datum::List(list) => Ok(&list.items),
            other => Err(format!("cannot {doing} type {}", other.kind_name()).into()),
        }
    }

    /// Converts an argument to text like sprig's `toString`.
    pub(super) fn to_text(&self, index: usize) -> Result<Arc<str>, CallError> {
        to_text(self.any(index), self.meter())
    }
}

pub(super) fn as_str(datum: &Datum) -> Result<&str, CallError> {
    match datum {
        Datum::Str(text) => Ok(text),
        other => Err(wrong("string", other).into()),
    }
}

pub(super) fn as_dict(datum: &Datum) -> Result<&Rc<Dict>, CallError> {
    match datum {
        Datum::Dict(dict) => Ok(dict),
        other => Err(wrong("map[string]interface {}", other).into()),
    }
}

/// Returns text unchanged, and anything else in the format of Go's `%v`.
pub(super) fn to_text(datum: &Datum, meter: &Meter) -> Result<Arc<str>, CallError> {
    match datum {
        Datum::Str(text) => Ok(text.clone()),
        other => Ok(other.printed(meter)?.into()),
    }
}

fn wrong(expected: &str, found: &Datum) -> String {
    match found {
        Datum::Nil => format!("invalid value; expected {expected}"),
        found => format!(
            "wrong type for value; expected {expected}; got {}",
            found.type_name()
        ),
    }
}

impl From<bool> for Datum {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&str> for Datum {
    fn from(text: &str) -> Self {
        Self::Str(text.into())
    }
}

impl From<String> for Datum {
    fn from(text: String) -> Self {
        Self::Str(text.into())
    }
}
