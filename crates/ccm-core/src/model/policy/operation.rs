//! Operations: everything that applying one resource does, each checked against the policy's rules.
//!
//! The first operation is the resource itself. Health checks, post commands, package modules,
//! unpack directories and targets of links are operations of their own. Matching is in `rule_match`.

use super::{Lookup, PolicyRequest};
use crate::model::resource::{Exec, Properties, Resource, module_path};
use crate::model::text::clean_path;

/// Longest text that is compared with patterns; an operation with a longer one is denied.
pub(super) const MAX_NAME: usize = 4096;

/// Provider of execs whose command line is run by a shell.
pub(super) const SHELL: &str = "shell";

/// One operation of applying a resource: what a rule is matched against.
#[derive(Clone, Copy)]
pub(super) struct Operation<'r> {
    /// Role of the operation, shown before the resource's label when it is denied.
    pub(super) what: &'static str,
    pub(super) request: PolicyRequest<'r>,
    pub(super) part: OperationPart<'r>,
}

/// Part of a resource that an operation covers.
#[derive(Clone, Copy)]
pub(super) enum OperationPart<'r> {
    /// The whole resource; with the properties of an exec, if they are known.
    Whole(Option<&'r Exec>),
    /// Directory that an archive is unpacked into.
    Directory(&'r str),
    /// Absolute path that a link leads to.
    Target(&'r str),
    Check(&'r str),
    Post(&'r str),
    /// Command that checks a new file.
    Validate(&'r str),
    /// Primary or supplementary group of a user.
    Group(&'r str),
    /// Home directory of a user.
    Home(&'r str),
    Module(&'r str),
    Lookup(Lookup),
}

/// Returns the absolute path that a link leads to, without regard to other links: the text that
/// [`operations`] needs.
pub(super) fn link_target(resource: &Resource) -> Option<String> {
    let Properties::Link(link) = &resource.properties else {
        return None;
    };
    if link.target.is_empty() {
        return None;
    }
    let (directory, _) = resource.common.name.rsplit_once('/')?;
    let absolute = match link.target.starts_with('/') {
        true => link.target.clone(),
        false => format!("{directory}/{}", link.target),
    };
    Some(clean_path(&absolute))
}

/// Returns the operations of applying a resource.
pub(super) fn operations<'r>(
    verb: &'r str,
    resource: &'r Resource,
    target: Option<&'r str>,
    provider: &'r str,
    noop: bool,
) -> Vec<Operation<'r>> {
    let common = &resource.common;
    let request = PolicyRequest {
        verb,
        noop,
        type_name: Some(resource.type_name()),
        name: Some(resource.policy_name()),
        provider: Some(provider),
        command: resource.command_line(),
    };
    let operation = |what, part| Operation {
        what,
        request,
        part,
    };
    let exec = match &resource.properties {
        Properties::Exec(exec) => Some(exec),
        _ => None,
    };
    let mut operations = vec![operation("resource", OperationPart::Whole(exec))];
    if let Some(path) = module_path(&common.provider) {
        // A module also runs in noop mode: it inspects the package.
        let request = PolicyRequest {
            noop: false,
            ..request
        };
        operations.push(Operation {
            request,
            ..operation("package module of", OperationPart::Module(path))
        });
    }
    match &resource.properties {
        Properties::Archive(archive) => {
            if !archive.extract_parent.is_empty() {
                operations.push(operation(
                    "resource",
                    OperationPart::Directory(&archive.extract_parent),
                ));
            }
        }
        Properties::File(file) => {
            if !file.validate.is_empty() {
                let part = OperationPart::Validate(&file.validate);
                operations.push(operation("validate command of", part));
            }
        }
        Properties::User(user) => {
            let groups = user.groups.iter().flatten().map(String::as_str);
            let groups = groups
                .chain([user.gid.as_str()])
                .filter(|group| !group.is_empty());
            operations
                .extend(groups.map(|group| operation("group of", OperationPart::Group(group))));
            if !user.home.is_empty() {
                operations.push(operation("home of", OperationPart::Home(&user.home)));
            }
        }
        Properties::Scaffold(scaffold) => {
            let commands = scaffold.post.iter().flat_map(|post| post.values());
            operations.extend(
                commands.map(|line| operation("post command of", OperationPart::Post(line))),
            );
        }
        Properties::Apply(_)
        | Properties::Exec(_)
        | Properties::Group(_)
        | Properties::Line(_)
        | Properties::Link(_)
        | Properties::Package(_)
        | Properties::Service(_) => {}
    }
    // A link gives the rights of its path to the path that it leads to.
    operations.extend(target.map(|path| operation("target of", OperationPart::Target(path))));
    // Health checks do not run in noop mode.
    operations.extend(common.health_checks.iter().map(|check| {
        let line = match check.command.as_str() {
            "" => "goss",
            line => line,
        };
        operation("health check of", OperationPart::Check(line))
    }));
    operations
}

impl<'r> Operation<'r> {
    pub(super) fn of(request: &PolicyRequest<'r>, part: OperationPart<'r>) -> Self {
        Self {
            what: "",
            request: *request,
            part,
        }
    }

    pub(super) fn is_shell(&self) -> bool {
        self.request.provider == Some(SHELL)
    }

    /// Returns the path or command line of the part.
    pub(super) fn text(&self) -> Option<&'r str> {
        match self.part {
            OperationPart::Directory(text)
            | OperationPart::Target(text)
            | OperationPart::Check(text)
            | OperationPart::Post(text)
            | OperationPart::Validate(text)
            | OperationPart::Group(text)
            | OperationPart::Home(text)
            | OperationPart::Module(text) => Some(text),
            OperationPart::Whole(_) | OperationPart::Lookup(_) => None,
        }
    }

    /// Reports whether the operation starts a program other than the command of an exec.
    pub(super) fn is_command(&self) -> bool {
        matches!(
            self.part,
            OperationPart::Check(_)
                | OperationPart::Post(_)
                | OperationPart::Validate(_)
                | OperationPart::Module(_)
        )
    }

    pub(super) fn exec(&self) -> Option<&'r Exec> {
        match self.part {
            OperationPart::Whole(exec) => exec,
            _ => None,
        }
    }

    pub(super) fn is_too_long(&self) -> bool {
        let PolicyRequest {
            name,
            provider,
            command,
            ..
        } = self.request;
        let guards = self.exec().map(Exec::guards);
        let all = [name, provider, command, self.text()].into_iter().flatten();
        let mut all = all.chain(guards.into_iter().flatten());
        all.any(|text| text.len() > MAX_NAME)
    }
}
