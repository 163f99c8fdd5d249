//! Evaluator: walks a checked tree and computes its value.
//!
//! Recursion is limited by the parser, work and memory by the [`Budget`]. Operators are in `ops`,
//! built-ins in `builtins`, loops over predicates in `predicates`.

use std::collections::{BTreeMap, HashMap};

use regex::Regex;

use super::ast::{Binary, Id, LoopBuiltin, Node, NodeKind, Operation, Tree, Unary};
use super::budget::Budget;
use super::error::Fault;
use super::lexer::Text;
use super::predicates::Loop;
use super::runtime_value::{Key, Reason, Val, count};
use super::variables::Variables;
use super::{Cache, Extras};
use super::{method, ops};
use crate::{functions, pattern};
use ccm_value::Value;

/// Maximum number of compiled non-literal patterns kept during one evaluation.
const MAX_PATTERNS: usize = 64;

/// State of one evaluation.
pub(super) struct Evaluator<'a> {
    pub(super) tree: &'a Tree,
    pub(super) patterns: &'a BTreeMap<Id, Regex>,
    pub(super) extras: Option<&'a Extras>,
    pub(super) cache: &'a Cache,
    pub(super) budget: Budget<'a>,
    pub(super) variables: Variables<Val>,
    pub(super) scopes: Vec<Scope>,
    pub(super) compiled: HashMap<Text, Regex>,
}

/// Scope of a predicate: the current item, its index and the accumulator.
pub(super) struct Scope {
    pub(super) item: Val,
    pub(super) index: usize,
    pub(super) acc: Val,
}

impl<'a> Evaluator<'a> {
    fn node(&self, id: Id) -> &'a Node {
        self.tree.node(id)
    }

    /// Returns the value of a node.
    pub(super) fn eval(&mut self, id: Id) -> Result<Val, Fault> {
        let node = self.node(id);
        match &node.kind {
            NodeKind::Nil => Ok(Val::NULL),
            NodeKind::Bool(value) => Ok((*value).into()),
            NodeKind::Int(value) => Ok((*value).into()),
            NodeKind::Float(value) => Ok((*value).into()),
            NodeKind::Text(text) => Ok(Val::Plain(Value::Str(text.clone()))),
            NodeKind::Name(name) => self.name(name, node.at),
            NodeKind::Unary { op, node: operand } => self.unary(*op, *operand, node.at),
            NodeKind::Binary { .. } => self.operators(id),
            NodeKind::Chain(inner) => Ok(self.eval_link(*inner)?.unwrap_or(Val::NULL)),
            NodeKind::Member { .. } | NodeKind::Method { .. } => {
                Ok(self.eval_link(id)?.unwrap_or(Val::NULL))
            }
            NodeKind::Slice {
                node: base,
                from,
                to,
            } => self.slice(*base, *from, *to, node.at),
            NodeKind::Call { name, arguments } => self.call(name, arguments, node.at),
            NodeKind::Builtin { builtin, arguments } => {
                let arguments = self.eval_all(arguments)?;
                (builtin.call)(&arguments, &mut self.budget)
                    .map_err(|reason| Fault::at(node.at, reason))
            }
            NodeKind::Loop {
                builtin,
                list,
                predicate,
                extra,
            } => self.run_loop(*builtin, *list, *predicate, *extra, node.at),
            NodeKind::Predicate(body) => self.eval(*body),
            NodeKind::Pointer(name) => Ok(self.pointer(name)),
            NodeKind::Let { name, value, body } => self.declaration(name, *value, *body),
            NodeKind::Sequence(nodes) => nodes.iter().try_fold(Val::NULL, |_, id| self.eval(*id)),
            NodeKind::If {
                condition,
                then,
                otherwise,
            } => {
                let fits = self.eval(*condition)?.bool();
                if fits.map_err(|reason| Fault::at(node.at, reason))? {
                    self.eval(*then)
                } else {
                    self.eval(*otherwise)
                }
            }
            NodeKind::List(items) => {
                let items = self.eval_all(items)?;
                self.charge_items(items.len(), node.at)?;
                Val::list(items).map_err(|reason| Fault::at(node.at, reason))
            }
            NodeKind::Map(pairs) => self.map(pairs, node.at),
        }
    }

    fn eval_all(&mut self, ids: &[Id]) -> Result<Vec<Val>, Fault> {
        ids.iter().map(|id| self.eval(*id)).collect()
    }

    /// Counts the items of a list or map about to be built.
    pub(super) fn charge_items(&mut self, items: usize, at: usize) -> Result<(), Fault> {
        self.budget
            .charge_items(items)
            .map_err(|reason| Fault::at(at, reason))
    }

    fn name(&mut self, name: &Text, at: usize) -> Result<Val, Fault> {
        if let Some(value) = self.variables.get(name) {
            return Ok(value.clone());
        }
        if let Some(value) = self
            .extras
            .and_then(|extras| extras.variables.get(name.as_ref()))
        {
            return Ok(Val::Plain(value.clone()));
        }
        let env = self.budget.env;
        let fault = |reason| Fault::at(at, reason);
        match name.as_ref() {
            "Facts" => env.facts.check().map(|()| Val::Facts).map_err(fault),
            "Data" => match env.check_data() {
                Ok(()) => Ok(Val::Plain(self.budget.data())),
                Err(reason) => Err(fault(reason)),
            },
            "Environ" => env.check_environ().map(|()| Val::Environ).map_err(fault),
            "$env" => Ok(Val::Env),
            _ => Err(Fault::at(
                at,
                format!("cannot fetch {name} from environment"),
            )),
        }
    }

    fn unary(&mut self, op: Unary, operand: Id, at: usize) -> Result<Val, Fault> {
        let value = self.eval(operand)?;
        match op {
            Unary::Not => value.bool().map(|value| Val::from(!value)),
            Unary::Plus => Ok(value),
            Unary::Minus => ops::negate(&value),
        }
        .map_err(|reason| Fault::at(at, reason))
    }

    fn operators(&mut self, id: Id) -> Result<Val, Fault> {
        let (leftmost, operations) = self.tree.left_spine(id);
        let mut value = self.eval(leftmost)?;
        for Operation { id, op, right } in operations {
            value = self.binary(id, op, value, right)?;
        }
        Ok(value)
    }

    fn binary(&mut self, id: Id, op: Binary, left: Val, right: Id) -> Result<Val, Fault> {
        let at = self.node(id).at;
        let fail = |reason| Fault::at(at, reason);
        match op {
            // The right operand is the result as it is, without a type check. If it is a literal,
            // the left operand is not checked either: null counts as false in `x || false`.
            Binary::And => {
                return match self.literal(right) {
                    Some(true) => Ok(left),
                    Some(false) => Ok(false.into()),
                    None if left.bool().map_err(fail)? => self.eval(right),
                    None => Ok(left),
                };
            }
            Binary::Or => {
                return match self.literal(right) {
                    Some(true) => Ok(true.into()),
                    Some(false) => Ok(left),
                    None if left.bool().map_err(fail)? => Ok(left),
                    None => self.eval(right),
                };
            }
            Binary::Coalesce => {
                return if left.is_null() {
                    self.eval(right)
                } else {
                    Ok(left)
                };
            }
            Binary::Matches => {
                if let Some(pattern) = self.patterns.get(&id) {
                    return matches(pattern, &left).map_err(fail);
                }
            }
            _ => {}
        }
        let right = self.eval(right)?;
        let budget = &mut self.budget;
        match op {
            Binary::Equal => ops::equal(&left, &right, budget).map(Val::from),
            Binary::NotEqual => ops::equal(&left, &right, budget).map(|same| Val::from(!same)),
            Binary::In => ops::contains(&left, &right, budget).map(Val::from),
            Binary::Matches => self.matches(&left, &right),
            Binary::Contains => texts(&left, &right, |text, part| text.contains(part)),
            Binary::StartsWith => texts(&left, &right, |text, part| text.starts_with(part)),
            Binary::EndsWith => texts(&left, &right, |text, part| text.ends_with(part)),
            Binary::Range => ops::range(&left, &right, budget),
            Binary::Add => ops::add(&left, &right, budget),
            Binary::Subtract => ops::subtract(&left, &right),
            Binary::Multiply => ops::multiply(&left, &right),
            Binary::Divide => ops::divide(&left, &right),
            Binary::Modulo => ops::modulo(&left, &right),
            Binary::Power => ops::power(&left, &right),
            _ => ops::compare(op, &left, &right),
        }
        .map_err(fail)
    }

    /// Returns the value of a boolean literal.
    fn literal(&self, id: Id) -> Option<bool> {
        match self.node(id).kind {
            NodeKind::Bool(value) => Some(value),
            _ => None,
        }
    }

    fn matches(&mut self, text: &Val, pattern: &Val) -> Result<Val, Reason> {
        if text.is_null() || pattern.is_null() {
            return Ok(false.into());
        }
        let pattern = pattern.text()?;
        if let Some(compiled) = self.compiled.get(pattern) {
            return matches(compiled, text);
        }
        let compiled = pattern::compile(pattern)?;
        let result = matches(&compiled, text);
        if self.compiled.len() < MAX_PATTERNS {
            self.compiled.insert(pattern.clone(), compiled);
        }
        result
    }

    /// Returns the value of a member or method, or `None` when an optional link (`?.`) met null,
    /// which makes the whole chain null.
    fn eval_link(&mut self, id: Id) -> Result<Option<Val>, Fault> {
        let node = self.node(id);
        match &node.kind {
            NodeKind::Member {
                node: base,
                property,
                optional,
                ..
            } => {
                let Some(base) = self.eval_link(*base)? else {
                    return Ok(None);
                };
                if *optional && base.is_null() {
                    return Ok(None);
                }
                let key = self.eval(*property)?;
                ops::fetch(&base, &key, &mut self.budget)
                    .map(Some)
                    .map_err(|reason| Fault::at(node.at, reason))
            }
            NodeKind::Method { member, arguments } => self.method(*member, arguments, node.at),
            _ => self.eval(id).map(Some),
        }
    }

    fn method(&mut self, member: Id, arguments: &[Id], at: usize) -> Result<Option<Val>, Fault> {
        let NodeKind::Member {
            node: base,
            property,
            optional,
            ..
        } = self.node(member).kind
        else {
            return Ok(None);
        };
        let Some(base) = self.eval_link(base)? else {
            return Ok(None);
        };
        if optional && base.is_null() {
            return Ok(None);
        }
        let arguments = self.eval_all(arguments)?;
        let fail = |reason| Fault::at(at, reason);
        let name = self.tree.text(property).map_or("", |name| name);
        if name == "PrometheusFileSD" && arguments.is_empty() && base.list_len().is_some() {
            let entries = base.into_value(&mut self.budget).map_err(fail)?;
            return functions::prometheus_file_sd(&entries)
                .map(|text| Some(text.into()))
                .map_err(fail);
        }
        if let Some(result) = method::call(&base, name, &arguments, &mut self.budget) {
            return result.map(Some).map_err(fail);
        }
        let key = Val::from(name);
        let found = ops::fetch(&base, &key, &mut self.budget).map_err(fail)?;
        Err(fail(if found.is_null() {
            "invalid operation: cannot call nil".into()
        } else {
            format!(
                "invalid operation: cannot call non-function of type {}",
                found.go_type()
            )
            .into()
        }))
    }

    fn slice(
        &mut self,
        base: Id,
        from: Option<Id>,
        to: Option<Id>,
        at: usize,
    ) -> Result<Val, Fault> {
        let base = self.eval(base)?;
        let to = to.map(|id| self.eval(id)).transpose()?;
        let from = from.map(|id| self.eval(id)).transpose()?;
        ops::slice(&base, from.as_ref(), to.as_ref(), &mut self.budget)
            .map_err(|reason| Fault::at(at, reason))
    }

    /// Calls an environment function.
    fn call(&mut self, name: &Text, arguments: &[Id], at: usize) -> Result<Val, Fault> {
        let arguments = self.eval_all(arguments)?;
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let value = argument.into_value(&mut self.budget);
            values.push(value.map_err(|reason| Fault::at(at, reason))?);
        }
        let extra = self
            .extras
            .and_then(|extras| extras.functions.get(name.as_ref()));
        match extra {
            Some(function) => function(&values),
            None => functions::call(name, &values, self.budget.env, self.cache),
        }
        .map(Val::Plain)
        .map_err(|reason| Fault::at(at, reason))
    }

    fn pointer(&self, name: &str) -> Val {
        let Some(scope) = self.scopes.last() else {
            return Val::NULL;
        };
        match name {
            "index" => count(scope.index),
            "acc" => scope.acc.clone(),
            _ => scope.item.clone(),
        }
    }

    fn declaration(&mut self, name: &Text, value: Id, body: Id) -> Result<Val, Fault> {
        let value = self.eval(value)?;
        self.variables.push(name.clone(), value);
        let result = self.eval(body);
        self.variables.pop();
        result
    }

    fn map(&mut self, pairs: &[(Id, Id)], at: usize) -> Result<Val, Fault> {
        let mut entries = BTreeMap::new();
        for (key, value) in pairs {
            let key = self.eval(*key)?;
            let key = key.text().map_err(|reason| Fault::at(at, reason))?.clone();
            let value = self.eval(*value)?;
            // The first of two equal keys wins.
            entries.entry(Key::Text(key)).or_insert(value);
        }
        self.charge_items(pairs.len(), at)?;
        Val::dict(entries).map_err(|reason| Fault::at(at, reason))
    }

    fn run_loop(
        &mut self,
        builtin: LoopBuiltin,
        list: Id,
        predicate: Option<Id>,
        extra: Option<Id>,
        at: usize,
    ) -> Result<Val, Fault> {
        let mut list = self.eval(list)?;
        if let Some(Value::Str(text)) = list.plain() {
            // Text whose kind was unknown to the checker is iterated as a list of its bytes.
            self.charge_items(text.len(), at)?;
            let bytes = text.bytes().map(|byte| Val::from(i64::from(byte)));
            list = Val::list(bytes.collect()).map_err(|reason| Fault::at(at, reason))?;
        }
        let extra = extra.map(|id| self.eval(id)).transpose()?;
        let Some(len) = list.list_len() else {
            let found = if list.is_null() {
                "nil"
            } else {
                list.go_type()
            };
            return Err(Fault::at(at, builtin.not_a_list(&found)));
        };
        // A nested predicate has its own item; `#` never refers to an outer one.
        self.scopes.push(Scope {
            item: Val::NULL,
            index: 0,
            acc: Val::NULL,
        });
        let iteration = Loop {
            evaluator: self,
            list: &list,
            len,
            predicate,
            at,
        };
        let result = iteration.run(builtin, extra);
        self.scopes.pop();
        result
    }
}

fn texts(left: &Val, right: &Val, fits: fn(&str, &str) -> bool) -> Result<Val, Reason> {
    if left.is_null() || right.is_null() {
        return Ok(false.into());
    }
    Ok(fits(left.text()?, right.text()?).into())
}

fn matches(pattern: &Regex, text: &Val) -> Result<Val, Reason> {
    if text.is_null() {
        Ok(false.into())
    } else {
        Ok(pattern.is_match(text.text()?).into())
    }
}
