//! Packages of rpm made by a test, and repositories of them in a directory. Nothing is installed
//! here: dnf is configured to use the directory.

use std::path::Path;

use super::tool;

/// What dnf reads to know a repository in `/srv/rpm`.
pub const REPOSITORY: &str =
    "[local]\nname=local\nbaseurl=file:///srv/rpm\ngpgcheck=0\nenabled=1\n";

/// Sections of a package that provides the shell of package scripts: the rpm database of a Debian
/// system is empty.
pub const SHELL: &str = "%package -n shell\nSummary: shell\nProvides: /bin/sh\n\
                         %description -n shell\nshell\n%files -n shell\n";

/// Builds a package into a repository; `version` is `[epoch:]version-release`, and the sections are
/// added to its spec.
pub fn build(repository: &Path, name: &str, version: &str, sections: &str) {
    let (epoch, rest) = version.split_once(':').unwrap_or(("0", version));
    let (version, release) = rest.split_once('-').unwrap();
    let work = tempfile::tempdir().unwrap();
    let spec = work.path().join("package.spec");
    let text = format!(
        "Name: {name}\nEpoch: {epoch}\nVersion: {version}\nRelease: {release}\n\
         Summary: made for a test\nLicense: none\nBuildArch: noarch\n\
         %description\nmade for a test\n{sections}\n%files\n"
    );
    // No epoch is not the same as an epoch of 0 in a spec, and the usual case.
    std::fs::write(&spec, text.replace("Epoch: 0\n", "")).unwrap();
    let top = format!("_topdir {}", work.path().join("rpmbuild").display());
    let to = format!("_rpmdir {}", repository.display());
    let defines = ["-bb", "--define", &top, "--define", &to].map(Path::new);
    let args: Vec<&Path> = defines.into_iter().chain([spec.as_path()]).collect();
    tool("rpmbuild", &args);
}

/// Writes the list of what is in a repository.
pub fn index(repository: &Path) {
    tool("createrepo_c", &["--quiet".as_ref(), repository]);
}
