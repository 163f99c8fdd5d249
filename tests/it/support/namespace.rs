//! A network of its own for a test, with an address that is not loopback and leads nowhere else.
//!
//! A thread can't be moved there without unsafe code, so the test starts itself once more inside:
//! servers, agents and clients that it starts then are all in there, and nothing leaves it.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// An address that the network has beside loopback.
pub const ADDRESS: &str = "10.77.16.1";

/// Set in the process that is inside.
const INSIDE: &str = "CCM_TEST_NAMESPACE";

/// How many were made by this process.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A namespace that is gone when dropped.
struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Runs `body` in a network of its own. `test` is the full name of the test that calls this.
pub fn inside(test: &str, body: impl AsyncFnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        return runtime.enable_all().build().unwrap().block_on(body());
    }
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let space = Namespace(format!("ccm-test-{}-{number}", std::process::id()));
    ip(&["netns", "add", &space.0]);
    ip(&["-n", &space.0, "link", "set", "lo", "up"]);
    let address = format!("{ADDRESS}/32");
    ip(&["-n", &space.0, "address", "add", &address, "dev", "lo"]);
    let output = Command::new("ip")
        .args(["netns", "exec", &space.0])
        .arg(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(INSIDE, "yes")
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let has_run = output.status.success() && stdout.contains("1 passed");
    assert!(
        has_run,
        "{test} inside a network of its own:\n{stdout}\n{errors}"
    );
}

fn ip(args: &[&str]) {
    let output = Command::new("ip").args(args).output();
    let output = output.unwrap_or_else(|err| panic!("ip (scripts/test installs it): {err}"));
    assert!(output.status.success(), "ip {args:?} (as root): {output:?}");
}
