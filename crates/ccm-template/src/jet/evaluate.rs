//! Runtime: names and operators.
//!
//! A name is looked up in the scopes, the caller's variables, the environment's functions and the
//! built-ins, in that order.

use std::sync::Arc;

use super::ast::{Expr, ExprKind, Operator};
use super::builtins::Builtin;
use super::error::{Problem, Span};
use super::operand::{self, Callable, Item};
use super::operate::{self, Number};
use super::runtime::{Run, Runtime};
use crate::go_names::go_type;
use ccm_value::Value;
use ccm_value::quote::quote;

impl Runtime<'_> {
    /// Evaluates an expression.
    pub(super) fn evaluate(&mut self, expr: &Expr) -> Run<Item> {
        match &expr.kind {
            ExprKind::Literal(item) => Ok(item.clone()),
            ExprKind::Context => Ok(self.context.clone()),
            ExprKind::Name(name) => self.resolve(name, expr.span),
            _ => self.deeper(expr.span, |runtime| runtime.compound(expr)),
        }
    }

    fn compound(&mut self, expr: &Expr) -> Run<Item> {
        let span = expr.span;
        match &expr.kind {
            ExprKind::Literal(item) => Ok(item.clone()),
            ExprKind::Context => Ok(self.context.clone()),
            ExprKind::Name(name) => self.resolve(name, span),
            ExprKind::ContextFields(fields) => {
                let mut item = self.context.clone();
                for name in fields {
                    item = match self.field(&item, name, span)? {
                        Item::Missing => return Err(self.no_field(&item, name, span)),
                        found => found,
                    };
                }
                Ok(item)
            }
            ExprKind::Slot => Err(self.fail(span, "'_' stands for no piped value here")),
            ExprKind::Path { base, steps } => self.path(base, steps, span),
            ExprKind::Sign { minus, operand } => self.sign(*minus, operand, span),
            ExprKind::Not(operand) => {
                let value = self.evaluate(operand)?.is_true();
                Ok(Item::Data((!value).into()))
            }
            ExprKind::Binary { first, rest } => self.binary(first, rest),
            ExprKind::Ternary(parts) => {
                let [test, then, otherwise] = &**parts;
                let test = self.evaluate(test)?.is_true();
                self.evaluate(if test { then } else { otherwise })
            }
        }
    }

    fn resolve(&mut self, name: &Arc<str>, span: Span) -> Run<Item> {
        self.step(span)?;
        match self.find(name) {
            Some(item) => Ok(item),
            None => {
                let scope = self.scope_types();
                let message = format!(
                    "identifier {} not available in current ({scope}) or parent scope, global, or default variables",
                    quote(name)
                );
                Err(self.fail(span, message))
            }
        }
    }

    /// Returns the value of a name, if it is defined.
    pub(super) fn find(&self, name: &str) -> Option<Item> {
        for scope in self.scopes.iter().rev() {
            if let Some(item) = scope.variables.get(name) {
                return Some(item.clone());
            }
        }
        if let Some(value) = self.variables.get(name) {
            return Some(Item::Data(value.clone()));
        }
        if let Some((name, function)) = self.functions.get_key_value(name) {
            let function = Callable::Env {
                name,
                function: function.clone(),
                receiver: None,
            };
            return Some(function.into());
        }
        let builtin = Builtin::named(name)?;
        Some(Callable::Builtin(builtin).into())
    }

    /// Prints the innermost scope like Jet, but with types instead of values, because data may be
    /// secret.
    fn scope_types(&self) -> String {
        let entries: Vec<String> = match self.scopes.as_slice() {
            [.., scope] if !scope.variables.is_empty() => {
                let entry = |(name, item): (&Arc<str>, &Item)| {
                    format!("{name}:<{} Value>", item.type_name())
                };
                scope.variables.iter().map(entry).collect()
            }
            // The outermost scope and that of the template appear as one to the author.
            [_] | [_, _] => {
                let entry = |(name, value): (&Arc<str>, &Value)| {
                    format!("{name}:<{} Value>", go_type(value))
                };
                self.variables.iter().map(entry).collect()
            }
            _ => Vec::new(),
        };
        format!("map[{}]", entries.join(" "))
    }

    fn sign(&mut self, minus: bool, operand: &Expr, span: Span) -> Run<Item> {
        let item = self.evaluate(operand)?;
        let signed = match (Number::of(&item), minus) {
            (Some(number), false) => number,
            (Some(Number::Int(value)), true) => Number::Int(value.wrapping_neg()),
            (Some(Number::Float(value)), true) => Number::Float(-value),
            (None, _) => {
                let message = match item {
                    Item::Missing => "right side of additive expression is invalid value".into(),
                    other => format!(
                        "additive expression: right side {} ({}) is not a numeric value (no left side)",
                        self.source.quote(operand.span),
                        other.type_name()
                    ),
                };
                return Err(self.fail(span, message));
            }
        };
        Ok(signed.into())
    }

    fn binary(&mut self, first: &Expr, rest: &[(Operator, Expr)]) -> Run<Item> {
        let mut left = self.evaluate(first)?;
        let mut span = first.span;
        for (operator, expr) in rest {
            self.step(span)?;
            left = match operator {
                Operator::And | Operator::Or => {
                    let decided = left.is_true() == (*operator == Operator::Or);
                    let truth = if decided {
                        left.is_true()
                    } else {
                        self.evaluate(expr)?.is_true()
                    };
                    Item::Data(truth.into())
                }
                _ => {
                    let right = self.evaluate(expr)?;
                    self.operate(*operator, &left, &right, [span, expr.span])?
                }
            };
            span = span.to(expr.span);
        }
        Ok(left)
    }

    fn operate(
        &mut self,
        operator: Operator,
        left: &Item,
        right: &Item,
        [span, right_span]: [Span; 2],
    ) -> Run<Item> {
        let at = |runtime: &Self, problem: Problem| runtime.fail(span, problem);
        match operator {
            Operator::Equal | Operator::NotEqual => {
                self.charge_comparison(left, right, span)?;
                let equal = operate::equal(left, right);
                Ok(Item::Data((equal == (operator == Operator::Equal)).into()))
            }
            Operator::Less | Operator::LessEqual | Operator::Greater | Operator::GreaterEqual => {
                let Some(number) = Number::of(left) else {
                    let message = "a non numeric value in numeric comparative expression";
                    return Err(self.fail(span, message));
                };
                let truth = operate::compare(operator, number, right);
                let truth = truth.map_err(|problem| at(self, problem))?;
                Ok(Item::Data(truth.into()))
            }
            Operator::Add | Operator::Subtract => {
                for (side, item) in [("left", left), ("right", right)] {
                    if matches!(item, Item::Missing) {
                        let message =
                            format!("{side} side of additive expression is invalid value");
                        return Err(self.fail(span, message));
                    }
                }
                if let Some(number) = Number::of(left) {
                    let sum = operate::arithmetic(operator, number, right);
                    return sum.map(Item::from).map_err(|problem| at(self, problem));
                }
                if let Some(text) = left.as_text() {
                    if operator == Operator::Subtract {
                        let message = "minus signal is not allowed with strings";
                        return Err(self.fail(right_span, message));
                    }
                    return self.append(text, right, span);
                }
                let (text, name) = (self.source.quote(span), left.type_name());
                let message = match right {
                    Item::Data(Value::Float(_)) => format!(
                        "additive expression: left side ({text} ({name}) needs float promotion but neither int nor uint)"
                    ),
                    _ => format!(
                        "additive expression: left side {text} ({name}) is not a numeric value"
                    ),
                };
                Err(self.fail(span, message))
            }
            _ => {
                let Some(number) = Number::of(left) else {
                    let message = "a non numeric value in multiplicative expression";
                    return Err(self.fail(span, message));
                };
                let product = operate::arithmetic(operator, number, right);
                product.map(Item::from).map_err(|problem| at(self, problem))
            }
        }
    }

    fn append(&mut self, left: &[u8], right: &Item, span: Span) -> Run<Item> {
        self.charge(left.len(), span)?;
        let mut text = left.to_vec();
        match right {
            Item::Data(Value::Float(number)) => {
                text.extend_from_slice(Value::Float(*number).to_string().as_bytes());
            }
            right => text.extend_from_slice(&self.text_of(right, span)?),
        }
        Ok(Item::from_bytes(text))
    }

    fn charge_comparison(&mut self, left: &Item, right: &Item, span: Span) -> Run<()> {
        let cost = match (left, right) {
            (Item::Data(left @ (Value::List(_) | Value::Map(_))), Item::Data(_)) => {
                operand::size_of(left).map_err(|message| self.limit(span, message))?
            }
            _ => left.as_text().map_or(0, <[u8]>::len),
        };
        self.charge(cost, span)
    }
}
