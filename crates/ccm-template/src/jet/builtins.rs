//! Built-in functions, and argument checks of the environment's functions.
//!
//! Arguments that must be text are not converted from numbers. Sizes are checked before a value is
//! built. `isset` needs its arguments unevaluated, so it is in `call`.

use std::sync::Arc;

use super::error::{Fault, Problem, Span};
use super::escape::Writer;
use super::loader;
use super::operand::{self, Item};
use super::operate::Number;
use super::runtime::{Run, Runtime};
use crate::{CallError, text};
use ccm_value::quote::quote;
use ccm_value::value::Map;
use ccm_value::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Builtin {
    Lower,
    Upper,
    TrimSpace,
    Html,
    Url,
    HasPrefix,
    HasSuffix,
    Repeat,
    Replace,
    Split,
    Json,
    WriteJson,
    Map,
    List,
    Len,
    IsSet,
    Ints,
    Exec,
    IncludeIfExists,
    Dump,
    Writer(Writer),
}

impl Builtin {
    /// Returns the built-in with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "lower" => Self::Lower,
            "upper" => Self::Upper,
            "trimSpace" => Self::TrimSpace,
            "html" => Self::Html,
            "url" => Self::Url,
            "hasPrefix" => Self::HasPrefix,
            "hasSuffix" => Self::HasSuffix,
            "repeat" => Self::Repeat,
            "replace" => Self::Replace,
            "split" => Self::Split,
            "json" => Self::Json,
            "writeJson" => Self::WriteJson,
            "map" => Self::Map,
            "slice" | "array" => Self::List,
            "len" => Self::Len,
            "isset" => Self::IsSet,
            "ints" => Self::Ints,
            "exec" => Self::Exec,
            "includeIfExists" => Self::IncludeIfExists,
            "dump" => Self::Dump,
            "safeHtml" => Self::Writer(Writer::Html),
            "safeJs" => Self::Writer(Writer::Js),
            "raw" | "unsafe" => Self::Writer(Writer::Raw),
            _ => return None,
        })
    }

    /// Returns the name, and the number of arguments if it is fixed.
    fn signature(self) -> (&'static str, Option<usize>) {
        match self {
            Self::Lower => ("lower", Some(1)),
            Self::Upper => ("upper", Some(1)),
            Self::TrimSpace => ("trimSpace", Some(1)),
            Self::Html => ("html", Some(1)),
            Self::Url => ("url", Some(1)),
            Self::HasPrefix => ("hasPrefix", Some(2)),
            Self::HasSuffix => ("hasSuffix", Some(2)),
            Self::Repeat => ("repeat", Some(2)),
            Self::Replace => ("replace", Some(4)),
            Self::Split => ("split", Some(2)),
            Self::Json => ("json", Some(1)),
            Self::WriteJson => ("writeJson", Some(1)),
            Self::Map => ("map", None),
            Self::List => ("slice", None),
            Self::Len => ("len", None),
            Self::IsSet => ("isset", None),
            Self::Ints => ("ints", None),
            Self::Exec => ("exec", None),
            Self::IncludeIfExists => ("includeIfExists", None),
            Self::Dump => ("dump", None),
            Self::Writer(_) => ("writer", None),
        }
    }
}

impl Runtime<'_> {
    /// Calls a built-in with its evaluated arguments.
    pub(super) fn call_builtin(
        &mut self,
        builtin: Builtin,
        items: Vec<Item>,
        span: Span,
    ) -> Run<Item> {
        let (name, count) = builtin.signature();
        if let Some(count) = count.filter(|&count| count != items.len()) {
            let have = items.len();
            let message =
                format!("call expression: {name} needs {count} arguments, but have {have}");
            return Err(self.fail(span, message));
        }
        let call = Call { name, items, span };
        let text = |runtime: &mut Self, at| call.text(runtime, at);
        Ok(Item::Data(match builtin {
            Builtin::Lower => text::lower(&text(self, 0)?).into(),
            Builtin::Upper => text::upper(&text(self, 0)?).into(),
            Builtin::TrimSpace => text(self, 0)?.trim().into(),
            Builtin::Html => text::html(&text(self, 0)?, "\0").into(),
            Builtin::Url => text::query(&text(self, 0)?).into(),
            Builtin::HasPrefix => text(self, 0)?.starts_with(&*text(self, 1)?).into(),
            Builtin::HasSuffix => text(self, 0)?.ends_with(&*text(self, 1)?).into(),
            Builtin::Repeat => call.repeat(self)?.into(),
            Builtin::Replace => call.replace(self)?.into(),
            Builtin::Split => call.split(self)?,
            Builtin::Json => call.json(self)?.into(),
            Builtin::WriteJson => (call.json(self)? + "\n").into(),
            Builtin::Map => call.map(self)?,
            Builtin::List => call.list(self)?,
            Builtin::Len => call.len(self)?.into(),
            Builtin::Dump => call.dump(self)?.into(),
            Builtin::Ints => return call.ints(self),
            Builtin::Exec => return call.exec(self),
            Builtin::IncludeIfExists => return call.include_if_exists(self),
            Builtin::IsSet | Builtin::Writer(_) => {
                let message = "unexpected command, writer command should be the last command";
                return Err(self.fail(span, message));
            }
        }))
    }
}

/// One call of a built-in.
struct Call {
    name: &'static str,
    items: Vec<Item>,
    span: Span,
}

impl Call {
    fn fail(&self, runtime: &Runtime<'_>, problem: impl Into<Problem>) -> Fault {
        runtime.fail(self.span, problem)
    }

    /// Returns an error that upstream reports without a position.
    fn bare(&self, runtime: &Runtime<'_>, message: impl Into<CallError>) -> Fault {
        runtime.fail(self.span, Problem::bare(message))
    }

    fn item(&self, at: usize) -> &Item {
        self.items.get(at).unwrap_or(&Item::Missing)
    }

    fn arity(&self, runtime: &Runtime<'_>, fits: bool) -> Run<()> {
        if fits {
            return Ok(());
        }
        let name = self.name;
        let message = format!("unexpected number of arguments in a call to {name}");
        Err(self.bare(runtime, message))
    }

    fn invalid(&self, runtime: &Runtime<'_>, at: usize) -> Fault {
        let name = self.name;
        let message =
            format!("call expression: argument for position {at} in {name} is not a valid value");
        self.fail(runtime, message)
    }

    /// Returns an argument that must be text, and counts its length, because it is read and copied.
    fn text(&self, runtime: &mut Runtime<'_>, at: usize) -> Run<Arc<str>> {
        match self.item(at) {
            Item::Data(Value::Str(text)) => {
                runtime.charge(text.len(), self.span)?;
                Ok(text.clone())
            }
            Item::Error(reason) => Ok(reason.clone()),
            Item::Missing => Err(self.invalid(runtime, at)),
            other => {
                let (name, found) = (self.name, other.type_name());
                let message = format!(
                    "call expression: argument for position {at} in {name} must be string, not {found}"
                );
                Err(self.fail(runtime, message))
            }
        }
    }

    fn number(&self, runtime: &Runtime<'_>, at: usize) -> Run<i64> {
        let item = self.item(at);
        match (Number::of(item), item) {
            (Some(number), _) => Ok(number.to_int()),
            (None, Item::Missing) => Err(self.invalid(runtime, at)),
            (None, other) => {
                let (name, found) = (self.name, other.type_name());
                let message = format!(
                    "call expression: argument for position {at} in {name} must be int, not {found}"
                );
                Err(self.fail(runtime, message))
            }
        }
    }

    fn repeat(&self, runtime: &mut Runtime<'_>) -> Run<String> {
        let text = self.text(runtime, 0)?;
        let count = self.number(runtime, 1)?;
        let Ok(count) = usize::try_from(count) else {
            return Err(self.fail(runtime, "strings: negative Repeat count"));
        };
        runtime.charge(text.len().saturating_mul(count), self.span)?;
        // Repeating empty text costs nothing, so no count is too large.
        Ok(if text.is_empty() {
            String::new()
        } else {
            text.repeat(count)
        })
    }

    fn replace(&self, runtime: &mut Runtime<'_>) -> Run<String> {
        let (text, old) = (self.text(runtime, 0)?, self.text(runtime, 1)?);
        let new = self.text(runtime, 2)?;
        let limit = usize::try_from(self.number(runtime, 3)?).unwrap_or(usize::MAX);
        let count = text.matches(&*old).take(limit).count();
        runtime.charge(new.len().saturating_mul(count), self.span)?;
        Ok(text.replacen(&*old, &new, limit))
    }

    fn split(&self, runtime: &mut Runtime<'_>) -> Run<Value> {
        let (text, separator) = (self.text(runtime, 0)?, self.text(runtime, 1)?);
        let parts = if separator.is_empty() {
            text.chars().count()
        } else {
            text.matches(&*separator).count() + 1
        };
        // A part uses a list entry and an allocation, even if it is short.
        runtime.charge(parts.saturating_mul(48), self.span)?;
        Ok(if separator.is_empty() {
            let single = |c: char| Value::from(&*c.encode_utf8(&mut [0; 4]));
            text.chars().map(single).collect()
        } else {
            text.split(&*separator).map(Value::from).collect()
        })
    }

    fn json(&self, runtime: &mut Runtime<'_>) -> Run<String> {
        if matches!(self.item(0), Item::Missing) {
            return Err(self.invalid(runtime, 0));
        }
        let value = runtime.data_of(self.item(0).clone(), self.span)?;
        let size = operand::size_of(&value).map_err(|message| runtime.limit(self.span, message))?;
        runtime.charge(size, self.span)?;
        let text = json::compact(&value);
        let text = text.map_err(|error| self.fail(runtime, format!("json: {error}")))?;
        runtime.charge(text.len(), self.span)?;
        Ok(text)
    }

    /// Checks the size and nesting of a value built from the arguments.
    fn checked_size(&self, runtime: &mut Runtime<'_>, value: Value) -> Run<Value> {
        let size = operand::size_of(&value).map_err(|message| runtime.limit(self.span, message))?;
        // Most of the value is shared, not copied; the cost is the time to measure it.
        runtime.charge(size / 8 + self.items.len() * size_of::<Value>(), self.span)?;
        Ok(value)
    }

    fn map(&self, runtime: &mut Runtime<'_>) -> Run<Value> {
        let mut map = Map::new();
        let (pairs, rest) = self.items.as_chunks::<2>();
        if !rest.is_empty() {
            let message = "map(): incomplete key-value pair (even number of arguments required)";
            return Err(self.bare(runtime, message));
        }
        for (at, [key, value]) in pairs.iter().enumerate() {
            let Item::Data(Value::Str(name)) = key else {
                let (at, shown, name) = (at * 2, runtime.show(key), key.type_name());
                let message = match key {
                    Item::Missing => {
                        format!("map(): key argument at position {at} is not a valid value!")
                    }
                    _ => format!(
                        "map(): can't use {shown} as string key: {name} is not convertible to string"
                    ),
                };
                return Err(self.bare(runtime, message));
            };
            if !matches!(value, Item::Missing) {
                let value = runtime.data_of(value.clone(), self.span)?;
                map.insert(name.clone(), value);
            }
        }
        self.checked_size(runtime, map.into())
    }

    fn list(&self, runtime: &mut Runtime<'_>) -> Run<Value> {
        let mut list = Vec::with_capacity(self.items.len());
        for item in &self.items {
            list.push(runtime.data_of(item.clone(), self.span)?);
        }
        self.checked_size(runtime, list.into())
    }

    fn len(&self, runtime: &Runtime<'_>) -> Run<i64> {
        self.arity(runtime, self.items.len() == 1)?;
        let length = match self.item(0) {
            Item::Data(Value::List(list)) => list.len(),
            Item::Data(Value::Map(map)) => map.len(),
            Item::Ints(from, to) => return Ok(to.saturating_sub(*from)),
            Item::Missing => {
                return Err(self.bare(runtime, "len(): argument is not a valid value"));
            }
            other => match other.as_text() {
                Some(text) => text.len(),
                None => {
                    let message = format!("len(): invalid value type {}", other.type_name());
                    return Err(self.bare(runtime, message));
                }
            },
        };
        Ok(i64::try_from(length).unwrap_or(i64::MAX))
    }

    fn ints(&self, runtime: &Runtime<'_>) -> Run<Item> {
        if self.items.len() > 2 {
            let have = self.items.len();
            let message = format!("have {have} arguments, but only 2 pointers to parse into");
            return Err(self.bare(runtime, message));
        }
        let mut bounds = [0_i64; 2];
        for (at, (bound, item)) in bounds.iter_mut().zip(&self.items).enumerate() {
            *bound = match (Number::of(item), item) {
                (Some(number), _) => number.to_int(),
                (None, Item::Missing) => {
                    let message = format!("argument at position {at} is not a valid value");
                    return Err(self.bare(runtime, message));
                }
                (None, other) => {
                    let (shown, name) = (runtime.show(other), other.type_name());
                    let message = format!("could not parse {shown} ({name}) into an integer");
                    return Err(self.bare(runtime, message));
                }
            };
        }
        let [from, to] = bounds;
        if to <= from {
            let message = "invalid range for ints ranger: 'from' must be smaller than 'to'";
            return Err(self.bare(runtime, message));
        }
        Ok(Item::Ints(from, to))
    }

    /// Runs another template and returns its `return` value; its output is dropped.
    fn exec(&self, runtime: &mut Runtime<'_>) -> Run<Item> {
        self.arity(runtime, matches!(self.items.len(), 1 | 2))?;
        let name = self.text(runtime, 0)?;
        let path = loader::join("/", &name);
        let parsed = match runtime.templates.find(&path) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => {
                let message = format!("exec({name}): template {path} could not be found");
                return Err(self.bare(runtime, message));
            }
            Err(error) => return Err(self.bare(runtime, format!("exec({name}): {error}"))),
        };
        let context = self.context(runtime);
        runtime.without_output(|runtime| {
            runtime.with_context(context, |runtime| runtime.run_template(&parsed))
        })
    }

    fn include_if_exists(&self, runtime: &mut Runtime<'_>) -> Run<Item> {
        self.arity(runtime, matches!(self.items.len(), 1 | 2))?;
        let name = self.text(runtime, 0)?;
        let parsed = match runtime.templates.find(&loader::join("/", &name)) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return Ok(Item::SilentBool(false)),
            Err(error) => return Err(self.bare(runtime, format!("including {name}: {error}"))),
        };
        let context = self.context(runtime);
        runtime.with_context(context, |runtime| runtime.run_template(&parsed))?;
        Ok(Item::SilentBool(true))
    }

    /// Returns the context: the second argument, or the current one.
    fn context(&self, runtime: &Runtime<'_>) -> Item {
        match self.items.get(1) {
            Some(context) => context.clone(),
            None => runtime.context.clone(),
        }
    }

    /// Prints the variables of the innermost scope (of more with a number), or the named ones.
    fn dump(&self, runtime: &mut Runtime<'_>) -> Run<String> {
        let mut shown = Vec::new();
        let levels = match self.items.as_slice() {
            [] => Some(0),
            [only] => Number::of(only).map(Number::to_int),
            _ => None,
        };
        let Some(levels) = levels else {
            for at in 0..self.items.len() {
                let name = self.text(runtime, at)?;
                if let Some(item) = runtime.find(&name) {
                    let (value, kind) = (describe(runtime, &item), item.type_name());
                    shown.push(format!("\t{name}:={value} // {kind}\n"));
                }
            }
            return self.dumped(runtime, shown);
        };
        let context = runtime.context.clone();
        let (value, kind) = (describe(runtime, &context), context.type_name());
        shown.push(format!("Context:\n\t{kind} {value}\n"));
        let levels = usize::try_from(levels).unwrap_or(0);
        for (level, scope) in runtime.scopes.iter().rev().enumerate() {
            if level > levels {
                break;
            }
            shown.push(match level {
                0 => "Variables in current scope:\n".into(),
                level => format!("Variables in scope {level} level(s) up:\n"),
            });
            for (name, item) in &scope.variables {
                shown.push(format!("\t{name}={}\n", describe(runtime, item)));
            }
        }
        for (name, value) in runtime.variables {
            let item = Item::Data(value.clone());
            shown.push(format!("\t{name}={}\n", describe(runtime, &item)));
        }
        self.dumped(runtime, shown)
    }

    fn dumped(&self, runtime: &mut Runtime<'_>, shown: Vec<String>) -> Run<String> {
        let text = shown.concat();
        runtime.charge(text.len(), self.span)?;
        Ok(text)
    }
}

fn describe(runtime: &Runtime<'_>, item: &Item) -> String {
    match item {
        Item::Data(Value::Str(text)) => quote(text),
        item => runtime.show(item),
    }
}

/// Argument rules and error label of an upstream function.
struct CallRules {
    label: &'static str,
    counts: std::ops::RangeInclusive<usize>,
    /// Number of leading arguments that must be text, and their description in error messages.
    texts: usize,
    problem: &'static str,
}

fn call_rules(name: &str) -> Option<CallRules> {
    let (label, counts, texts, problem) = match name {
        "lookup" => ("lookup", 1..=2, 1, "first argument must be a string"),
        "readFile" | "file" => ("file", 1..=1, 1, "argument must be a string"),
        "template" => ("template", 1..=1, 1, "argument must be a string"),
        "kvGet" => ("kvGet", 2..=2, 2, "arguments must be strings"),
        "registrations" => ("registrations", 4..=4, 4, "arguments must be strings"),
        _ => return None,
    };
    Some(CallRules {
        label,
        counts,
        texts,
        problem,
    })
}

/// Returns the prefix of error messages of an environment function.
pub(super) fn error_label(name: &str) -> String {
    match name {
        "lookup" => "lookup: failed".into(),
        _ => call_rules(name).map_or(name, |rules| rules.label).into(),
    }
}

/// Checks the arguments of an environment function, if it has fixed rules.
pub(super) fn check_env_call(name: &str, items: &[Item]) -> Result<(), Problem> {
    let Some(rules) = call_rules(name) else {
        return Ok(());
    };
    let CallRules { label, problem, .. } = rules;
    if !rules.counts.contains(&items.len()) {
        let message = format!("unexpected number of arguments in a call to {label}");
        return Err(Problem::bare(message));
    }
    for (at, item) in items.iter().take(rules.texts).enumerate() {
        let reason = match item {
            Item::Data(Value::Str(_)) => continue,
            Item::Missing => format!("argument at position {at} is not a valid value"),
            other => format!("{} is no string", other.type_name()),
        };
        return Err(Problem::bare(format!("{label}: {problem}: {reason}")));
    }
    Ok(())
}
