//! Provider selection for packages: the provider that is named, else the machine's package manager.
//!
//! If both apt and dnf are installed, the distribution family decides, with apt as default. CFEngine
//! modules are only used if named.

use std::path::Path;

use super::super::{Host, ProviderError};
use super::PackageProvider;
use super::apt::Apt;
use super::cfengine::Module;
use super::dnf::Dnf;
use crate::model::resource::Package;
use crate::system::{Runner, files};

/// The directories of CFEngine package modules: upstream's, then Debian's.
const MODULE_DIRECTORIES: [&str; 4] = [
    "/var/cfengine/modules/packages",
    "/var/cfengine/modules/packages/vendored",
    "/var/lib/cfengine3/modules/packages",
    "/var/lib/cfengine3/modules/packages/vendored",
];

/// The os-release files; the first that exists is used.
const OS_RELEASE: [&str; 2] = ["/etc/os-release", "/usr/lib/os-release"];

const MAX_OS_RELEASE_BYTES: u64 = 64 * 1024;

/// A package provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Provider {
    Apt,
    Dnf,
    Cfengine {
        /// The name in events: `cfengine/` and the module.
        name: String,
        /// The path of the module.
        program: String,
    },
}

impl Provider {
    /// Returns the name in events.
    pub fn name(&self) -> &str {
        match self {
            Self::Apt => "apt",
            Self::Dnf => "dnf",
            Self::Cfengine { name, .. } => name,
        }
    }

    /// Returns the provider of that name, or the best one if the name is empty. The result is kept until
    /// something changes.
    pub(in crate::resource) fn select(wanted: &str, host: Host<'_>) -> Result<Self, ProviderError> {
        host.packages
            .provider(wanted, || Self::look_up(wanted, host))
    }

    fn look_up(wanted: &str, host: Host<'_>) -> Result<Self, ProviderError> {
        let if_usable = |provider: Self| {
            if provider.is_usable(host.runner) {
                Ok(provider)
            } else {
                Err(ProviderError::NotManageable)
            }
        };
        match wanted {
            "" => best(host),
            "apt" => if_usable(Self::Apt),
            "dnf" => if_usable(Self::Dnf),
            "cfengine" => {
                let chosen = host.packages.default_module();
                module(chosen.unwrap_or_else(|| default_module()), host)
            }
            _ => match wanted.strip_prefix("cfengine/") {
                Some(name) => module(name, host),
                None => Err(ProviderError::NotFound),
            },
        }
    }

    fn is_usable(&self, runner: &dyn Runner) -> bool {
        let programs: &[&str] = match self {
            Self::Apt => &["apt-get", "apt-cache", "apt-mark", "dpkg-query"],
            Self::Dnf => &["dnf", "rpm"],
            Self::Cfengine { program, .. } => &[program],
        };
        programs
            .iter()
            .all(|program| runner.locate(program).is_some())
    }

    /// Returns the package manager for a package's options.
    pub(super) fn manager<'a>(
        &'a self,
        package: &'a Package,
        host: Host<'a>,
    ) -> Box<dyn PackageProvider + 'a> {
        match self {
            Self::Apt => Box::new(Apt { package, host }),
            Self::Dnf => Box::new(Dnf { package, host }),
            Self::Cfengine { program, .. } => Box::new(Module {
                program,
                package,
                host,
            }),
        }
    }
}

fn best(host: Host<'_>) -> Result<Provider, ProviderError> {
    let usable = |provider: &Provider| provider.is_usable(host.runner);
    match (usable(&Provider::Apt), usable(&Provider::Dnf)) {
        (false, false) => Err(ProviderError::NoneSuitable),
        (true, false) => Ok(Provider::Apt),
        (false, true) => Ok(Provider::Dnf),
        (true, true) => Ok(match family(&os_release()) {
            Some(Family::RedHat) => Provider::Dnf,
            Some(Family::Debian | Family::Suse) | None => Provider::Apt,
        }),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Debian,
    RedHat,
    Suse,
}

/// Returns the os-release text; empty if there is none.
fn os_release() -> String {
    let read = |path: &&str| files::read_to_string(Path::new(path), MAX_OS_RELEASE_BYTES).ok();
    OS_RELEASE.iter().find_map(read).unwrap_or_default()
}

/// Returns the family of a distribution: by `ID`, else by the first known `ID_LIKE`.
fn family(os_release: &str) -> Option<Family> {
    let value = |key: &str| {
        let line = os_release.lines().find_map(|line| {
            let (name, value) = line.split_once('=')?;
            (name.trim() == key).then_some(value)
        });
        line.unwrap_or_default().trim().trim_matches(['"', '\''])
    };
    let mut words = value("ID")
        .split_whitespace()
        .chain(value("ID_LIKE").split_whitespace());
    words.find_map(|word| match word {
        "debian" | "ubuntu" => Some(Family::Debian),
        "fedora" | "rhel" | "centos" | "rocky" | "almalinux" | "amzn" | "ol" => {
            Some(Family::RedHat)
        }
        "suse" | "opensuse" | "sles" => Some(Family::Suse),
        _ => None,
    })
}

/// Returns the module that CFEngine's own policies use on this distribution.
fn default_module() -> &'static str {
    match family(&os_release()) {
        Some(Family::Debian) | None => "apt_get",
        Some(Family::RedHat) => "yum",
        Some(Family::Suse) => "zypper",
    }
}

/// Finds a module by name in CFEngine's directories, or by path.
fn module(module: &str, host: Host<'_>) -> Result<Provider, ProviderError> {
    let name = format!("cfengine/{module}");
    let found = |program: String| host.runner.locate(&program).map(|_| program);
    let program = if module.starts_with('/') {
        found(module.into())
    } else if is_module_name(module) {
        MODULE_DIRECTORIES
            .iter()
            .find_map(|directory| found(format!("{directory}/{module}")))
    } else {
        return Err(ProviderError::NotFound);
    };
    let program = program.ok_or(ProviderError::NotManageable)?;
    Ok(Provider::Cfengine { name, program })
}

/// Reports whether a name is a plain file name.
fn is_module_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    !name.is_empty() && !name.starts_with(['.', '-']) && name.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_takes_precedence_over_id_like() {
        for (text, expected) in [
            ("ID=debian\n", Some(Family::Debian)),
            ("ID=ubuntu\nID_LIKE=debian\n", Some(Family::Debian)),
            (
                "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n",
                Some(Family::RedHat),
            ),
            ("ID=mint\nID_LIKE=\"ubuntu debian\"\n", Some(Family::Debian)),
            ("ID=fedora\nID_LIKE=debian\n", Some(Family::RedHat)),
            (
                "ID='opensuse-leap'\nID_LIKE='suse opensuse'\n",
                Some(Family::Suse),
            ),
            ("ID=arch\n", None),
            ("", None),
        ] {
            assert_eq!(family(text), expected, "{text}");
        }
    }

    #[test]
    fn a_module_name_stays_in_its_directory() {
        for name in ["apt_get", "dnf", "my-module.py"] {
            assert!(is_module_name(name), "{name}");
        }
        for name in ["", ".", "..", "../x", "a/b", "-x", "a b", "a;b"] {
            assert!(!is_module_name(name), "{name}");
        }
    }
}
