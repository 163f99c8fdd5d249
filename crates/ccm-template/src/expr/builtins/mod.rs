//! Table of built-in functions: name, signature and implementation.
//!
//! Built-ins with a predicate are part of the grammar and are evaluated in `predicates`. The
//! functions here are grouped by the type they work on.

mod date;
mod list;
mod map;
mod number;
mod text;

use super::budget::Budget;
use super::kind::{Item, Kind};
use super::runtime_value::{Reason, Val};

/// A built-in function.
#[derive(Debug)]
pub(super) struct Builtin {
    pub(super) name: &'static str,
    pub(super) signature: Signature,
    pub(super) call: Call,
}

/// Implementation of a built-in; the checker has already verified the number of arguments.
pub(super) type Call = fn(&[Val], &mut Budget<'_>) -> Result<Val, Reason>;

/// Check of the arguments at compile time.
#[derive(Debug)]
pub(super) enum Signature {
    /// The first overload that fits is used.
    Overloads(&'static [Overload]),
    /// Returns the kind of the result, or an error if the arguments can never fit.
    Checked(fn(&[Kind]) -> Result<Kind, Reason>),
}

/// Kinds of the parameters, and kind of the result.
#[derive(Debug)]
pub(super) struct Overload(pub(super) &'static [Kind], pub(super) Kind);

/// Returns the built-in with this name.
pub(super) fn named(name: &str) -> Option<&'static Builtin> {
    TABLES
        .iter()
        .flat_map(|table| table.iter())
        .find(|builtin| builtin.name == name)
}

/// Returns the names of all built-ins.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TABLES
        .iter()
        .flat_map(|table| table.iter())
        .map(|builtin| builtin.name)
}

static TABLES: [&[Builtin]; 5] = [
    text::BUILTINS,
    number::BUILTINS,
    list::BUILTINS,
    map::BUILTINS,
    date::BUILTINS,
];

const TEXT: Kind = Kind::Text;
const INT: Kind = Kind::Int;
const TEXTS: Kind = Kind::List(Item::Text);

const fn overloads(name: &'static str, forms: &'static [Overload], call: Call) -> Builtin {
    Builtin {
        name,
        signature: Signature::Overloads(forms),
        call,
    }
}

const fn checked(
    name: &'static str,
    check: fn(&[Kind]) -> Result<Kind, Reason>,
    call: Call,
) -> Builtin {
    Builtin {
        name,
        signature: Signature::Checked(check),
        call,
    }
}

/// Returns the kind of the only argument.
fn only(kinds: &[Kind]) -> Result<Kind, Reason> {
    match kinds {
        [kind] => Ok(*kind),
        _ => Err(wrong_number("1", kinds.len())),
    }
}

fn wrong_number(expected: &str, found: usize) -> Reason {
    format!("invalid number of arguments (expected {expected}, got {found})").into()
}

/// Returns one argument of a call.
fn argument(arguments: &[Val], index: usize) -> &Val {
    const NULL: Val = Val::NULL;
    static NONE: Val = NULL;
    arguments.get(index).unwrap_or(&NONE)
}

/// Returns the name of a kind for an error message, including null.
fn kind_name(kind: Kind) -> String {
    match kind {
        Kind::Nil => "nil".into(),
        other => other.to_string(),
    }
}
