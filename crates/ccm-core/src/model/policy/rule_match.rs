//! Rule matching: whether one rule of a policy applies to one operation.
//!
//! An allow rule must match every text of the operation and grant its extras. A deny rule matches if
//! each of its pattern lists matches any text of the operation.

use super::operation::{Operation, OperationPart, SHELL};
use super::{Action, Rule, pattern};
use crate::model::TypeName;
use crate::model::resource::Exec;

/// Result of matching a rule against an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RuleMatch {
    No,
    Yes,
    /// The rule would match if it had this grant.
    Lacks(&'static str),
}

impl From<bool> for RuleMatch {
    fn from(is_match: bool) -> Self {
        match is_match {
            true => Self::Yes,
            false => Self::No,
        }
    }
}

impl Rule {
    /// Matches the rule against an operation; `unknown` is the result of a condition on a property
    /// that is not known.
    pub(super) fn matches(&self, operation: &Operation<'_>, unknown: bool) -> RuleMatch {
        let request = &operation.request;
        let is_verb = self.verbs.is_empty() || self.verbs.iter().any(|verb| verb == request.verb);
        if !is_verb || (self.noop_only && !request.noop) {
            return RuleMatch::No;
        }
        let holds = |is_open: bool, found: Option<bool>| is_open || found.unwrap_or(unknown);
        let is_resource_type = holds(
            self.types.is_empty(),
            request.type_name.map(|name| self.types.contains(&name)),
        );
        let is_matching_type =
            is_resource_type || (operation.is_command() && self.types.contains(&TypeName::Exec));
        let provider = request.provider.map(|name| {
            let mut patterns = self.providers.iter();
            patterns.any(|pattern| pattern::name(pattern, name))
        });
        if !is_matching_type || !holds(self.providers.is_empty(), provider) {
            return RuleMatch::No;
        }
        match self.action {
            Action::Deny => self.denies(operation).into(),
            Action::Allow => self.allows(operation, is_resource_type, unknown),
        }
    }

    /// Matches an allow rule: every text of the operation must match a pattern.
    fn allows(
        &self,
        operation: &Operation<'_>,
        is_resource_type: bool,
        unknown: bool,
    ) -> RuleMatch {
        let holds = |is_open: bool, found: Option<bool>| is_open || found.unwrap_or(unknown);
        let request = &operation.request;
        let is_exec = request.type_name == Some(TypeName::Exec);
        let is_shell = operation.is_shell();
        let lines = |patterns: &[String], line: &str| {
            let mut patterns = patterns.iter();
            patterns.any(|pattern| pattern::line(pattern, line, is_shell))
        };
        let named = |name: &str| match (is_exec, operation.part) {
            // The name of an exec with a `command` property is not a command line.
            (true, _) if request.command.is_some_and(|line| line != name) => {
                let mut names = self.names.iter();
                names.any(|pattern| pattern == name || pattern::line(pattern, name, false))
            }
            (true, _) => lines(&self.names, name),
            (false, OperationPart::Directory(directory)) => paths(&self.names, directory),
            (false, OperationPart::Target(path)) => {
                paths(&self.names, path) || paths(&self.targets, path)
            }
            (false, _) if name.starts_with('/') => paths(&self.names, name),
            (false, _) => self.names.iter().any(|it| pattern::name(it, name)),
        };
        let has_name = match is_resource_type {
            true => holds(self.names.is_empty(), request.name.map(named)),
            false => self.names.is_empty(),
        };
        if !has_name {
            return RuleMatch::No;
        }
        // Such a rule allows every command line.
        let is_open = self.names.is_empty()
            && self.commands.is_empty()
            && (self.types.is_empty() || self.types.contains(&TypeName::Exec));
        let granted = |list: &[String], line: &str| {
            let mut patterns = list.iter();
            let is_open = is_open && list.is_empty();
            is_open || patterns.any(|pattern| pattern::line(pattern, line, false))
        };
        match operation.part {
            OperationPart::Whole(exec) => {
                let patterns = match self.commands.is_empty() {
                    true => &self.names,
                    false => &self.commands,
                };
                let is_match = match (request.type_name, request.command) {
                    (Some(TypeName::Exec), Some(line)) => {
                        patterns.is_empty() || lines(patterns, line)
                    }
                    (Some(TypeName::Exec) | None, _) => self.commands.is_empty() || unknown,
                    // Only an exec has a command line.
                    (Some(_), _) => self.commands.is_empty(),
                };
                if !is_match {
                    return RuleMatch::No;
                }
                match exec.and_then(|exec| self.missing_grant(exec, is_open, is_shell)) {
                    Some(what) => RuleMatch::Lacks(what),
                    None => RuleMatch::Yes,
                }
            }
            OperationPart::Directory(_) | OperationPart::Target(_) => RuleMatch::Yes,
            OperationPart::Check(line) => granted(&self.checks, line).into(),
            OperationPart::Post(line) => granted(&self.post, line).into(),
            OperationPart::Validate(line) => granted(&self.validate, line).into(),
            OperationPart::Group(name) => {
                let is_free = is_open && self.groups.is_empty();
                (is_free || self.groups.iter().any(|it| pattern::name(it, name))).into()
            }
            OperationPart::Home(path) => {
                let is_free = is_open && self.homes.is_empty();
                (is_free || paths(&self.homes, path)).into()
            }
            OperationPart::Module(path) => paths(&self.modules, path).into(),
            OperationPart::Lookup(lookup) => self.lookups.contains(&lookup).into(),
        }
    }

    /// Returns the first property of an exec that the rule does not grant.
    fn missing_grant(&self, exec: &Exec, is_open: bool, is_shell: bool) -> Option<&'static str> {
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
            // Guards also run in noop mode.
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

    /// Matches a deny rule. It matches more than an allow rule with the same patterns: every spelling
    /// that could have the same effect is denied.
    fn denies(&self, operation: &Operation<'_>) -> bool {
        let exec = operation.exec();
        let hit = |patterns: &[String], texts: &[Option<&str>]| {
            let mut texts = texts.iter().flatten();
            patterns.is_empty()
                || texts.any(|text| patterns.iter().any(|it| pattern::matches_loosely(it, text)))
        };
        let guards: Vec<Option<&str>> = exec
            .into_iter()
            .flat_map(|exec| exec.guards().chain([exec.creates.as_str()]))
            .map(Some)
            .collect();
        let request = &operation.request;
        let lines: Vec<Option<&str>> = match operation.is_command() {
            true => vec![operation.text()],
            false => [request.command]
                .into_iter()
                .chain(guards.clone())
                .collect(),
        };
        let names: Vec<Option<&str>> = [request.name, operation.text()]
            .into_iter()
            .chain(lines.clone())
            .collect();
        let only = |is_it: bool| operation.text().filter(|_| is_it);
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
        let matches_lookup = match operation.part {
            OperationPart::Lookup(lookup) => self.lookups.contains(&lookup),
            _ => self.lookups.is_empty(),
        };
        matches_lookup
            && hit(&self.names, &names)
            && hit(&self.commands, &lines)
            && hit(&self.path, &directories)
            && hit(&self.environment, &variables)
            && hit(&self.cwd, &[exec.map(|exec| exec.cwd.as_str())])
            && (!self.shell || operation.is_shell())
            && hit(&self.guards, &guards)
            && hit(
                &self.checks,
                &[only(matches!(operation.part, OperationPart::Check(_)))],
            )
            && hit(
                &self.targets,
                &[only(matches!(operation.part, OperationPart::Target(_)))],
            )
            && hit(
                &self.validate,
                &[only(matches!(operation.part, OperationPart::Validate(_)))],
            )
            && hit(
                &self.groups,
                &[only(matches!(operation.part, OperationPart::Group(_)))],
            )
            && hit(
                &self.homes,
                &[only(matches!(operation.part, OperationPart::Home(_)))],
            )
            && hit(
                &self.post,
                &[only(matches!(operation.part, OperationPart::Post(_)))],
            )
            && hit(
                &self.modules,
                &[only(matches!(operation.part, OperationPart::Module(_)))],
            )
    }
}

/// Reports whether a path matches any of the patterns.
fn paths(patterns: &[String], path: &str) -> bool {
    patterns.iter().any(|pattern| pattern::path(pattern, path))
}
