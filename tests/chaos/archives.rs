//! Archives whose unpacking is killed at any moment: the next run completes the tree.

use std::path::Path;
use std::process::Stdio;

use crate::random::Random;
use crate::support::http::Server;
use crate::support::{TestEnv, manifest, pack};
use crate::tally::Tally;

const KILLS: usize = 4;
const FILES: usize = 300;

/// An archive on a server, unpacked into a directory.
pub(crate) struct Archive {
    _server: Server,
}

impl Archive {
    /// Writes the manifest `archive.yaml`, which unpacks the archive into `out`.
    pub(crate) fn new(env: &TestEnv, out: &str) -> Self {
        let content = "some content\n".repeat(300);
        let names: Vec<String> = (0..FILES)
            .map(|it| format!("app/d{}/{it}", it % 7))
            .collect();
        let files: Vec<_> = names
            .iter()
            .map(|name| (name.as_str(), &*content))
            .collect();
        let server = Server::serving(pack::tgz(&files));
        let (out, url) = (env.at(out), server.url("/a.tgz"));
        // `creates` is the first file, which a partial tree has, too.
        let resource = format!(
            "- archive: {{name: {out}/a.tgz, url: '{url}', owner: root, group: root, \
             ensure: present, extract_parent: {out}, creates: {out}/app/d0/0}}\n"
        );
        env.write("archive.yaml", manifest(&resource));
        Self { _server: server }
    }

    /// Reports whether every file is there and complete.
    pub(crate) fn is_complete(out: &Path) -> bool {
        let size = u64::try_from("some content\n".len() * 300).unwrap();
        (0..FILES).all(|it| {
            let path = out.join(format!("app/d{}/{it}", it % 7));
            path.metadata().is_ok_and(|found| found.len() == size)
        })
    }
}

pub(crate) fn round(random: &mut Random) -> Tally {
    let env = TestEnv::new();
    let _archive = Archive::new(&env, "out");
    let mut tally = Tally::default();
    for _ in 0..KILLS {
        let _absent = std::fs::remove_dir_all(env.path("out"));
        std::fs::create_dir_all(env.path("out")).unwrap();
        let mut child = env
            .command(&["apply", "archive.yaml"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(random.millis(1, 400));
        child.kill().unwrap();
        child.wait().unwrap();
        let _output = env.ccm(&["apply", "archive.yaml"]).ok();
        tally.faults += 1;
        tally.checks += 1;
        tally.partial += u64::from(!Archive::is_complete(&env.path("out")));
    }
    tally
}
