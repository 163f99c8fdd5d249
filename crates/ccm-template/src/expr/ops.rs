//! Operators on values.
//!
//! An integer combined with a float is converted to a float. There are no other conversions;
//! operands that do not fit are an error that names both Go types.

use std::cmp::Ordering;

use super::ast::Binary;
use super::budget::Budget;
use super::method;
use super::runtime_value::{Key, Number, Reason, Val};
use crate::go_names::json_name;
use ccm_value::Value;

/// Returns whether two values are equal. Values of different types are not; numbers compare by
/// value.
pub(super) fn equal(left: &Val, right: &Val, budget: &mut Budget<'_>) -> Result<bool, Reason> {
    budget.charge_steps(1)?;
    if let (Some(left), Some(right)) = (left.number(), right.number()) {
        return Ok(compare_numbers(left, right) == Some(Ordering::Equal));
    }
    if let (Some(len), Some(other)) = (left.list_len(), right.list_len()) {
        if len != other {
            return Ok(false);
        }
        for index in 0..len {
            if let (Some(left), Some(right)) = (left.item(index), right.item(index))
                && !equal(&left, &right, budget)?
            {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    match (left, right) {
        (Val::Time(left), Val::Time(right)) => return Ok(left.cmp_instant(right).is_eq()),
        (Val::Duration(left), Val::Duration(right)) => return Ok(left == right),
        (Val::Month(left), Val::Month(right)) => return Ok(left == right),
        (Val::Weekday(left), Val::Weekday(right)) => return Ok(left == right),
        (Val::Zone(left), Val::Zone(right)) => return Ok(left == right),
        _ => {}
    }
    if let (Some(left), Some(right)) = (entries(left, budget), entries(right, budget)) {
        if left.len() != right.len() {
            return Ok(false);
        }
        for ((key, left), (other, right)) in left.iter().zip(&right) {
            if key != other || !equal(left, right, budget)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    match (left.plain(), right.plain()) {
        (Some(left), Some(right)) => Ok(left == right),
        _ => Ok(false),
    }
}

/// Returns the entries of any map, sorted by key.
pub(super) fn entries(value: &Val, budget: &Budget<'_>) -> Option<Vec<(Key, Val)>> {
    let of_map = |value: &Value, wrap: fn(Value) -> Val| {
        let map = value.as_map()?;
        Some(
            map.iter()
                .map(|(key, value)| (Key::Text(key.clone()), wrap(value.clone())))
                .collect(),
        )
    };
    match value {
        Val::Dict(dict) => Some(
            dict.entries
                .iter()
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        ),
        Val::Fact(value) => of_map(value, Val::Fact),
        Val::Plain(value) => of_map(value, Val::Plain),
        Val::Facts => of_map(&budget.facts(), Val::Fact),
        Val::Environ => of_map(&budget.environ(), Val::Plain),
        _ => None,
    }
}

#[expect(clippy::cast_precision_loss, reason = "Go compares as floats too")]
fn compare_numbers(left: Number, right: Number) -> Option<Ordering> {
    match (left, right) {
        (Number::Int(left), Number::Int(right)) => Some(left.cmp(&right)),
        (Number::Int(left), Number::Float(right)) => (left as f64).partial_cmp(&right),
        (Number::Float(left), Number::Int(right)) => left.partial_cmp(&(right as f64)),
        (Number::Float(left), Number::Float(right)) => left.partial_cmp(&right),
    }
}

/// Compares two values of the same type; `None` if one of them is NaN.
fn order(left: &Val, right: &Val, sign: &str) -> Result<Option<Ordering>, Reason> {
    if let (Some(left), Some(right)) = (left.number(), right.number()) {
        return Ok(compare_numbers(left, right));
    }
    match (left, right) {
        (Val::Time(left), Val::Time(right)) => return Ok(Some(left.cmp_instant(right))),
        (Val::Duration(left), Val::Duration(right)) => return Ok(Some(left.cmp(right))),
        _ => {}
    }
    match (left.plain(), right.plain()) {
        (Some(Value::Str(left)), Some(Value::Str(right))) => Ok(Some(left.cmp(right))),
        _ => Err(mismatched_types(left, sign, right)),
    }
}

/// Total order of `sort`, `min` and `max`: integers are never rounded, and NaN comes first.
pub(super) fn sort_order(left: &Val, right: &Val) -> Result<Ordering, Reason> {
    match (left.number(), right.number()) {
        (Some(left), Some(right)) => Ok(exact_order(left, right)),
        _ => order(left, right, "<").map(|order| order.unwrap_or(Ordering::Equal)),
    }
}

fn exact_order(left: Number, right: Number) -> Ordering {
    match (left, right) {
        (Number::Int(left), Number::Int(right)) => left.cmp(&right),
        (Number::Float(left), Number::Float(right)) => {
            let order = left.partial_cmp(&right);
            order.unwrap_or_else(|| right.is_nan().cmp(&left.is_nan()))
        }
        (Number::Int(left), Number::Float(right)) => order_of_int_and_float(left, right),
        (Number::Float(left), Number::Int(right)) => order_of_int_and_float(right, left).reverse(),
    }
}

fn order_of_int_and_float(left: i128, right: f64) -> Ordering {
    if right.is_nan() {
        return Ordering::Greater;
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "saturates outside the range of integers"
    )]
    let whole = right.trunc() as i128;
    let fraction = right.fract();
    left.cmp(&whole)
        .then_with(|| 0.0.partial_cmp(&fraction).unwrap_or(Ordering::Equal))
}

fn mismatched_types(left: &Val, sign: &str, right: &Val) -> Reason {
    format!(
        "invalid operation: {} {sign} {}",
        left.go_type(),
        right.go_type()
    )
    .into()
}

/// Implements `<`, `>`, `<=` and `>=`.
pub(super) fn compare(op: Binary, left: &Val, right: &Val) -> Result<Val, Reason> {
    let (sign, fits): (_, fn(Ordering) -> bool) = match op {
        Binary::Less => ("<", Ordering::is_lt),
        Binary::More => (">", Ordering::is_gt),
        Binary::LessOrEqual => ("<=", Ordering::is_le),
        _ => (">=", Ordering::is_ge),
    };
    order(left, right, sign).map(|order| order.is_some_and(fits).into())
}

/// Adds numbers, concatenates text, adds durations to times.
pub(super) fn add(left: &Val, right: &Val, budget: &mut Budget<'_>) -> Result<Val, Reason> {
    if let (Some(left), Some(right)) = (left.number(), right.number()) {
        return Ok(arithmetic(left, right, |a, b| a + b, |a, b| a + b));
    }
    match (left, right) {
        (Val::Time(time), Val::Duration(nanos)) | (Val::Duration(nanos), Val::Time(time)) => {
            return Ok(Val::Time(time.add(*nanos)?));
        }
        (Val::Duration(left), Val::Duration(right)) => {
            return Ok(Val::Duration(left.wrapping_add(*right)));
        }
        _ => {}
    }
    match (left.plain(), right.plain()) {
        (Some(Value::Str(left)), Some(Value::Str(right))) => {
            budget.charge_text(left.len() + right.len())?;
            Ok([left.as_ref(), right.as_ref()].concat().into())
        }
        _ => Err(mismatched_types(left, "+", right)),
    }
}

pub(super) fn subtract(left: &Val, right: &Val) -> Result<Val, Reason> {
    if let (Some(left), Some(right)) = (left.number(), right.number()) {
        return Ok(arithmetic(left, right, |a, b| a - b, |a, b| a - b));
    }
    match (left, right) {
        (Val::Time(left), Val::Time(right)) => Ok(Val::Duration(left.since(right))),
        (Val::Time(time), Val::Duration(nanos)) => Ok(Val::Time(time.add(nanos.saturating_neg())?)),
        (Val::Duration(left), Val::Duration(right)) => Ok(Val::Duration(left.wrapping_sub(*right))),
        _ => Err(mismatched_types(left, "-", right)),
    }
}

#[expect(clippy::cast_precision_loss, reason = "Go multiplies as floats too")]
pub(super) fn multiply(left: &Val, right: &Val) -> Result<Val, Reason> {
    match (left, right) {
        (Val::Duration(left), Val::Duration(right)) => {
            return Ok(Val::Duration(left.wrapping_mul(*right)));
        }
        (Val::Duration(nanos), other) | (other, Val::Duration(nanos)) => match other.number() {
            Some(Number::Float(factor)) => return Ok((*nanos as f64 * factor).into()),
            Some(Number::Int(_)) => {
                return Ok(Val::Duration(nanos.wrapping_mul(other.int()?)));
            }
            None => {}
        },
        _ => {}
    }
    match (left.number(), right.number()) {
        (Some(left), Some(right)) => Ok(arithmetic(left, right, i128::wrapping_mul, |a, b| a * b)),
        _ => Err(mismatched_types(left, "*", right)),
    }
}

/// Divides; the result is always a float.
pub(super) fn divide(left: &Val, right: &Val) -> Result<Val, Reason> {
    match (left.number(), right.number()) {
        (Some(left), Some(right)) => Ok((left.float() / right.float()).into()),
        _ => Err(mismatched_types(left, "/", right)),
    }
}

/// Returns the remainder of integers, with the sign of the left operand.
pub(super) fn modulo(left: &Val, right: &Val) -> Result<Val, Reason> {
    match (left.number(), right.number()) {
        (Some(Number::Int(_)), Some(Number::Int(0))) => {
            Err("runtime error: integer divide by zero".into())
        }
        (Some(Number::Int(left)), Some(Number::Int(right))) => {
            Ok(Number::Int(left.wrapping_rem(right)).val())
        }
        _ => Err(mismatched_types(left, "%", right)),
    }
}

/// Raises to a power; the result is always a float.
pub(super) fn power(left: &Val, right: &Val) -> Result<Val, Reason> {
    Ok(left.float()?.powf(right.float()?).into())
}

pub(super) fn negate(value: &Val) -> Result<Val, Reason> {
    match value.number() {
        Some(Number::Int(number)) => Ok(Number::Int(-number).val()),
        Some(Number::Float(number)) => Ok((-number).into()),
        None => Err(format!("invalid operation: - {}", value.go_type()).into()),
    }
}

fn arithmetic(
    left: Number,
    right: Number,
    whole: fn(i128, i128) -> i128,
    float: fn(f64, f64) -> f64,
) -> Val {
    match (left, right) {
        (Number::Int(left), Number::Int(right)) => Number::Int(whole(left, right)).val(),
        _ => float(left.float(), right.float()).into(),
    }
}

/// Returns whether a list contains an item or a map a key; false for null.
pub(super) fn contains(needle: &Val, hay: &Val, budget: &mut Budget<'_>) -> Result<bool, Reason> {
    if hay.is_null() {
        return Ok(false);
    }
    if let Some(len) = hay.list_len() {
        for index in 0..len {
            if let Some(item) = hay.item(index)
                && equal(&item, needle, budget)?
            {
                return Ok(true);
            }
        }
        return Ok(false);
    }
    let text = || match needle.plain() {
        Some(Value::Str(text)) => Ok(text.clone()),
        Some(Value::Null) => Ok("".into()),
        _ => Err(format!(
            "reflect.Value.MapIndex: value of type {} is not assignable to type string",
            needle.go_type()
        )),
    };
    match hay {
        Val::Dict(dict) => Ok(Key::new(needle).is_some_and(|key| dict.entries.contains_key(&key))),
        Val::Facts => {
            let name = text()?;
            budget.env.facts.check_section(&name)?;
            Ok(budget.env.facts.section(&name).is_some())
        }
        Val::Environ => Ok(budget.env.environ.get(&text()?).is_some()),
        Val::Env => Ok(matches!(text()?.as_ref(), "Facts" | "Data" | "Environ")),
        _ => match hay.plain() {
            Some(Value::Map(map)) => Ok(map.contains_key(&text()?)),
            _ => Err(format!("operator \"in\" not defined on {}", hay.go_type()).into()),
        },
    }
}

/// Returns the integers from `from` to `to`, both included.
pub(super) fn range(from: &Val, to: &Val, budget: &mut Budget<'_>) -> Result<Val, Reason> {
    let (from, to) = (from.int()?, to.int()?);
    let size = i128::from(to) - i128::from(from) + 1;
    budget.charge_items(usize::try_from(size.max(0)).unwrap_or(usize::MAX))?;
    Val::list((from..=to).map(Val::from).collect())
}

/// Returns a member of a value: an item by index, an entry by key, a byte of text by index.
pub(super) fn fetch(from: &Val, key: &Val, budget: &mut Budget<'_>) -> Result<Val, Reason> {
    if let Some(len) = from.list_len() {
        let index = key.int()?;
        let wanted = absolute_index(index, len);
        return wanted
            .and_then(|index| from.item(index))
            .ok_or_else(|| out_of_range(index, len));
    }
    let cannot = |budget: &mut Budget<'_>| -> Result<Val, Reason> {
        let key = budget.print(key)?;
        Err(format!("cannot fetch {key} from {}", from.go_type()).into())
    };
    let name = key.plain().and_then(Value::as_str);
    match (from, name) {
        (Val::Facts, Some(name)) => {
            budget.env.facts.check_section(name)?;
            Ok(budget.env.facts.section(name).map_or(Val::NULL, Val::Fact))
        }
        // A `map[string]string`: a missing entry is empty text, not null.
        (Val::Environ, Some(name)) => Ok(Val::Plain(
            budget
                .env
                .environ
                .get(name)
                .cloned()
                .unwrap_or_else(|| "".into()),
        )),
        (Val::Env, Some("Facts")) => budget.env.facts.check().map(|()| Val::Facts),
        (Val::Env, Some("Data")) => {
            let data = budget.env.check_data();
            data.map(|()| Val::Plain(budget.data()))
        }
        (Val::Env, Some("Environ")) => budget.env.check_environ().map(|()| Val::Environ),
        (Val::Fact(Value::Map(map)), Some(name)) => Ok(map
            .get(name)
            .or_else(|| map.get(json_name(name)?.as_str()))
            .map_or(Val::NULL, |value| Val::Fact(value.clone()))),
        (Val::Plain(Value::Map(map)), Some(name)) => {
            Ok(Val::Plain(map.get(name).cloned().unwrap_or_default()))
        }
        (
            Val::Plain(Value::Map(_)) | Val::Fact(Value::Map(_)) | Val::Facts | Val::Environ,
            None,
        ) => {
            if key.is_null() {
                Ok(Val::NULL)
            } else {
                Err(format!(
                    "reflect.Value.MapIndex: value of type {} is not assignable to type string",
                    key.go_type()
                )
                .into())
            }
        }
        (Val::Dict(dict), _) => Ok(Key::new(key)
            .and_then(|key| dict.entries.get(&key).cloned())
            .unwrap_or_else(|| dict.missing.clone())),
        (Val::Plain(Value::Str(text)) | Val::Fact(Value::Str(text)), _) => {
            let index = key.int()?;
            absolute_index(index, text.len())
                .and_then(|index| text.as_bytes().get(index).copied())
                .map(|byte| i64::from(byte).into())
                .ok_or_else(|| out_of_range(index, text.len()))
        }
        (Val::Duration(_) | Val::Time(_) | Val::Month(_) | Val::Weekday(_), Some(name))
            if method::has_method(from, name) =>
        {
            Err(format!("method {name} must be called").into())
        }
        _ => cannot(budget),
    }
}

/// Converts an index; a negative one counts from the end.
pub(super) fn absolute_index(index: i64, len: usize) -> Option<usize> {
    if index < 0 {
        len.checked_sub(usize::try_from(index.unsigned_abs()).ok()?)
    } else {
        usize::try_from(index).ok().filter(|index| *index < len)
    }
}

fn out_of_range(index: i64, len: usize) -> Reason {
    let index = if index < 0 {
        index.saturating_add(i64::try_from(len).unwrap_or(i64::MAX))
    } else {
        index
    };
    format!("index out of range: {index} (array length is {len})").into()
}

/// Returns a slice of a list or text; bounds outside are moved to the nearest end.
pub(super) fn slice(
    value: &Val,
    from: Option<&Val>,
    to: Option<&Val>,
    budget: &mut Budget<'_>,
) -> Result<Val, Reason> {
    let bounds = |len: usize| -> Result<(usize, usize), Reason> {
        let bound = |index: i64| {
            if index < 0 {
                absolute_index(index, len).unwrap_or(0)
            } else {
                usize::try_from(index).unwrap_or(usize::MAX).min(len)
            }
        };
        let to = to.map_or(Ok(len), |to| to.int().map(bound))?;
        let from = from.map_or(Ok(0), |from| from.int().map(bound))?;
        Ok((from.min(to), to))
    };
    if let Some(len) = value.list_len() {
        let (from, to) = bounds(len)?;
        budget.charge_steps(to - from)?;
        return Val::list((from..to).filter_map(|index| value.item(index)).collect());
    }
    match value.plain() {
        Some(Value::Str(text)) => {
            let (from, to) = bounds(text.len())?;
            // Text is sliced by bytes; a cut character becomes a replacement character.
            let bytes = text.as_bytes().get(from..to).unwrap_or_default();
            Ok(String::from_utf8_lossy(bytes).into_owned().into())
        }
        _ => {
            let from = from.map_or(Ok("0".into()), |from| budget.print(from))?;
            Err(format!("cannot slice {from}").into())
        }
    }
}
