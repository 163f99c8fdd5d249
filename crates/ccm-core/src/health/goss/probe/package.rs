//! Packages: whether one is installed and in which versions, asked of dpkg or rpm.

use std::path::Path;

use super::super::document::Entry;
use super::{Attribute, Family, First, Look, LookError, World, check_name, unanswered};
use crate::model::Value;
use crate::system::{Command, Runner};

/// How long a package manager may take to answer, in milliseconds.
const LIMIT: u64 = 30_000;

const RPM_FORMAT: &str = "%|EPOCH?{%{EPOCH}:}:{}|%{VERSION}-%{RELEASE}\n";

pub(super) const FAMILY: Family = Family {
    key: "package",
    name: "Package",
    target: "name",
    settings: &[],
    attributes: &[
        Attribute::new("installed"),
        Attribute::new("versions").shown_as("version"),
    ],
    first: First::Gate,
    look,
};

fn look<'a>(entry: &'a Entry, world: &'a World<'a>) -> Result<Look<'a>, LookError> {
    let name = entry.target();
    check_name("package", &name)?;
    let manager = Manager::find(world.probes.runner)?;
    let command = Command {
        timeout: Some(world.limit(entry, LIMIT)),
        ..manager.question(&name)
    };
    let output = world.probes.runner.run(&command)?;
    // A package that is not known is a failure to both managers.
    let versions = if output.is_success() {
        manager.versions(&output.stdout_text())
    } else {
        Vec::new()
    };
    Ok(Box::new(move |attribute| match attribute {
        "installed" => Ok((!versions.is_empty()).into()),
        "versions" if versions.is_empty() => Err(LookError::NoVersion),
        "versions" => Ok(versions
            .iter()
            .map(|text| Value::from(text.as_str()))
            .collect()),
        other => unanswered(other),
    }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manager {
    Dpkg,
    Rpm,
}

impl Manager {
    /// Returns the manager of this host. Where both are there, one of them is only a tool.
    fn find(runner: &dyn Runner) -> Result<Self, LookError> {
        let has = |program| runner.locate(program).is_some();
        match (has("dpkg-query"), has("rpm")) {
            (true, true) if is_red_hat() => Ok(Self::Rpm),
            (true, _) => Ok(Self::Dpkg),
            (false, true) => Ok(Self::Rpm),
            (false, false) => Err(LookError::NoPackageManager),
        }
    }

    fn question(self, name: &str) -> Command<'static> {
        match self {
            Self::Dpkg => Command::new("dpkg-query", ["-f", "${Status} ${Version}\n", "-W", name]),
            Self::Rpm => Command::new(
                "rpm",
                [
                    "-q",
                    "--nosignature",
                    "--nohdrchk",
                    "--nodigest",
                    "--qf",
                    RPM_FORMAT,
                    name,
                ],
            ),
        }
    }

    fn versions(self, output: &str) -> Vec<String> {
        let lines = output
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty());
        match self {
            Self::Rpm => lines.map(str::to_owned).collect(),
            Self::Dpkg => lines
                .filter_map(|line| {
                    ["install ok installed ", "hold ok installed "]
                        .iter()
                        .find_map(|status| line.strip_prefix(status))
                })
                .map(str::to_owned)
                .collect(),
        }
    }
}

fn is_red_hat() -> bool {
    ["/etc/redhat-release", "/etc/system-release"]
        .iter()
        .any(|path| Path::new(path).exists())
}
