//! cfengine provider: CFEngine package modules, programs that implement the Package Module API.
//!
//! The command is an argument, the request is written to standard input as `Key=value` lines, and the
//! reply is read in the same format. Modules report errors inconsistently, so only their package lists
//! are trusted: exit code and error messages of a change are reported only if the lists do not show the
//! change. Versions are compared for equality only.
//!
//! A call names one package, because some modules only read the last one. An upgrade names all
//! architectures of a package in one call, because they must have the same version.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use super::super::Host;
use super::versions::{VersionError, generic};
use super::{
    ErrorOutput, Instance, PackageError, PackageProvider, Target, VersionSpec, run_complete,
};
use crate::model::Value;
use crate::model::resource::Package;
use crate::model::state::PackageMetadata;
use crate::model::text::quote;
use crate::system::{Command, Output};

/// The timeout of a module command.
const TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// The maximum output of a module command.
const MAX_OUTPUT_BYTES: usize = 64 * 1024 * 1024;

/// The maximum number of unexpected lines in an error.
const MAX_UNEXPECTED: usize = 5;

/// A package module that failed.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    #[error("package module {module} does not support API version 1{error_output}")]
    Api {
        module: String,
        error_output: ErrorOutput,
    },
    #[error("package module {module} failed to {command}{error_output}")]
    Failed {
        module: String,
        command: &'static str,
        error_output: ErrorOutput,
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

/// The attributes of a package in a request. Empty ones are left out.
#[derive(Clone, Copy)]
struct PackageAttributes<'a> {
    /// `Name`, or `File` for a file or name.
    key: &'a str,
    name: &'a str,
    version: &'a str,
    arch: &'a str,
}

/// The parsed reply of a module.
struct Reply {
    records: Vec<Instance>,
    /// `PackageType` of get-package-data.
    package_type: Option<String>,
    /// Error messages, including a failed exit code.
    errors: Vec<String>,
    /// Lines that are not part of the protocol.
    unexpected: Vec<String>,
}

impl Reply {
    fn into_error_output(self) -> Vec<String> {
        self.errors.into_iter().chain(self.unexpected).collect()
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
        run_complete(&command, self.host)
    }

    fn call(
        &self,
        command: &'static str,
        packages: &[PackageAttributes<'_>],
    ) -> Result<Reply, PackageError> {
        self.check_api()?;
        let mut request = String::new();
        let options = self.package.options.iter().map(|text| ("options", &**text));
        let attributes = packages.iter().flat_map(|package| {
            [
                (package.key, package.name),
                ("Version", package.version),
                ("Architecture", package.arch),
            ]
        });
        for (key, value) in options.chain(attributes.filter(|(_, value)| !value.is_empty())) {
            request.push_str(&format!("{key}={value}\n"));
        }
        let output = self.run(command, request)?;
        Ok(parse_reply(&output))
    }

    /// Checks once per run that the module supports API version 1.
    fn check_api(&self) -> Result<(), PackageError> {
        let cache = self.host.packages;
        if cache.is_module_checked(self.program) {
            return Ok(());
        }
        let output = self.run("supports-api-version", String::new())?;
        if output.stdout_text().trim() != "1" {
            return Err(ModuleError::Api {
                module: self.program.into(),
                error_output: ErrorOutput::of(&output),
            }
            .into());
        }
        cache.set_module_checked(self.program);
        Ok(())
    }

    fn list_of(&self, command: &'static str) -> Result<Vec<Instance>, PackageError> {
        let reply = self.call(command, &[])?;
        // An incomplete list would make packages look absent.
        if !reply.errors.is_empty() {
            return Err(self.failed(command, reply.errors));
        }
        Ok(reply.records)
    }

    fn failed(&self, command: &'static str, error_output: Vec<String>) -> PackageError {
        ModuleError::Failed {
            module: self.program.into(),
            command,
            error_output: ErrorOutput::new(error_output),
        }
        .into()
    }

    /// Returns whether a name or path is a file, and the package it refers to.
    fn package_data(&self, name: &str, version: &str) -> Result<(bool, Instance), PackageError> {
        let named = PackageAttributes {
            key: "File",
            name,
            version,
            arch: "",
        };
        let reply = self.call("get-package-data", &[named])?;
        match (reply.package_type.as_deref(), reply.records.first()) {
            (Some("file"), Some(found)) => Ok((true, found.clone())),
            (Some("repo"), Some(found)) => Ok((false, found.clone())),
            _ => Err(self.failed("get-package-data", reply.into_error_output())),
        }
    }
}

/// Parses a reply; each `Name` starts a record.
fn parse_reply(output: &Output) -> Reply {
    let mut reply = Reply {
        records: Vec::new(),
        package_type: None,
        errors: Vec::new(),
        unexpected: Vec::new(),
    };
    let text = output.stdout_text();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (key, value) = line.split_once('=').unwrap_or(("", line));
        match (key, reply.records.last_mut()) {
            ("Name", _) => reply.records.push(Instance {
                name: value.into(),
                ..Instance::default()
            }),
            ("Version", Some(record)) => record.version = value.into(),
            ("Architecture", Some(record)) => record.arch = value.into(),
            ("PackageType", _) => reply.package_type = Some(value.into()),
            ("ErrorMessage" | "Error", _) => reply.errors.push(value.into()),
            // Attributes may precede an error message to name its package.
            ("File" | "Version" | "Architecture", _) => {}
            _ if reply.unexpected.len() >= MAX_UNEXPECTED => {}
            _ => reply
                .unexpected
                .push(format!("unexpected line {}", quote(line))),
        }
    }
    if !output.is_success() {
        let error_output = ErrorOutput::of(&Output {
            stdout: Vec::new(),
            ..output.clone()
        });
        let exited = format!("exited {}{error_output}", output.code);
        reply.errors.push(exited);
    }
    reply
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

    /// Only equality is significant; the order only selects the text of a plan.
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

    /// The API has no command for this, but `list-updates` updates the index.
    fn update_index(&self, _max_age: Option<Duration>) -> Result<(), PackageError> {
        self.list_of("list-updates").map(drop)
    }

    fn updates(&self) -> Result<Vec<Instance>, PackageError> {
        self.list_of("list-updates-local")
    }

    fn install(&self, targets: &[Target<'_>]) -> Result<Vec<String>, PackageError> {
        let mut error_output = Vec::new();
        for target in targets {
            let version = target.version.text();
            let name = target.file.unwrap_or(target.package);
            let (is_file, found) = self.package_data(name, version)?;
            let (command, key, name) = if is_file {
                ("file-install", "File", name)
            } else {
                ("repo-install", "Name", found.name.as_str())
            };
            let named = PackageAttributes {
                key,
                name,
                version,
                arch: target.arch,
            };
            error_output.extend(self.call(command, &[named])?.into_error_output());
        }
        Ok(error_output)
    }

    /// Installs the updates that the module lists for a package, for all its architectures.
    fn upgrade(&self, target: &Target<'_>) -> Result<Vec<String>, PackageError> {
        if target.version != VersionSpec::Latest || target.file.is_some() {
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
            named.push(PackageAttributes {
                key: "Name",
                name: package,
                version: &update.version,
                arch: &update.arch,
            });
        }
        let error_output = self.call("repo-install", &named)?.into_error_output();
        match updates()?
            .into_iter()
            .find(|update| wanted.contains(update))
        {
            None => Ok(error_output),
            Some(remaining) if error_output.is_empty() => Err(ModuleError::StillOutdated {
                module: self.program.into(),
                package: package.into(),
                version: remaining.version,
            }
            .into()),
            Some(_) => Err(self.failed("repo-install", error_output)),
        }
    }

    fn uninstall(&self, targets: &[Target<'_>]) -> Result<Vec<String>, PackageError> {
        let mut error_output = Vec::new();
        for target in targets {
            let named = PackageAttributes {
                key: "Name",
                name: target.package,
                version: target.version.text(),
                arch: target.arch,
            };
            error_output.extend(self.call("remove", &[named])?.into_error_output());
        }
        Ok(error_output)
    }
}
