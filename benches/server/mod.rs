//! A NATS server for benchmarks, and child processes that are killed on drop.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for the start of the server.
const LIMIT: Duration = Duration::from_secs(10);

/// A child process that is killed on drop.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a line of a process's status, such as `VmRSS`, in MiB.
pub fn memory(process: u32, line: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let found = status.lines().find_map(|it| it.strip_prefix(line));
    found
        .and_then(|it| it.trim_start_matches(':').split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .map(|kib: f64| kib / 1024.0)
        .unwrap()
}

/// Starts a server with JetStream and returns its URL.
pub fn server(dir: &Path) -> (Process, String) {
    let child = Command::new(server_program())
        .args(["-js", "-a", "127.0.0.1", "-p", "-1", "-sd"])
        .arg(dir.join("js"))
        .arg("--ports_file_dir")
        .arg(dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let process = Process(child.unwrap());
    let ports = dir.join(format!("nats-server_{}.ports", process.0.id()));
    let since = Instant::now();
    loop {
        if let Some(url) = client_url(&ports) {
            return (process, url);
        }
        assert!(since.elapsed() < LIMIT, "the server did not start");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the URL in the server's ports file, once it is complete.
fn client_url(file: &Path) -> Option<String> {
    let text = std::fs::read(file).ok()?;
    let ports: serde_json::Value = serde_json::from_slice(&text).ok()?;
    Some(ports["nats"][0].as_str()?.to_owned())
}

fn server_program() -> PathBuf {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/python/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories = std::env::split_paths(&path).chain([installed]);
    match directories.find(|directory| directory.join("nats-server").is_file()) {
        Some(directory) => directory.join("nats-server"),
        None => panic!("nats-server is missing: `scripts/test` installs it below target/tools"),
    }
}
