//! Filter matching: whether a node matches the filter of a request or selection.
//!
//! Format and meaning are Choria's: all kinds of conditions must match; any of the names, and all of
//! the groups, facts and expressions. Differences from Choria: `>` on fractions excludes equality,
//! `!=` on a false fact is the opposite of `==`, groups compare case-insensitively on both sides, and
//! all expressions must be true (Choria uses the majority). A condition that can't be evaluated is an
//! error, and the node does not match.
//!
//! Expressions are untrusted input: they have access to facts, labels, groups and the node's name, but
//! not to files or stores. Facts are gathered by section, only if a condition names them.
//!
//! Wire format: [`crate::model::envelope`].

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicUsize};

use regex::Regex;

use crate::model::Value;
use crate::model::envelope::{FactFilter, Filter, Operator};
use crate::model::label::Labels;
use crate::model::node::{NodeName, Token};
use crate::model::text::quote;
use ccm_template::CallError;
use ccm_template::env::{Env, Facts, Function};
use ccm_template::expr::{self, Cache, Expect, ExprError, Extras, Options, Program};
use ccm_template::functions::find_fact;
use ccm_template::go::version::{Version, satisfies};
use ccm_template::pattern::{self, PatternError};

/// Agents of a node in Choria's filters, unless it serves Choria's own agents as well.
const AGENTS: &[&str] = &["ccm"];

/// Maximum number of regular expressions in a filter: compiling them is expensive.
const MAX_PATTERNS: usize = 100;

/// Maximum number of calls of filter functions in one expression.
const MAX_CALLS: usize = 1_000;

/// Invalid filter, or a condition that can't be evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    #[error("invalid fact filter {}: expected NAME=VALUE, or != =~ < > <= >= instead of =", quote(.0))]
    Fact(String),
    #[error("invalid pattern in filter: {0}")]
    Pattern(#[from] PatternError),
    #[error("the filter has more than {MAX_PATTERNS} patterns")]
    Patterns,
    #[error("the filter has an empty list of expressions")]
    NoExpression,
    #[error("invalid filter expression: {0}")]
    Expression(#[from] ExprError),
    #[error("fact {fact} is a {kind}, which has no order")]
    NoOrder { fact: String, kind: &'static str },
    #[error("fact {fact} is a number, but {} is not", quote(.value))]
    NoNumber { fact: String, value: String },
}

impl From<FilterError> for CallError {
    fn from(cause: FilterError) -> Self {
        Self::new(cause)
    }
}

/// Attributes of a node that filters match against.
#[derive(Clone, Copy, Debug)]
pub struct NodeAttributes<'a> {
    pub identity: &'a NodeName,
    pub groups: &'a [Token],
    pub facts: &'a Facts,
    /// Labels assigned by the controller; empty when evaluated on the node.
    pub labels: &'a Labels,
}

impl NodeAttributes<'_> {
    /// Returns the value at a path. `label.NAME` is a label of the controller, never a fact of the
    /// node; any other path is a fact, which labels override.
    pub fn fact(&self, path: &str) -> Option<Value> {
        fact(&self.trusted_facts(), self.labels, path)
    }

    fn trusted_facts(&self) -> Facts {
        if self.labels.is_empty() {
            self.facts.clone()
        } else {
            Facts::Known(self.facts.all().merge_deep(&self.labels.to_facts()))
        }
    }
}

fn fact(facts: &Facts, labels: &Labels, path: &str) -> Option<Value> {
    let label = ["label.", "labels."]
        .into_iter()
        .find_map(|root| path.strip_prefix(root));
    match label {
        Some(name) => labels.get(name).map(Value::from),
        None => find_fact(facts, path),
    }
}

/// Reports whether a node matches a filter. On an error the node does not match.
pub fn matches(filter: &Filter, node: &NodeAttributes<'_>) -> Result<bool, FilterError> {
    Matcher::new(filter)?.matches(node)
}

/// Compiled filter, to match many nodes.
#[derive(Clone, Debug)]
pub struct Matcher {
    is_for_agent: bool,
    agents: &'static [&'static str],
    identity: Identities,
    groups: Vec<Name>,
    facts: Vec<Condition>,
    expressions: Vec<Expression>,
}

impl Matcher {
    /// Compiles a filter.
    pub fn new(filter: &Filter) -> Result<Self, FilterError> {
        Self::with_agents(filter, AGENTS)
    }

    /// Compiles a filter for nodes with these agents.
    pub fn with_agents(
        filter: &Filter,
        agents: &'static [&'static str],
    ) -> Result<Self, FilterError> {
        let names = [&filter.identity, &filter.groups, &filter.agent];
        let patterns = names.into_iter().flatten().filter(|name| is_pattern(name));
        let is_pattern_filter = |fact: &&FactFilter| fact.operator == Operator::Matches;
        if patterns.count() + filter.facts.iter().filter(is_pattern_filter).count() > MAX_PATTERNS {
            return Err(FilterError::Patterns);
        }
        let mut is_for_agent = true;
        for agent in &filter.agent {
            let name = Name::new(agent, Case::Sensitive)?;
            is_for_agent &= agents.iter().any(|agent| name.is(agent));
        }
        if filter.compound.iter().any(Vec::is_empty) {
            return Err(FilterError::NoExpression);
        }
        let expressions = filter.compound.iter().flatten();
        Ok(Self {
            is_for_agent,
            agents,
            identity: Identities::new(&filter.identity)?,
            groups: collect(&filter.groups, |name| Name::new(name, Case::Insensitive))?,
            facts: collect(&filter.facts, Condition::new)?,
            expressions: collect(expressions, |compound| Expression::new(&compound.expr))?,
        })
    }

    /// Reports whether a node matches. On an error the node does not match.
    pub fn matches(&self, node: &NodeAttributes<'_>) -> Result<bool, FilterError> {
        let has_group = |name: &Name| node.groups.iter().any(|group| name.is(group.as_str()));
        let is_named = self.identity.matches(node.identity.as_str());
        if !self.is_for_agent || !is_named || !self.groups.iter().all(has_group) {
            return Ok(false);
        }
        if self.facts.is_empty() && self.expressions.is_empty() {
            return Ok(true);
        }
        let facts = node.trusted_facts();
        for condition in &self.facts {
            if !condition.holds(&facts, node.labels)? {
                return Ok(false);
            }
        }
        if self.expressions.is_empty() {
            return Ok(true);
        }
        self.all_expressions_true(node, facts)
    }

    fn all_expressions_true(
        &self,
        node: &NodeAttributes<'_>,
        facts: Facts,
    ) -> Result<bool, FilterError> {
        let names_facts = self.expressions.iter().any(|it| it.names_facts);
        let extras = extras(node, self.agents, &facts, names_facts);
        let env = Env {
            facts,
            restricted: true,
            ..Env::default()
        };
        for expression in &self.expressions {
            let value = expression
                .program
                .run_with(&env, Some(&extras), &Cache::default())?;
            if value != Value::Bool(true) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn collect<T, U>(
    items: impl IntoIterator<Item = T>,
    make: impl FnMut(T) -> Result<U, FilterError>,
) -> Result<Vec<U>, FilterError> {
    items.into_iter().map(make).collect()
}

/// Node names of a filter, of which any must match. A controller may list thousands.
#[derive(Clone, Debug)]
struct Identities {
    exact: HashSet<String>,
    patterns: Vec<Regex>,
}

impl Identities {
    fn new(names: &[String]) -> Result<Self, FilterError> {
        let (patterns, exact): (Vec<_>, Vec<_>) = names.iter().partition(|name| is_pattern(name));
        Ok(Self {
            exact: exact.into_iter().cloned().collect(),
            patterns: collect(patterns, |pattern| compile(strip_slashes(pattern)))?,
        })
    }

    fn matches(&self, name: &str) -> bool {
        (self.exact.is_empty() && self.patterns.is_empty())
            || self.exact.contains(name)
            || self.patterns.iter().any(|pattern| pattern.is_match(name))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Sensitive,
    Insensitive,
}

/// Name, or `/regular expression/` of names.
#[derive(Clone, Debug)]
enum Name {
    Exact(String),
    CaseInsensitive(String),
    Pattern(Regex),
}

impl Name {
    fn new(text: &str, case: Case) -> Result<Self, FilterError> {
        match (is_pattern(text), case) {
            (true, Case::Sensitive) => compile(strip_slashes(text)).map(Self::Pattern),
            (true, Case::Insensitive) => {
                compile(&format!("(?i){}", strip_slashes(text))).map(Self::Pattern)
            }
            (false, Case::Sensitive) => Ok(Self::Exact(text.into())),
            (false, Case::Insensitive) => Ok(Self::CaseInsensitive(text.into())),
        }
    }

    fn is(&self, name: &str) -> bool {
        match self {
            Self::Exact(text) => text == name,
            Self::CaseInsensitive(text) => text.eq_ignore_ascii_case(name),
            Self::Pattern(pattern) => pattern.is_match(name),
        }
    }
}

fn is_pattern(text: &str) -> bool {
    text.len() > 1 && text.starts_with('/') && text.ends_with('/')
}

/// Returns a pattern without the slashes around it.
fn strip_slashes(text: &str) -> &str {
    let inner = text.strip_prefix('/').and_then(|it| it.strip_suffix('/'));
    inner.unwrap_or(text)
}

fn compile(text: &str) -> Result<Regex, FilterError> {
    pattern::compile(text).map_err(FilterError::Pattern)
}

/// Compiled comparison of one fact.
#[derive(Clone, Debug)]
struct Condition {
    filter: FactFilter,
    pattern: Option<Regex>,
}

impl Condition {
    fn new(filter: &FactFilter) -> Result<Self, FilterError> {
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
    fn holds(&self, facts: &Facts, labels: &Labels) -> Result<bool, FilterError> {
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
enum Number {
    Whole(i128),
    Float(f64),
}

impl Number {
    fn of(value: &Value) -> Option<Self> {
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

    fn compare(self, other: Self) -> Ordering {
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

/// Compiled expression.
#[derive(Clone, Debug)]
struct Expression {
    program: Program,
    /// Whether the expression may use `facts`, all facts as one value.
    names_facts: bool,
}

impl Expression {
    fn new(code: &str) -> Result<Self, FilterError> {
        let extras = Extras {
            variables: [
                ("identity", Value::from("")),
                ("groups", Vec::new().into()),
                ("classes", Vec::new().into()),
                ("agents", Vec::new().into()),
                ("labels", Value::empty_map()),
                ("Labels", Value::empty_map()),
                ("facts", Value::empty_map()),
            ]
            .into(),
            functions: FUNCTIONS
                .map(|(name, _)| (name, Arc::new(|_: &[Value]| Ok(Value::Null)) as Function))
                .into(),
        };
        let options = Options {
            expect: Expect::Bool,
            restricted: true,
            extras: Some(&extras),
            ..Options::default()
        };
        Ok(Self {
            program: expr::compile_with(code, options)?,
            names_facts: code.contains("facts"),
        })
    }
}

/// Data that the functions of expressions have access to.
struct FunctionData {
    groups: Vec<Token>,
    agents: &'static [&'static str],
    facts: Facts,
    labels: Labels,
    calls: AtomicUsize,
}

type FilterFunction = fn(&FunctionData, &[Value]) -> Result<Value, CallError>;

/// Functions of expressions, the same as Choria's.
const FUNCTIONS: [(&str, FilterFunction); 4] = [
    ("with", with),
    ("fact", |data, args| match args {
        [Value::Str(path)] => Ok(fact(&data.facts, &data.labels, path).unwrap_or(Value::Null)),
        _ => Err("fact requires a path".into()),
    }),
    ("include", |_, args| match args {
        [Value::List(list), needle] => Ok(list.iter().any(|item| is_same(item, needle)).into()),
        [Value::Null, _] => Ok(false.into()),
        _ => Err("include requires a list and a value".into()),
    }),
    ("semver", |_, args| match args {
        [Value::Str(version), Value::Str(range)] => {
            Ok(satisfies(range, &Version::parse(version)?)?.into())
        }
        _ => Err("semver requires a version and a range, both text".into()),
    }),
];

/// Returns the variables and functions of expressions, in addition to `Facts`.
fn extras(
    node: &NodeAttributes<'_>,
    agents: &'static [&'static str],
    facts: &Facts,
    names_facts: bool,
) -> Extras {
    let groups = node.groups.iter().map(|group| Value::from(group.as_str()));
    let groups: Value = groups.collect();
    let mut extras = Extras {
        variables: [
            ("identity", node.identity.as_str().into()),
            ("groups", groups.clone()),
            ("classes", groups),
            ("agents", agents.iter().map(|it| Value::from(*it)).collect()),
            ("labels", node.labels.to_value()),
            ("Labels", node.labels.to_value()),
        ]
        .into(),
        ..Extras::default()
    };
    if names_facts {
        extras.variables.insert("facts", facts.all());
    }
    let data = Arc::new(FunctionData {
        groups: node.groups.to_vec(),
        agents,
        facts: facts.clone(),
        labels: node.labels.clone(),
        calls: AtomicUsize::new(0),
    });
    for (name, call) in FUNCTIONS {
        let data = Arc::clone(&data);
        let function: Function = Arc::new(move |args| {
            if data.calls.fetch_add(1, atomic::Ordering::Relaxed) >= MAX_CALLS {
                return Err(format!("more than {MAX_CALLS} calls of functions").into());
            }
            call(&data, args)
        });
        extras.functions.insert(name, function);
    }
    extras
}

/// Evaluates a fact filter, or reports whether a text is the name of a group or of an agent.
fn with(data: &FunctionData, args: &[Value]) -> Result<Value, CallError> {
    let [Value::Str(query)] = args else {
        return Err("with requires a text".into());
    };
    if let (false, Ok(filter)) = (is_pattern(query), parse_fact(query)) {
        let condition = Condition::new(&filter)?;
        return Ok(condition.holds(&data.facts, &data.labels)?.into());
    }
    let name = Name::new(query, Case::Insensitive)?;
    let agents = data.agents.iter().copied();
    let mut names = data.groups.iter().map(Token::as_str).chain(agents);
    Ok(names.any(|it| name.is(it)).into())
}

/// Reports whether two values are equal, numbers by value.
fn is_same(a: &Value, b: &Value) -> bool {
    match (Number::of(a), Number::of(b)) {
        (Some(a), Some(b)) => a.compare(b).is_eq(),
        _ => a == b,
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

#[cfg(test)]
mod tests;
