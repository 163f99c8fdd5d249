//! Comparison of one fact with a text: `os.name=debian`, `a.b>=3`, `k=/re/`.

use std::cmp::Ordering;

use regex::Regex;

use super::{FilterError, compile, fact, is_pattern, strip_slashes};
use crate::model::Value;
use crate::model::envelope::{FactFilter, Operator};
use crate::model::label::Labels;
use ccm_template::env::Facts;

/// Compiled comparison of one fact.
#[derive(Clone, Debug)]
pub(super) struct Condition {
    filter: FactFilter,
    pattern: Option<Regex>,
}

impl Condition {
    pub(super) fn new(filter: &FactFilter) -> Result<Self, FilterError> {
        let pattern = match filter.operator {
            Operator::Matches => Some(compile(strip_slashes(&filter.value))?),
            _ => None,
        };
        Ok(Self {
            filter: filter.clone(),
            pattern,
        })
    }

    /// Evaluates the comparison; false if the fact is missing.
    pub(super) fn holds(&self, facts: &Facts, labels: &Labels) -> Result<bool, FilterError> {
        let FactFilter {
            fact: path,
            operator,
            value,
        } = &self.filter;
        let found = match fact(facts, labels, path) {
            None | Some(Value::Null | Value::List(_) | Value::Map(_)) => return Ok(false),
            Some(found) => found,
        };
        let order = |accept: fn(Ordering) -> bool| order(path, &found, value).map(accept);
        match operator {
            Operator::Equal => Ok(is_equal(&found, value)),
            Operator::NotEqual => Ok(!is_equal(&found, value)),
            Operator::Matches => {
                let text = found.to_string();
                Ok(self.pattern.as_ref().is_some_and(|it| it.is_match(&text)))
            }
            Operator::Less => order(Ordering::is_lt),
            Operator::Greater => order(Ordering::is_gt),
            Operator::LessOrEqual => order(Ordering::is_le),
            Operator::GreaterOrEqual => order(Ordering::is_ge),
        }
    }
}

/// Reports whether a fact equals a text: booleans in any of Go's spellings, numbers by value, text
/// case-insensitively.
fn is_equal(fact: &Value, text: &str) -> bool {
    match fact {
        Value::Bool(fact) => parse_bool(text) == Some(*fact),
        Value::Str(fact) => fact.to_lowercase() == text.to_lowercase(),
        number => Number::of(number)
            .zip(Number::parse(text))
            .is_some_and(|(fact, wanted)| fact.compare(wanted).is_eq()),
    }
}

/// Returns the order of a fact and a text: by value if both are numbers or numeric texts.
fn order(path: &str, fact: &Value, text: &str) -> Result<Ordering, FilterError> {
    let wanted = Number::parse(text);
    match fact {
        Value::Str(fact) => Ok(match Number::parse(fact).zip(wanted) {
            Some((fact, wanted)) => fact.compare(wanted),
            None => fact.to_lowercase().cmp(&text.to_lowercase()),
        }),
        fact => match (Number::of(fact), wanted) {
            (Some(fact), Some(wanted)) => Ok(fact.compare(wanted)),
            (Some(_), None) => Err(FilterError::NoNumber {
                fact: path.into(),
                value: text.into(),
            }),
            (None, _) => Err(FilterError::NoOrder {
                fact: path.into(),
                kind: fact.kind(),
            }),
        },
    }
}

/// Parses a boolean as Go does.
fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "t" | "true" => Some(true),
        "0" | "f" | "false" => Some(false),
        _ => None,
    }
}

/// Number; integers are exact.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Whole(i128),
    Float(f64),
}

impl Number {
    pub(super) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Int(number) => Some(Self::Whole((*number).into())),
            Value::Uint(number) => Some(Self::Whole((*number).into())),
            Value::Float(number) => Some(Self::Float(*number)),
            _ => None,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        // Texts such as `nan` and `inf` are not numbers.
        let is_number = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
        if !text.contains(|c: char| c.is_ascii_digit()) || !text.chars().all(is_number) {
            return None;
        }
        match text.parse() {
            Ok(number) => Some(Self::Whole(number)),
            Err(_) => text.parse().ok().map(Self::Float),
        }
    }

    pub(super) fn compare(self, other: Self) -> Ordering {
        match (self, other) {
            (Self::Whole(a), Self::Whole(b)) => a.cmp(&b),
            (a, b) => a.float().total_cmp(&b.float()),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "the other side is a float")]
    fn float(self) -> f64 {
        match self {
            Self::Whole(number) => number as f64,
            // -0.0 equals 0.0.
            Self::Float(number) => number + 0.0,
        }
    }
}

/// Operators in the text of a fact filter, longer ones first.
const OPERATORS: [(&str, Operator); 10] = [
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("=~", Operator::Matches),
    ("<=", Operator::LessOrEqual),
    (">=", Operator::GreaterOrEqual),
    ("=<", Operator::LessOrEqual),
    ("=>", Operator::GreaterOrEqual),
    ("=", Operator::Equal),
    ("<", Operator::Less),
    (">", Operator::Greater),
];

/// Parses a fact filter in command-line syntax: `os.name=debian`, `a.b>=3`, `k=/re/`, `k=~re`.
pub fn parse_fact(text: &str) -> Result<FactFilter, FilterError> {
    let bad = || FilterError::Fact(text.into());
    let (at, sign, operator) = first_operator(text).ok_or_else(bad)?;
    let fact = text.get(..at).unwrap_or_default().trim();
    let value = text.get(at + sign.len()..).unwrap_or_default().trim();
    if fact.is_empty() || value.is_empty() {
        return Err(bad());
    }
    let operator = match operator {
        Operator::Equal if sign == "=" && is_pattern(value) => Operator::Matches,
        other => other,
    };
    let value = match operator {
        Operator::Matches => strip_slashes(value),
        _ => value,
    };
    Ok(FactFilter {
        fact: fact.into(),
        operator,
        value: value.into(),
    })
}

/// Returns the first operator outside the queries of a path, such as `#(a=="b")`.
fn first_operator(text: &str) -> Option<(usize, &'static str, Operator)> {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth > 0 => {}
            _ => {
                let rest = text.get(at..).unwrap_or_default();
                let found = OPERATORS.iter().find(|(sign, _)| rest.starts_with(sign));
                if let Some((sign, operator)) = found {
                    return Some((at, sign, *operator));
                }
            }
        }
    }
    None
}
