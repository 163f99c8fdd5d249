//! Runtime: fields, indexes and slices.
//!
//! The last field of a chain may be missing from a map, which gives no value; a missing field
//! before it is an error.

use std::sync::Arc;

use super::ast::{Expr, Step};
use super::error::{Fault, Span};
use super::operand::{Callable, Item};
use super::operate::Number;
use super::runtime::{Run, Runtime};
use ccm_value::Value;

impl Runtime<'_> {
    /// Evaluates a chain of fields, indexes and calls.
    pub(super) fn path(&mut self, base: &Expr, steps: &[Step], span: Span) -> Run<Item> {
        let mut item = self.evaluate(base)?;
        let mut steps = steps.iter().peekable();
        while let Some(step) = steps.next() {
            self.step(span)?;
            item = match step {
                Step::Field(name) => {
                    let found = self.field(&item, name, span)?;
                    let last = !matches!(steps.peek(), Some(Step::Field(_)));
                    let may_be_missing = last && matches!(item, Item::Data(Value::Map(_)));
                    if matches!(found, Item::Missing) && !may_be_missing {
                        return Err(self.no_field(&item, name, span));
                    }
                    found
                }
                Step::Index(index) => {
                    let index = self.evaluate(index)?;
                    self.index(&item, &index, span)?
                }
                Step::Slice(from, to) => {
                    let from = self.bound(from.as_ref())?;
                    let to = self.bound(to.as_ref())?;
                    self.slice(&item, from, to, span)?
                }
                Step::Call(arguments) => match item {
                    Item::Function(function) => self.call(*function, arguments, None, span)?,
                    Item::Missing => {
                        return Err(self.fail(span, "base of call expression is invalid value"));
                    }
                    other => {
                        let (text, name) = (self.source.quote(span), other.type_name());
                        let message = format!("node {text:?} is not func kind {name:?}");
                        return Err(self.fail(span, message));
                    }
                },
            };
        }
        Ok(item)
    }

    /// Returns a field: an entry of a map, or a method.
    pub(super) fn field(&mut self, item: &Item, name: &Arc<str>, span: Span) -> Run<Item> {
        match item {
            Item::Data(Value::Map(map)) => Ok(map
                .get(name)
                .map_or(Item::Missing, |v| Item::Data(v.clone()))),
            // Lists have no fields, so an environment function can be their method.
            Item::Data(Value::List(list)) => match self.functions.get_key_value(&**name) {
                Some((name, function)) => Ok(Callable::Env {
                    name,
                    function: function.clone(),
                    receiver: Some(Value::List(list.clone())),
                }
                .into()),
                None => Err(self.fail(span, "cannot index slice/array/string with type string")),
            },
            Item::Error(reason) if &**name == "Error" => {
                Ok(Callable::ErrorText(reason.clone()).into())
            }
            Item::Missing => Err(self.no_field(item, name, span)),
            Item::Data(Value::Null) => Err(self.fail(
                span,
                format!("nil pointer evaluating interface {{}}.{name}"),
            )),
            _ if item.as_text().is_some() => {
                Err(self.fail(span, "cannot index slice/array/string with type string"))
            }
            other => {
                let message = format!("can't evaluate index {name} in type {}", other.type_name());
                Err(self.fail(span, message))
            }
        }
    }

    pub(super) fn no_field(&self, item: &Item, name: &str, span: Span) -> Fault {
        let (kind, text) = (item.type_name(), self.source.quote(span));
        let message = format!("there is no field or method '{name}' in {kind} ({text})");
        self.fail(span, message)
    }

    fn index(&mut self, item: &Item, index: &Item, span: Span) -> Run<Item> {
        if let (Item::Data(Value::Str(name)), false) = (index, item.as_text().is_some()) {
            if matches!(item, Item::Data(Value::List(_))) {
                let message = "cannot index slice/array/string with type string";
                return Err(self.fail(span, message));
            }
            return self.field(item, name, span);
        }
        let elements = match item {
            Item::Data(Value::List(list)) => list.len(),
            Item::Data(Value::Map(_)) => {
                let (shown, name) = (self.show(index), index.type_name());
                let message = format!(
                    "can't use {shown} ({name}) as key for map of type map[string]interface {{}}"
                );
                return Err(self.fail(span, message));
            }
            Item::Missing => {
                let shown = self.show(index);
                return Err(self.no_field(item, &shown, span));
            }
            _ => match item.as_text() {
                Some(text) => text.len(),
                None => {
                    let (shown, name) = (self.show(index), item.type_name());
                    let message = format!("can't evaluate index {shown} in type {name}");
                    return Err(self.fail(span, message));
                }
            },
        };
        let Some(number) = Number::of(index) else {
            let message = match index {
                Item::Missing => "cannot index slice/array/string with nil".into(),
                other => format!(
                    "cannot index slice/array/string with type {}",
                    other.type_name()
                ),
            };
            return Err(self.fail(span, message));
        };
        let at = usize::try_from(number.to_int())
            .ok()
            .filter(|&at| at < elements);
        let found = at.and_then(|at| match item {
            Item::Data(Value::List(list)) => list.get(at).map(|v| Item::Data(v.clone())),
            other => {
                let byte = other.as_text()?.get(at)?;
                Some(Item::Data(i64::from(*byte).into()))
            }
        });
        found.ok_or_else(|| self.fail(span, format!("index out of range: {}", number.to_int())))
    }

    fn bound(&mut self, bound: Option<&Expr>) -> Run<Option<i64>> {
        let Some(expr) = bound else {
            return Ok(None);
        };
        let item = self.evaluate(expr)?;
        match Number::of(&item) {
            Some(number) => Ok(Some(number.to_int())),
            None => {
                let kind = item.kind_name();
                let message = format!("non numeric value in index expression kind {kind}");
                Err(self.fail(expr.span, message))
            }
        }
    }

    fn slice(&mut self, item: &Item, from: Option<i64>, to: Option<i64>, span: Span) -> Run<Item> {
        let length = match (item, item.as_text()) {
            (Item::Data(Value::List(list)), _) => list.len(),
            (_, Some(text)) => text.len(),
            _ => {
                let message = format!("can't slice type {}", item.type_name());
                return Err(self.fail(span, message));
            }
        };
        let (from, to) = (from.unwrap_or(0), to.unwrap_or(length as i64));
        let range = match (usize::try_from(from), usize::try_from(to)) {
            (Ok(from), Ok(to)) if from <= to && to <= length => from..to,
            _ => {
                let message =
                    format!("slice bounds out of range [{from}:{to}] with length {length}");
                return Err(self.fail(span, message));
            }
        };
        self.charge(range.len(), span)?;
        Ok(match item {
            Item::Data(Value::List(list)) => {
                self.charge(range.len() * size_of::<Value>(), span)?;
                let part = list.get(range).unwrap_or_default();
                Item::Data(part.to_vec().into())
            }
            other => {
                let text = other.as_text().unwrap_or_default();
                Item::from_bytes(text.get(range).unwrap_or_default().to_vec())
            }
        })
    }
}
