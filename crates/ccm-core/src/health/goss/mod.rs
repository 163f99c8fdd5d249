//! Goss rules: what should be true of a machine, written down as data, and testing whether it is.
//!
//! A document names things by type and id and says what each of their attributes should be. What
//! it includes is gathered by `include`. It is read by `document`, which knows the attributes of every type from the tables in `probe`. A
//! probe says what an attribute is, a `matcher` whether that is what was wanted. Rules are
//! templates: every text in them, keys included, is resolved once before they are read. What an
//! expression yields is data and not looked at again, and goss's own template pass is not run over
//! it: after ours no expression is left that goss would see.
//!
//! One failed rule makes a check CRITICAL; nothing makes it a warning.

mod document;
mod include;
mod matcher;
mod probe;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use self::document::{Entry, Expectation};
use self::matcher::short;
use self::probe::{First, World};
use super::{Note, ProbeError, Probes, Verdict, Watch};
use crate::model::health::HealthStatus;
use crate::model::value::{Map, Value};
use ccm_template::Env;
use ccm_template::expand::{resolve_string, resolve_typed};
use ccm_template::expr::{Cache, ExprError};

pub use document::RuleError;

/// How long rules may take that set no limit: every probe has a limit of its own, but rules may
/// be many.
const DEFAULT_LIMIT: Duration = Duration::from_secs(60 * 60);

/// How a rule came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed,
    /// Not tested: its author said so, or what it builds on is not there.
    Skipped,
}

/// What testing one attribute of one thing showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The type, the id and the attribute.
    pub subject: String,
    pub outcome: Outcome,
    /// What was seen and what was wanted; may quote files and outputs.
    pub detail: String,
}

/// Prints in the words of goss.
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
    watch: &mut Watch<'_>,
) -> Result<Verdict, ProbeError> {
    let rules = rules
        .filter(|rules| !rules.is_null())
        .ok_or(ProbeError::NoRules)?;
    let rules = include::gather(probes, rules)?;
    let entries = document::read(&rules)?;
    let limit = timeout
        .filter(|limit| !limit.is_zero())
        .unwrap_or(DEFAULT_LIMIT);
    let began = probes.clock.monotonic();
    let world = World::new(probes, began.saturating_add(limit));
    let (mut count, mut failed) = (0_usize, 0_usize);
    for entry in &entries {
        examine(entry, &world, &mut |finding| {
            count += 1;
            failed += usize::from(finding.outcome == Outcome::Failed);
            watch(Note::Rule(&finding));
        });
        if world.is_over() {
            return Err(ProbeError::TimedOut(limit));
        }
    }
    if count == 0 {
        return Err(ProbeError::NoTests);
    }
    let seconds = probes.clock.monotonic().saturating_sub(began).as_secs_f64();
    Ok(Verdict {
        status: match failed {
            0 => HealthStatus::Ok,
            _ => HealthStatus::Critical,
        },
        output: format!("Count: {count}, Failed: {failed}, Duration: {seconds:.3}s"),
        perfdata: Vec::new(),
    })
}

/// Returns rules with every text in them resolved, keys included: ids are keys.
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

/// Tests what is expected of one thing, attribute by attribute.
fn examine(entry: &Entry, world: &World<'_>, found: &mut dyn FnMut(Finding)) {
    let mut skip = entry.skip;
    let mut looked = None;
    for (index, expectation) in entry.expectations.iter().enumerate() {
        let (outcome, detail, actual) = if skip {
            (Outcome::Skipped, "skipped".to_owned(), None)
        } else {
            let look = looked.get_or_insert_with(|| (entry.family.look)(entry, world));
            match look {
                Ok(look) => match look(expectation.attribute.name) {
                    Ok(actual) => judge(expectation, actual),
                    Err(error) => failed(&error),
                },
                Err(error) => failed(error),
            }
        };
        let is_absent = outcome == Outcome::Failed || actual == Some(Value::Bool(false));
        skip |= index == 0 && entry.family.first == First::Gate && is_absent;
        found(Finding {
            subject: format!("{}: {}", entry.label(), expectation.attribute.property),
            outcome,
            detail,
        });
    }
}

/// Returns the outcome of a rule that can't be tested.
fn failed(reason: &dyn fmt::Display) -> (Outcome, String, Option<Value>) {
    (Outcome::Failed, format!("Error {reason}"), None)
}

fn judge(expectation: &Expectation, actual: Value) -> (Outcome, String, Option<Value>) {
    let matcher = match &expectation.matcher {
        Ok(matcher) => matcher,
        Err(error) => return failed(error),
    };
    // Texts hold what nobody should read in a log.
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
            let detail = format!("Expected {shown} {}", matcher.wish());
            (Outcome::Failed, detail, Some(actual))
        }
        (Err(_), Some(hidden)) => failed(&format!("{hidden} can't be asked {}", matcher.wish())),
        (Err(error), None) => failed(&error),
    }
}
