//! Modifiers: `@reverse`, `@keys`, `@flatten:{"deep":true}`.
//!
//! Modifiers that only change the formatting of JSON text (`@pretty`, `@ugly`) do nothing.

use super::{Finder, MAX_DEPTH, Step};
use ccm_value::value::Map;
use ccm_value::{Value, json};

const NAMES: [&str; 13] = [
    "pretty", "ugly", "reverse", "this", "flatten", "join", "valid", "keys", "values", "tostr",
    "fromstr", "group", "dig",
];

/// Returns whether a path starts with a known modifier.
pub(super) fn is_next(path: &str) -> bool {
    path.strip_prefix('@').is_some_and(|rest| {
        let end = rest.find(['.', '|', ':']).unwrap_or(rest.len());
        rest.get(..end).is_some_and(|name| NAMES.contains(&name))
    })
}

/// Applies the modifier at the start of a path; `None` if there is none.
pub(super) fn apply<'p>(
    finder: &Finder,
    value: Option<&Value>,
    path: &'p str,
    depth: usize,
) -> Option<Step<'p>> {
    if !is_next(path) {
        return None;
    }
    let body = path.get(1..)?;
    let end = body.find(['.', '|', ':']).unwrap_or(body.len());
    let (name, rest) = body.split_at(end);
    let (argument, rest) = match rest.strip_prefix(':') {
        Some(rest) => split_argument(rest),
        None => ("", rest),
    };
    let result = modify(finder, name, argument, value, depth);
    Some(Step {
        value: result.and_then(|value| finder.charged(value)),
        pipe: rest.strip_prefix(['|', '.']),
    })
}

/// Splits off an argument: JSON, or text up to a pipe.
fn split_argument(text: &str) -> (&str, &str) {
    if text.starts_with(['{', '[', '"']) {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        if values.next().is_some_and(|value| value.is_ok()) {
            return text.split_at(values.byte_offset());
        }
    }
    let (argument, _) = super::split_pipe(text);
    text.split_at(argument.len())
}

fn modify(
    finder: &Finder,
    name: &str,
    argument: &str,
    value: Option<&Value>,
    depth: usize,
) -> Option<Value> {
    let Some(value) = value else {
        // A missing value has no keys, no values and no text.
        return match name {
            "keys" | "values" | "dig" => Some(Vec::new().into()),
            "tostr" => Some("".into()),
            _ => None,
        };
    };
    let option = |name: &str| {
        let options: Option<Value> = serde_json::from_str(argument).ok();
        options.is_some_and(|options| options.get(name) == Some(&Value::Bool(true)))
    };
    match (name, value) {
        ("reverse", Value::List(list)) => Some(list.iter().rev().cloned().collect()),
        ("flatten", Value::List(list)) => {
            let mut flat = Vec::new();
            flatten(list, option("deep"), &mut flat);
            Some(flat.into())
        }
        ("join", Value::List(list)) => {
            let maps = list.iter().filter_map(Value::as_map);
            let mut joined = Map::new();
            for map in maps {
                joined.extend(map.iter().map(|(key, value)| (key.clone(), value.clone())));
            }
            Some(joined.into())
        }
        ("keys", Value::Map(map)) => Some(map.keys().map(|key| Value::Str(key.clone())).collect()),
        ("keys", Value::List(list)) => Some(list.iter().map(|_| Value::Null).collect()),
        ("keys", _) => Some(vec![Value::Null].into()),
        ("values", Value::Map(map)) => Some(map.values().cloned().collect()),
        ("values", Value::List(_)) => Some(value.clone()),
        ("values", _) => Some(vec![value.clone()].into()),
        ("tostr", _) => json::compact(value).ok().map(Value::from),
        ("fromstr", Value::Str(text)) => serde_json::from_str(text).ok(),
        ("fromstr", Value::Null) => None,
        ("group", Value::Map(map)) => Some(group(map)),
        ("group", _) => None,
        ("dig", _) => {
            let mut found = Vec::new();
            dig(finder, value, argument, depth, &mut found)?;
            Some(found.into())
        }
        _ => Some(value.clone()),
    }
}

fn flatten(list: &[Value], deep: bool, flat: &mut Vec<Value>) {
    for item in list {
        match item {
            Value::List(inner) if deep => flatten(inner, deep, flat),
            Value::List(inner) => flat.extend(inner.iter().cloned()),
            other => flat.push(other.clone()),
        }
    }
}

/// Converts a map of lists to a list of maps.
fn group(map: &Map) -> Value {
    let mut groups: Vec<Map> = Vec::new();
    for (key, value) in map {
        for (index, item) in value.as_list().unwrap_or_default().iter().enumerate() {
            if index == groups.len() {
                groups.push(Map::new());
            }
            if let Some(group) = groups.get_mut(index) {
                group.insert(key.clone(), item.clone());
            }
        }
    }
    groups.into_iter().map(Value::from).collect()
}

/// Collects the results of a path in a value and in everything below it.
fn dig(
    finder: &Finder,
    value: &Value,
    path: &str,
    depth: usize,
    found: &mut Vec<Value>,
) -> Option<()> {
    finder.charge(1)?;
    if depth < MAX_DEPTH {
        found.extend(finder.get(Some(value), path, depth + 1));
    }
    match value {
        Value::List(list) => list
            .iter()
            .try_for_each(|item| dig(finder, item, path, depth, found)),
        Value::Map(map) => map
            .values()
            .try_for_each(|item| dig(finder, item, path, depth, found)),
        _ => Some(()),
    }
}
