//! Built-in functions of Go templates: comparison, `index`, `len`, `print` and the escapers.
//!
//! `and` and `or` are in `eval`, because they do not evaluate all arguments. Go's `slice` is
//! absent, because sprig's replaces it.

use super::call::{Args, CallResult, Native, takes, takes_from};
use super::datum::Datum;
use super::printf;
use crate::{CallError, text};

/// Returns the function with this name.
pub(super) fn find(name: &str) -> Option<Native> {
    Some(match name {
        "not" => takes(1, |args| Ok((!args.any(0).is_true()).into())),
        "eq" => takes_from(1, eq),
        "ne" => takes(2, |args| Ok((!args.any(0).equals(args.any(1))?).into())),
        "lt" => takes(2, |args| {
            Ok(args.any(0).compare(args.any(1))?.is_lt().into())
        }),
        "le" => takes(2, |args| {
            Ok(args.any(0).compare(args.any(1))?.is_le().into())
        }),
        "gt" => takes(2, |args| {
            Ok(args.any(0).compare(args.any(1))?.is_gt().into())
        }),
        "ge" => takes(2, |args| {
            Ok(args.any(0).compare(args.any(1))?.is_ge().into())
        }),
        "len" => takes(1, len),
        "index" => takes_from(1, index),
        "call" => takes_from(1, call),
        "print" => takes_from(0, |args| joined(args).map(Datum::from)),
        "println" => takes_from(0, println),
        "printf" => takes_from(1, |args| {
            printf::format(args.str(0)?, args.from(1), args.meter()).map(Datum::from)
        }),
        "html" => takes_from(0, |args| {
            Ok(text::html(&escapable(args)?, "\u{fffd}").into())
        }),
        "js" => takes_from(0, |args| Ok(text::js(&escapable(args)?).into())),
        "urlquery" => takes_from(0, |args| Ok(text::query(&escapable(args)?).into())),
        _ => return None,
    })
}

fn eq(args: &Args<'_>) -> CallResult {
    let others = args.from(1);
    if others.is_empty() {
        return Err("missing argument for comparison".into());
    }
    for other in others {
        if args.any(0).equals(other)? {
            return Ok(true.into());
        }
    }
    Ok(false.into())
}

fn len(args: &Args<'_>) -> CallResult {
    let len = match args.any(0) {
        Datum::Str(text) => text.len(),
        Datum::List(list) => list.items.len(),
        Datum::Dict(dict) => dict.entries.borrow().len(),
        Datum::Nil => return Err("len of nil pointer".into()),
        other => return Err(format!("len of type {}", other.type_name()).into()),
    };
    Ok(Datum::Int(i64::try_from(len).unwrap_or(i64::MAX)))
}

fn index(args: &Args<'_>) -> CallResult {
    let mut item = args.any(0).clone();
    for key in args.from(1) {
        item = match &item {
            Datum::Nil => return Err("index of untyped nil".into()),
            Datum::List(list) => position(key, list.items.len())
                .map(|at| list.items.get(at).cloned().unwrap_or_default())?,
            Datum::Str(text) => position(key, text.len())
                .map(|at| Datum::Int(text.as_bytes().get(at).copied().unwrap_or(0).into()))?,
            Datum::Dict(dict) => {
                let Datum::Str(key) = key else {
                    let found = key.type_name();
                    return Err(format!("value has type {found}; should be string").into());
                };
                let found = dict.entries.borrow().get(key).cloned();
                match (found, dict.of) {
                    (Some(found), _) => found,
                    // The zero value of a `map[string]string`.
                    (None, super::datum::Element::Text) => "".into(),
                    (None, _) => Datum::Nil,
                }
            }
            other => return Err(format!("can't index item of type {}", other.type_name()).into()),
        };
    }
    Ok(item)
}

fn position(key: &Datum, len: usize) -> Result<usize, CallError> {
    let position = match key {
        Datum::Int(position) | Datum::Int64(position) => *position,
        Datum::Nil => return Err("cannot index slice/array with nil".into()),
        other => {
            let found = other.type_name();
            return Err(format!("cannot index slice/array with type {found}").into());
        }
    };
    usize::try_from(position)
        .ok()
        .filter(|position| *position < len)
        .ok_or_else(|| format!("index out of range: {position}").into())
}

fn call(args: &Args<'_>) -> CallResult {
    match args.any(0) {
        Datum::Nil => Err("call of nil".into()),
        other => Err(format!("non-function of type {}", other.type_name()).into()),
    }
}

/// Concatenates like Go's `Sprint`: a space only between two operands that are not text.
fn joined(args: &Args<'_>) -> Result<String, CallError> {
    let mut out = String::new();
    let mut after_text = true;
    for value in args.values {
        let is_text = matches!(value, Datum::Str(_));
        if !is_text && !after_text {
            out.push(' ');
        }
        value.print(&mut out, args.meter())?;
        after_text = is_text;
    }
    Ok(out)
}

fn println(args: &Args<'_>) -> CallResult {
    let mut out = String::new();
    for (index, value) in args.values.iter().enumerate() {
        if index > 0 {
            out.push(' ');
        }
        value.print(&mut out, args.meter())?;
    }
    out.push('\n');
    Ok(out.into())
}

/// Returns the input of the escapers: the printed arguments, with `<no value>` for a missing one.
fn escapable(args: &Args<'_>) -> Result<String, CallError> {
    match args.values {
        [Datum::Nil] => Ok("<no value>".into()),
        _ => {
            let text = joined(args)?;
            // Escaping turns one byte into at most six.
            args.meter().spend(text.len().saturating_mul(6))?;
            Ok(text)
        }
    }
}
