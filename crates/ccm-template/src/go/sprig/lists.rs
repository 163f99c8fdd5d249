//! Sprig functions on lists. Lists are immutable; every function returns a new one.

use super::numbers::to_int;
use crate::CallError;
use crate::go::call::{Args, CallResult, Native, takes, takes_from};
use crate::go::datum::{Datum, Element};

/// Returns the function with this name.
pub(super) fn find(name: &str) -> Option<Native> {
    Some(match name {
        "list" | "tuple" => takes_from(0, |args| charged_list(args, args.values.to_vec())),
        "append" | "push" | "mustAppend" | "mustPush" => takes(2, |args| {
            let mut items = args.list(0, "push on")?.to_vec();
            items.push(args.any(1).clone());
            charged_list(args, items)
        }),
        "prepend" | "mustPrepend" => takes(2, |args| {
            let mut items = vec![args.any(1).clone()];
            items.extend_from_slice(args.list(0, "prepend on")?);
            charged_list(args, items)
        }),
        "first" | "mustFirst" => takes(1, |args| {
            Ok(args
                .list(0, "find first on")?
                .first()
                .cloned()
                .unwrap_or_default())
        }),
        "last" | "mustLast" => takes(1, |args| {
            Ok(args
                .list(0, "find last on")?
                .last()
                .cloned()
                .unwrap_or_default())
        }),
        "rest" | "mustRest" => takes(1, |args| match args.list(0, "find rest on")? {
            [] => charged_list(args, Vec::new()),
            [_, rest @ ..] => charged_list(args, rest.to_vec()),
        }),
        "initial" | "mustInitial" => takes(1, |args| match args.list(0, "find initial on")? {
            [] => charged_list(args, Vec::new()),
            [initial @ .., _] => charged_list(args, initial.to_vec()),
        }),
        "reverse" | "mustReverse" => takes(1, |args| {
            let items = args.list(0, "find reverse on")?;
            charged_list(args, items.iter().rev().cloned().collect())
        }),
        "compact" | "mustCompact" => takes(1, |args| {
            let items = args.list(0, "compact on")?.iter();
            charged_list(args, items.filter(|item| item.is_true()).cloned().collect())
        }),
        "uniq" | "mustUniq" => takes(1, uniq),
        "without" | "mustWithout" => takes_from(1, without),
        "has" | "mustHas" => takes(2, |args| match args.any(1) {
            Datum::Nil => Ok(false.into()),
            _ => Ok(contains(args, args.list(1, "find has on")?, args.any(0))?.into()),
        }),
        "slice" | "mustSlice" => takes_from(1, slice),
        "concat" => takes_from(0, concat),
        "chunk" | "mustChunk" => takes(2, chunk),
        _ => return None,
    })
}

fn charged_list(args: &Args<'_>, items: Vec<Datum>) -> CallResult {
    args.meter().steps(items.len())?;
    Ok(Datum::list(items))
}

fn contains(args: &Args<'_>, items: &[Datum], wanted: &Datum) -> Result<bool, CallError> {
    for item in items {
        if item.deep_equal(wanted, args.meter())? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn uniq(args: &Args<'_>) -> CallResult {
    let mut kept = Vec::new();
    for item in args.list(0, "find uniq on")? {
        if !contains(args, &kept, item)? {
            kept.push(item.clone());
        }
    }
    charged_list(args, kept)
}

fn without(args: &Args<'_>) -> CallResult {
    let mut kept = Vec::new();
    for item in args.list(0, "find without on")? {
        if !contains(args, args.from(1), item)? {
            kept.push(item.clone());
        }
    }
    charged_list(args, kept)
}

fn slice(args: &Args<'_>) -> CallResult {
    let Datum::List(list) = args.any(0) else {
        let found = args.any(0).kind_name();
        return Err(format!("list should be type of slice or array but {found}").into());
    };
    if list.items.is_empty() {
        return Ok(Datum::Nil);
    }
    let bound = |index: usize, default: usize| match args.from(index) {
        [] => Ok(default),
        [given, ..] => {
            let given = to_int(given);
            usize::try_from(given).map_err(|_| format!("slice index out of bounds: {given}"))
        }
    };
    let (start, end) = (bound(1, 0)?, bound(2, list.items.len())?);
    let items = list
        .items
        .get(start..end)
        .ok_or_else(|| format!("slice index out of bounds: {start}:{end}"))?;
    args.meter().steps(items.len())?;
    Ok(Datum::list_of(list.of, items.to_vec()))
}

fn concat(args: &Args<'_>) -> CallResult {
    let mut items = Vec::new();
    for index in 0..args.len() {
        let more = args.list(index, "concat")?;
        args.meter().steps(more.len())?;
        items.extend_from_slice(more);
    }
    Ok(Datum::list(items))
}

fn chunk(args: &Args<'_>) -> CallResult {
    let size = args.int(0)?;
    let items = args.list(1, "chunk")?;
    let size = usize::try_from(size)
        .ok()
        .filter(|size| *size > 0)
        .ok_or_else(|| format!("invalid chunk size {size}"))?;
    args.meter().steps(items.len())?;
    let chunks = items.chunks(size).map(|chunk| Datum::list(chunk.to_vec()));
    Ok(Datum::list_of(Element::Lists, chunks.collect()))
}
