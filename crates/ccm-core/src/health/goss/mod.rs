//! Goss rules: expected attributes of files, services, ports and other resources.
//!
//! A document lists resources by type and id with the expected value of each attribute. `include`
//! merges included files, `document` parses the result with the attribute tables of `probe`, a
//! probe reads the actual value, and a `matcher` compares it. Rules are templates: every text,
//! including keys, is resolved once before parsing; results are not resolved again, and goss's own
//! template pass is not needed.
//!
//! One failed rule makes a check CRITICAL; goss has no warnings.

mod document;
mod include;
mod matcher;
mod probe;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use self::document::{Entry, Expectation};
use self::matcher::short;
use self::probe::{FirstAttribute, ProbeContext};
use super::{OnEvent, ProbeError, ProbeEvent, Probes, TryResult};
use crate::model::health::HealthStatus;
use crate::model::value::{Map, Value};
use ccm_template::Env;
use ccm_template::expand::{resolve_string, resolve_typed};
use ccm_template::expr::{Cache, ExprError};

pub use document::RuleError;

/// Default time limit of a check. Every probe has its own limit, but there may be many.
const DEFAULT_LIMIT: Duration = Duration::from_secs(60 * 60);

/// Result of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed,
    /// Not tested, because of `skip` or because the resource does not exist.
    Skipped,
}

/// Result of testing one attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Type, id and attribute.
    pub subject: String,
    pub outcome: Outcome,
    /// Actual and expected value; may contain text of files and output.
    pub detail: String,
}

/// Formats as goss does.
impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.subject, self.detail)
    }
}

/// Tests all rules once.
pub(super) fn run(
    probes: &Probes<'_>,
    rules: Option<&Value>,
    timeout: Option<Duration>,
    on_event: &mut OnEvent<'_>,
) -> Result<TryResult, ProbeError> {
    let rules = rules
        .filter(|rules| !rules.is_null())
        .ok_or(ProbeError::NoRules)?;
    let rules = include::resolve(probes, rules)?;
    let entries = document::parse(&rules)?;
    let limit = timeout
        .filter(|limit| !limit.is_zero())
        .unwrap_or(DEFAULT_LIMIT);
    let started = probes.clock.monotonic();
    let context = ProbeContext::new(probes, started.saturating_add(limit));
    let mut count = 0_usize;
    // Without the found values, which may be the content of files.
    let mut failures: Vec<String> = Vec::new();
    for entry in &entries {
        test_entry(entry, &context, &mut |finding| {
            count += 1;
            on_event(ProbeEvent::Rule(&finding));
            if finding.outcome == Outcome::Failed {
                failures.push(finding.subject);
            }
        });
        if context.is_expired() {
            return Err(ProbeError::TimedOut(limit));
        }
    }
    if count == 0 {
        return Err(ProbeError::NoTests);
    }
    let seconds = probes
        .clock
        .monotonic()
        .saturating_sub(started)
        .as_secs_f64();
    let failed = failures.len();
    Ok(TryResult {
        status: match failed {
            0 => HealthStatus::Ok,
            _ => HealthStatus::Critical,
        },
        output: format!("Count: {count}, Failed: {failed}, Duration: {seconds:.3}s"),
        perfdata: Vec::new(),
        failed_rules: Some(failed),
        details: failures.join("\n"),
    })
}

/// Returns rules with all templates resolved, including those in keys.
fn expand(rules: &Value, env: &Env, programs: &Cache) -> Result<Value, ExprError> {
    match rules {
        Value::Str(text) => resolve_typed(text, env, programs),
        Value::List(list) => list
            .iter()
            .map(|item| expand(item, env, programs))
            .collect::<Result<Vec<_>, _>>()
            .map(Value::from),
        Value::Map(map) => {
            let mut expanded = Map::new();
            for (key, value) in map.iter() {
                let key = match resolve_string(key, env, programs)? {
                    Cow::Borrowed(_) => key.clone(),
                    Cow::Owned(text) => text.into(),
                };
                expanded.insert(key, expand(value, env, programs)?);
            }
            Ok(expanded.into())
        }
        other => Ok(other.clone()),
    }
}

/// Tests all expected attributes of a resource.
fn test_entry(entry: &Entry, context: &ProbeContext<'_>, on_finding: &mut dyn FnMut(Finding)) {
    let mut skip = entry.skip;
    let mut reader = None;
    for (index, expectation) in entry.expectations.iter().enumerate() {
        let (outcome, detail, actual) = if skip {
            (Outcome::Skipped, "skipped".to_owned(), None)
        } else {
            let opened =
                reader.get_or_insert_with(|| (entry.resource_type.inspect)(entry, context));
            match opened {
                Ok(read) => match read(expectation.attribute.name) {
                    Ok(actual) => evaluate(expectation, actual),
                    Err(error) => failed(&error),
                },
                Err(error) => failed(error),
            }
        };
        let is_absent = outcome == Outcome::Failed || actual == Some(Value::Bool(false));
        skip |=
            index == 0 && entry.resource_type.first == FirstAttribute::Prerequisite && is_absent;
        on_finding(Finding {
            subject: format!("{}: {}", entry.label(), expectation.attribute.property),
            outcome,
            detail,
        });
    }
}

/// Returns the result of a rule that cannot be tested.
fn failed(reason: &dyn fmt::Display) -> (Outcome, String, Option<Value>) {
    (Outcome::Failed, format!("Error {reason}"), None)
}

fn evaluate(expectation: &Expectation, actual: Value) -> (Outcome, String, Option<Value>) {
    let matcher = match &expectation.matcher {
        Ok(matcher) => matcher,
        Err(error) => return failed(error),
    };
    // Output and file content may hold secrets, which must not be logged.
    let hidden = match &actual {
        Value::Str(text) if expectation.attribute.is_stream => {
            Some(format!("a text of {} bytes", text.len()))
        }
        _ => None,
    };
    match (matcher.check(&actual), hidden) {
        (Ok(true), _) => {
            let detail = format!("matches expectation: {}", short(&expectation.wanted));
            (Outcome::Passed, detail, Some(actual))
        }
        (Ok(false), hidden) => {
            let shown = hidden.unwrap_or_else(|| short(&actual));
            let detail = format!("Expected {shown} {}", matcher.description());
            (Outcome::Failed, detail, Some(actual))
        }
        (Err(_), Some(hidden)) => failed(&format!(
            "{hidden} cannot be compared, expected {}",
            matcher.description()
        )),
        (Err(error), None) => failed(&error),
    }
}
