//! Built-in functions on numbers.

use std::cmp::Ordering;

use super::{Builtin, INT, Overload, argument, checked, kind_name, only, overloads, wrong_number};
use crate::expr::budget::Budget;
use crate::expr::kind::Kind;
use crate::expr::ops;
use crate::expr::runtime_value::{Number, Reason, Val};
use ccm_value::Value;

pub(super) static BUILTINS: &[Builtin] = &[
    checked("abs", |kinds| numeric("abs", kinds, None), abs),
    checked(
        "ceil",
        |kinds| numeric("ceil", kinds, Some(Kind::Float)),
        |args, _| rounded("ceil", args, f64::ceil),
    ),
    checked(
        "floor",
        |kinds| numeric("floor", kinds, Some(Kind::Float)),
        |args, _| rounded("floor", args, f64::floor),
    ),
    checked(
        "round",
        |kinds| numeric("round", kinds, Some(Kind::Float)),
        |args, _| rounded("round", args, f64::round),
    ),
    checked("int", |kinds| convertible("int", kinds, INT), int),
    checked(
        "float",
        |kinds| convertible("float", kinds, Kind::Float),
        float,
    ),
    checked(
        "max",
        |kinds| aggregate("max", kinds),
        |args, budget| extreme("max", args, Ordering::Less, budget),
    ),
    checked(
        "min",
        |kinds| aggregate("min", kinds),
        |args, budget| extreme("min", args, Ordering::Greater, budget),
    ),
    checked("mean", |kinds| aggregate("mean", kinds), mean),
    checked("median", |kinds| aggregate("median", kinds), median),
    overloads("bitand", BITS, |args, _| bits("bitand", args, |a, b| a & b)),
    overloads("bitor", BITS, |args, _| bits("bitor", args, |a, b| a | b)),
    overloads("bitxor", BITS, |args, _| bits("bitxor", args, |a, b| a ^ b)),
    overloads("bitnand", BITS, |args, _| {
        bits("bitnand", args, |a, b| a & !b)
    }),
    overloads("bitshl", BITS, |args, _| {
        shift("bitshl", args, |a, by| a.checked_shl(by).unwrap_or(0))
    }),
    overloads("bitshr", BITS, |args, _| {
        shift("bitshr", args, |a, by| a >> by.min(63))
    }),
    overloads("bitushr", BITS, |args, _| {
        shift("bitushr", args, |a, by| {
            a.cast_unsigned().checked_shr(by).unwrap_or(0).cast_signed()
        })
    }),
    overloads("bitnot", &[Overload(&[INT], INT)], |args, _| {
        Ok((!whole("bitnot", argument(args, 0))?).into())
    }),
];

const BITS: &[Overload] = &[Overload(&[INT, INT], INT)];

fn numeric(name: &str, kinds: &[Kind], result: Option<Kind>) -> Result<Kind, Reason> {
    let kind = only(kinds)?;
    if kind.is_number() || kind.is_unknown() {
        Ok(result.unwrap_or(kind))
    } else {
        Err(invalid(name, &kind_name(kind)))
    }
}

fn convertible(name: &str, kinds: &[Kind], result: Kind) -> Result<Kind, Reason> {
    match only(kinds)? {
        Kind::Int
        | Kind::Float
        | Kind::Text
        | Kind::Unknown
        | Kind::Any
        | Kind::Duration
        | Kind::Month
        | Kind::Weekday => Ok(result),
        other => Err(invalid(name, &kind_name(other))),
    }
}

fn aggregate(name: &str, kinds: &[Kind]) -> Result<Kind, Reason> {
    if kinds.is_empty() {
        return Err(format!("not enough arguments to call {name}").into());
    }
    for kind in kinds {
        match kind {
            Kind::Int | Kind::Float => {}
            Kind::Duration if matches!(name, "max" | "min") => {}
            Kind::Unknown | Kind::Any | Kind::List(_) => return Ok(Kind::Unknown),
            other => return Err(invalid(name, &kind_name(*other))),
        }
    }
    Ok(match name {
        "mean" | "median" => Kind::Float,
        _ => kinds.first().copied().unwrap_or(Kind::Unknown),
    })
}

fn invalid(name: &str, kind: &str) -> Reason {
    format!("invalid argument for {name} (type {kind})").into()
}

fn abs(args: &[Val], _: &mut Budget<'_>) -> Result<Val, Reason> {
    let value = argument(args, 0);
    match value.number() {
        Some(Number::Int(number)) => Ok(Number::Int(number.abs()).val()),
        Some(Number::Float(number)) => Ok(number.abs().into()),
        None => Err(invalid("abs", value.go_type())),
    }
}

fn rounded(name: &str, args: &[Val], round: fn(f64) -> f64) -> Result<Val, Reason> {
    let value = argument(args, 0);
    match value.number() {
        Some(number) => Ok(round(number.float()).into()),
        None => Err(invalid(name, value.go_type())),
    }
}

fn int(args: &[Val], _: &mut Budget<'_>) -> Result<Val, Reason> {
    let value = argument(args, 0);
    match value {
        Val::Duration(nanos) => return Ok((*nanos).into()),
        Val::Month(month) => return Ok(i64::from(month.0).into()),
        Val::Weekday(day) => return Ok(i64::from(day.0).into()),
        _ => {}
    }
    match value.plain() {
        Some(Value::Str(text)) => text
            .parse::<i64>()
            .map(Val::from)
            .map_err(|_| format!("invalid operation: int({text})").into()),
        _ => value.int().map(Val::from),
    }
}

fn float(args: &[Val], _: &mut Budget<'_>) -> Result<Val, Reason> {
    let value = argument(args, 0);
    match value.plain() {
        Some(Value::Str(text)) => text
            .parse::<f64>()
            .map(Val::from)
            .map_err(|_| format!("invalid operation: float({text})").into()),
        _ => value.float().map(Val::from),
    }
}

/// Returns the minimum or maximum of numbers and lists of numbers; null if there are none.
fn extreme(
    name: &str,
    args: &[Val],
    worse: Ordering,
    budget: &mut Budget<'_>,
) -> Result<Val, Reason> {
    // A single argument that is not a number is returned as it is.
    if let [only] = args
        && only.list_len().is_none()
    {
        return Ok(only.clone());
    }
    let mut best: Option<Val> = None;
    for value in args {
        let candidate = match value.items() {
            Some(items) => {
                budget.charge_steps(items.len() + 1)?;
                match items.as_slice() {
                    [only] if only.list_len().is_none() && only.number().is_none() => {
                        return Err(invalid(name, only.go_type()));
                    }
                    items => extreme(name, items, worse, budget)?,
                }
            }
            None if value.number().is_some() || matches!(value, Val::Duration(_)) => value.clone(),
            None => return Err(invalid(name, value.go_type())),
        };
        if candidate.is_null() {
            continue;
        }
        best = match best {
            Some(best) if ops::sort_order(&best, &candidate)? != worse => Some(best),
            _ => Some(candidate),
        };
    }
    Ok(best.unwrap_or(Val::NULL))
}

/// Collects the numbers from arguments and nested lists.
fn numbers(
    name: &str,
    args: &[Val],
    found: &mut Vec<f64>,
    budget: &mut Budget<'_>,
) -> Result<(), Reason> {
    for value in args {
        budget.charge_steps(1)?;
        match (value.items(), value.number()) {
            (Some(items), _) => numbers(name, &items, found, budget)?,
            (None, Some(number)) => found.push(number.float()),
            (None, None) => return Err(invalid(name, value.go_type())),
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a count of items fits a float")]
fn mean(args: &[Val], budget: &mut Budget<'_>) -> Result<Val, Reason> {
    let mut found = Vec::new();
    numbers("mean", args, &mut found, budget)?;
    Ok(match found.len() {
        0 => 0.0,
        len => found.iter().sum::<f64>() / len as f64,
    }
    .into())
}

fn median(args: &[Val], budget: &mut Budget<'_>) -> Result<Val, Reason> {
    let mut found = Vec::new();
    numbers("median", args, &mut found, budget)?;
    found.sort_by(f64::total_cmp);
    let middle = found.len() / 2;
    let upper = found.get(middle).copied().unwrap_or(0.0);
    let lower = match middle.checked_sub(1) {
        Some(index) if found.len().is_multiple_of(2) => found.get(index).copied().unwrap_or(0.0),
        _ => upper,
    };
    Ok(if found.len().is_multiple_of(2) {
        f64::midpoint(lower, upper)
    } else {
        upper
    }
    .into())
}

fn whole(name: &str, value: &Val) -> Result<i64, Reason> {
    match value.number() {
        Some(Number::Int(_)) => value.int(),
        _ => Err(format!(
            "cannot use {} as argument (type int) to call {name}",
            value.go_type()
        )
        .into()),
    }
}

fn bits(name: &str, args: &[Val], apply: fn(i64, i64) -> i64) -> Result<Val, Reason> {
    match args {
        [left, right] => Ok(apply(whole(name, left)?, whole(name, right)?).into()),
        _ => Err(wrong_number("2", args.len())),
    }
}

fn shift(name: &str, args: &[Val], apply: fn(i64, u32) -> i64) -> Result<Val, Reason> {
    let value = whole(name, argument(args, 0))?;
    let by = whole(name, argument(args, 1))?;
    if by < 0 {
        return Err(format!("invalid operation: negative shift count {by} (type int)").into());
    }
    Ok(apply(value, u32::try_from(by).unwrap_or(u32::MAX)).into())
}
