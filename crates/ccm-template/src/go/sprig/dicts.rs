//! Dicts: made, read, changed and merged.
//!
//! `set`, `unset`, `merge` and `mergeOverwrite` change their first dict in place, as sprig does,
//! and everybody who holds it sees that. Merged-in values are copies, and a dict refuses to be
//! put into itself: so no value can ever hold itself.

use std::rc::Rc;

use crate::CallError;
use crate::go::call::{Answer, Args, Native, as_dict, as_str, shown, takes, takes_from};
use crate::go::datum::{Datum, Dict, Entries};
use crate::go::limits::Meter;

/// Returns the function of a name.
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
        "pick" => takes_from(1, |args| sifted(args, true)),
        "omit" => takes_from(1, |args| sifted(args, false)),
        "merge" | "mustMerge" => takes_from(1, |args| merged(args, false)),
        "mergeOverwrite" | "mustMergeOverwrite" => takes_from(1, |args| merged(args, true)),
        "dig" => takes_from(0, dig),
        _ => return None,
    })
}

fn dict(args: &Args<'_>) -> Answer {
    let mut entries = Entries::new();
    for pair in args.values.chunks(2) {
        if let [key, rest @ ..] = pair {
            // A last key without a value has the empty one.
            let value = rest.first().cloned().unwrap_or_else(|| "".into());
            entries.insert(shown(key, args.meter())?, value);
        }
    }
    args.meter().steps(entries.len())?;
    Ok(Datum::dict(entries))
}

fn set(args: &Args<'_>) -> Answer {
    let (dict, key, value) = (args.dict(0)?, args.str(1)?, args.any(2));
    if value.holds(dict) {
        return Err(format!("a dict cannot be put into itself (key {key:?})").into());
    }
    args.meter().step()?;
    dict.entries.borrow_mut().insert(key.into(), value.clone());
    Ok(Datum::Dict(dict.clone()))
}

fn pluck(args: &Args<'_>) -> Answer {
    let key = args.str(0)?;
    let mut found = Vec::new();
    for dict in args.from(1) {
        found.extend(as_dict(dict)?.entries.borrow().get(key).cloned());
    }
    args.meter().steps(found.len())?;
    Ok(Datum::list(found))
}

fn keys(args: &Args<'_>) -> Answer {
    let mut found = Vec::new();
    for dict in args.values {
        let entries = as_dict(dict)?.entries.borrow();
        args.meter().steps(entries.len())?;
        found.extend(entries.keys().cloned());
    }
    Ok(Datum::strings(found))
}

/// Returns the entries whose keys are named, or all others.
fn sifted(args: &Args<'_>, wanted: bool) -> Answer {
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

fn merged(args: &Args<'_>, overwrite: bool) -> Answer {
    let target = args.dict(0)?;
    for source in args.from(1) {
        // A copy: the source may hold the target.
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
            // Bounded by the depth of the copy that `source` is.
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

fn dig(args: &Args<'_>) -> Answer {
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
