//! Runtime: pipelines, calls and printing.

use std::fmt::{self, Write};

use super::ast::{Arguments, Command, ExprKind, Pipeline};
use super::builtins::{self, Builtin};
use super::error::{Problem, Span};
use super::operand::{self, Callable, Item};
use super::runtime::{Run, Runtime};
use ccm_value::Value;
use ccm_value::quote::quote;

impl Runtime<'_> {
    /// Runs a pipeline and prints its result.
    pub(super) fn pipeline(&mut self, pipeline: &Pipeline) -> Run<()> {
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

    /// Returns the result of a command; `None` if it has written its output itself.
    fn first_command(&mut self, command: &Command) -> Run<Option<Item>> {
        let span = command.base.span;
        let base = self.evaluate(&command.base)?;
        let Some(arguments) = &command.arguments else {
            return Ok(Some(base));
        };
        match base {
            Item::Function(function) => self.command_call(*function, arguments, None, span),
            other => {
                let (text, name) = (self.source.quote(span), other.type_name());
                let message = format!(
                    "command {} has arguments but is {name}, not a function",
                    quote(&text)
                );
                Err(self.fail(span, message))
            }
        }
    }

    fn piped_command(&mut self, command: &Command, piped: Item) -> Run<Option<Item>> {
        let span = command.base.span;
        let none = Arguments::default();
        let arguments = command.arguments.as_ref().unwrap_or(&none);
        match self.evaluate(&command.base)? {
            Item::Function(function) => self.command_call(*function, arguments, Some(piped), span),
            Item::Missing => {
                let message = "base expression of command pipe node is invalid value";
                Err(self.fail(span, message))
            }
            other => {
                let (text, name) = (self.source.quote(span), other.type_name());
                let message = format!(
                    "pipe command {} must be a function, but is {name}",
                    quote(&text)
                );
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

    /// Calls a function that returns a value.
    pub(super) fn call(
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
            Callable::ErrorText(reason) => Ok(Item::Data(Value::Str(reason))),
            Callable::Env {
                name,
                function,
                receiver,
            } => {
                let items = self.arguments(arguments, piped)?;
                let checked = builtins::check_env_call(name, &items);
                checked.map_err(|problem| self.fail(span, problem))?;
                let mut values: Vec<Value> = receiver.into_iter().collect();
                for item in items {
                    values.push(match item {
                        Item::Missing => Value::Null,
                        item => self.data_of(item, span)?,
                    });
                }
                let holds = |v: &Value| matches!(v, Value::List(_) | Value::Map(_));
                let nests = values.iter().any(holds);
                match function(&values) {
                    // A function that wraps its argument could nest values without limit.
                    Ok(value) if nests && holds(&value) => {
                        let size = operand::size_of(&value).map_err(|err| self.limit(span, err))?;
                        self.charge(size / 8, span)?;
                        Ok(Item::Data(value))
                    }
                    Ok(value) => Ok(Item::from_result(value)),
                    Err(err) => {
                        let label = builtins::error_label(name);
                        let err = err.reword(|reason| format!("{label}: {reason}"));
                        Err(self.fail(span, Problem::bare(err)))
                    }
                }
            }
        }
    }

    /// Returns the arguments of a call in order, including the piped value.
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

    /// Implements `isset`: returns whether every argument has a value other than null. Errors count
    /// as no value, except an exceeded limit.
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
            set = match self.without_output(|runtime| runtime.evaluate(expr)) {
                Ok(item) => item.is_set(),
                Err(error) if error.fatal => return Err(error),
                Err(_) => {
                    self.charge_error()?;
                    false
                }
            };
        }
        Ok(Item::Data(set.into()))
    }

    /// Prints the value of an action; a missing value prints nothing.
    fn print(&mut self, item: &Item, span: Span) -> Run<()> {
        match item {
            Item::Missing | Item::SilentBool(_) => Ok(()),
            Item::Data(Value::Str(text)) => self.write(text.as_bytes(), span),
            item => {
                let text = self.text_of(item, span)?;
                self.write(&text, span)
            }
        }
    }

    /// Returns the printed form of an item.
    pub(super) fn text_of(&mut self, item: &Item, span: Span) -> Run<Vec<u8>> {
        let text = match item {
            Item::Missing | Item::SilentBool(_) => Vec::new(),
            Item::Bytes(bytes) => bytes.to_vec(),
            Item::Error(reason) => reason.as_bytes().to_vec(),
            Item::Data(Value::Str(text)) => text.as_bytes().to_vec(),
            Item::Data(Value::Float(number)) => operand::plain_float(*number).into_bytes(),
            Item::Data(value @ (Value::List(_) | Value::Map(_))) => {
                let size = operand::size_of(value).map_err(|err| self.limit(span, err))?;
                self.charge(size, span)?;
                value.to_string().into_bytes()
            }
            Item::Data(value) => value.to_string().into_bytes(),
            Item::Ints(..) => {
                let list = self.data_of(item.clone(), span)?;
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

    /// Converts an item to data, for a list, a map or an environment function.
    pub(super) fn data_of(&mut self, item: Item, span: Span) -> Run<Value> {
        Ok(match item {
            Item::Data(value) => value,
            Item::Missing => Value::Null,
            Item::SilentBool(value) => value.into(),
            Item::Error(reason) => Value::Str(reason),
            Item::Ints(from, to) => {
                let count = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
                self.charge(count.saturating_mul(size_of::<Value>()), span)?;
                (from..to).map(Value::from).collect()
            }
            Item::Bytes(_) => return Err(self.fail(span, "text that is not UTF-8 is no data")),
            Item::Function(_) => return Err(self.fail(span, "a function is no data")),
        })
    }

    /// Returns an item in short form, for error messages.
    pub(super) fn show(&self, item: &Item) -> String {
        let mut text = Short(String::new());
        // The writer fails once the text is long enough.
        let _stopped = match item {
            Item::Missing => text.write_str("<invalid>"),
            Item::Data(Value::Float(number)) => text.write_str(&operand::plain_float(*number)),
            Item::Data(value) => write!(text, "{value}"),
            Item::Bytes(bytes) => text.write_str(&String::from_utf8_lossy(bytes)),
            Item::Ints(from, to) => write!(text, "ints({from}, {to})"),
            Item::SilentBool(value) => write!(text, "{value}"),
            Item::Error(reason) => text.write_str(reason),
            Item::Function(_) => text.write_str("function"),
        };
        text.0
    }
}

/// Writer with the maximum length of a value in a message.
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
