//! A race for the file system: while the program manages files, directories, trees, archives and
//! scaffolds in a directory of another user, that user swaps parts of their paths for links to a guarded
//! place, without pause. The guarded place must stay as it is to the last attribute.
//!
//! The rounds are counted, not timed, and the race is only won if both were seen often: changes
//! that were made, and links that were refused.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{CWD, RenameFlags};

use crate::support::http::Server;
use crate::support::{TestEnv, pack};

/// The user who replaces the paths.
const ATTACKER: u32 = 65534;

/// Set in the process that is the attacker: the directory of that user.
const DIRECTORY: &str = "CCM_TEST_DIRECTORY";

/// How many runs of the program, and how many resources of each sort a run has.
const RUNS: usize = 25;
const EACH: usize = 15;

/// The parts of paths that are swapped, each with the link that takes its place.
const SWAPPED: [(&str, &str); 3] = [
    ("a", "a-link"),
    ("deep/b", "deep/b-link"),
    ("leaf", "leaf-link"),
];

/// The process of the attacker. Killed when dropped.
struct Attacker(Child);

impl Attacker {
    fn start(attacked: &Path) -> Self {
        // Whatever the path of this program: the attacker may not have access to it.
        let child = Command::new("/proc/self/exe")
            .args(["--exact", "symlink_races::swapped_links_are_never_followed"])
            .env(DIRECTORY, attacked)
            .current_dir("/")
            .uid(ATTACKER)
            .gid(ATTACKER)
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Swaps until killed.
fn swap_without_end(attacked: &Path) -> ! {
    std::env::set_current_dir(attacked).unwrap();
    loop {
        for (real, link) in SWAPPED {
            // What root has removed meanwhile can't be swapped.
            let _ = rustix::fs::renameat_with(CWD, real, CWD, link, RenameFlags::EXCHANGE);
        }
    }
}

/// Returns everything in a directory with all that could have been changed about it.
fn fingerprint(directory: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(path) = open.pop() {
        let meta = path.symlink_metadata().unwrap();
        let content = match meta.is_file() {
            true => std::fs::read(&path).unwrap(),
            false => Vec::new(),
        };
        if meta.is_dir() {
            let inside = std::fs::read_dir(&path).unwrap();
            open.extend(inside.map(|entry| entry.unwrap().path()));
        }
        // The time of the last change can't be set back by anyone.
        let text = format!(
            "{} {}:{} {:o} {}.{} {content:?}",
            meta.ino(),
            meta.uid(),
            meta.gid(),
            meta.mode(),
            meta.ctime(),
            meta.ctime_nsec()
        );
        found.insert(path, text);
    }
    found
}

/// Makes what resources look for, in the directory of the attacker or in the guarded place.
fn populate(directory: &Path, owner: u32) {
    std::fs::create_dir_all(directory).unwrap();
    for index in 0..EACH {
        for name in ["goes", "owned", "kept", "checked", "tar.tar.gz"] {
            let file = directory.join(format!("{name}{index}"));
            std::fs::write(&file, "as it was").unwrap();
            chown(&file, Some(owner), Some(owner)).unwrap();
        }
        for name in ["made", "tree", "out", "scaffold", "copied"] {
            let below = directory.join(format!("{name}{index}"));
            std::fs::create_dir_all(below.join("sub")).unwrap();
            std::fs::write(below.join("sub/file"), "as it was").unwrap();
            for path in [below.join("sub/file"), below.join("sub"), below] {
                chown(path, Some(owner), Some(owner)).unwrap();
            }
        }
    }
    chown(directory, Some(owner), Some(owner)).unwrap();
}

/// Returns the resources of one run, all of them below parts that are being swapped.
fn resources(attacked: &Path, run: usize, url: &str) -> String {
    let mut entries = String::new();
    let mut add = |kind: &str, path: &str, properties: &str| {
        let path = attacked.join(path);
        let path = path.display();
        entries.push_str(&format!("- {kind}:\n    - {path}: {{{properties}}}\n"));
    };
    let owned = format!("owner: '{ATTACKER}', group: root");
    let mode = ["'0600'", "'0666'"][run % 2];
    for index in 0..EACH {
        let part = ["a", "deep/b"][index % 2];
        let at = |name: &str| format!("{part}/{name}{index}");
        let present = format!("ensure: present, {owned}, mode: {mode}");
        add(
            "file",
            &at("kept"),
            &format!("{present}, content: 'run {run}'"),
        );
        add("file", &at("owned"), &present);
        add("file", &at("goes"), "ensure: absent");
        let directory = format!("ensure: directory, {owned}, mode: {mode}");
        add("file", &at("made"), &directory);
        add(
            "file",
            &at("copied"),
            &format!("{directory}, source: templates, purge: true"),
        );
        add(
            "file",
            &at("checked"),
            &format!("{present}, content: 'run {run}', validate: '/bin/grep -q run %'"),
        );
        add("file", &format!("{part}/new{index}/r{run}"), &directory);
        add("file", &at("tree"), "ensure: absent, force: true");
        add(
            "link",
            &at("linked"),
            &format!("target: /run/{run}, force: true"),
        );
        add("line", &at("kept"), &format!("line: 'line {run}'"));
        add(
            "scaffold",
            &at("scaffold"),
            &format!("ensure: present, source: templates, purge: true, data: {{run: {run}}}"),
        );
        let out = attacked.join(at("out"));
        let extract = format!(
            "url: '{url}', owner: root, group: root, ensure: present, extract_parent: {}, creates: /nowhere/{run}",
            out.display()
        );
        add("archive", &format!("{}.tar.gz", at("tar")), &extract);
        add(
            "file",
            "leaf",
            &format!("{present}, content: '{run} {index}'"),
        );
    }
    entries
}

#[test]
fn swapped_links_are_never_followed() {
    if let Some(attacked) = std::env::var_os(DIRECTORY) {
        swap_without_end(Path::new(&attacked));
    }
    let env = TestEnv::new();
    let open = std::fs::Permissions::from_mode(0o711);
    std::fs::set_permissions(env.root(), open).unwrap();
    env.write("templates/sub/file", "run [[ data.run ]]\n");
    env.write("templates/other/file", "run [[ data.run ]]\n");
    let server = Server::serving(pack::tgz(&[("sub/file", "unpacked"), ("other/file", "x")]));
    let (guard, attacked) = (env.path("guard"), env.path("attacked"));
    populate(&guard, 0);
    for (real, link) in SWAPPED {
        if real == "leaf" {
            env.write("attacked/leaf", "as it was");
            symlink(guard.join("kept0"), attacked.join(link)).unwrap();
        } else {
            populate(&attacked.join(real), ATTACKER);
            symlink(&guard, attacked.join(link)).unwrap();
        }
        std::os::unix::fs::lchown(attacked.join(link), Some(ATTACKER), Some(ATTACKER)).unwrap();
    }
    for directory in ["deep", ""] {
        chown(attacked.join(directory), Some(ATTACKER), Some(ATTACKER)).unwrap();
    }
    let before = fingerprint(&guard);
    let (mut changed, mut refused) = (0, 0);
    let attacker = Attacker::start(&attacked);
    for run in 0..RUNS {
        let applied = env.apply(&resources(&attacked, run, &server.url("/x.tar.gz")), &[]);
        for event in applied.document["events"].as_array().unwrap() {
            let error = event["error"][0].as_str().unwrap_or_default();
            changed += usize::from(event["changed"] == true);
            refused += usize::from(error.contains("refusing to follow the symlink"));
        }
        assert_eq!(fingerprint(&guard), before, "run {run}");
    }
    drop(attacker);
    // Thousands of tries, and either side won many of them.
    println!("{changed} changed, {refused} refused");
    assert!(changed > RUNS && refused > RUNS, "{changed} {refused}");
}
