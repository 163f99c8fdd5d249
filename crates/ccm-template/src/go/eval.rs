//! Evaluator: runs the tree of a template like Go's `text/template`.
//!
//! A null and a missing key are both "no value": they print as `<no value>` and are false. Reading
//! a field of a null is an error, as in Go. Cost is limited by the [`Meter`](super::limits::Meter),
//! depth by [`MAX_DEPTH`]. Arguments are handled in `call`, functions are in `builtin` and `sprig`.

use std::sync::Arc;

use super::call::{Args, CallContext};
use super::datum::Datum;
use super::method;
use super::tree::{Branches, Callee, Command, Fault, Node, Operand, Pipe, Target, Term, Tree};

/// Maximum nesting of templates, blocks and parentheses at run time.
const MAX_DEPTH: usize = 150;

/// Renders a tree; `name` is the name by which the template can invoke itself.
pub(super) fn run(
    tree: &Tree<'_>,
    name: &str,
    root: Datum,
    context: &CallContext<'_>,
) -> Result<String, Fault> {
    let mut evaluator = Evaluator {
        tree,
        name,
        context,
        out: String::new(),
        variables: vec![("$", root.clone())],
        level: 0,
    };
    evaluator.walk(&root, &tree.root)?;
    Ok(evaluator.out)
}

struct Evaluator<'r, 't> {
    tree: &'r Tree<'t>,
    name: &'r str,
    context: &'r CallContext<'r>,
    out: String,
    /// Variables in scope, innermost last.
    variables: Vec<(&'t str, Datum)>,
    level: usize,
}

/// How a list of nodes ended: normally, or by `break` or `continue`.
#[derive(PartialEq)]
enum Flow {
    Next,
    Break,
    Continue,
}

impl<'t> Evaluator<'_, 't> {
    fn walk(&mut self, dot: &Datum, nodes: &[Node<'t>]) -> Result<Flow, Fault> {
        for node in nodes {
            match self.node(dot, node)? {
                Flow::Next => {}
                flow => return Ok(flow),
            }
        }
        Ok(Flow::Next)
    }

    fn node(&mut self, dot: &Datum, node: &Node<'t>) -> Result<Flow, Fault> {
        match node {
            Node::Text(text) => {
                let charged = self.context.meter.spend(text.len());
                charged.map_err(|message| Fault {
                    at: 0,
                    message: message.into(),
                })?;
                self.out.push_str(text);
            }
            Node::Action(pipe) => {
                let value = self.pipe(dot, pipe)?;
                if pipe.variables.is_empty() {
                    self.print(pipe.at, &value)?;
                }
            }
            Node::If(branches) => return self.branches(dot, branches, false),
            Node::With(branches) => return self.branches(dot, branches, true),
            Node::Range {
                over,
                body,
                otherwise,
            } => return self.range(dot, over, body, otherwise),
            Node::Template {
                at,
                name,
                dot: argument,
            } => {
                let argument = match argument {
                    Some(pipe) => self.pipe(dot, pipe)?,
                    None => Datum::Nil,
                };
                self.template(*at, name, argument)?;
            }
            Node::Break => return Ok(Flow::Break),
            Node::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    /// Runs `inner` one nesting level deeper; fails at the limit.
    fn deeper<T>(
        &mut self,
        at: usize,
        inner: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if self.level == MAX_DEPTH {
            let message = format!("exceeded maximum template depth ({MAX_DEPTH})");
            return Err(Fault {
                at,
                message: message.into(),
            });
        }
        self.level += 1;
        let result = inner(self);
        self.level -= 1;
        result
    }

    /// Runs `inner` one nesting level deeper and drops the variables it declares.
    fn scoped<T>(
        &mut self,
        at: usize,
        inner: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let scope = self.variables.len();
        let result = self.deeper(at, inner);
        self.variables.truncate(scope);
        result
    }

    fn branches(
        &mut self,
        dot: &Datum,
        branches: &Branches<'t>,
        moves_dot: bool,
    ) -> Result<Flow, Fault> {
        let at = branches.cases.first().map_or(0, |(test, _)| test.at);
        self.scoped(at, |evaluator| {
            for (test, body) in &branches.cases {
                let value = evaluator.pipe(dot, test)?;
                if value.is_true() {
                    return evaluator.walk(if moves_dot { &value } else { dot }, body);
                }
            }
            evaluator.walk(dot, &branches.otherwise)
        })
    }

    fn range(
        &mut self,
        dot: &Datum,
        over: &Pipe<'t>,
        body: &[Node<'t>],
        otherwise: &[Node<'t>],
    ) -> Result<Flow, Fault> {
        self.scoped(over.at, |evaluator| {
            let value = evaluator.pipe(dot, over)?;
            let mut iterations = 0usize;
            let mut iterate = |evaluator: &mut Self, key: Datum, item: Datum| {
                iterations += 1;
                evaluator.iteration(over, body, key, item)
            };
            match &value {
                Datum::Nil => {}
                Datum::List(list) => {
                    for (index, item) in list.items.iter().enumerate() {
                        let index = Datum::Int(i64::try_from(index).unwrap_or(i64::MAX));
                        if iterate(evaluator, index, item.clone())? == Flow::Break {
                            break;
                        }
                    }
                }
                Datum::Dict(dict) => {
                    // Iterates over a copy, because the body may change the dict.
                    let entries = dict.entries.borrow().clone();
                    for (key, item) in entries {
                        if iterate(evaluator, Datum::Str(key), item)? == Flow::Break {
                            break;
                        }
                    }
                }
                Datum::Int(count) | Datum::Int64(count) => {
                    if over.variables.len() > 1 {
                        return Err(Fault {
                            at: over.at,
                            message: format!(
                                "can't use {count} to iterate over more than one variable"
                            )
                            .into(),
                        });
                    }
                    for index in 0..*count {
                        let item = match value {
                            Datum::Int64(_) => Datum::Int64(index),
                            _ => Datum::Int(index),
                        };
                        if iterate(evaluator, Datum::Nil, item)? == Flow::Break {
                            break;
                        }
                    }
                }
                other => {
                    let shown = evaluator.to_text(over.at, other)?;
                    return Err(Fault {
                        at: over.at,
                        message: format!("range can't iterate over {shown}").into(),
                    });
                }
            }
            if iterations == 0 {
                return evaluator.walk(dot, otherwise);
            }
            Ok(Flow::Next)
        })
    }

    /// Runs the body of `range` once.
    fn iteration(
        &mut self,
        over: &Pipe<'t>,
        body: &[Node<'t>],
        key: Datum,
        item: Datum,
    ) -> Result<Flow, Fault> {
        self.step(over.at)?;
        let scope = self.variables.len();
        // The first of two variables is the key; a single variable is the item.
        match over.variables.as_slice() {
            [] => {}
            [one] => self.set(one, item.clone()),
            [first, second, ..] => {
                self.set(first, key);
                self.set(second, item.clone());
            }
        }
        let flow = self.walk(&item, body)?;
        self.variables.truncate(scope);
        Ok(flow)
    }

    fn template(&mut self, at: usize, name: &str, dot: Datum) -> Result<(), Fault> {
        let tree = self.tree;
        let body = match tree.defined.get(name) {
            Some(body) => body,
            None if name == self.name => &tree.root,
            None => {
                return Err(Fault {
                    at,
                    message: format!("template \"{name}\" not defined").into(),
                });
            }
        };
        self.step(at)?;
        self.scoped(at, |evaluator| {
            // An invoked template has its own `$` and no variables of its caller.
            let outer = std::mem::replace(&mut evaluator.variables, vec![("$", dot.clone())]);
            let result = evaluator.walk(&dot, body);
            evaluator.variables = outer;
            result.map(|_| ())
        })
    }

    fn set(&mut self, name: &'t str, value: Datum) {
        let found = self.variables.iter_mut().rev().find(|(n, _)| *n == name);
        if let Some((_, slot)) = found {
            *slot = value;
        }
    }

    fn pipe(&mut self, dot: &Datum, pipe: &Pipe<'t>) -> Result<Datum, Fault> {
        let mut value = None;
        for command in &pipe.commands {
            value = Some(self.command(dot, command, value)?);
        }
        let value = value.unwrap_or_default();
        for name in &pipe.variables {
            if pipe.assigns {
                self.set(name, value.clone());
            } else {
                self.variables.push((name, value.clone()));
            }
        }
        Ok(value)
    }

    /// Evaluates a command; `piped` is the result of the previous one, passed as the last argument.
    fn command(
        &mut self,
        dot: &Datum,
        command: &Command<'t>,
        piped: Option<Datum>,
    ) -> Result<Datum, Fault> {
        let head = &command.head;
        self.step(head.at)?;
        match &head.term {
            Term::Function(callee) => self.call(dot, head.at, callee, &command.args, piped),
            Term::Nil => Err(Fault {
                at: head.at,
                message: "nil is not a command".into(),
            }),
            Term::Fields(fields)
            | Term::Variable(_, fields)
            | Term::Nested(_, fields)
            | Term::CallFields(_, fields) => {
                let start = self.start(dot, head)?;
                self.fields(dot, head.at, start, fields, &command.args, piped)
            }
            Term::Dot | Term::Constant(_) => {
                if !command.args.is_empty() || piped.is_some() {
                    return Err(not_a_function(head.at));
                }
                self.operand(dot, head)
            }
        }
    }

    fn operand(&mut self, dot: &Datum, operand: &Operand<'t>) -> Result<Datum, Fault> {
        self.step(operand.at)?;
        match &operand.term {
            Term::Nil => Ok(Datum::Nil),
            Term::Dot => Ok(dot.clone()),
            Term::Constant(constant) => Ok(constant.clone()),
            Term::Function(callee) => self.call(dot, operand.at, callee, &[], None),
            Term::Fields(fields)
            | Term::Variable(_, fields)
            | Term::Nested(_, fields)
            | Term::CallFields(_, fields) => {
                let start = self.start(dot, operand)?;
                self.fields(dot, operand.at, start, fields, &[], None)
            }
        }
    }

    /// Returns the value from which the fields of an operand start.
    fn start(&mut self, dot: &Datum, operand: &Operand<'t>) -> Result<Datum, Fault> {
        match &operand.term {
            Term::Variable(name, _) => Ok(self
                .variables
                .iter()
                .rev()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.clone())
                .unwrap_or_default()),
            Term::Nested(pipe, _) => {
                // Variables declared in parentheses stay in scope, as in Go.
                self.deeper(operand.at, |evaluator| evaluator.pipe(dot, pipe))
            }
            Term::CallFields(callee, _) => self.call(dot, operand.at, callee, &[], None),
            _ => Ok(dot.clone()),
        }
    }

    /// Resolves a chain of fields. Only the last may be a method, which takes the arguments.
    fn fields(
        &mut self,
        dot: &Datum,
        at: usize,
        start: Datum,
        fields: &[&'t str],
        args: &[Operand<'t>],
        piped: Option<Datum>,
    ) -> Result<Datum, Fault> {
        let mut value = start;
        let has_args = !args.is_empty() || piped.is_some();
        if fields.is_empty() && has_args {
            return Err(not_a_function(at));
        }
        let fault = |message: String| Fault {
            at,
            message: message.into(),
        };
        let mut found = false;
        for (index, field) in fields.iter().enumerate() {
            let is_last = index + 1 == fields.len();
            value = match &value {
                // Fields of a missing key are missing too; fields of a null are an error.
                Datum::Nil if found => {
                    return Err(fault(format!(
                        "nil pointer evaluating interface {{}}.{field}"
                    )));
                }
                Datum::Nil => Datum::Nil,
                Datum::Dict(dict) => {
                    if is_last && has_args {
                        return Err(fault(format!("{field} is not a method but has arguments")));
                    }
                    let entry = dict.entries.borrow().get(*field).cloned();
                    found = entry.is_some();
                    entry.unwrap_or_default()
                }
                receiver @ (Datum::Time(_) | Datum::Version(_) | Datum::List(_)) => {
                    let receiver = receiver.clone();
                    let mut values = Vec::new();
                    if is_last {
                        values = self.arguments(dot, args, piped.clone())?;
                    }
                    let args = Args {
                        context: self.context,
                        values: &values,
                    };
                    match method::call(&receiver, field, &args) {
                        Some(result) => result.map_err(|err| Fault::calling(at, field, err))?,
                        None => return Err(no_field(at, field, &receiver)),
                    }
                }
                other => return Err(no_field(at, field, other)),
            };
        }
        Ok(value)
    }

    fn arguments(
        &mut self,
        dot: &Datum,
        args: &[Operand<'t>],
        piped: Option<Datum>,
    ) -> Result<Vec<Datum>, Fault> {
        let mut values = Vec::with_capacity(args.len() + usize::from(piped.is_some()));
        for arg in args {
            values.push(self.operand(dot, arg)?);
        }
        values.extend(piped);
        Ok(values)
    }

    fn call(
        &mut self,
        dot: &Datum,
        at: usize,
        callee: &Callee<'t>,
        args: &[Operand<'t>],
        piped: Option<Datum>,
    ) -> Result<Datum, Fault> {
        let name = callee.name;
        let given = args.len() + usize::from(piped.is_some());
        match &callee.target {
            Target::And => self.and_or(dot, at, callee, args, piped, false),
            Target::Or => self.and_or(dot, at, callee, args, piped, true),
            Target::Native(native) => {
                let fault = |message| Fault { at, message };
                native.check(name, given).map_err(fault)?;
                let values = self.arguments(dot, args, piped)?;
                let args = Args {
                    context: self.context,
                    values: &values,
                };
                (native.run)(&args).map_err(|err| Fault::calling(at, name, err))
            }
            Target::Env(function) => {
                let failed = |err| Fault::calling(at, name, err);
                let mut values = Vec::with_capacity(given);
                for value in self.arguments(dot, args, piped)? {
                    values.push(value.to_value(&self.context.meter).map_err(failed)?);
                }
                let result = function(&values).map_err(failed)?;
                Ok(Datum::from_value(&result))
            }
        }
    }

    /// Implements `and` and `or`: returns the first argument whose truth is `wanted`, or the last
    /// one.
    fn and_or(
        &mut self,
        dot: &Datum,
        at: usize,
        callee: &Callee<'t>,
        args: &[Operand<'t>],
        piped: Option<Datum>,
        wanted: bool,
    ) -> Result<Datum, Fault> {
        let mut value = None;
        for arg in args {
            let next = self.operand(dot, arg)?;
            if next.is_true() == wanted {
                return Ok(next);
            }
            value = Some(next);
        }
        piped.or(value).ok_or_else(|| Fault {
            at,
            message: format!(
                "wrong number of args for {}: want at least 1 got 0",
                callee.name
            )
            .into(),
        })
    }

    fn print(&mut self, at: usize, value: &Datum) -> Result<(), Fault> {
        match value {
            Datum::Nil => {
                self.out.push_str("<no value>");
                Ok(())
            }
            value => value
                .print(&mut self.out, &self.context.meter)
                .map_err(|message| Fault { at, message }),
        }
    }

    fn to_text(&self, at: usize, value: &Datum) -> Result<Arc<str>, Fault> {
        super::call::to_text(value, &self.context.meter).map_err(|message| Fault { at, message })
    }

    fn step(&self, at: usize) -> Result<(), Fault> {
        let charged = self.context.meter.step();
        charged.map_err(|err| Fault {
            at,
            message: err.into(),
        })
    }
}

fn not_a_function(at: usize) -> Fault {
    Fault {
        at,
        message: "can't give argument to non-function".into(),
    }
}

fn no_field(at: usize, field: &str, value: &Datum) -> Fault {
    Fault {
        at,
        message: format!("can't evaluate field {field} in type {}", value.type_name()).into(),
    }
}
