//! Policies: what one signer may ask of a node.
//!
//! A policy is a list of rules; the first that matches decides, and what none matches is denied.
//! Pure: who signed, and what a request means, is found out elsewhere. What a resource would do is
//! taken apart into acts, because a command is a command also where it is called a health check.

use serde::Deserialize;

use super::TypeName;
use super::document::{DocumentError, Node};
use super::resource::{Properties, Resource};
use super::text::quote;

/// The longest name that is looked at; whoever asks for a longer one is denied it.
const MAX_NAME: usize = 4096;

/// What a rule says about whatever it matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    #[default]
    Allow,
    Deny,
}

/// One rule. A list that is empty matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    pub action: Action,
    pub verbs: Vec<String>,
    pub types: Vec<TypeName>,
    /// Patterns of names: `*` stands for anything but a `/`, `**` for anything, `?` for one
    /// character; a lone `*` matches every name.
    pub names: Vec<String>,
    pub providers: Vec<String>,
    /// Matches only requests that change nothing.
    pub noop_only: bool,
}

/// What a signer may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    pub rules: Vec<Rule>,
}

/// Something a signer asks for. What is not known yet, or does not apply, is nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    pub verb: &'a str,
    pub noop: bool,
    pub type_name: Option<TypeName>,
    pub name: Option<&'a str>,
    pub provider: Option<&'a str>,
}

/// What a policy says, and which rule said it, counted from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    pub action: Action,
    pub rule: Option<usize>,
}

impl Decision {
    pub fn is_allowed(self) -> bool {
        self.action == Action::Allow
    }
}

impl Policy {
    /// Reads a list of rules, or one rule alone.
    pub fn read(node: &Node) -> Result<Self, DocumentError> {
        let rules = match node.items() {
            Some(items) => items.iter().map(Rule::deserialize).collect(),
            None => Rule::deserialize(node).map(|rule| vec![rule]),
        };
        Ok(Self { rules: rules? })
    }

    /// Decides on something that is wholly known: a rule about types, names or providers does not
    /// match what has none.
    pub fn decide(&self, asked: &Asked<'_>) -> Decision {
        self.first(asked, |_| false)
    }

    /// Decides on something of which more will be known later: what some name, type or provider
    /// could still be allowed is allowed so far.
    pub fn decide_so_far(&self, asked: &Asked<'_>) -> Decision {
        self.first(asked, |rule| rule.action == Action::Allow)
    }

    fn first(&self, asked: &Asked<'_>, unknown: impl Fn(&Rule) -> bool) -> Decision {
        let is_long = |text: Option<&str>| text.is_some_and(|text| text.len() > MAX_NAME);
        let mut rules = (1..).zip(&self.rules);
        let matching = if is_long(asked.name) || is_long(asked.provider) {
            None
        } else {
            rules.find(|(_, rule)| rule.matches(asked, unknown(rule)))
        };
        match matching {
            Some((number, rule)) => Decision {
                action: rule.action,
                rule: Some(number),
            },
            None => Decision {
                action: Action::Deny,
                rule: None,
            },
        }
    }

    /// Checks everything that applying a resource does.
    pub fn check(
        &self,
        verb: &str,
        resource: &Resource,
        provider: &str,
        noop: bool,
    ) -> Result<(), Denied> {
        for act in acts(resource, provider, noop) {
            let asked = Asked {
                verb,
                noop: act.noop,
                type_name: Some(act.type_name),
                name: Some(act.name),
                provider: act.provider,
            };
            if !self.decide(&asked).is_allowed() {
                return Err(Denied {
                    what: act.what,
                    label: resource.label(),
                });
            }
        }
        Ok(())
    }
}

/// Why a resource is not applied. Names the resource and no content of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("denied by policy: {what} {label}")]
pub struct Denied {
    what: &'static str,
    label: String,
}

/// One thing that applying a resource does.
struct Act<'r> {
    what: &'static str,
    type_name: TypeName,
    name: &'r str,
    provider: Option<&'r str>,
    noop: bool,
}

/// Takes a resource apart into what it does. Guards run also when nothing is changed.
fn acts<'r>(resource: &'r Resource, provider: &'r str, noop: bool) -> Vec<Act<'r>> {
    let common = &resource.common;
    let own = |name: &'r str| Act {
        what: "resource",
        type_name: resource.type_name(),
        name,
        provider: Some(provider),
        noop,
    };
    let command = |what, name: &'r str, provider, noop| Act {
        what,
        type_name: TypeName::Exec,
        name,
        provider,
        noop,
    };
    let mut acts = vec![own(&common.name)];
    match &resource.properties {
        Properties::Exec(exec) => {
            if !exec.command.is_empty() {
                acts.push(own(&exec.command));
            }
            for guard in [&exec.onlyif, &exec.unless] {
                if !guard.is_empty() {
                    acts.push(command("guard of", guard, Some(provider), false));
                }
            }
        }
        Properties::Archive(archive) => {
            if !archive.extract_parent.is_empty() {
                acts.push(own(&archive.extract_parent));
            }
        }
        Properties::Scaffold(scaffold) => {
            let commands = scaffold.post.iter().flat_map(|post| post.values());
            acts.extend(commands.map(|text| command("command of", text, None, noop)));
        }
        Properties::Apply(_)
        | Properties::File(_)
        | Properties::Package(_)
        | Properties::Service(_) => {}
    }
    // Checks do not run where nothing is changed.
    acts.extend(common.health_checks.iter().map(|check| {
        let name = match check.command.as_str() {
            "" => "goss",
            text => text,
        };
        command("health check of", name, None, noop)
    }));
    acts
}

impl Rule {
    /// Whether the rule matches; `unknown` says whether it does where it asks for something that
    /// is not known.
    fn matches(&self, asked: &Asked<'_>, unknown: bool) -> bool {
        let holds =
            |list_is_empty: bool, found: Option<bool>| list_is_empty || found.unwrap_or(unknown);
        let names = |name: &str| self.names.iter().any(|pattern| glob(pattern, name));
        let providers = |name: &str| self.providers.iter().any(|pattern| glob(pattern, name));
        (self.verbs.is_empty() || self.verbs.iter().any(|verb| verb == asked.verb))
            && (!self.noop_only || asked.noop)
            && holds(
                self.types.is_empty(),
                asked.type_name.map(|name| self.types.contains(&name)),
            )
            && holds(self.names.is_empty(), asked.name.map(names))
            && holds(self.providers.is_empty(), asked.provider.map(providers))
    }

    /// Returns a verb that is none of those known.
    pub fn unknown_verb(&self, known: impl Fn(&str) -> bool) -> Option<String> {
        let unknown = self.verbs.iter().find(|verb| !known(verb))?;
        Some(format!("unknown verb {}", quote(unknown)))
    }
}

/// Matches a whole name, in time that grows with pattern times name and no faster.
fn glob(pattern: &str, name: &str) -> bool {
    if pattern == "*" {
        return true;
    }
    let name: Vec<char> = name.chars().collect();
    // Which ends of the name the pattern so far can reach.
    let mut reached = vec![false; name.len() + 1];
    if let Some(first) = reached.first_mut() {
        *first = true;
    }
    let mut rest = pattern.chars().peekable();
    while let Some(c) = rest.next() {
        let deep = c == '*' && rest.next_if_eq(&'*').is_some();
        let mut next = Vec::with_capacity(reached.len());
        let mut before = false;
        let mut left = None;
        for (index, &here) in reached.iter().enumerate() {
            let passed: Option<char> = index.checked_sub(1).and_then(|at| name.get(at)).copied();
            let now = match (c, passed) {
                ('*', Some(passed)) => here || (before && (deep || passed != '/')),
                ('*', None) => here,
                ('?', Some(passed)) => left.unwrap_or(false) && passed != '/',
                (c, Some(passed)) => left.unwrap_or(false) && c == passed,
                (_, None) => false,
            };
            next.push(now);
            before = now;
            left = Some(here);
        }
        reached = next;
    }
    reached.last().copied().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::document::parse;
    use crate::model::request::parse_ensure;

    fn policy(text: &str) -> Policy {
        Policy::read(&parse(text).unwrap()).unwrap()
    }

    fn resource(type_name: &str, properties: &str) -> Resource {
        let text = format!(
            r#"{{"protocol":"io.choria.ccm.v1.resource.ensure.request","type":"{type_name}","properties":{properties}}}"#
        );
        let mut resource = parse_ensure(&text).unwrap();
        resource.complete().unwrap();
        resource
    }

    fn ask<'a>(verb: &'a str, type_name: TypeName, name: &'a str) -> Asked<'a> {
        Asked {
            verb,
            type_name: Some(type_name),
            name: Some(name),
            ..Asked::default()
        }
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policy = policy(
            "- {action: deny, types: [exec]}\n- {verbs: [ensure], names: ['/etc/app/*']}\n- {verbs: [ping]}",
        );
        let decide = |asked| {
            let Decision { action, rule } = policy.decide(&asked);
            (action, rule)
        };
        assert_eq!(
            decide(ask("ensure", TypeName::Exec, "/etc/app/x")),
            (Action::Deny, Some(1))
        );
        assert_eq!(
            decide(ask("ensure", TypeName::File, "/etc/app/x")),
            (Action::Allow, Some(2))
        );
        assert_eq!(
            decide(ask("ensure", TypeName::File, "/etc/passwd")),
            (Action::Deny, None)
        );
        let ping = Asked {
            verb: "ping",
            ..Asked::default()
        };
        assert_eq!(decide(ping), (Action::Allow, Some(3)));
    }

    #[test]
    fn what_may_still_be_allowed_is_allowed_so_far() {
        let policy = policy("- {action: deny, types: [exec]}\n- {verbs: [apply], types: [file]}");
        let verb = |verb| Asked {
            verb,
            ..Asked::default()
        };
        assert!(policy.decide_so_far(&verb("apply")).is_allowed());
        assert!(!policy.decide(&verb("apply")).is_allowed());
        assert!(!policy.decide_so_far(&verb("ensure")).is_allowed());
        let exec = ask("apply", TypeName::Exec, "x");
        assert!(!policy.decide_so_far(&exec).is_allowed());
    }

    #[test]
    fn a_rule_for_noop_matches_nothing_else() {
        let policy = policy("{noop_only: true}");
        let file = ask("ensure", TypeName::File, "/a");
        assert!(!policy.decide(&file).is_allowed());
        assert!(policy.decide(&Asked { noop: true, ..file }).is_allowed());
    }

    #[test]
    fn an_empty_policy_allows_nothing() {
        let nothing = policy("[]");
        assert!(!nothing.decide(&Asked::default()).is_allowed());
        assert!(!nothing.decide_so_far(&Asked::default()).is_allowed());
    }

    #[test]
    fn a_command_needs_leave_wherever_it_hides() {
        let files = policy("{types: [file, scaffold, archive]}");
        let plain = resource("file", r#"{"name":"/a","ensure":"absent"}"#);
        assert_eq!(files.check("ensure", &plain, "posix", false), Ok(()));
        for (type_name, properties) in [
            (
                "file",
                r#"{"name":"/a","ensure":"absent","health_checks":[{"command":"/bin/evil"}]}"#,
            ),
            (
                "file",
                r#"{"name":"/a","ensure":"absent","health_checks":[{"goss_rules":{"command":{"evil":{"exit-status":0}}}}]}"#,
            ),
            (
                "scaffold",
                r#"{"name":"/a","ensure":"present","source":"/s","engine":"jet","post":[{"*":"evil"}]}"#,
            ),
        ] {
            let hidden = resource(type_name, properties);
            assert!(
                files.check("ensure", &hidden, "posix", false).is_err(),
                "{properties}"
            );
        }
    }

    #[test]
    fn the_command_counts_and_not_only_the_name() {
        let policy = policy("{types: [exec], names: ['/bin/true']}");
        let good = resource("exec", r#"{"name":"/bin/true"}"#);
        assert_eq!(policy.check("ensure", &good, "posix", false), Ok(()));
        let evil = resource("exec", r#"{"name":"/bin/true","command":"/bin/evil"}"#);
        let denied = policy.check("ensure", &evil, "posix", false).unwrap_err();
        assert_eq!(
            denied.to_string(),
            "denied by policy: resource exec#/bin/true"
        );
    }

    #[test]
    fn a_guard_is_no_noop() {
        let policy = policy("{noop_only: true}");
        let plain = resource("exec", r#"{"name":"/bin/true"}"#);
        assert_eq!(policy.check("ensure", &plain, "posix", true), Ok(()));
        let guarded = resource("exec", r#"{"name":"/bin/true","onlyif":"/bin/evil"}"#);
        assert!(policy.check("ensure", &guarded, "posix", true).is_err());
    }

    #[test]
    fn an_archive_must_stay_in_its_place_with_all_it_unpacks() {
        let policy = policy("{types: [archive], names: ['/srv/**']}");
        let archive = |parent: &str| {
            let text = format!(
                r#"{{"name":"/srv/a.tar.gz","ensure":"present","url":"https://example.net/a.tar.gz","extract_parent":"{parent}","owner":"root","group":"root"}}"#
            );
            resource("archive", &text)
        };
        assert_eq!(
            policy.check("ensure", &archive("/srv/app"), "http", false),
            Ok(())
        );
        assert!(
            policy
                .check("ensure", &archive("/etc"), "http", false)
                .is_err()
        );
    }

    #[test]
    fn providers_are_patterns_too() {
        let policy = policy("{types: [package], providers: [apt, 'cfengine/*']}");
        let package = resource("package", r#"{"name":"zsh","ensure":"present"}"#);
        for (provider, is_allowed) in [("apt", true), ("cfengine/pip", true), ("dnf", false)] {
            let found = policy.check("ensure", &package, provider, false);
            assert_eq!(found.is_ok(), is_allowed, "{provider}");
        }
    }

    #[test]
    fn a_star_stops_at_a_slash_and_two_do_not() {
        for (pattern, name, expected) in [
            ("/etc/app/*", "/etc/app/x.conf", true),
            ("/etc/app/*", "/etc/app/a/b", false),
            ("/etc/app/**", "/etc/app/a/b", true),
            ("/etc/*/b", "/etc/a/b", true),
            ("/etc/*/b", "/etc/a/c", false),
            ("*", "/anything/at all", true),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("", "", true),
            ("", "a", false),
            ("a*", "a", true),
            ("*a*a*b", &"a".repeat(200), false),
        ] {
            assert_eq!(glob(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_name_that_is_too_long_slips_past_no_rule() {
        let policy = policy("- {action: deny, names: ['a*']}\n- {}");
        let decide = |name: &str| policy.decide(&ask("ensure", TypeName::Exec, name));
        assert!(decide("b").is_allowed());
        assert!(!decide(&"b".repeat(MAX_NAME + 1)).is_allowed());
    }

    #[test]
    fn a_rule_that_can_not_be_read_says_why() {
        for (text, error) in [
            ("{verb: [ping]}", "verb"),
            ("{types: [nope]}", "nope"),
            ("{action: maybe}", "maybe"),
        ] {
            let found = Policy::read(&parse(text).unwrap()).unwrap_err().to_string();
            assert!(found.contains(error), "{found}");
        }
    }
}
