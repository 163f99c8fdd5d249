//! The built-in functions: one table with what each takes, gives and does.
//!
//! Built-ins that run a predicate are part of the grammar and live in `eval`. The rest is plain
//! functions from values to a value, grouped by what they work on.

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
    pub(super) sign: Sign,
    pub(super) call: Call,
}

/// Computes a built-in; the checker has seen to the number of arguments.
pub(super) type Call = fn(&[Val], &mut Budget<'_>) -> Result<Val, Reason>;

/// How the arguments of a built-in are checked before running.
#[derive(Debug)]
pub(super) enum Sign {
    /// The first form that fits decides.
    Overloads(&'static [Overload]),
    /// Returns the kind of the result, or why the arguments never fit.
    Checked(fn(&[Kind]) -> Result<Kind, Reason>),
}

/// Kinds of the parameters, and of the result.
#[derive(Debug)]
pub(super) struct Overload(pub(super) &'static [Kind], pub(super) Kind);

/// Returns the built-in of this name.
pub(super) fn named(name: &str) -> Option<&'static Builtin> {
    TABLES
        .iter()
        .flat_map(|table| table.iter())
        .find(|builtin| builtin.name == name)
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
        sign: Sign::Overloads(forms),
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
        sign: Sign::Checked(check),
        call,
    }
}

/// Returns the only argument, as a checker sees it.
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

/// Names a kind in the error of a built-in, null included.
fn kind_name(kind: Kind) -> String {
    match kind {
        Kind::Nil => "nil".into(),
        other => other.to_string(),
    }
}
