//! Runtime: declarations, and assignments to variables and their fields.
//!
//! A map that is shared is copied before it is changed; one that only this template references is
//! changed in place.

use std::sync::Arc;

use super::ast::{Assign, Step, Target, TargetKind};
use super::error::{Problem, Span};
use super::operand::{self, Item};
use super::operate::Number;
use super::runtime::{Run, Runtime, Scope};
use crate::go_names::go_type;
use ccm_value::Value;
use ccm_value::quote::quote;

impl Runtime<'_> {
    pub(super) fn assign(&mut self, assign: &Assign) -> Run<()> {
        let declare = assign.declare;
        if let ([first, second], [value]) = (assign.targets.as_slice(), assign.values.as_slice()) {
            let value = self.evaluate(value)?;
            let found = !matches!(value, Item::Missing);
            self.put(declare, first, value)?;
            return self.put(declare, second, Item::Data(found.into()));
        }
        for (target, value) in assign.targets.iter().zip(&assign.values) {
            let value = self.evaluate(value)?;
            self.put(declare, target, value)?;
        }
        Ok(())
    }

    /// Declares a target or assigns to it.
    pub(super) fn put(&mut self, declare: bool, target: &Target, value: Item) -> Run<()> {
        match &target.kind {
            TargetKind::Variable(name) if declare => {
                self.declare(name, value);
                Ok(())
            }
            _ => self.set(target, value),
        }
    }

    pub(super) fn declare(&mut self, name: &Arc<str>, value: Item) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.variables.insert(name.clone(), value);
        }
    }

    pub(super) fn is_declared(&self, name: &str) -> bool {
        let scope = self.scopes.last();
        scope.is_some_and(|scope| scope.variables.contains_key(name))
    }

    /// Assigns to an existing variable, or to a field below one.
    fn set(&mut self, target: &Target, value: Item) -> Run<()> {
        match &target.kind {
            TargetKind::Discard => Ok(()),
            TargetKind::Variable(name) => {
                if let Some(slot) = self.slot(name) {
                    *slot = value;
                    return Ok(());
                }
                let shown = self.show(&value);
                let message = format!(
                    "could not assign {name:?} = {shown} because variable {name:?} is uninitialised"
                );
                Err(self.fail(target.span, message))
            }
            TargetKind::Field {
                variable,
                steps,
                last,
            } => self.set_field(target.span, variable.as_ref(), steps, last, value),
        }
    }

    /// Returns the storage of a variable. A variable of the caller is copied first.
    fn slot(&mut self, name: &Arc<str>) -> Option<&mut Item> {
        let holds = |scope: &Scope| scope.variables.contains_key(name);
        let at = match self.scopes.iter().rposition(holds) {
            Some(at) => at,
            None => {
                let value = self.variables.get(name)?.clone();
                let outermost = self.scopes.first_mut()?;
                outermost.variables.insert(name.clone(), Item::Data(value));
                0
            }
        };
        self.scopes.get_mut(at)?.variables.get_mut(name)
    }

    fn set_field(
        &mut self,
        span: Span,
        variable: Option<&Arc<str>>,
        steps: &[Step],
        last: &Arc<str>,
        value: Item,
    ) -> Run<()> {
        let mut keys = Vec::with_capacity(steps.len());
        for step in steps {
            keys.push(match step {
                Step::Index(index) => self.evaluate(index)?,
                Step::Field(name) => Item::Data(Value::Str(name.clone())),
                Step::Slice(..) | Step::Call(_) => Item::Missing,
            });
        }
        let value = match value {
            Item::Missing => None,
            value => Some(self.data_of(value, span)?),
        };
        // The value is moved out, so that an unshared map is changed in place.
        let taken = match variable {
            Some(name) => match self.slot(name) {
                Some(slot) => std::mem::replace(slot, Item::Missing),
                None => {
                    let message = format!(
                        "identifier {} is not available in the current scope",
                        quote(name)
                    );
                    return Err(self.fail(span, message));
                }
            },
            None => std::mem::replace(&mut self.context, Item::Missing),
        };
        let grows = matches!(value, Some(Value::List(_) | Value::Map(_)));
        let mut copied = 0;
        let mut size = Ok(0);
        let (changed, result) = match taken {
            Item::Data(mut root) => {
                let result = insert(&mut root, &keys, last, value, &mut copied);
                if grows {
                    size = operand::size_of(&root);
                }
                (Item::Data(root), result)
            }
            other => {
                let name = other.type_name();
                let message = format!("there is no field or method '{last}' in {name}");
                (other, Err(message.into()))
            }
        };
        match variable.and_then(|name| self.slot(name)) {
            Some(slot) => *slot = changed,
            None => self.context = changed,
        }
        result.map_err(|problem| self.fail(span, problem))?;
        let size = size.map_err(|message| self.limit(span, message))?;
        self.charge(size / 8 + copied * size_of::<Value>(), span)
    }
}

/// Sets the value at a path of keys below `root`; no value removes the entry. Adds to `copied` the
/// number of entries of shared maps and lists that had to be copied.
fn insert(
    root: &mut Value,
    keys: &[Item],
    last: &Arc<str>,
    value: Option<Value>,
    copied: &mut usize,
) -> Result<(), Problem> {
    let mut target = root;
    for key in keys {
        target = match (target, key) {
            (Value::Map(map), Item::Data(Value::Str(key))) => {
                *copied += copied_entries(map, map.len());
                let entry = Arc::make_mut(map).get_mut(key);
                entry.ok_or_else(|| {
                    format!("there is no field or method '{key}' in map[string]interface {{}}")
                })?
            }
            (Value::List(list), key) => {
                let index = Number::of(key).ok_or("cannot index slice/array/string with text")?;
                let index = index.to_int();
                *copied += copied_entries(list, list.len());
                let items = Arc::make_mut(list);
                let slot = usize::try_from(index).ok().and_then(|i| items.get_mut(i));
                slot.ok_or_else(|| format!("index out of range: {index}"))?
            }
            (other, _) => {
                return Err(format!("can't assign inside a {}", go_type(other)).into());
            }
        };
    }
    let Value::Map(map) = target else {
        let name = go_type(target);
        return Err(format!("can't assign '{last}' in a {name}").into());
    };
    *copied += copied_entries(map, map.len());
    let map = Arc::make_mut(map);
    match value {
        Some(value) => map.insert(last.clone(), value),
        None => map.remove(last),
    };
    Ok(())
}

/// Returns the number of entries copied by a change: none if the value is not shared.
fn copied_entries<T>(value: &Arc<T>, entries: usize) -> usize {
    if Arc::strong_count(value) > 1 {
        entries
    } else {
        0
    }
}
