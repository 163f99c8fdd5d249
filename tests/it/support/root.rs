//! A Debian system to change packages in: a tree made once and kept, with a throw-away layer over
//! it for each test. The host's own packages are never touched.
//!
//! Every command runs in a mount namespace of its own with both layers mounted, so nothing is left
//! mounted when it ends; what it changed stays in the layer for the next command.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::deb::{self, Deb};
use super::{Applied, Outcome, rpm};

/// Counts up when the tree has to be made anew.
const TREE_VERSION: u32 = 2;

/// Mounts the layers, then becomes the command given.
const ENTER: &str = r#"
mount -t overlay overlay -o "lowerdir=$TREE,upperdir=$LAYER/upper,workdir=$LAYER/work" "$LAYER/root"
cd "$LAYER/root"
mount -t proc proc proc
mount --rbind /dev dev
if [ -n "$CCM" ]; then
    touch usr/bin/ccm
    mount --bind "$CCM" usr/bin/ccm
fi
exec chroot . "$@"
"#;

/// A system of one test.
pub struct ScratchRoot {
    layer: tempfile::TempDir,
}

impl ScratchRoot {
    pub fn new() -> Self {
        tree();
        let layer = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for name in ["upper", "work", "root"] {
            std::fs::create_dir(layer.path().join(name)).unwrap();
        }
        Self { layer }
    }

    /// Returns where a file of the system is to be written between two commands.
    pub fn path(&self, name: &str) -> PathBuf {
        let path = self
            .layer
            .path()
            .join("upper")
            .join(name.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub fn write_program(&self, name: &str, text: impl AsRef<[u8]>) {
        self.write(name, text);
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.path(name), mode).unwrap();
    }

    /// Returns a file of the system; nothing if it is not there.
    pub fn read(&self, name: &str) -> String {
        let name = name.trim_start_matches('/');
        let upper = self.layer.path().join("upper").join(name);
        std::fs::read_to_string(upper)
            .or_else(|_| std::fs::read_to_string(tree().join(name)))
            .unwrap_or_default()
    }

    /// Puts a program in place of another; the other is then called `NAME.real`.
    pub fn wrap(&self, program: &str, script: &str) {
        let real = format!("{program}.real");
        std::fs::copy(
            tree().join(program.trim_start_matches('/')),
            self.path(&real),
        )
        .unwrap();
        self.write_program(program, script);
    }

    /// Counts how often each of these programs is started; see [`ScratchRoot::counts`].
    pub fn count(&self, programs: &[&str]) {
        for program in programs {
            let path = format!("/usr/bin/{program}");
            let script = format!(
                "#!/bin/sh\nprintf '%s\\n' \"{program} $*\" >>/var/tmp/started\nexec {path}.real \"$@\"\n"
            );
            self.wrap(&path, &script);
        }
    }

    /// Returns the command lines of counted programs since the last call.
    pub fn counts(&self) -> Vec<String> {
        let started = self.read("/var/tmp/started");
        self.write("/var/tmp/started", "");
        started.lines().map(Into::into).collect()
    }

    fn enter(&self, argv: &[&str]) -> Outcome {
        self.enter_with(env!("CARGO_BIN_EXE_ccm"), argv)
    }

    /// Runs a command with a program mounted as /usr/bin/ccm, or none if its path is empty.
    fn enter_with(&self, ccm: &str, argv: &[&str]) -> Outcome {
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-ec", ENTER, "enter"])
            .args(argv)
            .env_clear()
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", "/root")
            .env("LC_ALL", "C")
            .env("CCM", ccm)
            .env("TREE", tree())
            .env("LAYER", self.layer.path())
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Outcome {
            stdout: text(output.stdout),
            stderr: text(output.stderr),
            code: output.status.code(),
        }
    }

    /// Runs a shell script in the system.
    pub fn shell(&self, script: &str) -> Outcome {
        self.enter(&["sh", "-ec", script])
    }

    /// Runs a shell script in the system, in which /usr/bin/ccm is what a package installed.
    pub fn shell_without_ccm(&self, script: &str) -> Outcome {
        self.enter_with("", &["sh", "-ec", script])
    }

    pub fn ccm(&self, args: &[&str]) -> Outcome {
        let argv: Vec<&str> = ["ccm"].into_iter().chain(args.iter().copied()).collect();
        self.enter(&argv)
    }

    /// Applies a manifest of these packages, each `name: {properties}`.
    pub fn packages(&self, packages: &str, flags: &[&str]) -> Applied {
        let entries: String = packages
            .lines()
            .map(|line| format!("        - {line}\n"))
            .collect();
        self.apply(&format!("    - package:\n{entries}"), flags)
    }

    /// Applies a manifest of these resources, indented as a manifest has them.
    pub fn apply(&self, resources: &str, flags: &[&str]) -> Applied {
        self.write(
            "/root/manifest.yaml",
            format!("ccm:\n  resources:\n{resources}"),
        );
        let mut args = vec!["apply", "/root/manifest.yaml", "--json"];
        args.extend(flags);
        let outcome = self.ccm(&args);
        let document = serde_json::from_str(&outcome.stdout)
            .unwrap_or_else(|err| panic!("{err}: {outcome:?}"));
        Applied { document }
    }

    /// Builds a Debian package into the system's repository. The lines are added to its control
    /// file; `files` are paths below the package's tree with their content.
    pub fn deb(
        &self,
        name: &str,
        version: &str,
        arch: &str,
        control: &str,
        files: &[(&str, &str)],
    ) {
        let package = Deb {
            name,
            version,
            arch,
            control,
            files,
        };
        package.build(&self.apt_repository());
    }

    fn apt_repository(&self) -> PathBuf {
        let inside = self.path("/srv/apt/Packages");
        inside.parent().unwrap().into()
    }

    /// Makes the packages built so far the only ones that apt knows.
    pub fn use_apt_repository(&self) {
        deb::index(&self.apt_repository());
        self.write("/etc/apt/sources.list", deb::SOURCES);
        self.shell("apt-get update -q").ok();
    }

    /// Builds an rpm into the system's repository; `version` is `[epoch:]version-release`, and the
    /// sections are added to its spec.
    pub fn rpm(&self, name: &str, version: &str, sections: &str) {
        rpm::build(&self.rpm_repository(), name, version, sections);
    }

    /// Makes the rpms built so far the only ones that dnf knows.
    pub fn use_rpm_repository(&self) {
        rpm::index(&self.rpm_repository());
        self.write("/etc/yum.repos.d/local.repo", rpm::REPOSITORY);
    }

    fn rpm_repository(&self) -> PathBuf {
        let inside = self.path("/srv/rpm/x");
        inside.parent().unwrap().into()
    }
}

/// Returns the tree all systems start from. Made once per build directory, in a minute or two.
fn tree() -> &'static Path {
    static TREE: OnceLock<PathBuf> = OnceLock::new();
    TREE.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let tree = directory.join(format!("debian-{}-{TREE_VERSION}", codename()));
        let lock = std::fs::File::create(tree.with_extension("lock")).unwrap();
        lock.lock().unwrap();
        if !tree.exists() {
            let new = tree.with_extension("new");
            let _ = std::fs::remove_dir_all(&new);
            // With mounts of its own, which are gone if it is killed: removing the rest must find none.
            let output = Command::new("unshare")
                .args(["--mount", "mmdebstrap"])
                .args(["--variant=minbase", "--include=dnf,rpm,cfengine3"])
                .args([
                    "--dpkgopt=force-unsafe-io",
                    "--aptopt=Acquire::Languages \"none\"",
                ])
                .arg(codename())
                .arg(&new)
                .env_clear()
                .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
                .output()
                .expect("mmdebstrap (scripts/test installs it)");
            assert!(output.status.success(), "{output:?}");
            std::fs::rename(&new, &tree).unwrap();
        }
        tree
    })
}

/// Returns the name of the host's own Debian, whose libraries our program was linked with.
fn codename() -> String {
    let release = std::fs::read_to_string("/etc/os-release").unwrap();
    let mut lines = release.lines();
    let name = lines.find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.unwrap_or("bookworm").to_owned()
}
