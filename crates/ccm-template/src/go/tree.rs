//! Syntax tree of a template.
//!
//! Every node that can fail has the byte offset where it starts, for error messages.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::call::Native;
use super::datum::Datum;
use crate::CallError;
use crate::env::Function;

/// A parsed template and the templates it defines, by name.
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

/// A chain of `if` and `else if`, as a flat list so that its length uses no stack.
pub(super) struct Branches<'t> {
    pub cases: Vec<(Pipe<'t>, Vec<Node<'t>>)>,
    pub otherwise: Vec<Node<'t>>,
}

/// Commands joined by `|`, and the variables that get the result.
pub(super) struct Pipe<'t> {
    pub at: usize,
    pub variables: Vec<&'t str>,
    /// Whether it is `=` instead of `:=`.
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
    /// `f.a.b`: fields of the result of a function without arguments.
    CallFields(Callee<'t>, Vec<&'t str>),
}

/// A function and the name by which the template calls it.
#[derive(Clone)]
pub(super) struct Callee<'t> {
    pub name: &'t str,
    pub target: Target,
}

#[derive(Clone)]
pub(super) enum Target {
    /// `and` and `or`, which evaluate no argument beyond the one that decides.
    And,
    Or,
    Native(Native),
    /// A function provided by the caller.
    Env(Function),
}

/// An error and its byte offset in the template.
#[derive(Debug)]
pub(super) struct Fault {
    pub at: usize,
    pub message: CallError,
}

impl Fault {
    /// Returns the error of a function call.
    pub(super) fn calling(at: usize, name: &str, error: CallError) -> Self {
        Self {
            at,
            message: error.reword(|reason| format!("error calling {name}: {reason}")),
        }
    }
}
