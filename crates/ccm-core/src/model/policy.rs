//! Policies: what one signer may ask of a node.
//!
//! A policy is a list of rules; the first that matches decides, and what none matches is denied.
//! Pure: who signed, and what a request means, is found out elsewhere. What a resource would do is
//! taken apart into acts, because a command is a command also where it is called a health check.
//!
//! The fields of a rule are of two sorts. Conditions (`verbs`, `types`, `names`, `providers`,
//! `commands`, `noop_only`) say what the rule is about; one that is left out holds for everything.
//! Grants (`path`, `environment`, `cwd`, `shell`, `guards`, `checks`, `post`, `modules`, `lookups`)
//! permit what turns a resource into more than it seems; one that is left out permits nothing. Only
//! a rule that permits every command line needs no grants for what such a line could do anyway.
//! How texts are compared is in `pattern`.

mod pattern;

use serde::Deserialize;
use serde::de::Error as _;

use super::TypeName;
use super::document::{DocumentError, Node};
use super::resource::{Exec, Properties, Resource, module_path};
use super::text::quote;

/// The longest name that is looked at; whoever asks for a longer one is denied it.
const MAX_NAME: usize = 4096;

/// The provider of commands that a shell reads.
const SHELL: &str = "shell";

/// What a rule says about whatever it matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    #[default]
    Allow,
    Deny,
}

/// What templates can read beside facts and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lookup {
    Files,
    Kv,
    Environment,
    Registrations,
}

impl Lookup {
    pub const ALL: [Self; 4] = [
        Self::Files,
        Self::Kv,
        Self::Environment,
        Self::Registrations,
    ];

    /// Returns what a template is told that lacks the right.
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
        }
    }

    /// Returns which right a text says is missing, without the rest of that text.
    pub fn denial_in(text: &str) -> Option<&'static str> {
        let mut all = Self::ALL.into_iter().map(Self::denial);
        all.find(|missing| text.contains(missing))
    }
}

/// One rule. A condition that is empty matches everything, a grant that is empty permits nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    pub action: Action,
    pub verbs: Vec<String>,
    pub types: Vec<TypeName>,
    /// Patterns of names: `*` stands for anything but a `/`, `**` for anything, `?` for one
    /// character. The name of an exec is compared like a command line.
    pub names: Vec<String>,
    pub providers: Vec<String>,
    /// Patterns of command lines of an exec, compared word by word: `*` and `?` cross neither a
    /// word nor a `/` nor what a shell reads as more than a letter. Left out, the command line is
    /// compared with `names`.
    pub commands: Vec<String>,
    /// Matches only requests that change nothing.
    pub noop_only: bool,
    /// Directories that the search path of a command may name.
    pub path: Vec<String>,
    /// Variables that a command may get, as `NAME=value`.
    pub environment: Vec<String>,
    /// Directories that a command may start in.
    pub cwd: Vec<String>,
    /// Whether a shell may read the command line.
    pub shell: bool,
    /// Command lines of `onlyif` and `unless`, and paths of `creates`.
    pub guards: Vec<String>,
    /// Command lines of health checks; `goss` stands for every goss check.
    pub checks: Vec<String>,
    /// Post commands of a scaffold.
    pub post: Vec<String>,
    /// Paths of CFEngine package modules.
    pub modules: Vec<String>,
    /// What templates may read.
    pub lookups: Vec<Lookup>,
}

/// What a signer may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    pub rules: Vec<Rule>,
}

/// Something a signer asks for. What is not known yet, or does not apply, is nothing.
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

/// What a policy says, and which rule said it, counted from one.
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

/// Why a resource is not applied. Names the resource and no content of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("denied by policy: {what} {label}")]
pub struct Denied {
    what: &'static str,
    label: String,
}

/// One thing that applying a resource does.
#[derive(Clone, Copy)]
struct Act<'r> {
    /// What it is to the resource, for whoever is denied it.
    what: &'static str,
    asked: PolicyRequest<'r>,
    part: Part<'r>,
}

/// Which part of a resource an act is about.
#[derive(Clone, Copy)]
enum Part<'r> {
    /// All of it; with the properties of an exec, where they are known.
    Whole(Option<&'r Exec>),
    /// Where an archive unpacks.
    Directory(&'r str),
    Check(&'r str),
    Post(&'r str),
    Module(&'r str),
    Lookup(Lookup),
}

/// Whether a rule matches an act.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    No,
    Yes,
    /// It would, if it granted this.
    Lacks(&'static str),
}

impl From<bool> for Fit {
    fn from(fits: bool) -> Self {
        match fits {
            true => Self::Yes,
            false => Self::No,
        }
    }
}

impl Policy {
    /// Reads a list of rules, or one rule alone.
    pub fn read(node: &Node) -> Result<Self, DocumentError> {
        let read = |node: &Node| {
            let rule = Rule::deserialize(node)?;
            match rule.problem() {
                Some(problem) => Err(DocumentError::custom(problem).at(node.mark)),
                None => Ok(rule),
            }
        };
        let rules: Result<_, DocumentError> = match node.items() {
            Some(items) => items.iter().map(read).collect(),
            None => read(node).map(|rule| vec![rule]),
        };
        Ok(Self { rules: rules? })
    }

    /// Decides on something that is wholly known: a rule about types, names or providers does not
    /// match what has none.
    pub fn decide(&self, asked: &PolicyRequest<'_>) -> PolicyDecision {
        self.first(&Act::of(asked, Part::Whole(None)), |_| false).0
    }

    /// Decides on something of which more will be known later: what some name, type or provider
    /// could still be allowed is allowed so far.
    pub fn decide_partial(&self, asked: &PolicyRequest<'_>) -> PolicyDecision {
        self.first(&Act::of(asked, Part::Whole(None)), is_allowing)
            .0
    }

    /// Says whether templates may read this, in a request of which more will be known later.
    pub fn allows_lookup(&self, asked: &PolicyRequest<'_>, lookup: Lookup) -> bool {
        let act = Act::of(asked, Part::Lookup(lookup));
        self.first(&act, is_allowing).0.is_allowed()
    }

    /// Returns the decision, and what the first rule lacked that would have allowed the act.
    fn first(
        &self,
        act: &Act<'_>,
        unknown: impl Fn(&Rule) -> bool,
    ) -> (PolicyDecision, Option<&'static str>) {
        let denied = |rule| PolicyDecision {
            action: Action::Deny,
            rule,
        };
        let mut lacking = None;
        if act.is_too_long() {
            return (denied(None), None);
        }
        for (number, rule) in (1..).zip(&self.rules) {
            match rule.fits(act, unknown(rule)) {
                Fit::No => {}
                Fit::Lacks(what) => lacking = lacking.or(Some(what)),
                Fit::Yes => {
                    let decision = PolicyDecision {
                        action: rule.action,
                        rule: Some(number),
                    };
                    return (decision, lacking);
                }
            }
        }
        (denied(None), lacking)
    }

    /// Checks everything that applying a resource does.
    pub fn check_resource(
        &self,
        verb: &str,
        resource: &Resource,
        provider: &str,
        noop: bool,
    ) -> Result<(), Denied> {
        for act in acts(verb, resource, provider, noop) {
            let (decision, lacking) = self.first(&act, |_| false);
            if !decision.is_allowed() {
                return Err(Denied {
                    what: lacking.unwrap_or(act.what),
                    label: resource.label(),
                });
            }
        }
        Ok(())
    }
}

fn is_allowing(rule: &Rule) -> bool {
    rule.action == Action::Allow
}

/// Takes a resource apart into what it does.
fn acts<'r>(verb: &'r str, resource: &'r Resource, provider: &'r str, noop: bool) -> Vec<Act<'r>> {
    let common = &resource.common;
    let asked = PolicyRequest {
        verb,
        noop,
        type_name: Some(resource.type_name()),
        name: Some(&common.name),
        provider: Some(provider),
        command: resource.command_line(),
    };
    let act = |what, part| Act { what, asked, part };
    let exec = match &resource.properties {
        Properties::Exec(exec) => Some(exec),
        _ => None,
    };
    let mut acts = vec![act("resource", Part::Whole(exec))];
    if let Some(path) = module_path(&common.provider) {
        // It is started to look, too.
        let asked = PolicyRequest {
            noop: false,
            ..asked
        };
        acts.push(Act {
            asked,
            ..act("package module of", Part::Module(path))
        });
    }
    match &resource.properties {
        Properties::Archive(archive) => {
            if !archive.extract_parent.is_empty() {
                acts.push(act("resource", Part::Directory(&archive.extract_parent)));
            }
        }
        Properties::Scaffold(scaffold) => {
            let commands = scaffold.post.iter().flat_map(|post| post.values());
            acts.extend(commands.map(|line| act("post command of", Part::Post(line))));
        }
        Properties::Apply(_)
        | Properties::Exec(_)
        | Properties::File(_)
        | Properties::Package(_)
        | Properties::Service(_) => {}
    }
    // Checks do not run where nothing is changed.
    acts.extend(common.health_checks.iter().map(|check| {
        let line = match check.command.as_str() {
            "" => "goss",
            line => line,
        };
        act("health check of", Part::Check(line))
    }));
    acts
}

impl<'r> Act<'r> {
    fn of(asked: &PolicyRequest<'r>, part: Part<'r>) -> Self {
        Self {
            what: "",
            asked: *asked,
            part,
        }
    }

    fn is_shell(&self) -> bool {
        self.asked.provider == Some(SHELL)
    }

    /// Returns the text that the part adds to the resource.
    fn text(&self) -> Option<&'r str> {
        match self.part {
            Part::Directory(text) | Part::Check(text) | Part::Post(text) | Part::Module(text) => {
                Some(text)
            }
            Part::Whole(_) | Part::Lookup(_) => None,
        }
    }

    /// Whether it starts a program that belongs to a resource of another type.
    fn is_command(&self) -> bool {
        matches!(self.part, Part::Check(_) | Part::Post(_) | Part::Module(_))
    }

    fn exec(&self) -> Option<&'r Exec> {
        match self.part {
            Part::Whole(exec) => exec,
            _ => None,
        }
    }

    fn is_too_long(&self) -> bool {
        let PolicyRequest {
            name,
            provider,
            command,
            ..
        } = self.asked;
        let guards = self.exec().map(Exec::guards);
        let all = [name, provider, command, self.text()].into_iter().flatten();
        let mut all = all.chain(guards.into_iter().flatten());
        all.any(|text| text.len() > MAX_NAME)
    }
}

impl Rule {
    /// Whether the rule matches; `unknown` says whether it does where it asks for something that
    /// is not known.
    fn fits(&self, act: &Act<'_>, unknown: bool) -> Fit {
        let asked = &act.asked;
        let is_verb = self.verbs.is_empty() || self.verbs.iter().any(|verb| verb == asked.verb);
        if !is_verb || (self.noop_only && !asked.noop) {
            return Fit::No;
        }
        let holds = |is_open: bool, found: Option<bool>| is_open || found.unwrap_or(unknown);
        let is_own = holds(
            self.types.is_empty(),
            asked.type_name.map(|name| self.types.contains(&name)),
        );
        let is_meant = is_own || (act.is_command() && self.types.contains(&TypeName::Exec));
        let provider = asked.provider.map(|name| {
            let mut patterns = self.providers.iter();
            patterns.any(|pattern| pattern::name(pattern, name))
        });
        if !is_meant || !holds(self.providers.is_empty(), provider) {
            return Fit::No;
        }
        match self.action {
            Action::Deny => self.denies(act).into(),
            Action::Allow => self.allows(act, is_own, unknown),
        }
    }

    /// Whether an allowing rule names everything that the act is about.
    fn allows(&self, act: &Act<'_>, is_own: bool, unknown: bool) -> Fit {
        let holds = |is_open: bool, found: Option<bool>| is_open || found.unwrap_or(unknown);
        let asked = &act.asked;
        let is_exec = asked.type_name == Some(TypeName::Exec);
        let is_shell = act.is_shell();
        let lines = |patterns: &[String], line: &str| {
            let mut patterns = patterns.iter();
            patterns.any(|pattern| pattern::line(pattern, line, is_shell))
        };
        let named = |name: &str| match (is_exec, act.part) {
            // Only the name of an exec that says its command elsewhere is not a command line.
            (true, _) if asked.command.is_some_and(|line| line != name) => {
                let mut names = self.names.iter();
                names.any(|pattern| pattern == name || pattern::line(pattern, name, false))
            }
            (true, _) => lines(&self.names, name),
            (false, Part::Directory(directory)) => paths(&self.names, directory),
            (false, _) if name.starts_with('/') => paths(&self.names, name),
            (false, _) => self.names.iter().any(|it| pattern::name(it, name)),
        };
        let has_name = match is_own {
            true => holds(self.names.is_empty(), asked.name.map(named)),
            false => self.names.is_empty(),
        };
        if !has_name {
            return Fit::No;
        }
        // Such a rule permits every command line there is.
        let is_open = self.names.is_empty()
            && self.commands.is_empty()
            && (self.types.is_empty() || self.types.contains(&TypeName::Exec));
        let granted = |list: &[String], line: &str| {
            let mut patterns = list.iter();
            let is_open = is_open && list.is_empty();
            is_open || patterns.any(|pattern| pattern::line(pattern, line, false))
        };
        match act.part {
            Part::Whole(exec) => {
                let patterns = match self.commands.is_empty() {
                    true => &self.names,
                    false => &self.commands,
                };
                let fits = match (asked.type_name, asked.command) {
                    (Some(TypeName::Exec), Some(line)) => {
                        patterns.is_empty() || lines(patterns, line)
                    }
                    (Some(TypeName::Exec) | None, _) => self.commands.is_empty() || unknown,
                    // Only an exec has a command line.
                    (Some(_), _) => self.commands.is_empty(),
                };
                if !fits {
                    return Fit::No;
                }
                match exec.and_then(|exec| self.lacks(exec, is_open, is_shell)) {
                    Some(what) => Fit::Lacks(what),
                    None => Fit::Yes,
                }
            }
            Part::Directory(_) => Fit::Yes,
            Part::Check(line) => granted(&self.checks, line).into(),
            Part::Post(line) => granted(&self.post, line).into(),
            Part::Module(path) => paths(&self.modules, path).into(),
            Part::Lookup(lookup) => self.lookups.contains(&lookup).into(),
        }
    }

    /// Returns what an exec has around its command line that the rule does not name.
    fn lacks(&self, exec: &Exec, is_open: bool, is_shell: bool) -> Option<&'static str> {
        let is_free = |list: &[String]| is_open && list.is_empty();
        let are_paths = |list: &[String], text: &str| {
            text.is_empty() || is_free(list) || text.split(':').all(|path| paths(list, path))
        };
        let is_variable = |item: &String| {
            let mut patterns = self.environment.iter();
            patterns.any(|pattern| pattern::word(pattern, item))
        };
        let is_guard = |line: &str| {
            let mut patterns = self.guards.iter();
            let is_named = patterns.any(|pattern| pattern::line(pattern, line, is_shell));
            // Guards run also where nothing is changed.
            !self.noop_only && (is_free(&self.guards) || is_named)
        };
        let may_shell = self.shell
            || self.providers.iter().any(|name| name == SHELL)
            || (is_open && self.providers.is_empty());
        if is_shell && !may_shell {
            Some("shell of")
        } else if !are_paths(&self.path, &exec.path) {
            Some("path of")
        } else if !is_free(&self.environment) && !exec.environment.iter().all(is_variable) {
            Some("environment of")
        } else if !(exec.cwd.is_empty() || is_free(&self.cwd) || paths(&self.cwd, &exec.cwd)) {
            Some("cwd of")
        } else if !exec.guards().all(is_guard) {
            Some("guard of")
        } else if !(exec.creates.is_empty()
            || is_free(&self.guards)
            || paths(&self.guards, &exec.creates))
        {
            Some("creates of")
        } else {
            None
        }
    }

    /// Whether a denying rule is about the act. It is about more than an allowing one with the
    /// same patterns would be: what could be meant is denied.
    fn denies(&self, act: &Act<'_>) -> bool {
        let exec = act.exec();
        let hit = |patterns: &[String], texts: &[Option<&str>]| {
            let mut texts = texts.iter().flatten();
            patterns.is_empty()
                || texts.any(|text| patterns.iter().any(|it| pattern::loosely(it, text)))
        };
        let guards: Vec<Option<&str>> = exec
            .into_iter()
            .flat_map(|exec| exec.guards().chain([exec.creates.as_str()]))
            .map(Some)
            .collect();
        let asked = &act.asked;
        let lines: Vec<Option<&str>> = match act.is_command() {
            true => vec![act.text()],
            false => [asked.command].into_iter().chain(guards.clone()).collect(),
        };
        let names: Vec<Option<&str>> = [asked.name, act.text()]
            .into_iter()
            .chain(lines.clone())
            .collect();
        let only = |is_it: bool| act.text().filter(|_| is_it);
        let directories: Vec<Option<&str>> = exec
            .into_iter()
            .flat_map(|exec| exec.path.split(':'))
            .map(Some)
            .collect();
        let variables: Vec<Option<&str>> = exec
            .into_iter()
            .flat_map(|exec| &exec.environment)
            .map(|item| Some(item.as_str()))
            .collect();
        let looks_up = match act.part {
            Part::Lookup(lookup) => self.lookups.contains(&lookup),
            _ => self.lookups.is_empty(),
        };
        looks_up
            && hit(&self.names, &names)
            && hit(&self.commands, &lines)
            && hit(&self.path, &directories)
            && hit(&self.environment, &variables)
            && hit(&self.cwd, &[exec.map(|exec| exec.cwd.as_str())])
            && (!self.shell || act.is_shell())
            && hit(&self.guards, &guards)
            && hit(&self.checks, &[only(matches!(act.part, Part::Check(_)))])
            && hit(&self.post, &[only(matches!(act.part, Part::Post(_)))])
            && hit(&self.modules, &[only(matches!(act.part, Part::Module(_)))])
    }

    /// Returns a verb that is none of those known.
    pub fn unknown_verb(&self, known: impl Fn(&str) -> bool) -> Option<String> {
        let unknown = self.verbs.iter().find(|verb| !known(verb))?;
        Some(format!("unknown verb {}", quote(unknown)))
    }

    /// Returns what is wrong with a pattern, which could never match then.
    fn problem(&self) -> Option<String> {
        let lists = [
            ("commands", &self.commands),
            ("guards", &self.guards),
            ("checks", &self.checks),
            ("post", &self.post),
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

fn paths(patterns: &[String], path: &str) -> bool {
    patterns.iter().any(|pattern| pattern::path(pattern, path))
}

#[cfg(test)]
mod tests;
