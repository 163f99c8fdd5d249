//! The runtime's other half: expressions, calls and printing.
//!
//! A name is looked for in the scopes, the caller's variables, the environment's functions and
//! the built-ins, in that order. The last field of a path may be missing, which is no value; a
//! missing one before it is an error.

use std::fmt::{self, Write};
use std::sync::Arc;

use super::ast::{Arguments, Command, Expr, ExprKind, Operator, Pipeline, Step};
use super::builtins::{self, Builtin};
use super::error::{Problem, Span};
use super::item::{self, Callable, Item};
use super::operate::{self, Number};
use super::runtime::{Run, Runtime};
use crate::model::Value;

impl Runtime<'_> {
    /// Runs a pipeline and prints its result.
    pub fn pipeline(&mut self, pipeline: &Pipeline) -> Run<()> {
        let mut value = self.first_command(&pipeline.first)?;
        for command in &pipeline.rest {
            let Some(piped) = value else {
                let text = self.source.quote(command.base.span);
                let message =
                    format!("unexpected command {text}, writer command should be the last command");
                return Err(self.fail(command.base.span, message));
            };
            value = self.piped_command(command, piped)?;
        }
        match value {
            Some(value) => self.print(&value, pipeline.first.base.span),
            None => Ok(()),
        }
    }

    /// Returns what the command gives, or nothing when it has written by itself.
    fn first_command(&mut self, command: &Command) -> Run<Option<Item>> {
        let span = command.base.span;
        let base = self.evaluate(&command.base)?;
        let Some(arguments) = &command.arguments else {
            return Ok(Some(base));
        };
        match base {
            Item::Function(function) => self.command_call(function, arguments, None, span),
            other => {
                let (text, name) = (self.source.quote(span), other.type_name());
                let message =
                    format!("command {text:?} has arguments but is {name}, not a function");
                Err(self.fail(span, message))
            }
        }
    }

    fn piped_command(&mut self, command: &Command, piped: Item) -> Run<Option<Item>> {
        let span = command.base.span;
        let none = Arguments::default();
        let arguments = command.arguments.as_ref().unwrap_or(&none);
        match self.evaluate(&command.base)? {
            Item::Function(function) => self.command_call(function, arguments, Some(piped), span),
            Item::Missing => {
                let message = "base expression of command pipe node is invalid value";
                Err(self.fail(span, message))
            }
            other => {
                let (text, name) = (self.source.quote(span), other.type_name());
                let message = format!("pipe command {text:?} must be a function, but is {name}");
                Err(self.fail(span, message))
            }
        }
    }

    fn command_call(
        &mut self,
        function: Callable,
        arguments: &Arguments,
        piped: Option<Item>,
        span: Span,
    ) -> Run<Option<Item>> {
        if let Callable::Builtin(Builtin::Writer(writer)) = function {
            for item in self.arguments(arguments, piped)? {
                let text = self.text_of(&item, span)?;
                let escaped = writer.escape(&text);
                self.write(&escaped, span)?;
            }
            return Ok(None);
        }
        self.call(function, arguments, piped, span).map(Some)
    }

    /// Returns what an expression gives.
    pub fn evaluate(&mut self, expr: &Expr) -> Run<Item> {
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
                let [test, yes, no] = &**parts;
                let test = self.evaluate(test)?.is_true();
                self.evaluate(if test { yes } else { no })
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
                    "identifier {name:?} not available in current ({scope}) or parent scope, global, or default variables"
                );
                Err(self.fail(span, message))
            }
        }
    }

    /// Returns what a name means here, if anything.
    pub fn find(&self, name: &str) -> Option<Item> {
        for scope in self.scopes.iter().rev() {
            let mut variables = scope.variables.iter();
            if let Some((_, item)) = variables.find(|(known, _)| &**known == name) {
                return Some(item.clone());
            }
        }
        if let Some(value) = self.variables.get(name) {
            return Some(Item::Data(value.clone()));
        }
        if let Some((name, function)) = self.functions.get_key_value(name) {
            return Some(Item::Function(Callable::Own {
                name,
                function: function.clone(),
                receiver: None,
            }));
        }
        let builtin = Builtin::named(name)?;
        Some(Item::Function(Callable::Builtin(builtin)))
    }

    /// Shows the innermost scope as Jet does, but with types in place of values: data may be
    /// secret.
    fn scope_types(&self) -> String {
        let mut entries: Vec<String> = match self.scopes.as_slice() {
            [.., scope] if !scope.variables.is_empty() => {
                let entry = |(name, item): &(Arc<str>, Item)| {
                    format!("{name}:<{} Value>", item.type_name())
                };
                scope.variables.iter().map(entry).collect()
            }
            // The outermost scope and that of the template itself are one to its author.
            [_] | [_, _] => {
                let entry = |(name, value): (&Arc<str>, &Value)| {
                    format!("{name}:<{} Value>", item::go_type(value))
                };
                self.variables.iter().map(entry).collect()
            }
            _ => Vec::new(),
        };
        entries.sort();
        format!("map[{}]", entries.join(" "))
    }

    fn path(&mut self, base: &Expr, steps: &[Step], span: Span) -> Run<Item> {
        let mut item = self.evaluate(base)?;
        let mut steps = steps.iter().peekable();
        while let Some(step) = steps.next() {
            self.step(span)?;
            item = match step {
                Step::Field(name) => {
                    let found = self.field(&item, name, span)?;
                    let last = !matches!(steps.peek(), Some(Step::Field(_)));
                    let may_miss = last && matches!(item, Item::Data(Value::Map(_)));
                    if matches!(found, Item::Missing) && !may_miss {
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
                    Item::Function(function) => self.call(function, arguments, None, span)?,
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
    fn field(&mut self, item: &Item, name: &Arc<str>, span: Span) -> Run<Item> {
        match item {
            Item::Data(Value::Map(map)) => Ok(map
                .get(name)
                .map_or(Item::Missing, |v| Item::Data(v.clone()))),
            // Lists have no fields, so a function of the environment can be their method.
            Item::Data(Value::List(list)) => match self.functions.get_key_value(&**name) {
                Some((name, function)) => Ok(Item::Function(Callable::Own {
                    name,
                    function: function.clone(),
                    receiver: Some(Value::List(list.clone())),
                })),
                None => Err(self.fail(span, "cannot index slice/array/string with type string")),
            },
            Item::Failure(reason) if &**name == "Error" => {
                Ok(Item::Function(Callable::Reason(reason.clone())))
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

    fn no_field(&self, item: &Item, name: &str, span: Span) -> super::JetError {
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
                let message = format!(
                    "non numeric value in index expression kind {}",
                    item.type_name()
                );
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
                let part = list.get(range).unwrap_or_default();
                Item::Data(part.to_vec().into())
            }
            other => {
                let text = other.as_text().unwrap_or_default();
                Item::from_bytes(text.get(range).unwrap_or_default().to_vec())
            }
        })
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
                item::weigh(left).map_err(|message| self.limit(span, message))?
            }
            _ => left.as_text().map_or(0, <[u8]>::len),
        };
        self.charge(cost, span)
    }

    /// Calls a function that gives a value.
    fn call(
        &mut self,
        function: Callable,
        arguments: &Arguments,
        piped: Option<Item>,
        span: Span,
    ) -> Run<Item> {
        self.step(span)?;
        match function {
            Callable::Builtin(Builtin::IsSet) => self.is_set(arguments, piped, span),
            Callable::Builtin(builtin) => {
                let items = self.arguments(arguments, piped)?;
                self.call_builtin(builtin, items, span)
            }
            Callable::Reason(reason) => Ok(Item::Data(Value::Str(reason))),
            Callable::Own {
                name,
                function,
                receiver,
            } => {
                let items = self.arguments(arguments, piped)?;
                let checked = builtins::check_own(name, &items);
                checked.map_err(|problem| self.fail(span, problem))?;
                let mut values: Vec<Value> = receiver.into_iter().collect();
                for item in items {
                    values.push(match item {
                        Item::Missing => Value::Null,
                        item => self.to_value(item, span)?,
                    });
                }
                match function(&values) {
                    Ok(value) => Ok(Item::from_answer(value)),
                    Err(reason) => {
                        let label = builtins::own_label(name);
                        Err(self.fail(span, Problem::bare(format!("{label}: {reason}"))))
                    }
                }
            }
        }
    }

    /// Returns the arguments of a call in order, with the piped value in its place.
    fn arguments(&mut self, arguments: &Arguments, piped: Option<Item>) -> Run<Vec<Item>> {
        let mut piped = piped;
        let mut items = Vec::with_capacity(arguments.list.len() + 1);
        if !arguments.has_slot {
            items.extend(piped.take());
        }
        for expr in &arguments.list {
            items.push(match (&expr.kind, piped.take()) {
                (ExprKind::Slot, Some(value)) => value,
                (_, kept) => {
                    piped = kept;
                    self.evaluate(expr)?
                }
            });
        }
        Ok(items)
    }

    /// Returns whether every argument resolves to something that is not null; nothing that goes
    /// wrong on the way matters, except an exceeded limit.
    fn is_set(&mut self, arguments: &Arguments, piped: Option<Item>, span: Span) -> Run<Item> {
        if arguments.list.is_empty() && piped.is_none() {
            let message = "unexpected number of arguments in a call to isset";
            return Err(self.fail(span, Problem::bare(message)));
        }
        let mut set = piped.is_none_or(|item| item.is_set());
        for expr in &arguments.list {
            if !set {
                break;
            }
            if matches!(expr.kind, ExprKind::Slot) {
                continue;
            }
            set = match self.silently(|runtime| runtime.evaluate(expr)) {
                Ok(item) => item.is_set(),
                Err(error) if error.fatal => return Err(error),
                Err(_) => false,
            };
        }
        Ok(Item::Data(set.into()))
    }

    /// Prints the value of an action; a missing one prints nothing.
    fn print(&mut self, item: &Item, span: Span) -> Run<()> {
        match item {
            Item::Missing | Item::Quiet(_) => Ok(()),
            Item::Data(Value::Str(text)) => self.write(text.as_bytes(), span),
            item => {
                let text = self.text_of(item, span)?;
                self.write(&text, span)
            }
        }
    }

    /// Returns the text that an item prints as.
    pub fn text_of(&mut self, item: &Item, span: Span) -> Run<Vec<u8>> {
        let text = match item {
            Item::Missing | Item::Quiet(_) => Vec::new(),
            Item::Bytes(bytes) => bytes.to_vec(),
            Item::Failure(reason) => reason.as_bytes().to_vec(),
            Item::Data(Value::Str(text)) => text.as_bytes().to_vec(),
            Item::Data(Value::Float(number)) => item::plain_float(*number).into_bytes(),
            Item::Data(value @ (Value::List(_) | Value::Map(_))) => {
                let weight = item::weigh(value).map_err(|message| self.limit(span, message))?;
                self.charge(weight, span)?;
                value.to_string().into_bytes()
            }
            Item::Data(value) => value.to_string().into_bytes(),
            Item::Ints(..) => {
                let list = self.to_value(item.clone(), span)?;
                list.to_string().into_bytes()
            }
            Item::Function(_) => {
                let text = self.source.quote(span);
                return Err(self.fail(span, format!("{text} is a function: call it to print")));
            }
        };
        self.charge(text.len(), span)?;
        Ok(text)
    }

    /// Returns an item as data, for a list, a map or a function of the environment.
    pub fn to_value(&mut self, item: Item, span: Span) -> Run<Value> {
        Ok(match item {
            Item::Data(value) => value,
            Item::Missing => Value::Null,
            Item::Quiet(answer) => answer.into(),
            Item::Failure(reason) => Value::Str(reason),
            Item::Ints(from, to) => {
                let count = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
                self.charge(count.saturating_mul(size_of::<Value>()), span)?;
                (from..to).map(Value::from).collect()
            }
            Item::Bytes(_) => return Err(self.fail(span, "text that is not UTF-8 is no data")),
            Item::Function(_) => return Err(self.fail(span, "a function is no data")),
        })
    }

    /// Returns a short form of an item for messages.
    pub fn show(&self, item: &Item) -> String {
        let mut text = Short(String::new());
        // The writer stops the printing of a large value; what it has by then is enough.
        let _stopped = match item {
            Item::Missing => text.write_str("<invalid>"),
            Item::Data(Value::Float(number)) => text.write_str(&item::plain_float(*number)),
            Item::Data(value) => write!(text, "{value}"),
            Item::Bytes(bytes) => text.write_str(&String::from_utf8_lossy(bytes)),
            Item::Ints(from, to) => write!(text, "ints({from}, {to})"),
            Item::Quiet(answer) => write!(text, "{answer}"),
            Item::Failure(reason) => text.write_str(reason),
            Item::Function(_) => text.write_str("function"),
        };
        text.0
    }
}

/// Text that grows no longer than a message needs.
struct Short(String);

impl Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        const ENOUGH: usize = 100;
        for c in text.chars() {
            if self.0.len() >= ENOUGH {
                self.0.push_str("...");
                return Err(fmt::Error);
            }
            self.0.push(c);
        }
        Ok(())
    }
}
