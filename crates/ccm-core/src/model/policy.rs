//! Policies: what one signer may request of a node.
//!
//! A policy is a list of rules. The first matching rule decides; a request that matches no rule is
//! denied. This module is pure: signature checks and the parsing of requests are elsewhere. Applying
//! a resource is split into operations (`operation`), because a health check or a post command also
//! starts a program. `rule_match` matches a rule against one operation, `pattern` compares texts.
//!
//! A rule has two sorts of fields. Conditions (`verbs`, `types`, `names`, `providers`, `commands`,
//! `noop_only`) select what the rule applies to; an omitted condition matches everything. Grants
//! (`path`, `environment`, `cwd`, `shell`, `guards`, `checks`, `post`, `validate`, `modules`, `targets`,
//! `groups`, `homes`, `lookups`) permit
//! what extends a resource beyond its name and command; an omitted grant permits nothing. A rule
//! that allows every command line needs no grants for what such a command line could do itself.

mod operation;
mod pattern;
mod rule_match;

use serde::Deserialize;

use self::operation::{Operation, OperationPart, link_target, operations};
use self::rule_match::RuleMatch;
use super::TypeName;
use super::document::{DocumentError, Mark, Node};
use super::resource::Resource;
use super::text::quote;

/// Effect of a rule on the requests that it matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    #[default]
    Allow,
    Deny,
}

/// Data sources that templates can read in addition to facts and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lookup {
    Files,
    Kv,
    Environment,
    Registrations,
    /// Opening of encrypted values.
    Secrets,
}

impl Lookup {
    pub const ALL: [Self; 5] = [
        Self::Files,
        Self::Kv,
        Self::Environment,
        Self::Registrations,
        Self::Secrets,
    ];

    /// Returns the error message for a template that reads this without a grant.
    pub fn denial(self) -> &'static str {
        match self {
            Self::Files => {
                "reading this file needs \"lookups: [files]\" in a rule of the signer's policy"
            }
            Self::Kv => {
                "reading this bucket needs \"lookups: [kv]\" in a rule of the signer's policy"
            }
            Self::Environment => {
                "reading the environment needs \"lookups: [environment]\" in a rule of the \
                 signer's policy"
            }
            Self::Registrations => {
                "reading registrations needs \"lookups: [registrations]\" in a rule of the \
                 signer's policy"
            }
            Self::Secrets => {
                "opening encrypted values needs \"lookups: [secrets]\" in a rule of the signer's \
                 policy"
            }
        }
    }

    /// Returns the [`Self::denial`] message that an error text contains, without the rest of the text.
    pub(crate) fn denial_in(text: &str) -> Option<&'static str> {
        let mut all = Self::ALL.into_iter().map(Self::denial);
        all.find(|denial| text.contains(denial))
    }
}

/// One rule. An empty condition matches everything, an empty grant permits nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    pub action: Action,
    pub verbs: Vec<String>,
    pub types: Vec<TypeName>,
    /// Patterns of resource names: `*` matches anything but `/`, `**` matches anything, `?` matches
    /// one character. The name of an exec is compared like a command line.
    pub names: Vec<String>,
    pub providers: Vec<String>,
    /// Patterns of the command lines of an exec, compared word by word: `*` and `?` match neither a
    /// word boundary nor a `/` nor a shell metacharacter. If empty, the command line is compared
    /// with `names`.
    pub commands: Vec<String>,
    /// Matches only noop requests.
    pub noop_only: bool,
    /// Directories allowed in the `path` of an exec.
    pub path: Vec<String>,
    /// Environment variables allowed for an exec, as `NAME=value`.
    pub environment: Vec<String>,
    /// Working directories allowed for an exec.
    pub cwd: Vec<String>,
    /// Whether the `shell` provider is allowed.
    pub shell: bool,
    /// Command lines allowed in `onlyif` and `unless`, and paths allowed in `creates`.
    pub guards: Vec<String>,
    /// Command lines allowed in health checks; `goss` allows every goss check.
    pub checks: Vec<String>,
    /// Command lines allowed as post commands of a scaffold.
    pub post: Vec<String>,
    /// Command lines allowed to check new files.
    pub validate: Vec<String>,
    /// Groups allowed for a user, primary or supplementary.
    pub groups: Vec<String>,
    /// Home directories allowed for a user.
    pub homes: Vec<String>,
    /// Paths of the CFEngine package modules that are allowed.
    pub modules: Vec<String>,
    /// Paths that a link may lead to, besides those of `names`.
    pub targets: Vec<String>,
    /// Data sources that templates may read.
    pub lookups: Vec<Lookup>,
}

/// Ordered rules of one signer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    pub rules: Vec<Rule>,
}

/// Request of a signer. Properties that are not known yet or do not apply are `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct PolicyRequest<'a> {
    pub verb: &'a str,
    pub noop: bool,
    pub type_name: Option<TypeName>,
    pub name: Option<&'a str>,
    pub provider: Option<&'a str>,
    /// The command line of an exec.
    pub command: Option<&'a str>,
}

/// Decision of a policy, with the number of the deciding rule, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyDecision {
    pub action: Action,
    pub rule: Option<usize>,
}

impl PolicyDecision {
    pub fn is_allowed(self) -> bool {
        self.action == Action::Allow
    }
}

/// Denial of a resource. Contains the label of the resource and none of its content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("denied by policy: {what} {label}")]
pub struct Denied {
    what: &'static str,
    label: String,
}

/// Returns the position of the first text in a rule or policy that a message quotes.
pub fn quoted_text(node: &Node, message: &str) -> Option<Mark> {
    if let Some(text) = node.text() {
        return message.contains(&quote(text)).then_some(node.mark);
    }
    let values = node.entries().unwrap_or_default().iter();
    let items = node.items().unwrap_or_default().iter();
    let mut nodes = values.map(|(_, value)| value).chain(items);
    nodes.find_map(|node| quoted_text(node, message))
}

impl Policy {
    /// Reads a list of rules, or a single rule.
    pub fn read(node: &Node) -> Result<Self, DocumentError> {
        let read = |node: &Node| {
            let rule = Rule::deserialize(node)?;
            match rule.problem() {
                Some(problem) => {
                    let mark = quoted_text(node, &problem).unwrap_or(node.mark);
                    Err(DocumentError::new(mark, problem))
                }
                None => Ok(rule),
            }
        };
        let rules: Result<_, DocumentError> = match node.items() {
            Some(items) => items.iter().map(read).collect(),
            None => read(node).map(|rule| vec![rule]),
        };
        Ok(Self { rules: rules? })
    }

    /// Decides on a request of which everything is known: a rule with conditions on types, names or
    /// providers does not match a request without them.
    pub fn decide(&self, request: &PolicyRequest<'_>) -> PolicyDecision {
        self.first_match(&Operation::of(request, OperationPart::Whole(None)), |_| {
            false
        })
        .0
    }

    /// Decides on a request whose type, name or provider is not known yet: allows it if an allow rule
    /// could match once they are known.
    pub fn decide_partial(&self, request: &PolicyRequest<'_>) -> PolicyDecision {
        self.first_match(
            &Operation::of(request, OperationPart::Whole(None)),
            is_allow_rule,
        )
        .0
    }

    /// Reports whether templates of a partially known request may read from this data source.
    pub fn allows_lookup(&self, request: &PolicyRequest<'_>, lookup: Lookup) -> bool {
        let operation = Operation::of(request, OperationPart::Lookup(lookup));
        self.first_match(&operation, is_allow_rule).0.is_allowed()
    }

    /// Returns the decision, and the missing grant of the first rule that would otherwise have allowed
    /// the operation.
    fn first_match(
        &self,
        operation: &Operation<'_>,
        unknown: impl Fn(&Rule) -> bool,
    ) -> (PolicyDecision, Option<&'static str>) {
        let denied = |rule| PolicyDecision {
            action: Action::Deny,
            rule,
        };
        let mut missing_grant = None;
        if operation.is_too_long() {
            return (denied(None), None);
        }
        for (number, rule) in (1..).zip(&self.rules) {
            match rule.matches(operation, unknown(rule)) {
                RuleMatch::No => {}
                RuleMatch::Lacks(what) => missing_grant = missing_grant.or(Some(what)),
                RuleMatch::Yes => {
                    let decision = PolicyDecision {
                        action: rule.action,
                        rule: Some(number),
                    };
                    return (decision, missing_grant);
                }
            }
        }
        (denied(None), missing_grant)
    }

    /// Checks every operation of applying a resource.
    pub fn check_resource(
        &self,
        verb: &str,
        resource: &Resource,
        provider: &str,
        noop: bool,
    ) -> Result<(), Denied> {
        let target = link_target(resource);
        for operation in operations(verb, resource, target.as_deref(), provider, noop) {
            let (decision, missing_grant) = self.first_match(&operation, |_| false);
            if !decision.is_allowed() {
                return Err(Denied {
                    what: missing_grant.unwrap_or(operation.what),
                    label: resource.label(),
                });
            }
        }
        Ok(())
    }
}

fn is_allow_rule(rule: &Rule) -> bool {
    rule.action == Action::Allow
}

impl Rule {
    /// Returns an error message for the first verb that is not known.
    pub fn unknown_verb(&self, known: impl Fn(&str) -> bool) -> Option<String> {
        let unknown = self.verbs.iter().find(|verb| !known(verb))?;
        Some(format!("unknown verb {}", quote(unknown)))
    }

    /// Returns an error message for the first pattern that can never match.
    fn problem(&self) -> Option<String> {
        let lists = [
            ("commands", &self.commands),
            ("guards", &self.guards),
            ("checks", &self.checks),
            ("post", &self.post),
            ("validate", &self.validate),
        ];
        let lines = lists.into_iter().find_map(|(field, list)| {
            let problem = list.iter().find_map(|line| pattern::problem(line))?;
            Some(format!("{field}: {problem}"))
        });
        let relative = |path: &&String| !path.starts_with(['/', '*']);
        let paths = [
            ("path", &self.path),
            ("cwd", &self.cwd),
            ("modules", &self.modules),
            ("targets", &self.targets),
            ("homes", &self.homes),
        ];
        let paths = paths.into_iter().find_map(|(field, list)| {
            let path = list.iter().find(relative)?;
            Some(format!("{field}: {} is not an absolute path", quote(path)))
        });
        let is_variable = |item: &&String| item.contains('=') || item.as_str() == "**";
        let variable = self.environment.iter().find(|item| !is_variable(item));
        let variable =
            variable.map(|item| format!("environment: {} is not NAME=value", quote(item)));
        lines.or(paths).or(variable)
    }
}

#[cfg(test)]
mod tests;
