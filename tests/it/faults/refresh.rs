//! Refreshes that a killed or stopped `ccm apply` left pending: made by the next one.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::disk::SmallDisk;
use crate::support::poll::wait_for;
use crate::support::{Applied, TestEnv, manifest};

/// Writes a file, a command that waits for the file `go`, and a command that the file refreshes.
fn write_manifest(env: &TestEnv) {
    let directory = env.at("");
    let resources = format!(
        "- file: {{name: {directory}conf, ensure: present, owner: root, group: root, \
         mode: '0644', content: x}}\n\
         - exec: {{name: waits, provider: shell, cwd: {directory}, \
         command: 'touch begun; until [ -e go ]; do sleep 0.02; done'}}\n\
         - exec: {{name: restart, provider: shell, cwd: {directory}, refreshonly: true, \
         subscribe: ['file#{directory}conf'], command: 'touch refreshed'}}\n"
    );
    env.write("m.yaml", manifest(&resources));
}

/// Stops a run after the file changed, before the refresh, and runs it again from another directory.
fn refreshed_after(signal: Signal) -> (TestEnv, Applied) {
    let env = TestEnv::new();
    write_manifest(&env);
    let mut child = env
        .command(&["apply", "m.yaml"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the second resource", || env.exists("begun"));
    kill_process(Pid::from_child(&child), signal).unwrap();
    if signal != Signal::KILL {
        // Finishes the command at work, and begins no other resource.
        wait_for("the end of the run", || {
            env.write("go", "");
            child.try_wait().unwrap().is_some()
        });
    }
    child.wait().unwrap();
    env.write("go", "");
    assert!(!env.exists("refreshed"));
    std::fs::create_dir(env.path("elsewhere")).unwrap();
    let again = env
        .command(&["apply", "../m.yaml", "--json"])
        .current_dir(env.path("elsewhere"))
        .output()
        .unwrap();
    let document = serde_json::from_slice(&again.stdout).unwrap();
    (env, Applied { document })
}

#[test]
fn a_refresh_survives_kill_9() {
    let (env, again) = refreshed_after(Signal::KILL);
    assert_eq!(again.event(0)["changed"], false);
    assert!(env.exists("refreshed"), "{:#}", again.document);
}

#[test]
fn a_refresh_survives_sigterm() {
    let (env, again) = refreshed_after(Signal::TERM);
    assert!(env.exists("refreshed"), "{:#}", again.document);
}

#[test]
fn a_refresh_that_was_made_is_not_made_again() {
    let (env, _) = refreshed_after(Signal::KILL);
    std::fs::remove_file(env.path("refreshed")).unwrap();
    let _ = env.ccm(&["apply", "m.yaml"]).ok();
    assert!(!env.exists("refreshed"));
}

#[test]
fn nothing_changes_if_its_refresh_can_not_be_recorded() {
    let mut env = TestEnv::new();
    let disk = SmallDisk::mount(&env.path("disk"), "1m");
    disk.remount("ro");
    env.set("CCM_STATE_DIR", &env.at("disk/state"));
    env.write("go", "");
    write_manifest(&env);
    let outcome = env.ccm(&["apply", "m.yaml"]);
    let output = outcome.stdout + &outcome.stderr;
    assert!(output.contains("read-only file system"), "{output}");
    assert!(!env.exists("conf"));
}
