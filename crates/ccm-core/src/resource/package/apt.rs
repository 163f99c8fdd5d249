//! apt provider: Debian packages, queried with dpkg-query and changed with apt-get.
//!
//! Only packages with dpkg status `installed` count as installed; others are repaired by installing them
//! again. Pattern matching of package names is disabled and apt-get waits for the dpkg lock. Both are
//! set in a temporary `APT_CONFIG` file, so that the command lines equal upstream's.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::super::Host;
use super::versions::{VersionError, debian};
use super::{
    ErrorOutput, Instance, PackageError, PackageProvider, Target, VersionSpec, names_of,
    run_complete,
};
use crate::model::Value;
use crate::model::resource::Package;
use crate::model::state::PackageMetadata;
use crate::system::files::{self, Durability, PrivateDir};
use crate::system::{Command, Output};

const FORMAT: &str = r"-f=${Package} ${Version} ${Architecture} ${db:Status-Status}\n";

/// The maximum output of a package list.
const MAX_LIST_BYTES: usize = 64 * 1024 * 1024;

/// A directory that every index update modifies, even without new packages.
const INDEX: &str = "/var/lib/apt/lists/partial";

pub(super) struct Apt<'a> {
    pub package: &'a Package,
    pub host: Host<'a>,
}

impl Apt<'_> {
    fn run<'w>(
        &self,
        program: &str,
        args: impl IntoIterator<Item = &'w str>,
    ) -> Result<Output, PackageError> {
        self.run_with(program, args, None)
    }

    fn run_with<'w>(
        &self,
        program: &str,
        args: impl IntoIterator<Item = &'w str>,
        settings: Option<&Path>,
    ) -> Result<Output, PackageError> {
        let settings = settings.map(|file| ("APT_CONFIG", file.to_string_lossy()));
        let env = [
            ("DEBIAN_FRONTEND", "noninteractive"),
            ("APT_LISTBUGS_FRONTEND", "none"),
            ("APT_LISTCHANGES_FRONTEND", "none"),
        ]
        .map(|(name, value)| (name, value.into()));
        let command = Command {
            env: env
                .into_iter()
                .chain(settings)
                .map(|(name, value)| (name.to_owned(), value.into_owned()))
                .collect(),
            max_output: MAX_LIST_BYTES,
            is_query: program == "dpkg-query",
            ..Command::new(program, args)
        };
        run_complete(&command, self.host)
    }

    /// Runs apt-get with our settings. The options of the resource precede upstream's arguments.
    fn apt_get(&self, words: &[&str]) -> Result<Output, PackageError> {
        let timeout = self.package.lock_timeout()?.as_secs();
        let text =
            format!("DPkg::Lock::Timeout \"{timeout}\";\nAPT::Cmd::Pattern-Only \"true\";\n");
        let directory = PrivateDir::create(&std::env::temp_dir(), "ccm-apt-")?;
        let settings = directory.path().join("apt.conf");
        files::write_private(&settings, text.as_bytes(), Durability::Cached)?;
        let options = self.package.options.iter().map(String::as_str);
        let words = options.chain(words.iter().copied());
        self.run_with("apt-get", words, Some(&settings))
    }

    /// Returns the version that apt would install.
    fn candidate(&self, package: &str) -> Result<String, PackageError> {
        let output = self.run("apt-cache", ["policy", package])?;
        let text = output.stdout_text();
        let candidate = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("Candidate:"))
            .map(str::trim);
        match candidate {
            None => Err(PackageError::NoCandidateLine {
                package: package.into(),
                error_output: ErrorOutput::of(&output),
            }),
            Some("(none)" | "") => Err(PackageError::NoCandidate(package.into())),
            Some(version) => Ok(version.into()),
        }
    }

    fn query(&self, package: Option<&str>) -> Result<Vec<Instance>, PackageError> {
        let output = self.run("dpkg-query", ["-W", FORMAT].into_iter().chain(package))?;
        // Exit code 1 means an unknown package; higher codes are failures.
        if output.code > 1 || (package.is_none() && !output.is_success()) {
            return Err(PackageError::Query {
                program: "dpkg-query",
                code: output.code,
                error_output: ErrorOutput::of(&output),
            });
        }
        Ok(output
            .stdout_text()
            .lines()
            .filter_map(parse_line)
            .collect())
    }
}

/// Parses a line of dpkg-query; returns nothing for other lines.
fn parse_line(line: &str) -> Option<Instance> {
    let mut fields = line.trim_end().split(' ');
    let mut next = || fields.next().map(str::to_owned);
    let instance = Instance {
        name: next()?,
        epoch: String::new(),
        version: next()?,
        arch: next()?,
        partial_status: next().map(Some)?.filter(|status| status != "installed"),
    };
    fields.next().is_none().then_some(instance)
}

/// Parses the upgrade of an installed package from a line of `apt-get -s`:
/// `Inst name[:arch] [old] (new origin… [arch]) …`.
fn parse_upgrade(line: &str) -> Option<Instance> {
    let (name, rest) = line.strip_prefix("Inst ")?.split_once(' ')?;
    // A newly installed package has no old version in brackets.
    let (_, rest) = rest.strip_prefix('[')?.split_once("] (")?;
    let (version, rest) = rest.split_once(' ')?;
    let (_, arch) = rest.split_once(')')?.0.rsplit_once('[')?;
    let name = name.split_once(':').map_or(name, |(name, _)| name);
    Some(Instance {
        name: name.into(),
        version: version.into(),
        arch: arch.trim_end_matches(']').into(),
        ..Instance::default()
    })
}

/// Returns the package argument for apt, with the architecture if it has one.
fn package_arg(target: &Target<'_>) -> String {
    match target.arch {
        "" | "all" => target.package.into(),
        arch => format!("{}:{arch}", target.package),
    }
}

impl PackageProvider for Apt<'_> {
    fn find(&self, package: &str) -> Result<Vec<Instance>, PackageError> {
        self.query(Some(package))
    }

    fn list(&self) -> Result<Vec<Instance>, PackageError> {
        self.query(None)
    }

    fn matches_name(&self, instance: &Instance, package: &str) -> bool {
        match package.strip_prefix(&instance.name) {
            Some("") => true,
            Some(rest) => rest.strip_prefix(':') == Some(&instance.arch),
            None => false,
        }
    }

    fn extended(&self, _instance: &Instance) -> BTreeMap<String, Value> {
        self.extended_absent(Some("installed"))
    }

    fn extended_absent(&self, status: Option<&str>) -> BTreeMap<String, Value> {
        let status = status.unwrap_or("unknown");
        BTreeMap::from([("status".into(), status.into())])
    }

    fn compare(&self, installed: &PackageMetadata, wanted: &str) -> Result<Ordering, VersionError> {
        debian::compare(&installed.version, wanted)
    }

    fn open_file(&self, path: &str) -> Result<Instance, PackageError> {
        let fields = ["Package", "Version", "Architecture"];
        let output = self.run("dpkg-deb", ["-f", path].into_iter().chain(fields))?;
        let text = output.stdout_text();
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(": "));
            lines.find_map(|(key, value)| (key == name).then(|| value.trim().to_owned()))
        };
        match fields.map(field) {
            [Some(name), Some(version), arch] if output.is_success() => Ok(Instance {
                name,
                version,
                arch: arch.unwrap_or_default(),
                ..Instance::default()
            }),
            _ => Err(PackageError::NotAPackage {
                path: path.into(),
                error_output: ErrorOutput::of(&output),
            }),
        }
    }

    /// Leaves out held packages, and upgrades that would remove packages.
    fn updates(&self) -> Result<Vec<Instance>, PackageError> {
        let output = self.apt_get(&["-s", "--with-new-pkgs", "upgrade"])?;
        if !output.is_success() {
            return Err(PackageError::Query {
                program: "apt-get",
                code: output.code,
                error_output: ErrorOutput::of_apt(&output),
            });
        }
        let text = output.stdout_text();
        Ok(text.lines().filter_map(parse_upgrade).collect())
    }

    fn update_index(&self, max_age: Option<Duration>) -> Result<(), PackageError> {
        if let Some(max_age) = max_age
            && let Some(found) = files::inspect(Path::new(INDEX), true)?
        {
            let age = self.host.clock.now().signed_duration_since(found.mtime);
            if age.to_std().unwrap_or_default() <= max_age {
                return Ok(());
            }
        }
        // Without this option, an unreachable repository is only a warning.
        let words = ["update", "-q", "-o", "APT::Update::Error-Mode=any"];
        let output = self.apt_get(&words)?;
        if !output.is_success() {
            return Err(PackageError::Index {
                program: "apt-get",
                code: output.code,
                error_output: ErrorOutput::of_apt(&output),
            });
        }
        Ok(())
    }

    fn install(&self, targets: &[Target<'_>]) -> Result<Vec<String>, PackageError> {
        let mut words = vec![
            "install",
            "-y",
            "-q",
            "-o",
            "DPkg::Options::=--force-confold",
        ];
        let is_exact = |target: &Target<'_>| matches!(target.version, VersionSpec::Exactly(_));
        if targets.iter().any(is_exact) {
            words.push("--allow-downgrades");
        }
        let argument = |target: &Target<'_>| -> Result<String, PackageError> {
            let package = package_arg(target);
            Ok(match (target.file, &target.version) {
                (Some(path), _) => path.to_owned(),
                (None, VersionSpec::Any) => package,
                (None, VersionSpec::Latest) => format!("{package}={}", self.candidate(&package)?),
                (None, VersionSpec::Exactly(version)) => format!("{package}={version}"),
            })
        };
        let packages: Vec<String> = targets.iter().map(argument).collect::<Result<_, _>>()?;
        words.extend(packages.iter().map(String::as_str));
        let output = self.apt_get(&words)?;
        if !output.is_success() {
            return Err(PackageError::AptInstall {
                package: names_of(targets),
                code: output.code,
                error_output: ErrorOutput::of_apt(&output),
            });
        }
        Ok(Vec::new())
    }

    fn uninstall(&self, targets: &[Target<'_>]) -> Result<Vec<String>, PackageError> {
        let packages: Vec<String> = targets.iter().map(package_arg).collect();
        let mut words = vec!["-q", "-y", "remove"];
        words.extend(packages.iter().map(String::as_str));
        let output = self.apt_get(&words).map_err(|cause| {
            let package = names_of(targets);
            PackageError::AptNotStarted {
                package,
                cause: cause.into(),
            }
        })?;
        if !output.is_success() {
            return Err(PackageError::AptUninstall {
                package: names_of(targets),
                error_output: ErrorOutput::of_apt(&output),
            });
        }
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_upgrade_lines_of_a_simulation_are_parsed() {
        for (line, expected) in [
            (
                "Inst demo [1.0-1] (1.1-1 localhost [all])",
                "demo 1.1-1 all",
            ),
            (
                "Inst multi:i386 [1.0] (2.0 localhost [i386]) [multi:i386 on multi:amd64] [multi:amd64 ]",
                "multi 2.0 i386",
            ),
            (
                "Inst libc-dev [2.6-1] (2.6-2 Debian:6.0.10/oldstable, Debian-Security:6.0/old [amd64])",
                "libc-dev 2.6-2 amd64",
            ),
            (
                "Inst agent [1~rc1] (1-0 release/4.1.0-2 jessie:jessie [amd64]) []",
                "agent 1-0 amd64",
            ),
        ] {
            let found = parse_upgrade(line).unwrap();
            assert_eq!(
                format!("{} {} {}", found.name, found.version, found.arch),
                expected
            );
        }
        for line in [
            "Inst new (1.0 localhost [amd64])",
            "Conf demo (1.1-1 localhost [all])",
            "Inst demo",
            "Inst demo [1",
            "Inst demo [1] (2",
            "Inst demo [1] (2 x",
            "",
        ] {
            assert_eq!(parse_upgrade(line), None, "{line}");
        }
    }
}
