//! The shape of a parsed template: what `parse` makes and `eval` runs.
//!
//! Every node that can fail carries the byte where it starts, so that an error can name a line.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::call::Native;
use super::datum::Datum;
use crate::CallError;
use crate::env::Function;

/// A parsed template and those it defines, by name.
#[derive(Default)]
pub(super) struct Tree<'t> {
    pub root: Rc<[Node<'t>]>,
    pub defined: BTreeMap<String, Rc<[Node<'t>]>>,
}

pub(super) enum Node<'t> {
    Text(&'t str),
    Action(Pipe<'t>),
    If(Branches<'t>),
    With(Branches<'t>),
    Range {
        over: Pipe<'t>,
        body: Vec<Node<'t>>,
        otherwise: Vec<Node<'t>>,
    },
    Template {
        at: usize,
        name: String,
        dot: Option<Pipe<'t>>,
    },
    Break,
    Continue,
}

/// A chain of `if` and `else if`, flat so that its length costs no stack.
pub(super) struct Branches<'t> {
    pub cases: Vec<(Pipe<'t>, Vec<Node<'t>>)>,
    pub otherwise: Vec<Node<'t>>,
}

/// Commands joined by `|`, and the variables that take the result.
pub(super) struct Pipe<'t> {
    pub at: usize,
    pub variables: Vec<&'t str>,
    /// `=` instead of `:=`.
    pub assigns: bool,
    pub commands: Vec<Command<'t>>,
}

/// An operand and the arguments after it.
pub(super) struct Command<'t> {
    pub head: Operand<'t>,
    pub args: Vec<Operand<'t>>,
}

pub(super) struct Operand<'t> {
    pub at: usize,
    pub term: Term<'t>,
}

pub(super) enum Term<'t> {
    Nil,
    Dot,
    Constant(Datum),
    Function(Callee<'t>),
    /// `.a.b`
    Fields(Vec<&'t str>),
    /// `$x.a.b`
    Variable(&'t str, Vec<&'t str>),
    /// `(pipe)` or `(pipe).a.b`
    Nested(Box<Pipe<'t>>, Vec<&'t str>),
    /// `f.a.b`: the fields of what a function without arguments returns.
    CallFields(Callee<'t>, Vec<&'t str>),
}

/// A function by the name the template calls it.
#[derive(Clone)]
pub(super) struct Callee<'t> {
    pub name: &'t str,
    pub target: Target,
}

#[derive(Clone)]
pub(super) enum Target {
    /// `and` and `or` evaluate no argument beyond the one that decides.
    And,
    Or,
    Native(Native),
    /// A function of the caller.
    Outside(Function),
}

/// What went wrong, and the byte of the template where.
#[derive(Debug)]
pub(super) struct Fault {
    pub at: usize,
    pub message: CallError,
}

impl Fault {
    /// Returns the fault of a function that was called at a place.
    pub(super) fn calling(at: usize, name: &str, error: CallError) -> Self {
        Self {
            at,
            message: error.reword(|reason| format!("error calling {name}: {reason}")),
        }
    }
}
