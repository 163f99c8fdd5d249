//! Action policies of Choria, `policies/AGENT.policy`: which callers may request which actions.
//!
//! A line is `allow` or `deny`, callers, actions, facts and classes, separated by tabs; the first
//! that matches decides, else `policy default`, else the request is denied. Callers are names,
//! `/regular expressions/` and groups of the file `groups`. Other than in Choria, a line that can't
//! be understood denies every request: it may have been meant to. Files are read for each request,
//! so that changes apply at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ccm_core::filter::{self, FilterError, NodeAttributes};
use ccm_core::model::envelope::Filter;
use ccm_core::system::FileError;
use ccm_core::system::files::{self, AllowedWriters};
use ccm_template::pattern;

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
    #[error("{}: {cause}", path.display())]
    Filter {
        path: PathBuf,
        #[source]
        cause: FilterError,
    },
    #[error(transparent)]
    File(#[from] FileError),
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

/// One line.
#[derive(Debug)]
struct Rule<'t> {
    is_allow: bool,
    callers: &'t str,
    actions: &'t str,
    /// Facts and classes that the node must have.
    filter: Filter,
}

/// A parsed policy.
#[derive(Debug)]
struct ActionPolicy<'t> {
    default: bool,
    rules: Vec<Rule<'t>>,
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
            let filter = conditions(facts, classes).map_err(invalid)?;
            policy.rules.push(Rule {
                is_allow,
                callers,
                actions,
                filter,
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
            if rule.names(request.caller, groups).map_err(failed)?
                && rule.has_action(request.action)
                && filter::matches(&rule.filter, node).map_err(failed)?
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

    fn names(&self, caller: &str, groups: &Groups) -> Result<bool, FilterError> {
        if self.callers == "*" {
            return Ok(true);
        }
        for name in self.callers.split(' ').filter(|name| !name.is_empty()) {
            let inner = name.strip_prefix('/').and_then(|it| it.strip_suffix('/'));
            let is_match = match inner {
                Some(text) => pattern::compile(text)?.is_match(caller),
                None => name == caller || groups.contains(name, caller),
            };
            if is_match {
                return Ok(true);
            }
        }
        Ok(false)
    }
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
