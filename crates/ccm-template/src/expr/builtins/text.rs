//! Built-in functions on text. Text is counted in the budget before it is built, which limits
//! memory.

use data_encoding::BASE64;

use super::{Builtin, INT, Overload, TEXT, TEXTS, argument, checked, kind_name, only, overloads};
use crate::expr::budget::Budget;
use crate::expr::kind::Kind;
use crate::expr::ops;
use crate::expr::runtime_value::{MEMORY, Reason, Val, count};
use crate::{base64, text};
use ccm_value::{Value, json};

pub(super) static BUILTINS: &[Builtin] = &[
    checked("len", len_kind, len),
    overloads("type", &[Overload(&[Kind::Any], TEXT)], |args, _| {
        Ok(argument(args, 0).type_name().into())
    }),
    overloads("string", &[Overload(&[Kind::Any], TEXT)], |args, budget| {
        budget.print(argument(args, 0)).map(Val::from)
    }),
    overloads(
        "trim",
        &[Overload(&[TEXT], TEXT), Overload(&[TEXT, TEXT], TEXT)],
        trim,
    ),
    overloads("trimPrefix", AFFIX, |args, _| {
        let (text, affix) = affix(args)?;
        Ok(text.strip_prefix(affix).unwrap_or(text).into())
    }),
    overloads("trimSuffix", AFFIX, |args, _| {
        let (text, affix) = affix(args)?;
        Ok(text.strip_suffix(affix).unwrap_or(text).into())
    }),
    overloads("upper", ONE_TEXT, |args, budget| {
        let text = argument(args, 0).text()?;
        budget.charge_text(text.len())?;
        Ok(text::upper(text).into())
    }),
    overloads("lower", ONE_TEXT, |args, budget| {
        let text = argument(args, 0).text()?;
        budget.charge_text(text.len())?;
        Ok(text::lower(text).into())
    }),
    overloads("split", SPLIT, |args, budget| split(args, false, budget)),
    overloads("splitAfter", SPLIT, |args, budget| {
        split(args, true, budget)
    }),
    overloads(
        "replace",
        &[
            Overload(&[TEXT, TEXT, TEXT, INT], TEXT),
            Overload(&[TEXT, TEXT, TEXT], TEXT),
        ],
        replace,
    ),
    overloads("repeat", &[Overload(&[TEXT, INT], TEXT)], repeat),
    overloads(
        "join",
        &[Overload(&[TEXTS, TEXT], TEXT), Overload(&[TEXTS], TEXT)],
        join,
    ),
    overloads("indexOf", &[Overload(&[TEXT, TEXT], INT)], |args, _| {
        let (text, part) = two(args)?;
        Ok(text.find(part).map_or(Val::from(-1), count))
    }),
    overloads("lastIndexOf", &[Overload(&[TEXT, TEXT], INT)], |args, _| {
        let (text, part) = two(args)?;
        Ok(text.rfind(part).map_or(Val::from(-1), count))
    }),
    overloads("hasPrefix", TEST, |args, _| {
        let (text, part) = two(args)?;
        Ok(text.starts_with(part).into())
    }),
    overloads("hasSuffix", TEST, |args, _| {
        let (text, part) = two(args)?;
        Ok(text.ends_with(part).into())
    }),
    overloads("toJSON", &[Overload(&[Kind::Any], TEXT)], to_json),
    overloads("fromJSON", &[Overload(&[TEXT], Kind::Any)], from_json),
    overloads("toBase64", ONE_TEXT, |args, budget| {
        let text = argument(args, 0).text()?;
        budget.charge_text(text.len() / 3 * 4 + 4)?;
        Ok(BASE64.encode(text.as_bytes()).into())
    }),
    overloads("fromBase64", ONE_TEXT, |args, budget| {
        let text = argument(args, 0).text()?;
        budget.charge_text(text.len())?;
        let bytes = base64::decode(text)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned().into())
    }),
];

const ONE_TEXT: &[Overload] = &[Overload(&[TEXT], TEXT)];
const AFFIX: &[Overload] = &[Overload(&[TEXT, TEXT], TEXT), Overload(&[TEXT], TEXT)];
const TEST: &[Overload] = &[Overload(&[TEXT, TEXT], Kind::Bool)];
const SPLIT: &[Overload] = &[
    Overload(&[TEXT, TEXT], TEXTS),
    Overload(&[TEXT, TEXT, INT], TEXTS),
];

fn two(args: &[Val]) -> Result<(&str, &str), Reason> {
    Ok((argument(args, 0).text()?, argument(args, 1).text()?))
}

/// Returns text and affix; the default affix is a space.
fn affix(args: &[Val]) -> Result<(&str, &str), Reason> {
    match args {
        [text] => Ok((text.text()?, " ")),
        _ => two(args),
    }
}

fn len_kind(kinds: &[Kind]) -> Result<Kind, Reason> {
    match only(kinds)? {
        Kind::Text | Kind::List(_) | Kind::Map(_) | Kind::AnyMap | Kind::Unknown | Kind::Any => {
            Ok(INT)
        }
        other => Err(format!("invalid argument for len (type {})", kind_name(other)).into()),
    }
}

/// Returns the number of characters of a text, items of a list or entries of a map.
fn len(args: &[Val], budget: &mut Budget<'_>) -> Result<Val, Reason> {
    let value = argument(args, 0);
    if let Some(Value::Str(text)) = value.plain() {
        return Ok(count(text.chars().count()));
    }
    if let Some(len) = value.list_len() {
        return Ok(count(len));
    }
    match ops::entries(value, budget) {
        Some(entries) => Ok(count(entries.len())),
        None => Err(format!("invalid argument for len (type {})", value.go_type()).into()),
    }
}

fn trim(args: &[Val], _: &mut Budget<'_>) -> Result<Val, Reason> {
    Ok(match args {
        [text] => text.text()?.trim().into(),
        _ => {
            let (text, set) = two(args)?;
            text.trim_matches(|c| set.contains(c)).into()
        }
    })
}

/// Splits text; a negative limit means no limit, zero returns an empty list.
fn split(args: &[Val], keep: bool, budget: &mut Budget<'_>) -> Result<Val, Reason> {
    let (text, separator) = two(args)?;
    let limit = match args.get(2) {
        Some(limit) => limit.int()?,
        None => -1,
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if limit == 0 {
        return Val::list(Vec::new());
    }
    // An empty separator splits between characters.
    let mut parts: Vec<Val> = Vec::new();
    let mut rest = text;
    while parts.len() + 1 < limit {
        let end = if separator.is_empty() {
            rest.chars()
                .next()
                .map(char::len_utf8)
                .filter(|len| *len < rest.len())
        } else {
            rest.find(separator)
        };
        let Some(end) = end else { break };
        let (part, after) = rest.split_at(end);
        let kept = if keep {
            rest.get(..end + separator.len()).unwrap_or(part)
        } else {
            part
        };
        budget.charge_items(1)?;
        parts.push(kept.into());
        rest = after.get(separator.len()..).unwrap_or_default();
    }
    if !(separator.is_empty() && text.is_empty()) {
        budget.charge_items(1)?;
        parts.push(rest.into());
    }
    Val::list(parts)
}

fn replace(args: &[Val], budget: &mut Budget<'_>) -> Result<Val, Reason> {
    let (text, old) = two(args)?;
    let new = argument(args, 2).text()?;
    let limit = match args.get(3) {
        Some(limit) => usize::try_from(limit.int()?).unwrap_or(usize::MAX),
        None => usize::MAX,
    };
    let found = if old.is_empty() {
        text.chars().count() + 1
    } else {
        text.matches(old).count()
    };
    let added = found.min(limit).saturating_mul(new.len());
    budget.charge_text(text.len().saturating_add(added))?;
    Ok(text.replacen(old, new, limit).into())
}

fn repeat(args: &[Val], budget: &mut Budget<'_>) -> Result<Val, Reason> {
    let text = argument(args, 0).text()?;
    let times = argument(args, 1).int()?;
    let Ok(wanted) = usize::try_from(times) else {
        return Err(format!(
            "invalid argument for repeat (expected positive integer, got {times})"
        )
        .into());
    };
    if wanted > 1_000_000 {
        return Err(MEMORY.into());
    }
    budget.charge_items(text.len().saturating_mul(wanted))?;
    Ok(text.repeat(wanted).into())
}

fn join(args: &[Val], budget: &mut Budget<'_>) -> Result<Val, Reason> {
    let list = argument(args, 0);
    let Some(items) = list.items() else {
        return Err(format!("invalid argument for join (type {})", list.go_type()).into());
    };
    let separator = match args.get(1) {
        Some(separator) => separator.text()?.as_ref(),
        None => "",
    };
    budget.charge_steps(items.len())?;
    let mut texts = Vec::with_capacity(items.len());
    for item in &items {
        let text = item.text()?;
        budget.charge_text(text.len() + separator.len())?;
        texts.push(text.as_ref());
    }
    Ok(texts.join(separator).into())
}

fn to_json(args: &[Val], budget: &mut Budget<'_>) -> Result<Val, Reason> {
    let value = json_value(argument(args, 0), budget)?;
    let text = json::pretty(&value)?;
    budget.charge_text(text.len())?;
    Ok(text.into())
}

/// Converts a value for JSON: durations become nanoseconds, times RFC 3339.
fn json_value(value: &Val, budget: &mut Budget<'_>) -> Result<Value, Reason> {
    match value {
        Val::Time(time) => Ok(time.rfc3339().into()),
        Val::Duration(nanos) => Ok((*nanos).into()),
        Val::Month(month) => Ok(i64::from(month.0).into()),
        Val::Weekday(day) => Ok(i64::from(day.0).into()),
        Val::List(list) => {
            budget.charge_items(list.items.len())?;
            let items = list.items.iter().map(|item| json_value(item, budget));
            items.collect::<Result<Vec<_>, _>>().map(Value::from)
        }
        Val::Dict(dict) => {
            budget.charge_items(dict.entries.len())?;
            let entries = dict
                .entries
                .iter()
                .map(|(key, item)| Ok((key.text(), json_value(item, budget)?)));
            entries
                .collect::<Result<Vec<_>, Reason>>()
                .map(|entries| entries.into_iter().collect())
        }
        Val::Plain(Value::Float(number)) if !number.is_finite() => {
            Err(format!("json: unsupported value: {}", Value::Float(*number)).into())
        }
        other => other.clone().into_value(budget),
    }
}

/// Parses JSON; every number becomes a float, as in Go.
fn from_json(args: &[Val], budget: &mut Budget<'_>) -> Result<Val, Reason> {
    let text = argument(args, 0).text()?;
    budget.charge_text(text.len())?;
    let value: Value = serde_json::from_str(text).map_err(|err| {
        if err.is_eof() {
            "unexpected end of JSON input".to_owned()
        } else {
            format!("invalid JSON: {err}")
        }
    })?;
    Ok(Val::Plain(crate::path::with_float_numbers(value)))
}
