//! The built-ins that run a predicate for each item of a list: `map`, `filter`, `reduce`, …

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::ast::{Each, Id};
use super::error::Fault;
use super::eval::Machine;
use super::ops;
use super::runtime_value::{Key, Reason, Val, count};

/// One run of a predicate over a list.
pub(super) struct Loop<'m, 'a, 'l> {
    pub(super) machine: &'m mut Machine<'a>,
    pub(super) list: &'l Val,
    pub(super) len: usize,
    pub(super) predicate: Option<Id>,
    pub(super) at: usize,
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

    /// Runs the loop and returns its result.
    pub(super) fn finish(mut self, each: Each, extra: Option<Val>) -> Result<Val, Fault> {
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
        if descending { order.reverse() } else { order }
    });
    Ok(pairs.into_iter().map(|(_, item)| item).collect())
}
