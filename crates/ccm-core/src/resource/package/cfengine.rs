//! CFEngine package modules as providers: any program that speaks the Package Module API.
//!
//! A command is an argument, the request goes to standard input as `Key=value` lines, the answer
//! comes back the same way. Modules are of all sorts, so nothing but their lists is believed: an
//! exit code or an error message of a change is only told when the lists do not show the change.
//! Versions belong to the module: they are equal or they are not, and never ordered here.
//!
//! A resource names one package per call, because some modules only read the last. Only the
//! architectures of one package go together, as they have to stay of one version: a module that
//! knows several reads them all.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use super::super::Host;
use super::versions::{VersionError, generic};
use super::{Complaint, Instance, PackageError, PackageProvider, Target, Wanted};
use crate::model::Value;
use crate::model::resource::Package;
use crate::model::state::PackageMetadata;
use crate::model::text::quote;
use crate::system::{Command, Output};

/// How long one command of a module may take.
const TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// How much one command of a module may print.
const MAX_OUTPUT_BYTES: usize = 64 * 1024 * 1024;

/// How many stray lines are told.
const MAX_STRAY: usize = 5;

/// Why a module can't be worked with.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    #[error("package module {module} does not support API version 1{complaint}")]
    Api {
        module: String,
        complaint: Complaint,
    },
    #[error("package module {module} failed to {command}{complaint}")]
    Failed {
        module: String,
        command: &'static str,
        complaint: Complaint,
    },
    #[error(
        "package module {module} still lists update {version} of package {}",
        quote(package)
    )]
    StillOutdated {
        module: String,
        package: String,
        version: String,
    },
}

pub(super) struct Module<'a> {
    pub program: &'a str,
    pub package: &'a Package,
    pub host: Host<'a>,
}

/// A package as the protocol names it. Empty parts are left out.
#[derive(Clone, Copy)]
struct Named<'a> {
    /// `Name`, or `File` for what may be either.
    key: &'a str,
    name: &'a str,
    version: &'a str,
    arch: &'a str,
}

/// What a module answered.
struct Answer {
    records: Vec<Instance>,
    /// `PackageType` of get-package-data.
    kind: Option<String>,
    /// Error messages, and how it ended.
    errors: Vec<String>,
    /// Lines that are no part of the protocol.
    stray: Vec<String>,
}

impl Answer {
    fn complaint(self) -> Vec<String> {
        self.errors.into_iter().chain(self.stray).collect()
    }
}

impl Module<'_> {
    fn run(&self, command: &'static str, input: String) -> Result<Output, PackageError> {
        let command = Command {
            input: input.into(),
            timeout: Some(TIMEOUT),
            max_output: MAX_OUTPUT_BYTES,
            ..Command::new(self.program, [command])
        };
        let output = self.host.runner.run(&command)?;
        if output.stdout_truncated {
            return Err(PackageError::TooMuch {
                program: self.program.into(),
                limit: MAX_OUTPUT_BYTES,
            });
        }
        Ok(output)
    }

    fn call(&self, command: &'static str, named: &[Named<'_>]) -> Result<Answer, PackageError> {
        self.check_api()?;
        let mut request = String::new();
        let options = self.package.options.iter().map(|text| ("options", &**text));
        let parts = named.iter().flat_map(|named| {
            [
                (named.key, named.name),
                ("Version", named.version),
                ("Architecture", named.arch),
            ]
        });
        for (key, value) in options.chain(parts.filter(|(_, value)| !value.is_empty())) {
            request.push_str(&format!("{key}={value}\n"));
        }
        let output = self.run(command, request)?;
        Ok(read_answer(&output))
    }

    /// Asks once per run whether the module speaks our protocol.
    fn check_api(&self) -> Result<(), PackageError> {
        let shared = self.host.packages;
        if shared.knows_module(self.program) {
            return Ok(());
        }
        let output = self.run("supports-api-version", String::new())?;
        if output.stdout_text().trim() != "1" {
            return Err(ModuleError::Api {
                module: self.program.into(),
                complaint: Complaint::of(&output),
            }
            .into());
        }
        shared.remember_module(self.program);
        Ok(())
    }

    fn list_of(&self, command: &'static str) -> Result<Vec<Instance>, PackageError> {
        let answer = self.call(command, &[])?;
        // A list that may be short would make packages look absent.
        if !answer.errors.is_empty() {
            return Err(self.failed(command, answer.errors));
        }
        Ok(answer.records)
    }

    fn failed(&self, command: &'static str, complaint: Vec<String>) -> PackageError {
        ModuleError::Failed {
            module: self.program.into(),
            command,
            complaint: Complaint::new(complaint),
        }
        .into()
    }

    /// Asks what a name or path stands for.
    fn package_data(&self, name: &str, version: &str) -> Result<(bool, Instance), PackageError> {
        let named = Named {
            key: "File",
            name,
            version,
            arch: "",
        };
        let answer = self.call("get-package-data", &[named])?;
        match (answer.kind.as_deref(), answer.records.first()) {
            (Some("file"), Some(found)) => Ok((true, found.clone())),
            (Some("repo"), Some(found)) => Ok((false, found.clone())),
            _ => Err(self.failed("get-package-data", answer.complaint())),
        }
    }
}

/// Reads an answer; each `Name` starts a record.
fn read_answer(output: &Output) -> Answer {
    let mut answer = Answer {
        records: Vec::new(),
        kind: None,
        errors: Vec::new(),
        stray: Vec::new(),
    };
    let text = output.stdout_text();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (key, value) = line.split_once('=').unwrap_or(("", line));
        match (key, answer.records.last_mut()) {
            ("Name", _) => answer.records.push(Instance {
                name: value.into(),
                ..Instance::default()
            }),
            ("Version", Some(record)) => record.version = value.into(),
            ("Architecture", Some(record)) => record.arch = value.into(),
            ("PackageType", _) => answer.kind = Some(value.into()),
            ("ErrorMessage" | "Error", _) => answer.errors.push(value.into()),
            // An error message may say before which package it is about.
            ("File" | "Version" | "Architecture", _) => {}
            _ if answer.stray.len() >= MAX_STRAY => {}
            _ => answer
                .stray
                .push(format!("unexpected line {}", quote(line))),
        }
    }
    if !output.is_success() {
        let said = Complaint::of(&Output {
            stdout: Vec::new(),
            ..output.clone()
        });
        let ended = format!("exited {}{said}", output.code);
        answer.errors.push(ended);
    }
    answer
}

impl PackageProvider for Module<'_> {
    fn find(&self, package: &str) -> Result<Vec<Instance>, PackageError> {
        let mut all = self.list()?;
        all.retain(|instance| instance.name == package);
        Ok(all)
    }

    fn list(&self) -> Result<Vec<Instance>, PackageError> {
        self.list_of("list-installed")
    }

    fn extended(&self, _instance: &Instance) -> BTreeMap<String, Value> {
        BTreeMap::new()
    }

    /// Only equality means something; the order is a guess that picks the words of a plan.
    fn compare(&self, installed: &PackageMetadata, wanted: &str) -> Result<Ordering, VersionError> {
        let installed = &installed.version;
        if installed == wanted {
            return Ok(Ordering::Equal);
        }
        Ok(generic::compare(installed, wanted, false).then_with(|| installed.as_str().cmp(wanted)))
    }

    fn open_file(&self, path: &str) -> Result<Instance, PackageError> {
        self.package_data(path, "").map(|(_, found)| found)
    }

    /// A module has no command for this, but listing updates has to look for them.
    fn update_index(&self, _max_age: Option<Duration>) -> Result<(), PackageError> {
        self.list_of("list-updates").map(drop)
    }

    fn updates(&self) -> Result<Vec<Instance>, PackageError> {
        self.list_of("list-updates-local")
    }

    fn install(&self, targets: &[Target<'_>]) -> Result<Vec<String>, PackageError> {
        let mut complaint = Vec::new();
        for target in targets {
            let version = target.version.text();
            let name = target.file.unwrap_or(target.package);
            let (is_file, found) = self.package_data(name, version)?;
            let (command, key, name) = if is_file {
                ("file-install", "File", name)
            } else {
                ("repo-install", "Name", found.name.as_str())
            };
            let named = Named {
                key,
                name,
                version,
                arch: target.arch,
            };
            complaint.extend(self.call(command, &[named])?.complaint());
        }
        Ok(complaint)
    }

    /// Installs the updates the module lists for a package, for every architecture it has.
    fn upgrade(&self, target: &Target<'_>) -> Result<Vec<String>, PackageError> {
        if target.version != Wanted::Latest || target.file.is_some() {
            return self.install(std::slice::from_ref(target));
        }
        let package = target.package;
        let updates = || -> Result<Vec<Instance>, PackageError> {
            let mut updates = self.updates()?;
            updates.retain(|update| update.name == package);
            Ok(updates)
        };
        let wanted = updates()?;
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let mut named = Vec::with_capacity(wanted.len());
        for update in &wanted {
            named.push(Named {
                key: "Name",
                name: package,
                version: &update.version,
                arch: &update.arch,
            });
        }
        let complaint = self.call("repo-install", &named)?.complaint();
        match updates()?.into_iter().find(|left| wanted.contains(left)) {
            None => Ok(complaint),
            Some(left) if complaint.is_empty() => Err(ModuleError::StillOutdated {
                module: self.program.into(),
                package: package.into(),
                version: left.version,
            }
            .into()),
            Some(_) => Err(self.failed("repo-install", complaint)),
        }
    }

    fn uninstall(&self, targets: &[Target<'_>]) -> Result<Vec<String>, PackageError> {
        let mut complaint = Vec::new();
        for target in targets {
            let named = Named {
                key: "Name",
                name: target.package,
                version: target.version.text(),
                arch: target.arch,
            };
            complaint.extend(self.call("remove", &[named])?.complaint());
        }
        Ok(complaint)
    }
}
