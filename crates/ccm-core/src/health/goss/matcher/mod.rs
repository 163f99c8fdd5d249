//! Matchers: comparison of actual and expected values.
//!
//! Plain data is a matcher by its type: text equals the value printed as text, a number equals the
//! value parsed as a number, a list requires elements. A map with one key names another matcher.
//! `pattern` has line patterns, `semver` version ranges, `pairing` the assignment of distinct
//! elements. Values that cannot be compared are an error, which is never a match, not even inside
//! `not`.

mod error;
mod pairing;
mod pattern;
mod semver;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use regex::Regex;

pub(super) use self::error::MatchError;
use self::pattern::Patterns;
use self::semver::Range;
use crate::model::value::{Map, Value};
use ccm_template::path;

/// Maximum nesting of matchers.
const MAX_DEPTH: usize = 32;

/// Maximum length of a value in messages.
const MAX_SHOWN: usize = 300;

/// An expected value.
#[derive(Debug)]
pub(super) struct Matcher {
    test: Test,
    /// The argument in the document.
    wanted: Value,
}

#[derive(Debug)]
enum Test {
    /// Equals the value printed as text.
    Text(String),
    Equal(Value),
    Number(Order, f64),
    Prefix(String),
    Suffix(String),
    Substring(String),
    Regexp(Regex),
    Length(usize),
    Patterns(Patterns),
    Key(Box<Matcher>),
    Element(Box<Matcher>),
    /// A distinct element for each; with `lines` a text is split first.
    Elements {
        each: Vec<Matcher>,
        lines: bool,
    },
    /// A distinct element for each, and no others.
    ConsistOf(Vec<Matcher>),
    Not(Box<Matcher>),
    And(Vec<Matcher>),
    Or(Vec<Matcher>),
    Semver(Range),
    Json(Vec<(String, Matcher)>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Equal,
    Above,
    AtLeast,
    Below,
    AtMost,
}

impl Matcher {
    /// Parses a matcher.
    pub(super) fn parse(wanted: &Value) -> Result<Self, MatchError> {
        parse(wanted, 0)
    }

    /// Parses a list of line patterns.
    pub(super) fn patterns(wanted: &Value) -> Result<Self, MatchError> {
        Ok(Self {
            test: Test::Patterns(Patterns::parse(wanted)?),
            wanted: wanted.clone(),
        })
    }

    /// Returns a description such as `to equal 1`.
    pub(super) fn description(&self) -> String {
        let verb = match &self.test {
            Test::Not(inner) => return format!("not {}", inner.description()),
            Test::Text(_) | Test::Equal(_) => "to equal",
            Test::Number(Order::Equal, _) => "to be numerically eq",
            Test::Number(Order::Above, _) => "to be numerically gt",
            Test::Number(Order::AtLeast, _) => "to be numerically ge",
            Test::Number(Order::Below, _) => "to be numerically lt",
            Test::Number(Order::AtMost, _) => "to be numerically le",
            Test::Prefix(_) => "to have prefix",
            Test::Suffix(_) => "to have suffix",
            Test::Substring(_) => "to contain substring",
            Test::Regexp(_) => "to match regular expression",
            Test::Length(_) => "to have length",
            Test::Patterns(_) => "to have patterns",
            Test::Key(_) => "to have key matching",
            Test::Element(_) => "to contain element matching",
            Test::Elements { .. } => "to contain elements matching",
            Test::ConsistOf(_) => "to consist of",
            Test::And(_) => "to satisfy all of these matchers",
            Test::Or(_) => "to satisfy at least one of these matchers",
            Test::Semver(_) => "to satisfy semver constraint",
            Test::Json(_) => "to be JSON with",
        };
        format!("{verb} {}", short(&self.wanted))
    }

    /// Whether a value matches; an error if it cannot be compared.
    pub(super) fn check(&self, actual: &Value) -> Result<bool, MatchError> {
        Ok(match &self.test {
            Test::Text(text) => *printed(actual) == **text,
            Test::Equal(value) => equal(actual, value),
            Test::Number(order, wanted) => order.holds(number(actual)?, *wanted),
            Test::Prefix(text) => printed(actual).starts_with(text.as_str()),
            Test::Suffix(text) => printed(actual).ends_with(text.as_str()),
            Test::Substring(text) => printed(actual).contains(text.as_str()),
            Test::Regexp(pattern) => pattern.is_match(&printed(actual)),
            Test::Length(length) => size(actual)? == *length,
            Test::Patterns(patterns) => patterns.check(&printed(actual))?,
            Test::Key(matcher) => {
                let map = actual
                    .as_map()
                    .ok_or_else(|| MatchError::expected("a map", actual))?;
                let mut keys = map.keys().map(|key| Value::Str(key.clone()));
                any(matcher, &mut keys)?
            }
            Test::Element(matcher) => {
                let elements = elements(actual, true)?;
                any(matcher, &mut elements.iter().cloned())?
            }
            Test::Elements { each, lines } => {
                pairing::assigns_all(each, &elements(actual, *lines)?)?
            }
            Test::ConsistOf(each) => {
                let elements = elements(actual, false)?;
                each.len() == elements.len() && pairing::assigns_all(each, &elements)?
            }
            Test::Not(matcher) => !matcher.check(actual)?,
            Test::And(all) => {
                for matcher in all {
                    if !matcher.check(actual)? {
                        return Ok(false);
                    }
                }
                true
            }
            Test::Or(some) => {
                for matcher in some {
                    if matcher.check(actual)? {
                        return Ok(true);
                    }
                }
                false
            }
            Test::Semver(range) => range.holds_all(actual)?,
            Test::Json(each) => {
                let text = actual
                    .as_str()
                    .ok_or_else(|| MatchError::expected("text", actual))?;
                let json: Value = serde_json::from_str(text).map_err(MatchError::Json)?;
                for (path, matcher) in each {
                    let found =
                        path::find(&json, path).ok_or_else(|| MatchError::NoPath(path.clone()))?;
                    if !matcher.check(&found)? {
                        return Ok(false);
                    }
                }
                true
            }
        })
    }
}

impl Order {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "gt" => Self::Above,
            "ge" => Self::AtLeast,
            "lt" => Self::Below,
            "le" => Self::AtMost,
            _ => return None,
        })
    }

    #[expect(
        clippy::float_cmp,
        reason = "compares parsed values, not computed ones"
    )]
    fn holds(self, actual: f64, wanted: f64) -> bool {
        match self {
            Self::Equal => actual == wanted,
            Self::Above => actual > wanted,
            Self::AtLeast => actual >= wanted,
            Self::Below => actual < wanted,
            Self::AtMost => actual <= wanted,
        }
    }
}

fn parse(wanted: &Value, depth: usize) -> Result<Matcher, MatchError> {
    if depth > MAX_DEPTH {
        return Err(MatchError::TooDeep);
    }
    let test = match wanted {
        Value::Str(text) => Test::Text(text.as_ref().into()),
        Value::Int(_) | Value::Uint(_) | Value::Float(_) => {
            Test::Number(Order::Equal, number(wanted)?)
        }
        Value::Bool(_) => Test::Equal(wanted.clone()),
        Value::List(_) => Test::Elements {
            each: all("matcher", wanted, depth)?,
            lines: false,
        },
        Value::Null => return Err(MatchError::Missing),
        Value::Map(map) => return named(map, depth),
    };
    Ok(Matcher {
        test,
        wanted: wanted.clone(),
    })
}

/// Parses a matcher given as a map.
fn named(map: &Map, depth: usize) -> Result<Matcher, MatchError> {
    let mut entries = map.iter();
    let (name, wanted) = match (entries.next(), entries.next()) {
        (Some(only), None) => only,
        (None, _) => return Err(MatchError::argument("matcher", "map", &Value::empty_map())),
        _ => {
            let names = map.keys().map(|name| name.as_ref().to_owned());
            return Err(MatchError::Several(names.collect()));
        }
    };
    let name = name.as_ref();
    let text = || match wanted {
        Value::Str(text) => Ok(text.as_ref().to_owned()),
        _ => Err(MatchError::argument(name, "string", wanted)),
    };
    let inner = || parse(wanted, depth + 1).map(Box::new);
    let list = || all(name, wanted, depth);
    let test = match name {
        "equal" => Test::Equal(wanted.clone()),
        "have-prefix" => Test::Prefix(text()?),
        "have-suffix" => Test::Suffix(text()?),
        "contain-substring" => Test::Substring(text()?),
        "match-regexp" => Test::Regexp(pattern::compile(&text()?)?),
        "have-len" => match wanted {
            Value::Int(length) => Test::Length(
                usize::try_from(*length)
                    .map_err(|_| MatchError::argument(name, "numeric", wanted))?,
            ),
            _ => return Err(MatchError::argument(name, "numeric", wanted)),
        },
        "have-patterns" => match wanted {
            Value::List(_) => Test::Patterns(Patterns::parse(wanted)?),
            _ => return Err(MatchError::argument(name, "array", wanted)),
        },
        "have-key" => Test::Key(inner()?),
        "contain-element" => match wanted {
            Value::Null | Value::Bool(_) | Value::List(_) => {
                return Err(MatchError::argument(
                    name,
                    "matcher, string or numeric",
                    wanted,
                ));
            }
            _ => Test::Element(inner()?),
        },
        "contain-elements" => Test::Elements {
            each: list()?,
            lines: true,
        },
        "consist-of" => Test::ConsistOf(list()?),
        "not" => Test::Not(inner()?),
        "and" => Test::And(list()?),
        "or" => Test::Or(list()?),
        "semver-constraint" => {
            let range = Range::parse(&text()?);
            Test::Semver(
                range.ok_or_else(|| MatchError::argument(name, "semver constraint", wanted))?,
            )
        }
        "gjson" => {
            let paths = wanted
                .as_map()
                .ok_or_else(|| MatchError::argument(name, "map", wanted))?;
            let each = paths
                .iter()
                .map(|(path, wanted)| Ok((path.as_ref().to_owned(), parse(wanted, depth + 1)?)));
            Test::Json(each.collect::<Result<_, MatchError>>()?)
        }
        _ => match (Order::named(name), wanted) {
            (Some(order), Value::Int(_) | Value::Uint(_) | Value::Float(_)) => {
                Test::Number(order, number(wanted)?)
            }
            (Some(_), _) => return Err(MatchError::argument(name, "numeric", wanted)),
            (None, _) => return Err(MatchError::Unknown(name.to_owned())),
        },
    };
    Ok(Matcher {
        test,
        wanted: wanted.clone(),
    })
}

fn all(name: &str, wanted: &Value, depth: usize) -> Result<Vec<Matcher>, MatchError> {
    let list = wanted
        .as_list()
        .ok_or_else(|| MatchError::argument(name, "array", wanted))?;
    list.iter().map(|item| parse(item, depth + 1)).collect()
}

/// Whether any value matches. An error is returned only if none does.
fn any(matcher: &Matcher, values: &mut dyn Iterator<Item = Value>) -> Result<bool, MatchError> {
    let mut last = Ok(false);
    for value in values {
        match matcher.check(&value) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(reason) => last = Err(reason),
        }
    }
    last
}

/// Returns a value as text; a list has one line per item.
fn printed(value: &Value) -> Cow<'_, str> {
    match value {
        Value::Str(text) => Cow::Borrowed(text),
        Value::List(list) => {
            let lines: Vec<String> = list.iter().map(ToString::to_string).collect();
            Cow::Owned(lines.join("\n"))
        }
        other => Cow::Owned(other.to_string()),
    }
}

fn number(value: &Value) -> Result<f64, MatchError> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "goss compares floats too; ids and sizes are exact"
    )]
    match value {
        Value::Int(number) => Ok(*number as f64),
        Value::Uint(number) => Ok(*number as f64),
        Value::Float(number) => Ok(*number),
        Value::Str(_) | Value::List(_) => {
            let text = printed(value);
            let number = text.trim().parse();
            number.map_err(|_| MatchError::expected("a number", value))
        }
        _ => Err(MatchError::expected("a number", value)),
    }
}

/// Whether two values are equal; numbers are compared by value, not by type.
fn equal(a: &Value, b: &Value) -> bool {
    let is_number =
        |value: &Value| matches!(value, Value::Int(_) | Value::Uint(_) | Value::Float(_));
    match (a, b) {
        (Value::List(a), Value::List(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| equal(a, b))
        }
        (Value::Map(a), Value::Map(b)) => {
            a.len() == b.len()
                && a.iter()
                    .zip(b.iter())
                    .all(|((a_key, a), (b_key, b))| a_key == b_key && equal(a, b))
        }
        (a, b) if a == b => true,
        (a, b) if is_number(a) && is_number(b) => match (number(a), number(b)) {
            (Ok(a), Ok(b)) => Order::Equal.holds(a, b),
            _ => false,
        },
        _ => false,
    }
}

/// Returns the items of a list, the values of a map or, with `lines`, the lines of a text.
fn elements(value: &Value, lines: bool) -> Result<Cow<'_, [Value]>, MatchError> {
    match value {
        Value::List(list) => Ok(Cow::Borrowed(list)),
        Value::Map(map) => Ok(map.values().cloned().collect()),
        Value::Str(text) if lines => Ok(text.split('\n').map(Value::from).collect()),
        other => Err(MatchError::expected("a list or a map", other)),
    }
}

fn size(value: &Value) -> Result<usize, MatchError> {
    match value {
        Value::Str(text) => Ok(text.len()),
        Value::List(list) => Ok(list.len()),
        Value::Map(map) => Ok(map.len()),
        other => Err(MatchError::expected("text, a list or a map", other)),
    }
}

/// Returns a value as JSON, truncated if it is long.
pub(super) fn short(value: &Value) -> String {
    // Long text is truncated before it is formatted.
    let text = match value {
        Value::Str(text) if text.len() > 4 * MAX_SHOWN => {
            let head: String = text.chars().take(MAX_SHOWN + 1).collect();
            serde_json::to_string(&head)
        }
        other => serde_json::to_string(other),
    };
    let text = text.unwrap_or_else(|_| value.to_string());
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
