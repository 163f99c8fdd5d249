//! Paths into data with the syntax of gjson: `interfaces.#(name=="lo").mtu`.
//!
//! Works on the value tree, not on JSON text. An invalid path finds nothing, and so does one that
//! exceeds the work limit. Queries are in `query`, `@` modifiers in `modifier`.

mod modifier;
mod query;

#[cfg(test)]
mod tests;

use std::cell::Cell;

use self::query::Query;
use ccm_value::Value;
use ccm_value::value::Map;

/// Maximum work of one path: items visited, and items of results built.
const MAX_WORK: usize = 5_000_000;

/// Maximum nesting of paths within paths.
const MAX_DEPTH: usize = 32;

/// Returns the value at a path; an existing null is found.
pub fn find(root: &Value, path: &str) -> Option<Value> {
    let finder = Finder {
        work: Cell::new(MAX_WORK),
    };
    finder.get(Some(root), path, 0)
}

/// Converts a value to the result of `lookup`: a number on its own is an integer unless it has a
/// fraction, numbers inside lists and maps are floats.
pub(crate) fn as_lookup_result(value: Value) -> Value {
    match value {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "only for floats in the range of i64"
        )]
        Value::Float(number)
            if number.abs() < 9.2e18 && (number.fract() == 0.0 || number.abs() < 1e-6) =>
        {
            // Small numbers are printed with an exponent and without a point.
            Value::Int(number as i64)
        }
        Value::List(_) | Value::Map(_) => with_float_numbers(value),
        other => other,
    }
}

/// Converts all numbers to floats, as Go's JSON decoder does.
pub fn with_float_numbers(value: Value) -> Value {
    match value {
        #[expect(
            clippy::cast_precision_loss,
            reason = "same loss of precision as in Go"
        )]
        Value::Int(number) => Value::Float(number as f64),
        #[expect(
            clippy::cast_precision_loss,
            reason = "same loss of precision as in Go"
        )]
        Value::Uint(number) => Value::Float(number as f64),
        Value::List(list) => list.iter().cloned().map(with_float_numbers).collect(),
        Value::Map(map) => map
            .iter()
            .map(|(key, value)| (key.clone(), with_float_numbers(value.clone())))
            .collect(),
        other => other,
    }
}

/// Result of following a path up to a pipe, and the path after it.
struct Step<'p> {
    value: Option<Value>,
    pipe: Option<&'p str>,
}

impl Step<'_> {
    const NOTHING: Self = Self {
        value: None,
        pipe: None,
    };
}

/// Follows paths and counts the work.
struct Finder {
    work: Cell<usize>,
}

impl Finder {
    fn charge(&self, amount: usize) -> Option<()> {
        self.work.set(self.work.get().checked_sub(amount)?);
        Some(())
    }

    /// Counts the full size of a result, because results that contain each other twice grow
    /// exponentially.
    fn charged(&self, value: Value) -> Option<Value> {
        self.charge_size(&value)?;
        Some(value)
    }

    fn charge_size(&self, value: &Value) -> Option<()> {
        self.charge(1)?;
        match value {
            Value::List(list) => list.iter().try_for_each(|item| self.charge_size(item)),
            Value::Map(map) => map.values().try_for_each(|item| self.charge_size(item)),
            _ => Some(()),
        }
    }

    /// Follows a path and its pipes. The value may be absent: modifiers still apply.
    fn get(&self, value: Option<&Value>, path: &str, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        let mut result;
        let mut value = value;
        let mut path = path;
        loop {
            self.charge(1)?;
            let step = self.step(value, path, depth);
            let Some(pipe) = step.pipe else {
                return step.value;
            };
            result = step.value;
            value = result.as_ref();
            path = pipe;
        }
    }

    fn step<'p>(&self, value: Option<&Value>, path: &'p str, depth: usize) -> Step<'p> {
        if path.len() > 1 {
            let special = match path.as_bytes().first() {
                Some(b'@') => modifier::apply(self, value, path, depth),
                Some(b'!') => literal(path),
                Some(b'[' | b'{') => self.select(value, path, depth),
                _ => None,
            };
            if let Some(step) = special {
                return step;
            }
        }
        match value {
            Some(value) => self.descend(value, path, depth),
            None => Step::NOTHING,
        }
    }

    fn descend<'p>(&self, value: &Value, path: &'p str, depth: usize) -> Step<'p> {
        match value {
            Value::Map(map) => self.in_map(map, path, depth),
            Value::List(list) => self.in_list(list, path, depth),
            _ => Step::NOTHING,
        }
    }

    fn in_map<'p>(&self, map: &Map, path: &'p str, depth: usize) -> Step<'p> {
        let part = Part::of_map(path);
        let below = |value: &Value| match part.after {
            After::End => Step {
                value: Some(value.clone()),
                pipe: None,
            },
            After::Pipe(pipe) => Step {
                value: Some(value.clone()),
                pipe: Some(pipe),
            },
            After::More(path) => self.descend(value, path, depth),
        };
        if !part.has_wildcard {
            let found = map.get(part.name.as_str()).map(below);
            return found.unwrap_or(part.missing());
        }
        // The first matching key with a result is used.
        let mut pipe = part.missing().pipe;
        for (key, value) in map {
            if self.charge(1).is_none() {
                return Step::NOTHING;
            }
            if glob(key, &part.name) {
                let step = below(value);
                if step.value.is_some() {
                    return step;
                }
                pipe = step.pipe.or(pipe);
            }
        }
        Step { value: None, pipe }
    }

    fn in_list<'p>(&self, list: &[Value], path: &'p str, depth: usize) -> Step<'p> {
        if let Some(rest) = path.strip_prefix('#') {
            return self.in_all_items(list, rest, depth);
        }
        let part = Part::of_list(path);
        let index = if part.name.bytes().all(|byte| byte.is_ascii_digit()) {
            part.name.parse::<usize>().ok()
        } else {
            None
        };
        let Some(item) = index.and_then(|index| list.get(index)) else {
            return part.missing();
        };
        match part.after {
            After::More(path) => self.descend(item, path, depth),
            After::End | After::Pipe(_) => Step {
                value: Some(item.clone()),
                ..part.missing()
            },
        }
    }

    /// Follows the path after `#`: nothing (a count), a path for each item, or a query.
    fn in_all_items<'p>(&self, list: &[Value], rest: &'p str, depth: usize) -> Step<'p> {
        let len = || Value::from(i64::try_from(list.len()).unwrap_or(i64::MAX));
        match rest.as_bytes().first() {
            None => Step {
                value: Some(len()),
                pipe: None,
            },
            Some(b'|') => Step {
                value: Some(len()),
                pipe: rest.get(1..),
            },
            Some(b'.') => {
                let (path, pipe) = split_pipe(rest.get(1..).unwrap_or_default());
                let found = list
                    .iter()
                    .filter_map(|item| self.get(Some(item), path, depth + 1));
                Step {
                    value: self.charged(found.collect()),
                    pipe,
                }
            }
            Some(b'(' | b'[') => match Query::parse(rest) {
                Some((query, rest)) => self.query(list, &query, rest, depth),
                None => Step::NOTHING,
            },
            _ => Step::NOTHING,
        }
    }

    fn query<'p>(
        &self,
        list: &[Value],
        query: &Query<'_>,
        rest: &'p str,
        depth: usize,
    ) -> Step<'p> {
        let (all, rest) = match rest.strip_prefix('#') {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let (path, inner_pipe, outer_pipe) = match rest.as_bytes().first() {
            None => (None, None, None),
            Some(b'|') => (None, None, rest.get(1..)),
            Some(b'.') => {
                let (path, pipe) = split_pipe(rest.get(1..).unwrap_or_default());
                (Some(path), pipe, None)
            }
            _ => return Step::NOTHING,
        };
        let mut found = Vec::new();
        let mut pipe = outer_pipe;
        for item in list {
            if self.charge(1).is_none() {
                return Step::NOTHING;
            }
            let tested = match item {
                Value::List(_) | Value::Map(_) => self.get(Some(item), query.path, depth + 1),
                _ if query.path.is_empty() => Some(item.clone()),
                _ => continue,
            };
            if !query.matches(tested.as_ref()) {
                continue;
            }
            pipe = inner_pipe.or(outer_pipe);
            let value = match path {
                Some(path) => self.get(Some(item), path, depth + 1),
                None => Some(item.clone()),
            };
            if !all {
                return Step { value, pipe };
            }
            found.extend(value);
        }
        Step {
            value: if all {
                self.charged(found.into())
            } else {
                None
            },
            pipe,
        }
    }

    /// Follows `[a,b]` and `{a,"name":b}`.
    fn select<'p>(&self, value: Option<&Value>, path: &'p str, depth: usize) -> Option<Step<'p>> {
        let is_map = path.starts_with('{');
        let (selectors, rest) = selectors(path)?;
        let pipe = if rest.is_empty() {
            None
        } else {
            Some(rest.strip_prefix(['|', '.'])?)
        };
        let mut items = Vec::new();
        let mut map = Map::new();
        for (name, path) in selectors {
            let Some(found) = self.get(value, path, depth + 1) else {
                continue;
            };
            if is_map {
                map.entry(selected_name(name, path).into()).or_insert(found);
            } else {
                items.push(found)
            }
        }
        let built = if is_map { map.into() } else { items.into() };
        Some(Step {
            value: self.charged(built),
            pipe,
        })
    }
}

/// First part of a path.
struct Part<'p> {
    name: String,
    has_wildcard: bool,
    after: After<'p>,
}

/// The rest of the path after a part.
#[derive(Clone, Copy)]
enum After<'p> {
    End,
    More(&'p str),
    Pipe(&'p str),
}

impl<'p> Part<'p> {
    /// Parses a key; a backslash escapes the next character.
    fn of_map(path: &'p str) -> Self {
        let mut name = String::new();
        let mut has_wildcard = false;
        let mut chars = path.char_indices();
        while let Some((at, found)) = chars.next() {
            match found {
                '|' | '.' => {
                    return Self {
                        name,
                        has_wildcard,
                        after: After::new(path, at),
                    };
                }
                '\\' => {
                    if let Some((_, protected)) = chars.next() {
                        name.push(protected);
                    }
                    continue;
                }
                '*' | '?' => has_wildcard = true,
                _ => {}
            }
            name.push(found);
        }
        Self {
            name,
            has_wildcard,
            after: After::End,
        }
    }

    /// Parses an index.
    fn of_list(path: &'p str) -> Self {
        let end = path.find(['.', '|']);
        Self {
            name: path
                .get(..end.unwrap_or(path.len()))
                .unwrap_or_default()
                .into(),
            has_wildcard: false,
            after: end.map_or(After::End, |at| After::new(path, at)),
        }
    }

    /// Returns the step for a missing key or index; a pipe is still followed.
    fn missing(&self) -> Step<'p> {
        Step {
            value: None,
            pipe: match self.after {
                After::Pipe(pipe) => Some(pipe),
                After::End | After::More(_) => None,
            },
        }
    }
}

impl<'p> After<'p> {
    /// Splits off the separator; a dot before a modifier or a selection is a pipe.
    fn new(path: &'p str, at: usize) -> Self {
        let rest = path.get(at + 1..).unwrap_or_default();
        let pipes = rest.starts_with(['[', '{']) || modifier::is_next(rest);
        match path.as_bytes().get(at) {
            Some(b'.') if !pipes => Self::More(rest),
            _ => Self::Pipe(rest),
        }
    }
}

/// Splits a path at its first pipe outside queries and selections.
fn split_pipe(path: &str) -> (&str, Option<&str>) {
    let mut depth = 0_usize;
    let mut quoted = false;
    let mut chars = path.char_indices();
    while let Some((at, found)) = chars.next() {
        match found {
            '\\' => drop(chars.next()),
            '"' if depth > 0 => quoted = !quoted,
            _ if quoted => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => {
                let (left, right) = path.split_at(at);
                return (left, right.get(1..));
            }
            _ => {}
        }
    }
    (path, None)
}

type Selector<'p> = (Option<&'p str>, &'p str);

/// Splits `{a,"b":c}` into names and paths, and the rest of the path.
fn selectors(path: &str) -> Option<(Vec<Selector<'_>>, &str)> {
    let mut found = Vec::new();
    let mut depth = 1_usize;
    let mut start = 1;
    let mut colon = None;
    let mut in_modifier = false;
    let mut quoted = false;
    let mut previous = '\0';
    let mut chars = path.char_indices().skip(1);
    while let Some((at, this)) = chars.next() {
        let before = std::mem::replace(&mut previous, this);
        match this {
            '\\' => drop(chars.next()),
            '"' => quoted = !quoted,
            _ if quoted => {}
            '@' if matches!(before, '.' | '|') => in_modifier = true,
            ':' if depth == 1 && !in_modifier && colon.is_none() => colon = Some(at),
            '[' | '(' | '{' => depth += 1,
            ']' | ')' | '}' => depth -= 1,
            _ => {}
        }
        let ends = depth == 0 && !quoted;
        if ends || (depth == 1 && this == ',' && !quoted) {
            found.push(match colon.take() {
                Some(colon) => (path.get(start..colon), path.get(colon + 1..at)?),
                None => (None, path.get(start..at)?),
            });
            start = at + 1;
            in_modifier = false;
        }
        if ends {
            return Some((found, path.get(start..)?));
        }
    }
    None
}

/// Returns the key of a selected value: the given name, or the last part of its path.
fn selected_name(name: Option<&str>, path: &str) -> String {
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        return serde_json::from_str(name).unwrap_or_else(|_| name.into());
    }
    let mut last = path;
    for (at, _) in path.rmatch_indices(['.', '|']) {
        if !path.get(..at).is_some_and(|before| before.ends_with('\\')) {
            last = path.get(at + 1..).unwrap_or_default();
            break;
        }
    }
    let simple = !last.contains(|c: char| c < ' ' || "[]{}()#|!".contains(c));
    if simple { last } else { "_" }.into()
}

/// Parses a literal in a path: `!"text"`, `!{"a":1}`, `!true`.
fn literal(path: &str) -> Option<Step<'_>> {
    let text = path.get(1..)?;
    let (value, rest) = match text.as_bytes().first()? {
        b'{' | b'[' | b'"' | b'+' | b'-' | b'0'..=b'9' => {
            let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
            let value = values.next()?.ok();
            (value, text.get(values.byte_offset()..)?)
        }
        _ => {
            let end = text.find(['|', '.']).unwrap_or(text.len());
            let (word, rest) = text.split_at(end);
            let value = match word.to_ascii_lowercase().as_str() {
                "true" => Value::Bool(true),
                "false" => Value::Bool(false),
                "null" => Value::Null,
                "nan" => Value::Float(f64::NAN),
                "inf" => Value::Float(f64::INFINITY),
                _ => return None,
            };
            (Some(value), rest)
        }
    };
    Some(Step {
        value,
        pipe: rest.strip_prefix(['|', '.']),
    })
}

/// Returns whether a text matches a glob of `*`, `?` and literal characters; a backslash escapes.
fn glob(text: &str, pattern: &str) -> bool {
    let (mut text, mut pattern) = (text, pattern);
    // Where to resume if the text after the last star does not match.
    let mut retry: Option<(&str, &str)> = None;
    loop {
        let mut rest = pattern.chars();
        let wanted = match rest.next() {
            Some('*') => {
                pattern = rest.as_str();
                retry = Some((text, pattern));
                continue;
            }
            Some('\\') => rest.next().map(Some),
            Some('?') => Some(None),
            other => other.map(Some),
        };
        let mut chars = text.chars();
        let found = chars.next();
        let fits = match (wanted, found) {
            (None, None) => return true,
            (Some(None), Some(_)) => true,
            (Some(wanted), found) => wanted == found && found.is_some(),
            (None, Some(_)) => false,
        };
        if fits {
            text = chars.as_str();
            pattern = rest.as_str();
            continue;
        }
        let Some((from, after)) = retry else {
            return false;
        };
        let mut chars = from.chars();
        if chars.next().is_none() {
            return false;
        }
        text = chars.as_str();
        pattern = after;
        retry = Some((text, pattern));
    }
}
