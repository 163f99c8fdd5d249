//! Built-in functions on lists.

use super::{
    Builtin, INT, Overload, TEXT, argument, checked, kind_name, only, overloads, wrong_number,
};
use crate::expr::budget::Budget;
use crate::expr::kind::Kind;
use crate::expr::ops;
use crate::expr::predicates::sorted_by;
use crate::expr::runtime_value::{Reason, Val};

const LIST: Kind = Kind::LIST;

pub(super) static BUILTINS: &[Builtin] = &[
    checked(
        "first",
        |kinds| item_of("cannot get first element from", kinds),
        |args, _| Ok(argument(args, 0).item(0).unwrap_or(Val::NULL)),
    ),
    checked(
        "last",
        |kinds| item_of("cannot get last element from", kinds),
        |args, _| {
            let list = argument(args, 0);
            let last = list.list_len().and_then(|len| len.checked_sub(1));
            Ok(last.and_then(|index| list.item(index)).unwrap_or(Val::NULL))
        },
    ),
    checked("take", take_kind, take),
    checked(
        "reverse",
        |kinds| list_kind("reverse", kinds),
        |args, budget| {
            let mut items = items("reverse", args, budget)?;
            items.reverse();
            Val::list(items)
        },
    ),
    checked("uniq", |kinds| list_kind("uniq", kinds), uniq),
    checked("concat", concat_kind, concat),
    checked(
        "flatten",
        |kinds| list_kind("flatten", kinds),
        |args, budget| {
            let mut flat = Vec::new();
            let items = items("flatten", args, budget)?;
            flatten(items, &mut flat, budget)?;
            Val::list(flat)
        },
    ),
    overloads(
        "sort",
        &[Overload(&[LIST, TEXT], LIST), Overload(&[LIST], LIST)],
        sort,
    ),
];

fn item_of(problem: &str, kinds: &[Kind]) -> Result<Kind, Reason> {
    let kind = only(kinds)?;
    kind.items()
        .ok_or_else(|| format!("{problem} {}", kind_name(kind)).into())
}

fn list_kind(name: &str, kinds: &[Kind]) -> Result<Kind, Reason> {
    let kind = only(kinds)?;
    if kind.is_list() || kind.is_unknown() {
        Ok(LIST)
    } else {
        Err(format!("cannot {name} {}", kind_name(kind)).into())
    }
}

/// Returns the items of the only argument and counts them in the budget.
fn items(name: &str, args: &[Val], budget: &mut Budget<'_>) -> Result<Vec<Val>, Reason> {
    let list = argument(args, 0);
    let len = list
        .list_len()
        .ok_or_else(|| format!("cannot {name} {}", list.type_name()))?;
    budget.charge_items(len)?;
    Ok(list.items().unwrap_or_default())
}

fn take_kind(kinds: &[Kind]) -> Result<Kind, Reason> {
    let [list, count] = kinds else {
        return Err(wrong_number("2", kinds.len()));
    };
    if !list.is_list() && !list.is_unknown() {
        return Err(format!("cannot take from {}", kind_name(*list)).into());
    }
    if *count != INT && !count.is_unknown() {
        return Err(format!("cannot take {} elements", kind_name(*count)).into());
    }
    Ok(*list)
}

fn take(args: &[Val], budget: &mut Budget<'_>) -> Result<Val, Reason> {
    let list = argument(args, 0);
    let count = argument(args, 1);
    let Some(len) = list.list_len() else {
        return Err(format!("cannot take from {}", list.type_name()).into());
    };
    let wanted = match count.type_name() {
        "int" => count.int()?,
        other => return Err(format!("cannot take {other} elements").into()),
    };
    let Ok(wanted) = usize::try_from(wanted) else {
        return Err(format!("cannot take {wanted} elements").into());
    };
    let wanted = wanted.min(len);
    budget.charge_steps(wanted)?;
    Val::list((0..wanted).filter_map(|index| list.item(index)).collect())
}

fn uniq(args: &[Val], budget: &mut Budget<'_>) -> Result<Val, Reason> {
    let mut unique: Vec<Val> = Vec::new();
    'items: for item in items("uniq", args, budget)? {
        for known in &unique {
            if ops::equal(&item, known, budget)? {
                continue 'items;
            }
        }
        unique.push(item);
    }
    Val::list(unique)
}

fn concat_kind(kinds: &[Kind]) -> Result<Kind, Reason> {
    if kinds.is_empty() {
        return Err(wrong_number("at least 1", 0));
    }
    match kinds
        .iter()
        .find(|kind| !kind.is_list() && !kind.is_unknown())
    {
        Some(kind) => Err(format!("cannot concat {}", kind_name(*kind)).into()),
        None => Ok(LIST),
    }
}

fn concat(args: &[Val], budget: &mut Budget<'_>) -> Result<Val, Reason> {
    let mut all = Vec::new();
    for list in args {
        all.append(&mut items("concat", std::slice::from_ref(list), budget)?);
    }
    Val::list(all)
}

/// Appends items to one flat list, recursively.
fn flatten(items: Vec<Val>, flat: &mut Vec<Val>, budget: &mut Budget<'_>) -> Result<(), Reason> {
    for item in items {
        match item.list_len() {
            Some(len) => {
                budget.charge_items(len)?;
                flatten(item.items().unwrap_or_default(), flat, budget)?;
            }
            None => flat.push(item),
        }
    }
    Ok(())
}

fn sort(args: &[Val], budget: &mut Budget<'_>) -> Result<Val, Reason> {
    let descending = match args.get(1) {
        None => false,
        Some(order) => match order.text().map(AsRef::as_ref) {
            Ok("asc") => false,
            Ok("desc") => true,
            Ok(other) => return Err(format!("invalid order {other}, expected asc or desc").into()),
            Err(_) => {
                return Err(format!(
                    "sort order argument must be a string (got {})",
                    order.go_type()
                )
                .into());
            }
        },
    };
    if argument(args, 0).is_null() {
        return Val::list(Vec::new());
    }
    let items = items("sort", args, budget)?;
    let pairs = items.into_iter().map(|item| (item.clone(), item)).collect();
    Val::list(sorted_by(pairs, descending)?)
}
