//! dnf provider: rpm packages, queried with rpm and changed with dnf 4 or 5.
//!
//! A version is `version-release`; the epoch is compared only if the wanted version has one. Several
//! versions of a package, such as kernels, can be installed at once.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use super::super::Host;
use super::versions::{VersionError, rpm};
use super::{
    ErrorOutput, Instance, PackageError, PackageProvider, Target, VersionSpec, names_of,
    run_complete,
};
use crate::model::Value;
use crate::model::resource::Package;
use crate::model::state::PackageMetadata;
use crate::system::{Command, Output};

const FORMAT: &str = r"%{NAME} %|EPOCH?{%{EPOCH}}:{0}| %{VERSION} %{RELEASE} %{ARCH}\n";

/// The maximum output of a package list.
const MAX_LIST_BYTES: usize = 64 * 1024 * 1024;

/// The same fields in dnf's own query format.
const QUERY_FORMAT: &str = r"%{name} %{epoch} %{version} %{release} %{arch}\n";

pub(super) struct Dnf<'a> {
    pub package: &'a Package,
    pub host: Host<'a>,
}

impl Dnf<'_> {
    fn run(&self, program: &str, args: &[&str]) -> Result<Output, PackageError> {
        let command = Command {
            max_output: MAX_LIST_BYTES,
            ..Command::new(program, args.iter().copied())
        };
        run_complete(&command, self.host)
    }

    /// Runs dnf. Options follow the command, as dnf 5 expects.
    fn dnf(
        &self,
        args: &[&str],
        failed: impl FnOnce(i32, ErrorOutput) -> PackageError,
    ) -> Result<Output, PackageError> {
        let options = self.options()?;
        let mut words: Vec<&str> = Vec::with_capacity(args.len() + options.len());
        let (before, after) = match args.iter().position(|word| !word.starts_with('-')) {
            Some(command) => args.split_at(command + 1),
            None => (args, [].as_slice()),
        };
        words.extend(before);
        words.extend(options.iter().map(String::as_str));
        words.extend(after);
        let output = self.run("dnf", &words)?;
        if output.is_success() {
            return Ok(output);
        }
        Err(failed(output.code, ErrorOutput::of_dnf(&output)))
    }

    /// Returns the options for dnf. `enablerepo=` and `disablerepo=` are also accepted without hyphens, as in
    /// CFEngine's modules; dnf would take anything else as a package name.
    fn options(&self) -> Result<Vec<String>, PackageError> {
        let option = |text: &String| match text.split_once('=') {
            _ if text.starts_with('-') => Ok(text.clone()),
            Some(("enablerepo" | "disablerepo", _)) => Ok(format!("--{text}")),
            _ => Err(PackageError::Option(text.clone())),
        };
        self.package.options.iter().map(option).collect()
    }

    fn parse(&self, output: &Output, package: &str) -> Result<Vec<Instance>, PackageError> {
        let text = output.stdout_text();
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let parsed: Option<Vec<Instance>> = lines.map(parse_line).collect();
        match parsed {
            Some(instances) if !instances.is_empty() || package.is_empty() => Ok(instances),
            _ => Err(PackageError::Parse {
                command: "rpm -q",
                package: package.into(),
            }),
        }
    }
}

/// Reports whether an rpm query failed; the exit code alone is the same for an unknown package.
fn is_query_failure(output: &Output) -> bool {
    !output.is_success()
        && output
            .stderr_text()
            .lines()
            .any(|line| line.starts_with("error:"))
}

fn parse_line(line: &str) -> Option<Instance> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [name, epoch, version, release, arch] = fields.as_slice() else {
        return None;
    };
    Some(Instance {
        name: (*name).into(),
        epoch: (*epoch).into(),
        version: format!("{version}-{release}"),
        arch: (*arch).into(),
        partial_status: None,
    })
}

/// Returns the package argument for dnf, with version and architecture if given.
fn package_arg(target: &Target<'_>) -> String {
    let version = match &target.version {
        VersionSpec::Any | VersionSpec::Latest => String::new(),
        VersionSpec::Exactly(version) => format!("-{version}"),
    };
    match target.arch {
        "" | "noarch" => format!("{}{version}", target.package),
        arch => format!("{}{version}.{arch}", target.package),
    }
}

impl PackageProvider for Dnf<'_> {
    fn find(&self, package: &str) -> Result<Vec<Instance>, PackageError> {
        let output = self.run("rpm", &["-q", package, "--queryformat", FORMAT])?;
        if is_query_failure(&output) {
            return Err(PackageError::Query {
                program: "rpm",
                code: output.code,
                error_output: ErrorOutput::of(&output),
            });
        }
        if output.is_success() {
            return self.parse(&output, package);
        }
        Ok(Vec::new())
    }

    fn list(&self) -> Result<Vec<Instance>, PackageError> {
        let output = self.run("rpm", &["-qa", "--queryformat", FORMAT])?;
        if output.is_success() && !is_query_failure(&output) {
            return self.parse(&output, "");
        }
        Err(PackageError::Query {
            program: "rpm",
            code: output.code,
            error_output: ErrorOutput::of(&output),
        })
    }

    /// rpm accepts name, name-version and name-version-release, each optionally with .arch.
    fn matches_name(&self, instance: &Instance, package: &str) -> bool {
        let Some(rest) = package.strip_prefix(&instance.name) else {
            return false;
        };
        let rest = match rest.strip_suffix(&instance.arch) {
            Some(rest) => rest.strip_suffix('.').unwrap_or(rest),
            None => rest,
        };
        let version = rpm::Evr::parse(&instance.version).version;
        match rest.strip_prefix('-') {
            Some(rest) => rest == instance.version || rest == version,
            None => rest.is_empty(),
        }
    }

    fn extended(&self, instance: &Instance) -> BTreeMap<String, Value> {
        let release = rpm::Evr::parse(&instance.version).release;
        BTreeMap::from([
            ("epoch".into(), instance.epoch.as_str().into()),
            ("release".into(), release.unwrap_or_default().into()),
        ])
    }

    fn compare(&self, installed: &PackageMetadata, wanted: &str) -> Result<Ordering, VersionError> {
        Ok(rpm::matches(&self.full_version(installed), wanted))
    }

    fn full_version(&self, installed: &PackageMetadata) -> String {
        match super::extended(installed, "epoch") {
            Some(epoch) => format!("{epoch}:{}", installed.version),
            None => installed.version.clone(),
        }
    }

    fn open_file(&self, path: &str) -> Result<Instance, PackageError> {
        let output = self.run("rpm", &["-qp", path, "--queryformat", FORMAT])?;
        let text = output.stdout_text();
        match text.lines().find_map(parse_line) {
            Some(found) if output.is_success() => Ok(found),
            _ => Err(PackageError::NotAPackage {
                path: path.into(),
                error_output: ErrorOutput::of(&output),
            }),
        }
    }

    /// Queries the cache only, or the repositories too if there is no cache.
    fn updates(&self) -> Result<Vec<Instance>, PackageError> {
        let query = |options: &[&str]| {
            let words = ["repoquery", "-q", "--upgrades", "--latest-limit=1"];
            let words = [&words, options, &["--queryformat", QUERY_FORMAT]].concat();
            self.dnf(&words, |code, error_output| PackageError::Query {
                program: "dnf",
                code,
                error_output,
            })
        };
        let output = query(&["--cacheonly"]).or_else(|_| query(&[]))?;
        let text = output.stdout_text();
        Ok(text.lines().filter_map(parse_line).collect())
    }

    fn update_index(&self, max_age: Option<Duration>) -> Result<(), PackageError> {
        let expire = max_age.map(|age| format!("--setopt=metadata_expire={}", age.as_secs()));
        let how = expire.as_deref().unwrap_or("--refresh");
        let failed = |code, error_output| PackageError::Index {
            program: "dnf",
            code,
            error_output,
        };
        self.dnf(&["makecache", how], failed).map(drop)
    }

    fn install(&self, targets: &[Target<'_>]) -> Result<Vec<String>, PackageError> {
        let argument = |target: &Target<'_>| match target.file {
            Some(path) => path.to_owned(),
            None => package_arg(target),
        };
        let packages: Vec<String> = targets.iter().map(argument).collect();
        let mut words = vec!["install", "-y"];
        words.extend(packages.iter().map(String::as_str));
        if targets
            .iter()
            .any(|target| target.version == VersionSpec::Latest)
        {
            // Without this option, dnf may accept the installed version.
            words.insert(0, "--setopt=best=True");
        }
        let failed = |code, error_output| PackageError::DnfInstall {
            package: names_of(targets),
            code,
            error_output,
        };
        self.dnf(&words, failed).map(|_| Vec::new())
    }

    fn downgrade(&self, target: &Target<'_>) -> Result<Vec<String>, PackageError> {
        let by_name = package_arg(target);
        let argument = target.file.unwrap_or(&by_name);
        self.dnf(&["downgrade", "-y", argument], |code, error_output| {
            PackageError::Dnf {
                verb: "Downgrade",
                package: target.package.into(),
                code,
                error_output,
            }
        })
        .map(|_| Vec::new())
    }

    fn uninstall(&self, targets: &[Target<'_>]) -> Result<Vec<String>, PackageError> {
        let packages: Vec<String> = targets.iter().map(package_arg).collect();
        let mut words = vec!["remove", "-y"];
        words.extend(packages.iter().map(String::as_str));
        let failed = |code, error_output| PackageError::Dnf {
            verb: "Uninstall",
            package: names_of(targets),
            code,
            error_output,
        };
        self.dnf(&words, failed).map(|_| Vec::new())
    }
}
