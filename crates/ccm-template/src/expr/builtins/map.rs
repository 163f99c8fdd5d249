//! Built-in functions on maps, and `get`, which returns null instead of failing.

use std::collections::BTreeMap;

use super::{Builtin, argument, checked, kind_name, only, wrong_number};
use crate::expr::budget::Budget;
use crate::expr::kind::{Item, Kind};
use crate::expr::ops;
use crate::expr::runtime_value::{Key, Reason, Val};

pub(super) static BUILTINS: &[Builtin] = &[
    checked("get", get_kind, get),
    checked(
        "keys",
        |kinds| map_kind("cannot get keys from", "", kinds),
        |args, budget| {
            let entries = entries("cannot get keys from", "", args, budget)?;
            Val::list(entries.iter().map(|(key, _)| key.value()).collect())
        },
    ),
    checked(
        "values",
        |kinds| map_kind("cannot get values from", "", kinds),
        |args, budget| {
            let entries = entries("cannot get values from", "", args, budget)?;
            Val::list(entries.into_iter().map(|(_, value)| value).collect())
        },
    ),
    checked(
        "toPairs",
        |kinds| map_kind("cannot transform", " to pairs", kinds),
        |args, budget| {
            let entries = entries("cannot transform", " to pairs", args, budget)?;
            let pairs = entries
                .into_iter()
                .map(|(key, value)| Val::list(vec![key.value(), value]));
            Val::list(pairs.collect::<Result<_, _>>()?)
        },
    ),
    checked("fromPairs", pairs_kind, from_pairs),
];

fn map_kind(problem: &str, after: &str, kinds: &[Kind]) -> Result<Kind, Reason> {
    match only(kinds)? {
        Kind::Map(_) | Kind::AnyMap | Kind::Unknown | Kind::Any => Ok(Kind::LIST),
        other => Err(format!("{problem} {}{after}", kind_name(other)).into()),
    }
}

fn entries(
    problem: &str,
    after: &str,
    args: &[Val],
    budget: &mut Budget<'_>,
) -> Result<Vec<(Key, Val)>, Reason> {
    let map = argument(args, 0);
    let entries =
        ops::entries(map, budget).ok_or_else(|| format!("{problem} {}{after}", map.type_name()))?;
    budget.charge_items(entries.len())?;
    Ok(entries)
}

fn pairs_kind(kinds: &[Kind]) -> Result<Kind, Reason> {
    let kind = only(kinds)?;
    if kind.is_list() || kind.is_unknown() {
        Ok(Kind::AnyMap)
    } else {
        Err(format!("cannot transform {} from pairs", kind_name(kind)).into())
    }
}

fn from_pairs(args: &[Val], budget: &mut Budget<'_>) -> Result<Val, Reason> {
    let list = argument(args, 0);
    let Some(pairs) = list.items() else {
        return Err(format!("cannot transform {} from pairs", list.type_name()).into());
    };
    budget.charge_items(pairs.len())?;
    let mut map = BTreeMap::new();
    for pair in pairs {
        match pair.list_len() {
            Some(2) => {}
            Some(_) => return Err(format!("invalid pair length {}", budget.print(&pair)?).into()),
            None => return Err(format!("invalid pair {}", budget.print(&pair)?).into()),
        }
        let key = pair.item(0).as_ref().and_then(Key::new);
        let Some(key) = key else {
            return Err(format!("invalid pair {}", budget.print(&pair)?).into());
        };
        map.insert(key, pair.item(1).unwrap_or(Val::NULL));
    }
    Val::dict(map)
}

fn get_kind(kinds: &[Kind]) -> Result<Kind, Reason> {
    let [base, key] = kinds else {
        return Err(wrong_number("2", kinds.len()));
    };
    match base {
        Kind::Unknown | Kind::Any | Kind::Nil => Ok(Kind::Unknown),
        Kind::List(_) if *key != Kind::Int && !key.is_unknown() => {
            Err(format!("non-integer slice index {}", kind_name(*key)).into())
        }
        Kind::Map(_) if *key != Kind::Text && !key.is_unknown() => Err(format!(
            "cannot use {} to get an element from {base}",
            kind_name(*key)
        )
        .into()),
        Kind::List(item) => Ok(item.kind()),
        // A missing entry is null, even if all entries are text.
        Kind::Map(Item::Text) => Ok(Kind::Unknown),
        Kind::Map(item) => Ok(item.kind()),
        Kind::AnyMap => Ok(Kind::Any),
        Kind::Text => Ok(Kind::Unknown),
        other => Err(format!("type {other} does not support indexing").into()),
    }
}

/// Returns an item or entry, or null if it is missing.
fn get(args: &[Val], budget: &mut Budget<'_>) -> Result<Val, Reason> {
    let (base, key) = (argument(args, 0), argument(args, 1));
    // These return a default for a missing entry, so its presence is checked first.
    let is_special = matches!(base, Val::Environ | Val::Dict(_));
    if is_special && !ops::contains(key, base, budget).unwrap_or(false) {
        return Ok(Val::NULL);
    }
    Ok(ops::fetch(base, key, budget).unwrap_or(Val::NULL))
}
