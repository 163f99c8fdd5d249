//! Sprig functions for default values. A value is empty if it is false in `if`.

use crate::go::call::{Args, CallResult, Native, takes, takes_from};
use crate::go::datum::Datum;

/// Returns the function with this name.
pub(super) fn find(name: &str) -> Option<Native> {
    Some(match name {
        "default" => takes_from(1, default),
        "empty" => takes(1, |args| Ok((!args.any(0).is_true()).into())),
        "coalesce" => takes_from(0, |args| {
            let found = args.values.iter().find(|value| value.is_true());
            Ok(found.cloned().unwrap_or_default())
        }),
        "all" => takes_from(0, |args| Ok(args.values.iter().all(Datum::is_true).into())),
        "any" => takes_from(0, |args| Ok(args.values.iter().any(Datum::is_true).into())),
        "ternary" => takes(3, |args| {
            Ok(args.any(if args.bool(2)? { 0 } else { 1 }).clone())
        }),
        "deepCopy" | "mustDeepCopy" => takes(1, |args| args.any(0).deep_copy(args.meter())),
        _ => return None,
    })
}

fn default(args: &Args<'_>) -> CallResult {
    let given = args.any(1);
    Ok(if given.is_true() { given } else { args.any(0) }.clone())
}
