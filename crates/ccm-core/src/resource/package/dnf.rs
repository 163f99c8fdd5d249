//! dnf: rpm packages, asked for with rpm and changed with dnf, 4 and 5 alike.
//!
//! A version is `version-release`; its epoch counts when it was asked for. Several versions of a
//! package can be installed at once, as of a kernel.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use super::super::Host;
use super::versions::{VersionError, rpm};
use super::{Complaint, Instance, PackageError, PackageProvider, Target, Wanted, names_of};
use crate::model::Value;
use crate::model::resource::Package;
use crate::model::state::PackageMetadata;
use crate::system::{Command, Output};

const FORMAT: &str = r"%{NAME} %|EPOCH?{%{EPOCH}}:{0}| %{VERSION} %{RELEASE} %{ARCH}\n";

/// How much a list of all packages may print.
const MAX_LIST_BYTES: usize = 64 * 1024 * 1024;

/// The same, as dnf's own queries have it.
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
        let output = self.host.runner.run(&command)?;
        if output.stdout_truncated {
            return Err(PackageError::TooMuch {
                program: program.into(),
                limit: MAX_LIST_BYTES,
            });
        }
        Ok(output)
    }

    /// Runs dnf. Options go behind the command, where dnf 5 wants most of them.
    fn dnf(
        &self,
        args: &[&str],
        failed: impl FnOnce(i32, Complaint) -> PackageError,
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
        Err(failed(output.code, Complaint::of_dnf(&output)))
    }

    /// Returns the options as dnf knows them; CFEngine's own modules also take repositories
    /// without the hyphens. Anything else would be a package to dnf.
    fn options(&self) -> Result<Vec<String>, PackageError> {
        let option = |text: &String| match text.split_once('=') {
            _ if text.starts_with('-') => Ok(text.clone()),
            Some(("enablerepo" | "disablerepo", _)) => Ok(format!("--{text}")),
            _ => Err(PackageError::Option(text.clone())),
        };
        self.package.options.iter().map(option).collect()
    }

    fn read(&self, output: &Output, package: &str) -> Result<Vec<Instance>, PackageError> {
        let text = output.stdout_text();
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let read: Option<Vec<Instance>> = lines.map(read_line).collect();
        match read {
            Some(instances) if !instances.is_empty() || package.is_empty() => Ok(instances),
            _ => Err(PackageError::Parse {
                command: "rpm -q",
                package: package.into(),
            }),
        }
    }
}

/// Reports whether rpm could not even look: it ends the same way for a package it does not know.
fn is_broken(output: &Output) -> bool {
    !output.is_success()
        && output
            .stderr_text()
            .lines()
            .any(|line| line.starts_with("error:"))
}

fn read_line(line: &str) -> Option<Instance> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [name, epoch, version, release, arch] = fields.as_slice() else {
        return None;
    };
    Some(Instance {
        name: (*name).into(),
        epoch: (*epoch).into(),
        version: format!("{version}-{release}"),
        arch: (*arch).into(),
        leftover: None,
    })
}

/// Returns how dnf spells a package of one architecture and version.
fn spell(target: &Target<'_>) -> String {
    let version = match &target.version {
        Wanted::Any | Wanted::Latest => String::new(),
        Wanted::Exactly(version) => format!("-{version}"),
    };
    match target.arch {
        "" | "noarch" => format!("{}{version}", target.package),
        arch => format!("{}{version}.{arch}", target.package),
    }
}

impl PackageProvider for Dnf<'_> {
    fn find(&self, package: &str) -> Result<Vec<Instance>, PackageError> {
        let output = self.run("rpm", &["-q", package, "--queryformat", FORMAT])?;
        if is_broken(&output) {
            return Err(PackageError::Query {
                program: "rpm",
                code: output.code,
                complaint: Complaint::of(&output),
            });
        }
        if output.is_success() {
            return self.read(&output, package);
        }
        Ok(Vec::new())
    }

    fn list(&self) -> Result<Vec<Instance>, PackageError> {
        let output = self.run("rpm", &["-qa", "--queryformat", FORMAT])?;
        if output.is_success() && !is_broken(&output) {
            return self.read(&output, "");
        }
        Err(PackageError::Query {
            program: "rpm",
            code: output.code,
            complaint: Complaint::of(&output),
        })
    }

    /// rpm knows a package as name, name-version and name-version-release, each also with .arch.
    fn answers_to(&self, instance: &Instance, package: &str) -> bool {
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
        match text.lines().find_map(read_line) {
            Some(found) if output.is_success() => Ok(found),
            _ => Err(PackageError::NotAPackage {
                path: path.into(),
                complaint: Complaint::of(&output),
            }),
        }
    }

    /// Asks the cache alone, or the repositories too if there is no cache yet.
    fn updates(&self) -> Result<Vec<Instance>, PackageError> {
        let query = |place: &[&str]| {
            let words = ["repoquery", "-q", "--upgrades", "--latest-limit=1"];
            let words = [&words, place, &["--queryformat", QUERY_FORMAT]].concat();
            self.dnf(&words, |code, complaint| PackageError::Query {
                program: "dnf",
                code,
                complaint,
            })
        };
        let output = query(&["--cacheonly"]).or_else(|_| query(&[]))?;
        let text = output.stdout_text();
        Ok(text.lines().filter_map(read_line).collect())
    }

    fn update_index(&self, max_age: Option<Duration>) -> Result<(), PackageError> {
        let expire = max_age.map(|age| format!("--setopt=metadata_expire={}", age.as_secs()));
        let how = expire.as_deref().unwrap_or("--refresh");
        let failed = |code, complaint| PackageError::Index {
            program: "dnf",
            code,
            complaint,
        };
        self.dnf(&["makecache", how], failed).map(drop)
    }

    fn install(&self, targets: &[Target<'_>]) -> Result<Vec<String>, PackageError> {
        let what = |target: &Target<'_>| match target.file {
            Some(path) => path.to_owned(),
            None => spell(target),
        };
        let what: Vec<String> = targets.iter().map(what).collect();
        let mut words = vec!["install", "-y"];
        words.extend(what.iter().map(String::as_str));
        if targets
            .iter()
            .any(|target| target.version == Wanted::Latest)
        {
            // Where the host does not say so, an installed package is good enough for dnf.
            words.insert(0, "--setopt=best=True");
        }
        let failed = |code, complaint| PackageError::DnfInstall {
            package: names_of(targets),
            code,
            complaint,
        };
        self.dnf(&words, failed).map(|_| Vec::new())
    }

    fn downgrade(&self, target: &Target<'_>) -> Result<Vec<String>, PackageError> {
        let named = spell(target);
        let what = target.file.unwrap_or(&named);
        self.dnf(&["downgrade", "-y", what], |code, complaint| {
            PackageError::Dnf {
                verb: "Downgrade",
                package: target.package.into(),
                code,
                complaint,
            }
        })
        .map(|_| Vec::new())
    }

    fn uninstall(&self, targets: &[Target<'_>]) -> Result<Vec<String>, PackageError> {
        let what: Vec<String> = targets.iter().map(spell).collect();
        let mut words = vec!["remove", "-y"];
        words.extend(what.iter().map(String::as_str));
        let failed = |code, complaint| PackageError::Dnf {
            verb: "Uninstall",
            package: names_of(targets),
            code,
            complaint,
        };
        self.dnf(&words, failed).map(|_| Vec::new())
    }
}
