//! Archives that were interrupted while they were unpacked: never taken for complete.

use std::path::Path;
use std::process::{Child, Stdio};

use ccm_core::system::Digest;

use crate::support::disk::{Disk, SmallDisk};
use crate::support::http::Server;
use crate::support::poll::wait_for;
use crate::support::{TestEnv, manifest, pack};

/// Enough to be caught in the middle.
const FILES: usize = 3000;

/// Returns an archive whose first file is `app/first`, which `creates` names.
fn content() -> Vec<u8> {
    let names: Vec<String> = (0..FILES)
        .map(|number| format!("app/d{}/{number}", number % 10))
        .collect();
    let mut files = vec![("app/first", "first")];
    files.extend(names.iter().map(|name| (name.as_str(), "some content")));
    pack::tgz(&files)
}

/// An archive that is unpacked into `out`, wherever that is.
struct Case {
    env: TestEnv,
    _server: Server,
    entry: String,
}

impl Case {
    /// Writes the manifest of an archive with these properties.
    fn new(env: TestEnv, out: &str, properties: &str) -> Self {
        Self::with_content(env, content(), out, properties)
    }

    fn with_content(env: TestEnv, content: Vec<u8>, out: &str, properties: &str) -> Self {
        let checksum = Digest::of(&content).to_string();
        let server = Server::serving(content);
        let entry = format!(
            "- archive:\n    - {}: {{url: '{}', owner: root, group: root, ensure: present, \
             extract_parent: {}, {}}}\n",
            env.at("a.tgz"),
            server.url("/a.tgz"),
            env.at(out),
            properties
                .replace("$OUT", &env.at(out))
                .replace("$SUM", &checksum),
        );
        env.write("manifest.yaml", manifest(&entry));
        Self {
            env,
            _server: server,
            entry,
        }
    }

    /// Starts a run and returns it once more than `count` files were unpacked.
    fn caught(&self, out: &str, count: usize) -> Child {
        let mut child = self
            .env
            .command(&["apply", "manifest.yaml", "--no-report"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let out = self.env.path(out);
        wait_for("unpacked files", || {
            count_files(&out) > count || child.try_wait().unwrap().is_some()
        });
        child
    }

    /// Kills a run after so many files; returns whether it was still at work.
    fn kill_after(&self, count: usize) -> bool {
        let mut child = self.caught("out", count);
        child.kill().unwrap();
        !child.wait().unwrap().success()
    }

    /// Checks that the next run completes the tree, and that the one after it has nothing to do.
    fn assert_completes(&self, out: &str) {
        let applied = self.env.apply(&self.entry, &[]);
        assert_eq!(applied.document["summary"]["failed_resources"], 0);
        self.assert_complete(out);
        self.env.assert_stable(&self.entry);
    }

    fn assert_complete(&self, out: &str) {
        let out = self.env.path(out);
        // No temporary file is left, either.
        assert_eq!(count_files(&out.join("app")), FILES + 1);
        assert_eq!(count_full_files(&out.join("app")), FILES + 1);
        let others = std::fs::read_dir(&out).unwrap();
        let others: Vec<_> = others
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name != "app" && name != "old")
            .collect();
        assert_eq!(others, Vec::<std::ffi::OsString>::new());
    }
}

fn each_file(directory: &Path, visit: &mut dyn FnMut(&std::fs::DirEntry)) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => each_file(&entry.path(), visit),
            _ => visit(&entry),
        }
    }
}

fn count_files(directory: &Path) -> usize {
    let mut count = 0;
    each_file(directory, &mut |_| count += 1);
    count
}

/// Counts the files that have content.
fn count_full_files(directory: &Path) -> usize {
    let mut count = 0;
    each_file(directory, &mut |entry| {
        count += usize::from(entry.metadata().unwrap().len() > 0);
    });
    count
}

/// Kills runs at several moments; the run after each must complete the tree.
fn kill_repeatedly(properties: &str, prepare: impl Fn(&TestEnv)) {
    let mut interrupted = 0;
    for count in [0, 1000, 2500] {
        let env = TestEnv::new();
        prepare(&env);
        let case = Case::new(env, "out", properties);
        if case.kill_after(count) {
            interrupted += 1;
            case.assert_completes("out");
        }
    }
    assert!(interrupted > 0, "no run was caught in the middle");
}

#[test]
fn kill_9_while_unpacking_a_new_tree_is_noticed_by_the_next_run() {
    kill_repeatedly("creates: $OUT/app/first, cleanup: true", |_| {});
}

#[test]
fn kill_9_while_unpacking_over_a_tree_is_noticed_by_the_next_run() {
    kill_repeatedly("creates: $OUT/app/first, checksum: $SUM", |env| {
        env.write("out/app/first", "an older version");
        env.write("out/old", "of another owner");
    });
}

#[test]
fn kill_9_while_unpacking_without_creates_is_noticed_by_the_next_run() {
    kill_repeatedly("checksum: $SUM", |_| {});
}

#[test]
fn a_new_tree_appears_complete_or_not_at_all() {
    // A run may end before it is killed, so several are.
    let was_interrupted = (0..20).any(|_| {
        let case = Case::new(TestEnv::new(), "out", "creates: $OUT/app/first");
        let is_interrupted = case.kill_after(1000);
        let found = count_files(&case.env.path("out/app"));
        assert!([0, FILES + 1].contains(&found), "{found} files");
        case.assert_completes("out");
        is_interrupted && found == 0
    });
    assert!(was_interrupted, "no run was caught in the middle");
}

#[test]
fn a_changed_checksum_is_noticed_although_the_archive_was_removed() {
    let properties = "creates: $OUT/app/first, cleanup: true, checksum: $SUM";
    let unpack = |env, text| {
        let content = pack::tgz(&[("app/first", text)]);
        let case = Case::with_content(env, content, "out", properties);
        let applied = case.env.apply(&case.entry, &[]);
        assert_eq!(applied.outcomes(), ["changed"]);
        assert_eq!(case.env.read("out/app/first"), text);
        case.env.assert_stable(&case.entry);
        case.env
    };
    let env = unpack(TestEnv::new(), "one");
    unpack(env, "two");
}

#[test]
fn a_full_disk_while_unpacking_is_noticed_by_the_next_run() {
    let env = TestEnv::new();
    let disk = SmallDisk::mount(&env.path("disk"), "4m");
    let case = Case::new(env, "disk/out", "creates: $OUT/app/first, checksum: $SUM");
    case.env.write("disk/out/app/first", "an older version");
    let applied = case.env.apply(&case.entry, &[]);
    let failure = applied.failure(0);
    assert!(failure.contains("no space left on device"), "{failure}");
    disk.resize("64m");
    case.assert_completes("disk/out");
}

#[test]
fn a_power_cut_after_a_run_leaves_a_complete_tree() {
    for prepared in ["disk/other", "disk/out/app/first"] {
        let mut env = TestEnv::new();
        let mut disk = Disk::mount(&env.path("image"), &env.path("disk"));
        env.set("CCM_STATE_DIR", &env.at("disk/state"));
        env.write(prepared, "an older version");
        let case = Case::new(env, "disk/out", "creates: $OUT/app/first, checksum: $SUM");
        let applied = case.env.apply(&case.entry, &[]);
        assert_eq!(applied.outcomes(), ["changed"]);
        disk.cut_power();
        case.assert_complete("disk/out");
        case.env.assert_stable(&case.entry);
    }
}

#[test]
fn a_power_cut_while_unpacking_is_noticed_by_the_next_run() {
    let mut env = TestEnv::new();
    let mut disk = Disk::mount(&env.path("image"), &env.path("disk"));
    env.set("CCM_STATE_DIR", &env.at("disk/state"));
    env.write("disk/out/app/first", "an older version");
    let case = Case::new(env, "disk/out", "creates: $OUT/app/first, checksum: $SUM");
    let mut child = case.caught("disk/out", 1000);
    disk.cut_power();
    child.kill().unwrap();
    child.wait().unwrap();
    let _ = case.env.apply(&case.entry, &[]);
    case.assert_complete("disk/out");
    case.env.assert_stable(&case.entry);
}
