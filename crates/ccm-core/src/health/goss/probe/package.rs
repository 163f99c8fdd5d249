//! Type `package`: installed versions, by dpkg or rpm.

use std::path::Path;

use super::super::document::Entry;
use super::{
    Attribute, AttributeReader, FirstAttribute, InspectError, ProbeContext, ResourceType,
    check_name, not_implemented,
};
use crate::model::Value;
use crate::system::{Command, Runner};

/// Timeout of the package manager, in milliseconds.
const LIMIT: u64 = 30_000;

const RPM_FORMAT: &str = "%|EPOCH?{%{EPOCH}:}:{}|%{VERSION}-%{RELEASE}\n";

pub(super) const RESOURCE_TYPE: ResourceType = ResourceType {
    key: "package",
    name: "Package",
    target: "name",
    settings: &[],
    attributes: &[
        Attribute::new("installed"),
        Attribute::new("versions").shown_as("version"),
    ],
    first: FirstAttribute::Prerequisite,
    inspect,
};

fn inspect<'a>(
    entry: &'a Entry,
    context: &'a ProbeContext<'a>,
) -> Result<AttributeReader<'a>, InspectError> {
    let name = entry.target();
    check_name("package", &name)?;
    let manager = Manager::find(context.probes.runner)?;
    let command = Command {
        timeout: Some(context.limit(entry, LIMIT)),
        ..manager.query(&name)
    };
    let output = context.probes.runner.run(&command)?;
    // Both managers fail for an unknown package.
    let versions = if output.is_success() {
        manager.versions(&output.stdout_text())
    } else {
        Vec::new()
    };
    Ok(Box::new(move |attribute| match attribute {
        "installed" => Ok((!versions.is_empty()).into()),
        "versions" if versions.is_empty() => Err(InspectError::NoVersion),
        "versions" => Ok(versions
            .iter()
            .map(|text| Value::from(text.as_str()))
            .collect()),
        other => not_implemented(other),
    }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manager {
    Dpkg,
    Rpm,
}

impl Manager {
    /// Returns the package manager of this host. If both are installed, the distribution decides.
    fn find(runner: &dyn Runner) -> Result<Self, InspectError> {
        let has = |program| runner.locate(program).is_some();
        match (has("dpkg-query"), has("rpm")) {
            (true, true) if is_red_hat() => Ok(Self::Rpm),
            (true, _) => Ok(Self::Dpkg),
            (false, true) => Ok(Self::Rpm),
            (false, false) => Err(InspectError::NoPackageManager),
        }
    }

    fn query(self, name: &str) -> Command<'static> {
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
