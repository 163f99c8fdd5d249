//! How a template calls a function: typed arguments in, a datum or the bare reason out.
//!
//! A [`Native`] is one row of the function tables in `builtin` and `sprig`. [`Args`] checks each
//! argument when the function asks for it, with Go's words for a wrong type; it is strict about
//! text (`upper 5` fails) and lenient between `int` and `int64`, where Go's strictness only
//! trips people.

use std::rc::Rc;
use std::sync::Arc;

use super::datum::{Datum, Dict};
use super::limits::Meter;
use super::version::Version;
use crate::CallError;
use crate::env::Now;
use crate::time::Time;
use ccm_value::Value;

/// What a function answers.
pub(super) type Answer = Result<Datum, CallError>;

/// A function of ours and how many arguments it takes.
#[derive(Clone, Copy)]
pub(super) struct Native {
    least: usize,
    most: Option<usize>,
    pub run: fn(&Args<'_>) -> Answer,
}

/// Returns a function of exactly `count` arguments.
pub(super) fn takes(count: usize, run: fn(&Args<'_>) -> Answer) -> Native {
    Native {
        least: count,
        most: Some(count),
        run,
    }
}

/// Returns a function of `least` arguments or more.
pub(super) fn takes_from(least: usize, run: fn(&Args<'_>) -> Answer) -> Native {
    Native {
        least,
        most: None,
        run,
    }
}

impl Native {
    /// Checks how many arguments a call gives.
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

/// What surrounds every call of one rendering.
pub(super) struct World<'a> {
    pub meter: Meter,
    /// The environment that `env` reads: that of the root data, never the process's own.
    pub environ: Option<&'a Value>,
    /// The caller's clock.
    pub now: Option<&'a Now>,
}

/// The evaluated arguments of one call.
pub(super) struct Args<'a> {
    pub world: &'a World<'a>,
    pub values: &'a [Datum],
}

impl<'a> Args<'a> {
    pub(super) fn meter(&self) -> &'a Meter {
        &self.world.meter
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns an argument of any type; an absent one is nil.
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
            // A constant such as `1e3` is whole in Go's eyes, too.
            #[expect(
                clippy::cast_possible_truncation,
                reason = "there is no fraction to lose"
            )]
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

    /// Returns the items of a list; `doing` names the function in the error, as sprig does.
    pub(super) fn list(&self, index: usize, doing: &str) -> Result<&'a [Datum], CallError> {
        match self.any(index) {
            Datum::List(list) => Ok(&list.items),
            other => Err(format!("cannot {doing} type {}", other.kind_name()).into()),
        }
    }

    /// Returns any argument as text, as sprig's `toString` makes it.
    pub(super) fn shown(&self, index: usize) -> Result<Arc<str>, CallError> {
        shown(self.any(index), self.meter())
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

/// Returns text as it is, and anything else as Go's `%v`.
pub(super) fn shown(datum: &Datum, meter: &Meter) -> Result<Arc<str>, CallError> {
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
