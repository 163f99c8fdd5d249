//! Nothing half done: not after kill -9, not after a timeout.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::process::Stdio;
use std::time::Duration;

use crate::support::{TestEnv, processes_with};

/// Returns a manifest of files that are large enough to be caught while they are written.
fn manifest(env: &TestEnv, files: usize, content: &str) -> String {
    let mut text = String::from("ccm:\n  resources:\n    - file:\n");
    text.push_str(
        "        - defaults: {ensure: present, owner: 12345, group: 23456, mode: '0640'}\n",
    );
    for number in 0..files {
        let path = env.at(&format!("out/{number}"));
        text.push_str(&format!("        - {path}: {{content: {content:?}}}\n"));
    }
    text
}

#[test]
fn kill_9_never_leaves_a_partial_or_wrongly_owned_file() {
    let env = TestEnv::new();
    std::fs::create_dir(env.path("out")).unwrap();
    let contents = ["a", "b"].map(|letter| letter.repeat(256 * 1024));
    let names: HashSet<String> = (0..60).map(|number| number.to_string()).collect();
    let mut interrupted = 0;
    for (round, delay) in [4, 8, 12, 16, 24, 32, 48, 64].into_iter().enumerate() {
        let content = &contents[round % 2];
        env.write("m.yaml", manifest(&env, names.len(), content));
        let mut child = env
            .command(&["apply", "m.yaml", "--no-report"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        child.kill().unwrap();
        if !child.wait().unwrap().success() {
            interrupted += 1;
        }
        for entry in std::fs::read_dir(env.path("out")).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if !names.contains(&name) {
                continue; // a temporary file, never the target
            }
            let found = entry.metadata().unwrap();
            assert_eq!((found.uid(), found.gid()), (12345, 23456), "{name}");
            assert_eq!(found.mode() & 0o7777, 0o640, "{name}");
            let text = std::fs::read_to_string(entry.path()).unwrap();
            assert!(
                contents.contains(&text),
                "{name} is partial: {}",
                text.len()
            );
        }
    }
    assert!(interrupted > 0, "no run was caught in the middle");
    let applied = env.ccm(&["apply", "m.yaml"]);
    assert_eq!(applied.code, Some(0), "{applied:?}");
}

#[test]
fn a_timeout_leaves_no_process_behind() {
    let env = TestEnv::new();
    // Arguments that no other process has, to find them by.
    let tag = format!("73{}", std::process::id());
    let script = format!("sleep {tag}1 & setsid sleep {tag}2 & sleep {tag}3");
    let resources = format!(
        "- exec:\n    - grandchildren: {{provider: shell, timeout: 1s, command: '{script}'}}\n"
    );
    let applied = env.apply(&resources, &[]);
    assert_eq!(applied.failure(0), "command \"/bin/sh\" timed out after 1s");
    assert_eq!(processes_with(&tag), Vec::<u32>::new());
}
