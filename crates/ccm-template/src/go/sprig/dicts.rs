//! Sprig functions on dicts.
//!
//! `set`, `unset`, `merge` and `mergeOverwrite` change their first dict in place, as in sprig,
//! which is visible through every reference to it. Merged-in values are copied, and a dict cannot
//! be inserted into itself, so no value ever contains itself.

use std::rc::Rc;

use crate::CallError;
use crate::go::call::{Args, CallResult, Native, as_dict, as_str, takes, takes_from, to_text};
use crate::go::datum::{Datum, Dict, Entries};
use crate::go::limits::Meter;

/// Returns the function with this name.
pub(super) fn find(name: &str) -> Option<Native> {
    Some(match name {
        "dict" => takes_from(0, dict),
        "get" => takes(2, |args| {
            let found = args.dict(0)?.entries.borrow().get(args.str(1)?).cloned();
            Ok(found.unwrap_or_else(|| "".into()))
        }),
        "hasKey" => takes(2, |args| {
            let entries = args.dict(0)?.entries.borrow();
            Ok(entries.contains_key(args.str(1)?).into())
        }),
        "set" => takes(3, set),
        "unset" => takes(2, |args| {
            let dict = args.dict(0)?;
            dict.entries.borrow_mut().remove(args.str(1)?);
            Ok(Datum::Dict(dict.clone()))
        }),
        "pluck" => takes_from(1, pluck),
        "keys" => takes_from(0, keys),
        "values" => takes(1, |args| {
            let items: Vec<_> = args.dict(0)?.entries.borrow().values().cloned().collect();
            args.meter().steps(items.len())?;
            Ok(Datum::list(items))
        }),
        "pick" => takes_from(1, |args| filter_keys(args, true)),
        "omit" => takes_from(1, |args| filter_keys(args, false)),
        "merge" | "mustMerge" => takes_from(1, |args| merged(args, false)),
        "mergeOverwrite" | "mustMergeOverwrite" => takes_from(1, |args| merged(args, true)),
        "dig" => takes_from(0, dig),
        _ => return None,
    })
}

fn dict(args: &Args<'_>) -> CallResult {
    let mut entries = Entries::new();
    for pair in args.values.chunks(2) {
        if let [key, rest @ ..] = pair {
            // A last key without a value gets empty text.
            let value = rest.first().cloned().unwrap_or_else(|| "".into());
            entries.insert(to_text(key, args.meter())?, value);
        }
    }
    args.meter().steps(entries.len())?;
    Ok(Datum::dict(entries))
}

fn set(args: &Args<'_>) -> CallResult {
    let (dict, key, value) = (args.dict(0)?, args.str(1)?, args.any(2));
    if value.contains_dict(dict) {
        return Err(format!("a dict cannot contain itself (key {key:?})").into());
    }
    args.meter().step()?;
    dict.entries.borrow_mut().insert(key.into(), value.clone());
    Ok(Datum::Dict(dict.clone()))
}

fn pluck(args: &Args<'_>) -> CallResult {
    let key = args.str(0)?;
    let mut found = Vec::new();
    for dict in args.from(1) {
        found.extend(as_dict(dict)?.entries.borrow().get(key).cloned());
    }
    args.meter().steps(found.len())?;
    Ok(Datum::list(found))
}

fn keys(args: &Args<'_>) -> CallResult {
    let mut found = Vec::new();
    for dict in args.values {
        let entries = as_dict(dict)?.entries.borrow();
        args.meter().steps(entries.len())?;
        found.extend(entries.keys().cloned());
    }
    Ok(Datum::strings(found))
}

/// Implements `pick` and `omit`: returns the entries whose keys are named, or all others.
fn filter_keys(args: &Args<'_>, wanted: bool) -> CallResult {
    let dict = args.dict(0)?;
    let mut names = std::collections::BTreeSet::new();
    for name in args.from(1) {
        names.insert(as_str(name)?);
    }
    let entries: Entries = dict
        .entries
        .borrow()
        .iter()
        .filter(|(key, _)| names.contains(&***key) == wanted)
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    args.meter().steps(entries.len())?;
    Ok(Datum::dict(entries))
}

fn merged(args: &Args<'_>, overwrite: bool) -> CallResult {
    let target = args.dict(0)?;
    for source in args.from(1) {
        // Merges from a copy, because the source may contain the target.
        let source = source.deep_copy(args.meter())?;
        merge(target, as_dict(&source)?, overwrite, args.meter())?;
    }
    Ok(Datum::Dict(target.clone()))
}

fn merge(
    target: &Rc<Dict>,
    source: &Dict,
    overwrite: bool,
    meter: &Meter,
) -> Result<(), CallError> {
    for (key, value) in source.entries.borrow().iter() {
        meter.step()?;
        let old = target.entries.borrow().get(key).cloned();
        match (&old, value) {
            // Recursion is limited by the depth of the copied `source`.
            (Some(Datum::Dict(old)), Datum::Dict(new)) => merge(old, new, overwrite, meter)?,
            (Some(old), _) if old.is_true() && !overwrite => {}
            (_, Datum::Nil) if !overwrite => {}
            _ => {
                target
                    .entries
                    .borrow_mut()
                    .insert(key.clone(), value.clone());
            }
        }
    }
    Ok(())
}

fn dig(args: &Args<'_>) -> CallResult {
    let [first, path @ .., default, root] = args.values else {
        return Err("dig needs at least three arguments".into());
    };
    let mut found = root.clone();
    for key in std::iter::once(first).chain(path) {
        let next = as_dict(&found)?.entries.borrow().get(as_str(key)?).cloned();
        match next {
            Some(next) => found = next,
            None => return Ok(default.clone()),
        }
    }
    Ok(found)
}
