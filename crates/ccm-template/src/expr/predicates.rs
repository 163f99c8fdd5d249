//! Built-ins that call a predicate for each item of a list: `map`, `filter`, `reduce`, …

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::ast::{Id, LoopBuiltin};
use super::error::Fault;
use super::eval::Evaluator;
use super::ops;
use super::runtime_value::{Key, Reason, Val, count};

/// Evaluation of one built-in over a list.
pub(super) struct Loop<'m, 'a, 'l> {
    pub(super) evaluator: &'m mut Evaluator<'a>,
    pub(super) list: &'l Val,
    pub(super) len: usize,
    pub(super) predicate: Option<Id>,
    pub(super) at: usize,
}

impl Loop<'_, '_, '_> {
    fn fail(&self, reason: impl Into<Reason>) -> Fault {
        Fault::at(self.at, reason)
    }

    /// Returns the result of the predicate for one item; the item itself if there is no predicate.
    fn call_predicate(&mut self, index: usize) -> Result<Val, Fault> {
        let charged = self.evaluator.budget.charge_steps(1);
        charged.map_err(|reason| self.fail(reason))?;
        let item = self.list.item(index).unwrap_or(Val::NULL);
        let Some(predicate) = self.predicate else {
            return Ok(item);
        };
        if let Some(scope) = self.evaluator.scopes.last_mut() {
            scope.item = item;
            scope.index = index;
        }
        self.evaluator.eval(predicate)
    }

    fn holds(&mut self, index: usize) -> Result<bool, Fault> {
        self.call_predicate(index)?
            .bool()
            .map_err(|reason| self.fail(reason))
    }

    /// Returns the first index for which the predicate returns `wanted`.
    fn first(&mut self, wanted: bool) -> Result<Option<usize>, Fault> {
        for index in 0..self.len {
            if self.holds(index)? == wanted {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Returns the last index for which the predicate is true.
    fn last(&mut self) -> Result<Option<usize>, Fault> {
        for index in (0..self.len).rev() {
            if self.holds(index)? {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    fn matching(&mut self) -> Result<Vec<usize>, Fault> {
        let mut found = Vec::new();
        for index in 0..self.len {
            if self.holds(index)? {
                found.push(index);
            }
        }
        Ok(found)
    }

    fn list(&mut self, items: Vec<Val>) -> Result<Val, Fault> {
        self.evaluator.charge_items(items.len(), self.at)?;
        Val::list(items).map_err(|reason| self.fail(reason))
    }

    fn item(&self, index: Option<usize>) -> Val {
        index
            .and_then(|index| self.list.item(index))
            .unwrap_or(Val::NULL)
    }

    /// Evaluates the built-in.
    pub(super) fn run(mut self, builtin: LoopBuiltin, extra: Option<Val>) -> Result<Val, Fault> {
        match builtin {
            LoopBuiltin::All => Ok(self.first(false)?.is_none().into()),
            LoopBuiltin::None => Ok(self.first(true)?.is_none().into()),
            LoopBuiltin::Any => Ok(self.first(true)?.is_some().into()),
            LoopBuiltin::One => Ok((self.matching()?.len() == 1).into()),
            LoopBuiltin::Count => Ok(count(self.matching()?.len())),
            LoopBuiltin::Find => {
                let found = self.first(true)?;
                Ok(self.item(found))
            }
            LoopBuiltin::FindLast => {
                let found = self.last()?;
                Ok(self.item(found))
            }
            LoopBuiltin::FindIndex => Ok(self.first(true)?.map_or(Val::NULL, count)),
            LoopBuiltin::FindLastIndex => Ok(self.last()?.map_or(Val::NULL, count)),
            LoopBuiltin::Filter => {
                let found = self.matching()?;
                let items = found.into_iter().map(|index| self.item(Some(index)));
                let items = items.collect();
                self.list(items)
            }
            LoopBuiltin::Map => {
                let items = (0..self.len).map(|index| self.call_predicate(index));
                let items = items.collect::<Result<_, _>>()?;
                self.list(items)
            }
            LoopBuiltin::Sum => self.sum(),
            LoopBuiltin::GroupBy => self.group(),
            LoopBuiltin::SortBy => self.sort(extra),
            LoopBuiltin::Reduce => self.reduce(extra),
        }
    }

    fn sum(&mut self) -> Result<Val, Fault> {
        let mut total = Val::from(0_i64);
        for index in 0..self.len {
            let value = self.call_predicate(index)?;
            let sum = ops::add(&value, &total, &mut self.evaluator.budget);
            total = sum.map_err(|reason| self.fail(reason))?;
        }
        Ok(total)
    }

    fn group(&mut self) -> Result<Val, Fault> {
        let mut groups: BTreeMap<Key, Vec<Val>> = BTreeMap::new();
        for index in 0..self.len {
            let value = self.call_predicate(index)?;
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
            pairs.push((self.call_predicate(index)?, self.item(Some(index))));
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
            if let Some(scope) = self.evaluator.scopes.last_mut() {
                scope.acc = acc;
            }
            acc = self.call_predicate(index)?;
        }
        Ok(acc)
    }
}

/// Sorts items by key; the sort is stable.
pub(super) fn sorted_by(mut pairs: Vec<(Val, Val)>, descending: bool) -> Result<Vec<Val>, Reason> {
    if let Some((first, _)) = pairs.first() {
        // Values of different types are not comparable; if every key compares with the first, all
        // compare with each other.
        for (key, _) in pairs.iter().skip(1) {
            ops::sort_order(key, first)?;
        }
    }
    pairs.sort_by(|(left, _), (right, _)| {
        let order = ops::sort_order(left, right).unwrap_or(Ordering::Equal);
        if descending { order.reverse() } else { order }
    });
    Ok(pairs.into_iter().map(|(_, item)| item).collect())
}
