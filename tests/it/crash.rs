//! Nothing is left incomplete: not after kill -9, a timeout or Ctrl-C, nor when output is not read.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::process::{Child, ChildStderr, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::poll::wait_for;
use crate::support::{self, TestEnv, processes_with};

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
    let contents = ["a", "b"].map(|letter| letter.repeat(32 * 1024));
    let names: HashSet<String> = (0..40).map(|number| number.to_string()).collect();
    let mut interrupted = 0;
    for (round, last) in [0, 2, 5, 9, 14, 20, 26, 32].into_iter().enumerate() {
        let content = &contents[round % 2];
        env.write("m.yaml", manifest(&env, names.len(), content));
        let mut child = env
            .command(&["apply", "m.yaml", "--no-report"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Killed after it has written this file, while it writes one of those behind.
        let path = env.path(&format!("out/{last}"));
        wait_for("a file of this run", || {
            let found = std::fs::read(&path).unwrap_or_default();
            found.first() == content.as_bytes().first() || child.try_wait().unwrap().is_some()
        });
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
    let left = std::fs::read_dir(env.path("out")).unwrap().count();
    assert_eq!(left, names.len(), "temporary files are left");
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

/// A run whose second resource does not end by itself, started and caught there.
struct Caught {
    env: TestEnv,
    tag: String,
    child: Child,
    errors: BufReader<ChildStderr>,
}

impl Caught {
    /// Starts the run; the command at work ends when a file `go` is there.
    fn start(flags: &[&str]) -> Self {
        let env = TestEnv::new();
        let tag = format!("74{}{}", std::process::id(), flags.len());
        let script = format!("touch begun; until [ -e go ]; do sleep 0.0{tag}; done");
        let directory = env.at("");
        let file = |name: &str| {
            let path = env.at(name);
            format!(
                "- file: {{name: {path}, ensure: present, owner: root, group: root, \
                 mode: '0644', content: x}}"
            )
        };
        let resources = format!(
            "{}\n- exec: {{name: waits, provider: shell, cwd: {directory}, command: '{script}'}}\n{}",
            file("first"),
            file("last")
        );
        env.write("m.yaml", support::manifest(&resources));
        let mut child = env
            .command(&[&["apply", "m.yaml"], flags].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        wait_for("the second resource", || {
            assert_eq!(child.try_wait().unwrap(), None, "nothing was begun");
            env.exists("begun")
        });
        Self {
            env,
            tag,
            child,
            errors,
        }
    }

    /// Sends a signal to the program alone, not to what it has started.
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }

    fn complaint(&mut self) -> String {
        let mut line = String::new();
        self.errors.read_line(&mut line).unwrap();
        line
    }

    /// Waits for the end and returns the exit code and standard output.
    fn end(mut self) -> (Option<i32>, String, TestEnv) {
        let mut text = String::new();
        let mut output = self.child.stdout.take().unwrap();
        output.read_to_string(&mut text).unwrap();
        let code = self.child.wait().unwrap().code();
        assert_eq!(processes_with(&self.tag), Vec::<u32>::new());
        (code, text, self.env)
    }
}

#[test]
fn an_interrupted_run_finishes_the_resource_at_work_and_begins_no_other() {
    let mut caught = Caught::start(&[]);
    caught.signal(Signal::INT);
    let line = caught.complaint();
    assert!(line.starts_with("ccm: interrupted: "), "{line}");
    caught.env.write("go", "");
    let line = caught.complaint();
    assert!(line.starts_with("ccm: stopped before file#"), "{line}");
    let (code, text, env) = caught.end();
    assert_eq!(code, Some(130));
    assert!(text.contains("exec#waits changed"), "{text}");
    assert!(text.contains("Changed Resources: 2"), "{text}");
    assert!(!env.exists("last"));
}

#[test]
fn a_second_interrupt_ends_the_command_with_all_that_it_started() {
    let mut caught = Caught::start(&["--json"]);
    caught.signal(Signal::TERM);
    caught.complaint();
    caught.signal(Signal::INT);
    let (code, text, env) = caught.end();
    assert_eq!(code, Some(130));
    let output: Value = serde_json::from_str(&text).unwrap();
    let error = output["events"][1]["error"][0].as_str().unwrap();
    assert!(error.contains("was cancelled"), "{error}");
    assert_eq!(output["summary"]["failed_resources"], 1);
    assert!(!env.exists("last"));
}

#[test]
fn a_closed_standard_error_does_not_stop_a_run() {
    let env = TestEnv::new();
    let request = json!({
        "protocol": "io.choria.ccm.v1.resource.ensure.request", "type": "file",
        "properties": {"name": env.at("f"), "ensure": "present", "content": "x", "owner": "root",
                       "group": "root", "mode": "0644"}
    });
    env.write("request", request.to_string());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = env
        .command(&["ensure", "api", "pipe", "--debug"])
        .stdin(std::fs::File::open(env.path("request")).unwrap())
        .stderr(writer)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(env.read("f"), "x");
}

#[test]
fn output_to_a_full_device_is_an_error() {
    let env = TestEnv::new();
    let full = std::fs::File::create("/dev/full").unwrap();
    let output = env.command(&["facts"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "ccm: error: standard output: no space left on device\n"
    );
}
