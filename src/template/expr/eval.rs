//! Walks a checked tree and computes its value.
//!
//! Recursion is bounded by the parser, work and memory by the [`Budget`]. Operators are in `ops`,
//! built-ins in `builtins`; here is only the order in which things happen.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use regex::Regex;

use super::ast::{Binary, Each, Id, Node, NodeKind, Tree, Unary};
use super::check::compile_pattern;
use super::error::Fault;
use super::lexer::Text;
use super::val::{Budget, Key, Reason, Val, count};
use super::{Cache, Extras};
use super::{ops, time};
use crate::model::Value;
use crate::template::functions;

/// How many patterns that are not literals one run keeps compiled.
const MAX_PATTERNS: usize = 64;

/// Everything one run needs.
pub(super) struct Machine<'a> {
    pub(super) tree: &'a Tree,
    pub(super) patterns: &'a BTreeMap<Id, Regex>,
    pub(super) extras: Option<&'a Extras>,
    pub(super) cache: &'a Cache,
    pub(super) budget: Budget<'a>,
    pub(super) variables: Vec<(Text, Val)>,
    pub(super) scopes: Vec<Scope>,
    pub(super) compiled: HashMap<Text, Regex>,
}

/// The item a predicate looks at.
pub(super) struct Scope {
    item: Val,
    index: usize,
    acc: Val,
}

impl<'a> Machine<'a> {
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
            NodeKind::Chain(inner) => Ok(self.link(*inner)?.unwrap_or(Val::NULL)),
            NodeKind::Member { .. } | NodeKind::Method { .. } => {
                Ok(self.link(id)?.unwrap_or(Val::NULL))
            }
            NodeKind::Slice {
                node: base,
                from,
                to,
            } => self.slice(*base, *from, *to, node.at),
            NodeKind::Call { name, arguments } => self.call(name, arguments, node.at),
            NodeKind::Builtin { builtin, arguments } => {
                let arguments = self.all(arguments)?;
                (builtin.call)(&arguments, &mut self.budget)
                    .map_err(|reason| Fault::at(node.at, reason))
            }
            NodeKind::Loop {
                each,
                list,
                predicate,
                extra,
            } => self.each(*each, *list, *predicate, *extra, node.at),
            NodeKind::Predicate(body) => self.eval(*body),
            NodeKind::Pointer(name) => Ok(self.pointer(name)),
            NodeKind::Let { name, value, body } => self.declaration(name, *value, *body),
            NodeKind::Sequence(nodes) => {
                let mut last = Val::NULL;
                for id in nodes {
                    last = self.eval(*id)?;
                }
                Ok(last)
            }
            NodeKind::If {
                condition,
                then,
                otherwise,
            } => {
                let fits = self.eval(*condition)?.bool();
                match fits.map_err(|reason| Fault::at(node.at, reason))? {
                    true => self.eval(*then),
                    false => self.eval(*otherwise),
                }
            }
            NodeKind::List(items) => {
                let items = self.all(items)?;
                self.built(items.len(), node.at)?;
                Val::list(items).map_err(|reason| Fault::at(node.at, reason))
            }
            NodeKind::Map(pairs) => self.map(pairs, node.at),
        }
    }

    fn all(&mut self, ids: &[Id]) -> Result<Vec<Val>, Fault> {
        ids.iter().map(|id| self.eval(*id)).collect()
    }

    fn built(&mut self, items: usize, at: usize) -> Result<(), Fault> {
        self.budget
            .grow(items)
            .map_err(|reason| Fault::at(at, reason))
    }

    fn name(&mut self, name: &Text, at: usize) -> Result<Val, Fault> {
        if let Some((_, value)) = self.variables.iter().rev().find(|(known, _)| known == name) {
            return Ok(value.clone());
        }
        if let Some(value) = self
            .extras
            .and_then(|extras| extras.variables.get(name.as_ref()))
        {
            return Ok(Val::Plain(value.clone()));
        }
        match name.as_ref() {
            "Facts" => Ok(Val::Facts),
            "Data" => Ok(Val::Plain(self.budget.env.data.clone())),
            "Environ" => Ok(Val::Environ),
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

    /// Computes operators along the left spine in a loop: a long sum is no deep recursion.
    fn operators(&mut self, id: Id) -> Result<Val, Fault> {
        let mut spine = Vec::new();
        let mut leftmost = id;
        while let NodeKind::Binary { op, left, right } = self.node(leftmost).kind {
            spine.push((leftmost, op, right));
            leftmost = left;
        }
        let mut value = self.eval(leftmost)?;
        while let Some((id, op, right)) = spine.pop() {
            value = self.binary(id, op, value, right)?;
        }
        Ok(value)
    }

    fn binary(&mut self, id: Id, op: Binary, left: Val, right: Id) -> Result<Val, Fault> {
        let at = self.node(id).at;
        let fail = |reason| Fault::at(at, reason);
        match op {
            // The right side is not checked: it is the value.
            Binary::And => {
                return match left.bool().map_err(fail)? {
                    true => self.eval(right),
                    false => Ok(left),
                };
            }
            Binary::Or => {
                return match left.bool().map_err(fail)? {
                    true => Ok(left),
                    false => self.eval(right),
                };
            }
            Binary::Coalesce => {
                return match left.is_null() {
                    true => self.eval(right),
                    false => Ok(left),
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

    fn matches(&mut self, text: &Val, pattern: &Val) -> Result<Val, Reason> {
        if text.is_null() || pattern.is_null() {
            return Ok(false.into());
        }
        let pattern = pattern.text()?;
        if let Some(compiled) = self.compiled.get(pattern) {
            return matches(compiled, text);
        }
        let compiled = compile_pattern(pattern)?;
        let result = matches(&compiled, text);
        if self.compiled.len() < MAX_PATTERNS {
            self.compiled.insert(pattern.clone(), compiled);
        }
        result
    }

    /// Returns the value of a member or method, or nothing when a `?.` below met null and the
    /// whole chain is null.
    fn link(&mut self, id: Id) -> Result<Option<Val>, Fault> {
        let node = self.node(id);
        match &node.kind {
            NodeKind::Member {
                node: base,
                property,
                optional,
                ..
            } => {
                let Some(base) = self.link(*base)? else {
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
        let Some(base) = self.link(base)? else {
            return Ok(None);
        };
        if optional && base.is_null() {
            return Ok(None);
        }
        let arguments = self.all(arguments)?;
        let fail = |reason| Fault::at(at, reason);
        let name = self.tree.text(property).map_or("", |name| name);
        if name == "PrometheusFileSD" && arguments.is_empty() && base.list_len().is_some() {
            let entries = base.into_value(&mut self.budget).map_err(fail)?;
            return functions::prometheus_file_sd(&entries)
                .map(|text| Some(text.into()))
                .map_err(fail);
        }
        if let Some(result) = time::call(&base, name, &arguments) {
            return result.map(Some).map_err(fail);
        }
        let key = Val::from(name);
        let found = ops::fetch(&base, &key, &mut self.budget).map_err(fail)?;
        Err(fail(match found.is_null() {
            true => "invalid operation: cannot call nil".into(),
            false => format!(
                "invalid operation: cannot call non-function of type {}",
                found.go_type()
            ),
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

    /// Calls a function of the environment.
    fn call(&mut self, name: &Text, arguments: &[Id], at: usize) -> Result<Val, Fault> {
        let arguments = self.all(arguments)?;
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
        self.variables.push((name.clone(), value));
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
            // The first of two equal keys counts.
            entries.entry(Key::Text(key)).or_insert(value);
        }
        self.built(pairs.len(), at)?;
        Val::dict(entries).map_err(|reason| Fault::at(at, reason))
    }

    fn each(
        &mut self,
        each: Each,
        list: Id,
        predicate: Option<Id>,
        extra: Option<Id>,
        at: usize,
    ) -> Result<Val, Fault> {
        let mut list = self.eval(list)?;
        if let Some(Value::Str(text)) = list.plain() {
            // Text that nobody knew to be text is a list of its bytes.
            self.built(text.len(), at)?;
            let bytes = text.bytes().map(|byte| Val::from(i64::from(byte)));
            list = Val::list(bytes.collect()).map_err(|reason| Fault::at(at, reason))?;
        }
        let extra = extra.map(|id| self.eval(id)).transpose()?;
        let Some(len) = list.list_len() else {
            let reason = match list.is_null() {
                true => format!("builtin {} takes only array (got nil)", each.name()),
                false => format!(
                    "builtin {} takes only array (got {})",
                    each.name(),
                    list.go_type()
                ),
            };
            return Err(Fault::at(at, reason));
        };
        // Within its own predicate a loop has its own item; `#` never reaches an outer one.
        self.scopes.push(Scope {
            item: Val::NULL,
            index: 0,
            acc: Val::NULL,
        });
        let run = Loop {
            machine: self,
            list: &list,
            len,
            predicate,
            at,
        };
        let result = run.finish(each, extra);
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
    match text.is_null() {
        true => Ok(false.into()),
        false => Ok(pattern.is_match(text.text()?).into()),
    }
}

/// One run of a predicate over a list.
struct Loop<'m, 'a, 'l> {
    machine: &'m mut Machine<'a>,
    list: &'l Val,
    len: usize,
    predicate: Option<Id>,
    at: usize,
}

impl Loop<'_, '_, '_> {
    fn fail(&self, reason: impl Into<Reason>) -> Fault {
        Fault::at(self.at, reason)
    }

    /// Returns what the predicate says of one item; without a predicate, the item itself.
    fn look(&mut self, index: usize) -> Result<Val, Fault> {
        let charged = self.machine.budget.step(1);
        charged.map_err(|reason| self.fail(reason))?;
        let item = self.list.item(index).unwrap_or(Val::NULL);
        let Some(predicate) = self.predicate else {
            return Ok(item);
        };
        if let Some(scope) = self.machine.scopes.last_mut() {
            scope.item = item;
            scope.index = index;
        }
        self.machine.eval(predicate)
    }

    fn fits(&mut self, index: usize) -> Result<bool, Fault> {
        self.look(index)?.bool().map_err(|reason| self.fail(reason))
    }

    /// Returns the first index that fits.
    fn first(&mut self, wanted: bool) -> Result<Option<usize>, Fault> {
        for index in 0..self.len {
            if self.fits(index)? == wanted {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Returns the last index that fits.
    fn last(&mut self) -> Result<Option<usize>, Fault> {
        for index in (0..self.len).rev() {
            if self.fits(index)? {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    fn fitting(&mut self) -> Result<Vec<usize>, Fault> {
        let mut found = Vec::new();
        for index in 0..self.len {
            if self.fits(index)? {
                found.push(index);
            }
        }
        Ok(found)
    }

    fn list(&mut self, items: Vec<Val>) -> Result<Val, Fault> {
        self.machine.built(items.len(), self.at)?;
        Val::list(items).map_err(|reason| self.fail(reason))
    }

    fn item(&self, index: Option<usize>) -> Val {
        index
            .and_then(|index| self.list.item(index))
            .unwrap_or(Val::NULL)
    }

    fn finish(mut self, each: Each, extra: Option<Val>) -> Result<Val, Fault> {
        match each {
            Each::All => Ok(self.first(false)?.is_none().into()),
            Each::None => Ok(self.first(true)?.is_none().into()),
            Each::Any => Ok(self.first(true)?.is_some().into()),
            Each::One => Ok((self.fitting()?.len() == 1).into()),
            Each::Count => Ok(count(self.fitting()?.len())),
            Each::Find => {
                let found = self.first(true)?;
                Ok(self.item(found))
            }
            Each::FindLast => {
                let found = self.last()?;
                Ok(self.item(found))
            }
            Each::FindIndex => Ok(self.first(true)?.map_or(Val::NULL, count)),
            Each::FindLastIndex => Ok(self.last()?.map_or(Val::NULL, count)),
            Each::Filter => {
                let found = self.fitting()?;
                let items = found.into_iter().map(|index| self.item(Some(index)));
                let items = items.collect();
                self.list(items)
            }
            Each::Map => {
                let items = (0..self.len).map(|index| self.look(index));
                let items = items.collect::<Result<_, _>>()?;
                self.list(items)
            }
            Each::Sum => self.sum(),
            Each::GroupBy => self.group(),
            Each::SortBy => self.sort(extra),
            Each::Reduce => self.reduce(extra),
        }
    }

    fn sum(&mut self) -> Result<Val, Fault> {
        let mut total = Val::from(0_i64);
        for index in 0..self.len {
            let value = self.look(index)?;
            let sum = ops::add(&value, &total, &mut self.machine.budget);
            total = sum.map_err(|reason| self.fail(reason))?;
        }
        Ok(total)
    }

    fn group(&mut self) -> Result<Val, Fault> {
        let mut groups: BTreeMap<Key, Vec<Val>> = BTreeMap::new();
        for index in 0..self.len {
            let value = self.look(index)?;
            let Some(key) = Key::new(&value) else {
                return Err(self.fail(format!(
                    "cannot use {} as a key for groupBy: type is not comparable",
                    value.go_type()
                )));
            };
            groups.entry(key).or_default().push(self.item(Some(index)));
        }
        let mut entries = BTreeMap::new();
        for (key, items) in groups {
            entries.insert(key, self.list(items)?);
        }
        Val::groups(entries).map_err(|reason| self.fail(reason))
    }

    fn sort(&mut self, order: Option<Val>) -> Result<Val, Fault> {
        let descending = match order {
            None => false,
            Some(order) => match order.text().map(AsRef::as_ref) {
                Ok("asc") => false,
                Ok("desc") => true,
                Ok(_) => return Err(self.fail("unknown order, use asc or desc")),
                Err(_) => return Err(self.fail("sortBy order argument must be a string")),
            },
        };
        let mut pairs = Vec::with_capacity(self.len);
        for index in 0..self.len {
            pairs.push((self.look(index)?, self.item(Some(index))));
        }
        let sorted = sorted_by(pairs, descending).map_err(|reason| self.fail(reason))?;
        self.list(sorted)
    }

    fn reduce(&mut self, initial: Option<Val>) -> Result<Val, Fault> {
        let (mut acc, start) = match initial {
            Some(initial) => (initial, 0),
            None if self.len == 0 => {
                return Err(self.fail("reduce of empty array with no initial value"));
            }
            None => (self.item(Some(0)), 1),
        };
        for index in start..self.len {
            if let Some(scope) = self.machine.scopes.last_mut() {
                scope.acc = acc;
            }
            acc = self.look(index)?;
        }
        Ok(acc)
    }
}

/// Sorts items by their keys; equal keys keep their order.
pub(super) fn sorted_by(mut pairs: Vec<(Val, Val)>, descending: bool) -> Result<Vec<Val>, Reason> {
    if let Some((first, _)) = pairs.first() {
        // Kinds have no order between them; once all fit the first, all fit each other.
        for (key, _) in pairs.iter().skip(1) {
            ops::sort_order(key, first)?;
        }
    }
    pairs.sort_by(|(left, _), (right, _)| {
        let order = ops::sort_order(left, right).unwrap_or(Ordering::Equal);
        match descending {
            true => order.reverse(),
            false => order,
        }
    });
    Ok(pairs.into_iter().map(|(_, item)| item).collect())
}
