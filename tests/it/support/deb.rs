//! Debian packages made by a test, and repositories of them in a directory. Nothing is installed
//! here: apt is configured to use the directory.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::tool;

/// What apt reads to know a repository in `/srv/apt` and no other.
pub const SOURCES: &str = "deb [trusted=yes] file:/srv/apt ./\n";

/// A package to be built.
pub struct Deb<'a> {
    pub name: &'a str,
    pub version: &'a str,
    pub arch: &'a str,
    /// Lines that are added to its control file.
    pub control: &'a str,
    /// Paths below the package's tree, with their content. Programs and maintainer scripts can be
    /// run.
    pub files: &'a [(&'a str, &'a str)],
}

impl Deb<'_> {
    /// Builds the package into a repository.
    pub fn build(&self, repository: &Path) {
        let Self {
            name,
            version,
            arch,
            control,
            files,
        } = self;
        let tree = tempfile::tempdir().unwrap();
        // It becomes the root directory of the package.
        std::fs::set_permissions(tree.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let fields = format!(
            "Package: {name}\nVersion: {version}\nArchitecture: {arch}\n\
             Maintainer: Nobody <nobody@example.net>\nDescription: made for a test\n{control}"
        );
        for (name, text) in [("DEBIAN/control", fields.as_str())].iter().chain(*files) {
            let path = tree.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            let is_program = name.ends_with("postinst") || name.contains("bin/");
            let mode = if is_program { 0o755 } else { 0o644 };
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        }
        let file = format!("{name}_{}_{arch}.deb", version.replace(':', "%3a"));
        tool(
            "dpkg-deb",
            &[
                "--build".as_ref(),
                "--root-owner-group".as_ref(),
                tree.path(),
                &repository.join(file),
            ],
        );
    }
}

/// Writes the list of what is in a repository.
pub fn index(repository: &Path) {
    let index = Command::new("dpkg-scanpackages")
        .args(["--multiversion", "."])
        .current_dir(repository)
        .output()
        .expect("dpkg-scanpackages, from dpkg-dev (scripts/test installs it)");
    assert!(index.status.success(), "{index:?}");
    std::fs::write(repository.join("Packages"), index.stdout).unwrap();
}
