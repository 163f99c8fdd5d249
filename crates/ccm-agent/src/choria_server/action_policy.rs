//! Action policies of Choria, `policies/AGENT.policy`: which callers may request which actions.
//!
//! A line is `allow` or `deny`, callers, actions, facts and classes, separated by tabs; the first
//! that matches decides, else `policy default`, else the request is denied. Callers are names,
//! `/regular expressions/` and groups of the file `groups`. Other than in Choria, a line that can't
//! be understood denies every request: it may have been meant to. Files are read for each request,
//! so that changes apply at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ccm_core::filter::{self, FilterError, Matcher, NodeAttributes};
use ccm_core::model::envelope::Filter;
use ccm_core::system::FileError;
use ccm_core::system::files::{self, AllowedWriters};
use ccm_template::pattern::{self, PatternError};
use regex::Regex;

/// Size limit of a policy file.
const MAX_BYTES: u64 = 1024 * 1024;

/// Why a policy can't be applied; requests are denied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PolicyError {
    #[error("{} line {line}: {reason}", path.display())]
    Line {
        path: PathBuf,
        line: usize,
        reason: &'static str,
    },
    #[error("{} line {line}: {cause}", path.display())]
    Content {
        path: PathBuf,
        line: usize,
        #[source]
        cause: LineError,
    },
    #[error("{}: {cause}", path.display())]
    Filter {
        path: PathBuf,
        #[source]
        cause: FilterError,
    },
    #[error(transparent)]
    File(#[from] FileError),
}

const HALF_PATTERN: &str = "a regular expression needs a slash before and after it";

/// Why a line can't be understood.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError {
    #[error("{HALF_PATTERN}")]
    HalfPattern,
    #[error(transparent)]
    Pattern(#[from] PatternError),
    #[error(transparent)]
    Filter(#[from] FilterError),
}

impl LineError {
    fn at(self, path: &Path, line: usize) -> PolicyError {
        PolicyError::Content {
            path: path.into(),
            line,
            cause: self,
        }
    }
}

/// A request as policies see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PolicyRequest<'a> {
    pub(crate) agent: &'a str,
    pub(crate) action: &'a str,
    pub(crate) caller: &'a str,
}

/// Decides on a request by the policy of its agent; `None` if the agent has no policy.
pub(crate) fn decide(
    directory: &Path,
    request: PolicyRequest<'_>,
    node: &NodeAttributes<'_>,
) -> Result<Option<bool>, PolicyError> {
    // The agent is one that this node has, so it is a plain name.
    let path = directory.join(format!("{}.policy", request.agent));
    let Some(text) = read(&path)? else {
        return Ok(None);
    };
    let groups_file = directory.join("groups");
    let groups = Groups::parse(&groups_file, &read(&groups_file)?.unwrap_or_default())?;
    let policy = ActionPolicy::parse(&path, &text)?;
    policy.decide(&path, request, &groups, node).map(Some)
}

fn read(path: &Path) -> Result<Option<String>, PolicyError> {
    match files::read_trusted(path, MAX_BYTES, AllowedWriters::RootGroup) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the lines that are neither empty nor comments, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = (1..).zip(text.lines());
    numbered.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
}

/// Names of callers by group.
#[derive(Debug, Default)]
struct Groups(BTreeMap<String, Vec<String>>);

impl Groups {
    fn parse(path: &Path, text: &str) -> Result<Self, PolicyError> {
        let mut groups = BTreeMap::new();
        for (line, text) in lines(text) {
            let mut words = text.split_whitespace().map(str::to_owned);
            let (Some(name), members) = (words.next(), words.collect::<Vec<_>>()) else {
                continue;
            };
            if members.is_empty() {
                return Err(PolicyError::Line {
                    path: path.into(),
                    line,
                    reason: "expected the name of a group and its callers",
                });
            }
            groups.insert(name, members);
        }
        Ok(Self(groups))
    }

    fn contains(&self, group: &str, caller: &str) -> bool {
        let members = self.0.get(group);
        members.is_some_and(|members| members.iter().any(|member| member == caller))
    }
}

/// A caller or group of a line.
#[derive(Debug)]
enum Caller<'t> {
    Name(&'t str),
    Pattern(Regex),
}

/// One line.
#[derive(Debug)]
struct Rule<'t> {
    is_allow: bool,
    /// `None` for every caller.
    callers: Option<Vec<Caller<'t>>>,
    actions: &'t str,
    /// Facts and classes that the node must have.
    conditions: Matcher,
}

/// A parsed policy.
#[derive(Debug)]
struct ActionPolicy<'t> {
    default: bool,
    rules: Vec<Rule<'t>>,
}

/// Decides on a request to this machine by the text of a policy, which is also that of the groups,
/// for fuzzing.
#[cfg(fuzzing)]
pub fn action_policy_allows(text: &str) -> Result<bool, String> {
    let (path, facts) = (Path::new("ccm.policy"), serde_json::json!({"role": "web"}));
    let facts = serde_json::from_value(facts).map_err(|error| error.to_string())?;
    let node = NodeAttributes {
        identity: &ccm_core::model::node::NodeName::localhost(),
        groups: &[],
        facts: &ccm_template::env::Facts::Known(facts),
        labels: &ccm_core::model::label::Labels::default(),
    };
    let request = PolicyRequest {
        agent: "ccm",
        action: "apply",
        caller: "choria=ann",
    };
    let groups = Groups::parse(path, text).map_err(|error| error.to_string())?;
    let policy = ActionPolicy::parse(path, text).map_err(|error| error.to_string())?;
    let decision = policy.decide(path, request, &groups, &node);
    decision.map_err(|error| error.to_string())
}

impl<'t> ActionPolicy<'t> {
    fn parse(path: &Path, text: &'t str) -> Result<Self, PolicyError> {
        let mut policy = Self {
            default: false,
            rules: Vec::new(),
        };
        for (line, text) in lines(text) {
            let invalid = |reason| PolicyError::Line {
                path: path.into(),
                line,
                reason,
            };
            if let Some(rest) = text.strip_prefix("policy") {
                policy.default = match rest.split_whitespace().collect::<Vec<_>>().as_slice() {
                    ["default", "allow"] => true,
                    ["default", "deny"] => false,
                    _ => return Err(invalid("expected policy default allow or deny")),
                };
                continue;
            }
            let columns: Vec<&str> = text.split('\t').filter(|it| !it.is_empty()).collect();
            let (effect, callers, actions, facts, classes) = match columns.as_slice() {
                [effect, callers, actions, facts, classes] => {
                    (*effect, *callers, *actions, *facts, *classes)
                }
                _ => return Err(invalid("expected five columns, separated by tabs")),
            };
            let is_allow = match effect {
                "allow" => true,
                "deny" => false,
                _ => return Err(invalid("expected allow or deny")),
            };
            let callers = match callers {
                "*" => None,
                names => Some(callers_of(names).map_err(|cause| cause.at(path, line))?),
            };
            let filter = conditions(facts, classes).map_err(invalid)?;
            let conditions =
                Matcher::new(&filter).map_err(|cause| LineError::from(cause).at(path, line))?;
            policy.rules.push(Rule {
                is_allow,
                callers,
                actions,
                conditions,
            });
        }
        Ok(policy)
    }

    fn decide(
        &self,
        path: &Path,
        request: PolicyRequest<'_>,
        groups: &Groups,
        node: &NodeAttributes<'_>,
    ) -> Result<bool, PolicyError> {
        let failed = |cause| PolicyError::Filter {
            path: path.into(),
            cause,
        };
        for rule in &self.rules {
            if rule.names(request.caller, groups)
                && rule.has_action(request.action)
                && rule.conditions.matches(node).map_err(failed)?
            {
                return Ok(rule.is_allow);
            }
        }
        Ok(self.default)
    }
}

impl Rule<'_> {
    fn has_action(&self, action: &str) -> bool {
        self.actions == "*" || self.actions.split(' ').any(|allowed| allowed == action)
    }

    fn names(&self, caller: &str, groups: &Groups) -> bool {
        let Some(callers) = &self.callers else {
            return true;
        };
        callers.iter().any(|it| match it {
            Caller::Name(name) => *name == caller || groups.contains(name, caller),
            Caller::Pattern(pattern) => pattern.is_match(caller),
        })
    }
}

/// Parses the column of callers.
fn callers_of(column: &str) -> Result<Vec<Caller<'_>>, LineError> {
    let names = words(column).map(|name| {
        match name.strip_prefix('/').and_then(|it| it.strip_suffix('/')) {
            Some(text) => Ok(Caller::Pattern(pattern::compile(text)?)),
            // It may have been meant as a pattern, so it is no name.
            None if is_half_pattern(name) => Err(LineError::HalfPattern),
            None => Ok(Caller::Name(name)),
        }
    });
    names.collect()
}

/// Reports whether a word has only one of the slashes around a regular expression.
fn is_half_pattern(word: &str) -> bool {
    word == "/" || word.starts_with('/') != word.ends_with('/')
}

/// Returns the filter for the columns of facts and classes.
fn conditions(facts: &str, classes: &str) -> Result<Filter, &'static str> {
    let is_compound = |word: &str| {
        word.starts_with('!') || ["not", "or", "and"].contains(&word) || word.contains('(')
    };
    let mut filter = Filter::default();
    for word in words(facts) {
        if is_compound(word) {
            return Err("compound statements are not supported");
        }
        let fact = filter::parse_fact(word).map_err(|_| "expected facts such as role=web")?;
        filter.facts.push(fact);
    }
    for word in words(classes) {
        if is_compound(word) {
            return Err("compound statements are not supported");
        }
        if is_half_pattern(word) {
            return Err(HALF_PATTERN);
        }
        if word.contains(['=', '<', '>']) {
            return Err("found a fact where classes are expected");
        }
        filter.groups.push(word.into());
    }
    Ok(filter)
}

/// Returns the words of a column; none if it is `*`.
fn words(column: &str) -> impl Iterator<Item = &str> {
    let is_any = column == "*";
    column
        .split(' ')
        .filter(move |word| !is_any && !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::model::label::Labels;
    use ccm_core::model::node::{NodeName, Token};
    use ccm_core::system::files::Durability;
    use ccm_template::env::Facts;

    const FILE: &str = "# ours\npolicy default deny\n\
        deny\tchoria=bob\t*\t*\t*\n\
        allow\tchoria=ann /^choria=op/ admins\tping status\t*\t*\n\
        allow\tchoria=deploy\tapply\trole=web\tweb\n";

    fn decide_in(policy: &str, caller: &str, action: &str) -> Result<Option<bool>, PolicyError> {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            files::write_private(&path, text.as_bytes(), Durability::Cached).unwrap();
        };
        write("ccm.policy", policy);
        write("groups", "admins choria=eve choria=bob\n");
        let facts = serde_json::json!({"role": "web"});
        let facts = Facts::Known(serde_json::from_value(facts).unwrap());
        let node = NodeAttributes {
            identity: &"web1.lab".parse::<NodeName>().unwrap(),
            groups: &["web".parse::<Token>().unwrap()],
            facts: &facts,
            labels: &Labels::default(),
        };
        let request = PolicyRequest {
            agent: "ccm",
            action,
            caller,
        };
        decide(directory.path(), request, &node)
    }

    #[test]
    fn the_first_matching_line_decides() {
        for (caller, action, is_allowed) in [
            ("choria=ann", "ping", true),
            ("choria=ann", "apply", false),
            ("choria=operator", "status", true),
            ("choria=eve", "status", true),
            // Denied by a line before the one that allows its group.
            ("choria=bob", "status", false),
            ("choria=deploy", "apply", true),
            ("choria=other", "ping", false),
        ] {
            let decision = decide_in(FILE, caller, action).unwrap();
            assert_eq!(decision, Some(is_allowed), "{caller} {action}");
        }
    }

    #[test]
    fn facts_and_classes_of_the_node_must_match() {
        for (columns, is_allowed) in [
            ("role=web\tweb", true),
            ("role=db\t*", false),
            ("*\tdb", false),
        ] {
            let policy = format!("allow\t*\t*\t{columns}\n");
            let decision = decide_in(&policy, "choria=ann", "ping").unwrap();
            assert_eq!(decision, Some(is_allowed), "{columns}");
        }
    }

    #[test]
    fn a_line_that_is_not_understood_denies_everything() {
        for line in [
            "allow choria=ann * * *",
            "allow\tchoria=ann\t*\t*",
            "permit\t*\t*\t*\t*",
            "allow\t*\t*\trole=web and x=y\t*",
            "allow\t*\t*\t*\trole=web",
            "allow\t*\t*\tweb\t*",
            "policy default maybe",
            "deny\t/^choria=bob\t*\t*\t*",
            "deny\t^choria=bob/\t*\t*\t*",
            "deny\t/\t*\t*\t*",
            "deny\t/^choria=(bob/\t*\t*\t*",
            "deny\tchoria=eve /choria=bob /\t*\t*\t*",
            "deny\tchoria=bob\tapply\trole=/(/\t*",
            "deny\tchoria=bob\tapply\t*\t/^web",
            "deny\tchoria=bob\tapply\t*\t/(/",
        ] {
            let policy = format!("policy default allow\n{line}\n");
            let error = decide_in(&policy, "choria=ann", "ping").unwrap_err();
            assert!(error.to_string().contains("line 2: "), "{line}: {error}");
        }
    }

    #[test]
    fn an_agent_without_a_file_has_no_policy() {
        let directory = tempfile::tempdir().unwrap();
        let request = PolicyRequest {
            agent: "ccm",
            action: "ping",
            caller: "choria=ann",
        };
        let node = NodeAttributes {
            identity: &NodeName::localhost(),
            groups: &[],
            facts: &Facts::default(),
            labels: &Labels::default(),
        };
        assert_eq!(decide(directory.path(), request, &node).unwrap(), None);
    }
}
