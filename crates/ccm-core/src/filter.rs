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

mod fact_condition;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicUsize};

use regex::Regex;

pub use self::fact_condition::parse_fact;
use self::fact_condition::{Condition, Number};
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

#[cfg(test)]
mod tests;
