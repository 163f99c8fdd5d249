//! Compile-time check of an expression: unknown names, kinds that can never fit, invalid patterns.
//!
//! Also compiles literal patterns, so that loops do not. Works on kinds and on the [`Names`] that
//! will exist, not on values; evaluation is in `eval`.

use std::collections::BTreeMap;

use regex::Regex;

use super::ast::{Binary, Id, LoopBuiltin, Node, NodeKind, Operation, Tree, Unary};
use super::builtins::{self, Overload, Signature};
use super::error::Fault;
use super::kind::{Item, Kind};
use super::lexer::Text;
use super::method::{self, Receiver};
use super::operand_types::{member_of, mismatched, result_of};
use super::variables::Variables;
use crate::pattern;

/// The names an expression may use besides built-ins and its own variables.
pub(super) struct Names<'a> {
    /// Returns the kind of a variable that the environment or the extras define.
    pub(super) variable: &'a dyn Fn(&str) -> Option<Kind>,
    /// Returns whether the environment has this function.
    pub(super) function: &'a dyn Fn(&str) -> bool,
}

/// Result of the check: the kind of the expression, and compiled patterns for the evaluator.
pub(super) struct Checked {
    pub(super) kind: Kind,
    pub(super) patterns: BTreeMap<Id, Regex>,
}

/// Checks a whole tree; `code` is its source, from which error messages quote operators.
pub(super) fn check(tree: &Tree, code: &str, names: &Names<'_>) -> Result<Checked, Fault> {
    let mut checker = Checker {
        tree,
        code,
        names,
        variables: Variables::new(),
        scopes: Vec::new(),
        patterns: BTreeMap::new(),
    };
    let kind = checker.visit(tree.root)?;
    Ok(Checked {
        kind,
        patterns: checker.patterns,
    })
}

struct Checker<'a> {
    tree: &'a Tree,
    code: &'a str,
    names: &'a Names<'a>,
    variables: Variables<Kind>,
    scopes: Vec<Scope>,
    patterns: BTreeMap<Id, Regex>,
}

/// Scope of a predicate: the list that `#` iterates over, and whether `#index` and `#acc` exist.
struct Scope {
    list: Kind,
    index: bool,
    acc: bool,
}

impl<'a> Checker<'a> {
    fn node(&self, id: Id) -> &'a Node {
        self.tree.node(id)
    }

    fn visit(&mut self, id: Id) -> Result<Kind, Fault> {
        let node = self.node(id);
        match &node.kind {
            NodeKind::Nil => Ok(Kind::Nil),
            NodeKind::Bool(_) => Ok(Kind::Bool),
            NodeKind::Int(_) => Ok(Kind::Int),
            NodeKind::Float(_) => Ok(Kind::Float),
            NodeKind::Text(_) => Ok(Kind::Text),
            NodeKind::Name(name) => self.name(name, node.at),
            NodeKind::Unary { op, node: operand } => self.unary(*op, *operand, node.at),
            NodeKind::Binary { .. } => self.operators(id),
            NodeKind::Chain(inner) => self.visit(*inner),
            NodeKind::Member {
                node: base,
                property,
                optional,
                method,
            } => self.member(*base, *property, *optional, *method, node.at),
            NodeKind::Slice {
                node: base,
                from,
                to,
            } => self.slice(*base, *from, *to, node.at),
            NodeKind::Call { name, arguments } => self.call(name, arguments, node.at),
            NodeKind::Method { member, arguments } => self.method(*member, arguments, node.at),
            NodeKind::Builtin { builtin, arguments } => self.builtin(builtin, arguments, node.at),
            NodeKind::Loop {
                builtin,
                list,
                predicate,
                extra,
            } => self.check_loop(*builtin, *list, *predicate, *extra),
            NodeKind::Predicate(body) => self.visit(*body),
            NodeKind::Pointer(name) => self.pointer(name, node.at),
            NodeKind::Let { name, value, body } => self.declaration(name, *value, *body, node.at),
            NodeKind::Sequence(nodes) => nodes.iter().try_fold(Kind::Nil, |_, id| self.visit(*id)),
            NodeKind::If {
                condition,
                then,
                otherwise,
            } => self.conditional(*condition, *then, *otherwise),
            NodeKind::List(items) => self.list(items),
            NodeKind::Map(pairs) => {
                for (key, value) in pairs {
                    self.visit(*key)?;
                    self.visit(*value)?;
                }
                Ok(Kind::Map(Item::Any))
            }
        }
    }

    fn name(&self, name: &Text, at: usize) -> Result<Kind, Fault> {
        if let Some(kind) = self.variables.get(name) {
            return Ok(*kind);
        }
        if name.as_ref() == "$env" {
            return Ok(Kind::Unknown);
        }
        if let Some(kind) = (self.names.variable)(name) {
            return Ok(kind);
        }
        if self.is_function(name) {
            return Ok(Kind::Function);
        }
        Err(unknown_name(name, at))
    }

    fn is_function(&self, name: &str) -> bool {
        (self.names.function)(name)
            || LoopBuiltin::named(name).is_some()
            || builtins::named(name).is_some()
    }

    fn unary(&mut self, op: Unary, operand: Id, at: usize) -> Result<Kind, Fault> {
        let kind = self.visit(operand)?;
        match op {
            Unary::Not if kind == Kind::Bool || kind.is_unknown() => Ok(Kind::Bool),
            Unary::Plus | Unary::Minus if kind.is_number() => Ok(kind),
            Unary::Plus | Unary::Minus if kind.is_unknown() => Ok(Kind::Unknown),
            _ => {
                let sign = self.spelling(at);
                Err(Fault::at(
                    at,
                    format!("invalid operation: {sign} (mismatched type {kind})"),
                ))
            }
        }
    }

    fn operators(&mut self, id: Id) -> Result<Kind, Fault> {
        let (leftmost, operations) = self.tree.left_spine(id);
        let mut kind = self.visit(leftmost)?;
        for Operation { id, op, right } in operations {
            let other = self.visit(right)?;
            kind = self.binary(id, op, kind, right, other)?;
        }
        Ok(kind)
    }

    fn binary(
        &mut self,
        id: Id,
        op: Binary,
        left: Kind,
        right_id: Id,
        right: Kind,
    ) -> Result<Kind, Fault> {
        let at = self.node(id).at;
        if op == Binary::Matches
            && let Some(pattern) = self.tree.text(right_id)
        {
            let pattern = pattern::compile(pattern).map_err(|reason| Fault::at(at, reason))?;
            self.patterns.insert(id, pattern);
        }
        if op == Binary::In {
            return member_of(left, right).map_err(|reason| Fault::at(at, reason));
        }
        result_of(op, left, right)
            .ok_or_else(|| Fault::at(at, mismatched(self.spelling(at), left, right)))
    }

    /// Returns the operator at an offset of the source.
    fn spelling(&self, at: usize) -> &'a str {
        let here = self.code.get(at..).unwrap_or_default();
        let is_word = here.starts_with(|c: char| c.is_ascii_alphabetic());
        let len = if is_word {
            here.find(|c: char| !c.is_ascii_alphabetic())
        } else {
            here.find(|c: char| !"|&=!<>.+-*/%^?".contains(c))
        };
        let operator = here.get(..len.unwrap_or(here.len())).unwrap_or_default();
        // Operators may be adjacent, as in `2*-x`.
        if is_word || operator.len() <= 1 {
            operator
        } else {
            ["||", "&&", "==", "!=", "<=", ">=", "..", "**", "??"]
                .into_iter()
                .find(|known| operator.starts_with(known))
                .or(operator.get(..1))
                .unwrap_or_default()
        }
    }

    fn member(
        &mut self,
        base: Id,
        property: Id,
        optional: bool,
        method: bool,
        at: usize,
    ) -> Result<Kind, Fault> {
        let name = self.tree.text(property);
        if matches!(&self.node(base).kind, NodeKind::Name(name) if name.as_ref() == "$env") {
            return match name {
                Some(name) => match (self.names.variable)(name) {
                    Some(kind) => Ok(kind),
                    None if optional => Ok(Kind::Unknown),
                    None => Err(unknown_name(name, at)),
                },
                None => self.visit(property).map(|_| Kind::Unknown),
            };
        }
        let kind = self.visit(base)?;
        let key = self.visit(property)?;
        let key_at = self.node(property).at;
        if kind.is_unknown() {
            return Ok(Kind::Unknown);
        }
        match (kind, name) {
            (Kind::Nil, Some(name)) => {
                return Err(Fault::at(at, format!("type nil has no field {name}")));
            }
            (_, Some(name))
                if receiver(kind).is_some_and(|receiver_type| {
                    method::signature(receiver_type, name).is_some()
                }) =>
            {
                return Ok(Kind::Function);
            }
            _ => {}
        }
        match kind {
            Kind::Map(item) => {
                if key == Kind::Text || key.is_unknown() {
                    Ok(item.kind())
                } else {
                    Err(Fault::at(
                        key_at,
                        format!("cannot use {key} to get an element from {kind}"),
                    ))
                }
            }
            Kind::AnyMap => Ok(Kind::Any),
            Kind::List(item) => {
                if key == Kind::Int || key.is_unknown() {
                    Ok(item.kind())
                } else {
                    Err(Fault::at(
                        key_at,
                        format!("array elements can only be selected using an integer (got {key})"),
                    ))
                }
            }
            // The result is a byte of the text.
            Kind::Text if key == Kind::Int || key.is_unknown() => Ok(Kind::Int),
            _ => Err(Fault::at(
                at,
                match name {
                    Some(name) if method => format!("type {kind} has no method {name}"),
                    Some(name) => format!("type {kind} has no field {name}"),
                    None => format!("type {kind}[{key}] is undefined"),
                },
            )),
        }
    }

    fn slice(
        &mut self,
        base: Id,
        from: Option<Id>,
        to: Option<Id>,
        at: usize,
    ) -> Result<Kind, Fault> {
        let kind = self.visit(base)?;
        for bound in [from, to].into_iter().flatten() {
            let found = self.visit(bound)?;
            if !kind.is_unknown() && found != Kind::Int && !found.is_unknown() {
                return Err(Fault::at(
                    self.node(bound).at,
                    format!("non-integer slice index {found}"),
                ));
            }
        }
        match kind {
            Kind::Unknown | Kind::Any => Ok(Kind::Unknown),
            Kind::Text | Kind::List(_) => Ok(kind),
            _ => Err(Fault::at(at, format!("cannot slice {kind}"))),
        }
    }

    fn call(&mut self, name: &Text, arguments: &[Id], at: usize) -> Result<Kind, Fault> {
        let callable = if (self.names.function)(name) {
            Kind::Function
        } else {
            self.name(name, at)?
        };
        if callable != Kind::Function && !callable.is_unknown() {
            return Err(Fault::at(
                at,
                match callable {
                    Kind::Nil => format!("{name} is nil; cannot call nil as function"),
                    _ => format!("{callable} is not callable"),
                },
            ));
        }
        for argument in arguments {
            self.visit(*argument)?;
        }
        Ok(Kind::Any)
    }

    fn method(&mut self, member: Id, arguments: &[Id], at: usize) -> Result<Kind, Fault> {
        let found = self.visit(member)?;
        let NodeKind::Member { node, property, .. } = self.node(member).kind else {
            return Ok(Kind::Unknown);
        };
        if found == Kind::Function
            && let Some(name) = self.tree.text(property)
            && let Some(receiver_type) = receiver(self.visit(node)?)
            && let Some((wanted, result)) = method::signature(receiver_type, name)
        {
            let kinds = self.kinds(arguments)?;
            self.fits(name, wanted, &kinds, arguments, at)?;
            return Ok(result);
        }
        for argument in arguments {
            self.visit(*argument)?;
        }
        match found {
            Kind::Unknown | Kind::Any => Ok(Kind::Unknown),
            other => Err(Fault::at(at, format!("{other} is not callable"))),
        }
    }

    fn kinds(&mut self, ids: &[Id]) -> Result<Vec<Kind>, Fault> {
        ids.iter().map(|id| self.visit(*id)).collect()
    }

    fn builtin(
        &mut self,
        builtin: &builtins::Builtin,
        arguments: &[Id],
        at: usize,
    ) -> Result<Kind, Fault> {
        let kinds = self.kinds(arguments)?;
        match builtin.signature {
            Signature::Checked(check) => check(&kinds).map_err(|reason| Fault::at(at, reason)),
            Signature::Overloads(overloads) => {
                let mut last = Fault::at(at, format!("no matching overload for {}", builtin.name));
                for Overload(wanted, result) in overloads {
                    match self.fits(builtin.name, wanted, &kinds, arguments, at) {
                        Ok(()) => return Ok(*result),
                        Err(fault) => last = fault,
                    }
                }
                Err(last)
            }
        }
    }

    /// Checks arguments against the kinds of parameters.
    fn fits(
        &self,
        name: &str,
        wanted: &[Kind],
        found: &[Kind],
        arguments: &[Id],
        at: usize,
    ) -> Result<(), Fault> {
        if found.len() != wanted.len() {
            let amount = if found.len() > wanted.len() {
                "too many"
            } else {
                "not enough"
            };
            return Err(Fault::at(at, format!("{amount} arguments to call {name}")));
        }
        for ((wanted, found), argument) in wanted.iter().zip(found).zip(arguments) {
            let fits = found.is_unknown()
                || found.is_assignable_to(*wanted)
                || (*wanted == Kind::Float && *found == Kind::Int);
            if !fits {
                let found = match found {
                    Kind::Nil => "nil".to_owned(),
                    other => other.to_string(),
                };
                return Err(Fault::at(
                    self.node(*argument).at,
                    format!("cannot use {found} as argument (type {wanted}) to call {name}"),
                ));
            }
        }
        Ok(())
    }

    fn check_loop(
        &mut self,
        builtin: LoopBuiltin,
        list: Id,
        predicate: Option<Id>,
        extra: Option<Id>,
    ) -> Result<Kind, Fault> {
        let kind = self.visit(list)?;
        let Some(item) = kind.items() else {
            return Err(Fault::at(self.node(list).at, builtin.not_a_list(&kind)));
        };
        let body = match predicate {
            Some(id) => Some(self.predicate(builtin, kind, id)?),
            None => None,
        };
        if let Some(id) = extra {
            let found = self.visit(id)?;
            if builtin == LoopBuiltin::SortBy && found != Kind::Text && !found.is_unknown() {
                return Err(Fault::at(
                    self.node(id).at,
                    format!("sortBy order argument must be a string (got {found})"),
                ));
            }
        }
        Ok(match builtin {
            LoopBuiltin::All | LoopBuiltin::None | LoopBuiltin::Any | LoopBuiltin::One => {
                Kind::Bool
            }
            LoopBuiltin::Count | LoopBuiltin::FindIndex | LoopBuiltin::FindLastIndex => Kind::Int,
            LoopBuiltin::Filter => Kind::List(item.item()),
            LoopBuiltin::SortBy => kind,
            LoopBuiltin::Map => Kind::List(body.unwrap_or(Kind::Unknown).item()),
            LoopBuiltin::Find | LoopBuiltin::FindLast => item,
            LoopBuiltin::Sum => body.unwrap_or(item),
            LoopBuiltin::GroupBy => Kind::AnyMap,
            LoopBuiltin::Reduce => body.unwrap_or(Kind::Unknown),
        })
    }

    fn predicate(&mut self, builtin: LoopBuiltin, list: Kind, id: Id) -> Result<Kind, Fault> {
        self.scopes.push(Scope {
            list,
            index: matches!(builtin, LoopBuiltin::Map | LoopBuiltin::Reduce),
            acc: builtin == LoopBuiltin::Reduce,
        });
        let body = self.visit(id);
        self.scopes.pop();
        let body = body?;
        let at = self.node(id).at;
        let wants_bool = matches!(
            builtin,
            LoopBuiltin::All
                | LoopBuiltin::None
                | LoopBuiltin::Any
                | LoopBuiltin::One
                | LoopBuiltin::Filter
                | LoopBuiltin::Count
                | LoopBuiltin::Find
                | LoopBuiltin::FindLast
                | LoopBuiltin::FindIndex
                | LoopBuiltin::FindLastIndex
        );
        if body == Kind::Nil {
            return Err(Fault::at(
                at,
                "predicate should has one input and one output param",
            ));
        }
        if wants_bool && body != Kind::Bool && !body.is_unknown() {
            return Err(Fault::at(
                at,
                format!("predicate should return boolean (got {body})"),
            ));
        }
        Ok(body)
    }

    fn pointer(&self, name: &str, at: usize) -> Result<Kind, Fault> {
        let Some(scope) = self.scopes.last() else {
            return Err(Fault::at(
                at,
                "cannot use pointer accessor outside predicate",
            ));
        };
        match name {
            "" => Ok(scope.list.items().unwrap_or(Kind::Unknown)),
            "index" if scope.index => Ok(Kind::Int),
            "acc" if scope.acc => Ok(Kind::Unknown),
            _ => Err(Fault::at(at, format!("unknown pointer #{name}"))),
        }
    }

    fn declaration(&mut self, name: &Text, value: Id, body: Id, at: usize) -> Result<Kind, Fault> {
        let taken = if (self.names.variable)(name).is_some() {
            Some("")
        } else if (self.names.function)(name) {
            Some("function ")
        } else if self.is_function(name) {
            Some("builtin ")
        } else if self.variables.get(name).is_some() {
            Some("variable ")
        } else {
            None
        };
        if let Some(what) = taken {
            return Err(Fault::at(at, format!("cannot redeclare {what}{name}")));
        }
        let kind = self.visit(value)?;
        self.variables.push(name.clone(), kind);
        let result = self.visit(body);
        self.variables.pop();
        result
    }

    fn conditional(&mut self, condition: Id, then: Id, otherwise: Id) -> Result<Kind, Fault> {
        let kind = self.visit(condition)?;
        if kind != Kind::Bool && !kind.is_unknown() {
            return Err(Fault::at(
                self.node(condition).at,
                format!("non-bool expression (type {kind}) used as condition"),
            ));
        }
        let left = self.visit(then)?;
        let right = self.visit(otherwise)?;
        Ok(match (left, right) {
            (Kind::Nil, other) | (other, Kind::Nil) => other,
            (Kind::List(left), Kind::List(right)) if left != right => Kind::LIST,
            _ if left.is_assignable_to(right) => left,
            _ => Kind::Unknown,
        })
    }

    fn list(&mut self, items: &[Id]) -> Result<Kind, Fault> {
        let mut kinds = self.kinds(items)?.into_iter();
        let Some(first) = kinds.next() else {
            return Ok(Kind::List(Item::Unknown));
        };
        let same =
            kinds.all(|kind| std::mem::discriminant(&kind) == std::mem::discriminant(&first));
        Ok(if same {
            Kind::List(first.item())
        } else {
            Kind::LIST
        })
    }
}

fn unknown_name(name: &str, at: usize) -> Fault {
    Fault::at(at, format!("unknown name {name}"))
}

fn receiver(kind: Kind) -> Option<Receiver> {
    match kind {
        Kind::Time => Some(Receiver::Time),
        Kind::Duration => Some(Receiver::Duration),
        Kind::Month | Kind::Weekday => Some(Receiver::Name),
        Kind::Zone => Some(Receiver::Zone),
        _ => None,
    }
}
