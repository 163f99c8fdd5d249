//! Processes that leave their command: found by a timeout, ended with a killed program, and left alone
//! if the command succeeded.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::agent::AgentProcess;
use crate::support::nats::NatsServer;
use crate::support::poll::wait_for;
use crate::support::{TestEnv, manifest, processes_with};

/// Returns an argument of `sleep` that no other process has.
fn tag(test: u32) -> String {
    format!("75{}{test}", std::process::id())
}

/// Returns a command that starts a daemon: with a session of its own, no output and no parent.
fn daemon(tag: &str) -> String {
    format!(
        "(setsid sleep {tag} </dev/null >/dev/null 2>&1 &); until pgrep -f \"^sleep {tag}\" >/dev/null; do :; done"
    )
}

/// Returns an exec of a shell command.
fn exec(properties: &str, command: &str) -> String {
    format!("- exec:\n    - command: {{provider: shell, {properties} command: '{command}'}}\n")
}

fn end(processes: Vec<u32>) {
    for pid in processes {
        let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
    }
}

#[test]
fn a_timeout_ends_a_daemon_that_forked_twice() {
    let env = TestEnv::new();
    let tag = tag(1);
    let script = format!("{}; sleep {tag}9", daemon(&tag));
    let applied = env.apply(&exec("timeout: 2s,", &script), &[]);
    assert_eq!(applied.failure(0), "command \"/bin/sh\" timed out after 2s");
    assert_eq!(processes_with(&tag), Vec::<u32>::new());
}

#[test]
fn a_daemon_of_a_successful_command_lives_on() {
    let env = TestEnv::new();
    let tag = tag(2);
    let applied = env.apply(&exec("timeout: 60s,", &daemon(&tag)), &[]);
    assert_eq!(applied.outcomes(), ["changed"]);
    let left = processes_with(&format!("sleep {tag}"));
    assert_eq!(left.len(), 1);
    let parent = std::fs::read_to_string(format!("/proc/{}/stat", left[0])).unwrap();
    let name = parent_name(&parent);
    end(left);
    assert!(!name.contains("ccm"), "its parent is {name}");
}

/// Returns the name of the parent of a process.
fn parent_name(stat: &str) -> String {
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let parent = fields.split_whitespace().nth(1).unwrap();
    std::fs::read_to_string(format!("/proc/{parent}/comm")).unwrap()
}

#[test]
fn a_command_ends_with_a_killed_program() {
    let env = TestEnv::new();
    let tag = tag(3);
    let script = format!("{}; sleep {tag}9", daemon(&tag));
    env.write("m.yaml", manifest(&exec("", &script)));
    let mut child = env
        .command(&["apply", "m.yaml"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the command", || {
        !processes_with(&format!("sleep {tag}9")).is_empty()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("no process of the command", || {
        processes_with(&tag).is_empty()
    });
}

#[test]
fn a_command_of_a_killed_agent_does_not_run_twice_at_the_same_time() {
    let env = TestEnv::new();
    let (lock, log) = (env.at("lock"), env.at("log"));
    // Both runs would write to the log if the first one was still there.
    let script = format!(
        "flock -n {lock} -c \"echo begun >> {log}; sleep {}\" || echo overlap >> {log}",
        tag(4)
    );
    env.write("m.yaml", manifest(&exec("", &script)));
    let lines = format!("interval: 1h\nmanifests: [{}]\n", env.at("m.yaml"));
    let server = NatsServer::start();
    for count in 1..=3 {
        let agent = AgentProcess::start(&env, "web1.lab", &server.url(), &lines);
        wait_for("the command", || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            assert!(!text.contains("overlap"), "{text}");
            text.lines().count() == count
        });
        agent.kill();
    }
    wait_for("no process of the command", || {
        processes_with(&tag(4)).is_empty()
    });
}

#[test]
fn a_command_of_a_killed_program_that_does_not_end_is_reported() {
    let env = TestEnv::new();
    let (begun, ccm) = (env.at("begun"), env!("CARGO_BIN_EXE_ccm"));
    // The parent of a command is its supervisor. One that is stopped can't kill the command.
    let command = format!("echo $PPID >{begun}.new; mv {begun}.new {begun}; sleep 600");
    let first = env.write("first.yaml", manifest(&exec("", &command)));
    let second = env.write("second.yaml", manifest("- exec:\n    - /bin/true: {}\n"));
    let script = format!(
        "{ccm} apply {first} >/dev/null 2>&1 & until [ -e {begun} ]; do sleep 0.05; done; \
         kill -STOP $(cat {begun}); kill -KILL $!; wait $!; {ccm} apply {second}"
    );
    // With process ids of its own: other tests would wait for the supervisor, too.
    let unshare = ["--pid", "--fork", "--mount-proc", "sh", "-c", &script];
    let output = env.program("unshare").args(unshare).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("did not end in time"), "{output:?}");
}

#[test]
fn a_supervisor_passes_on_exit_codes_signals_output_and_failed_starts() {
    let env = TestEnv::new();
    for (command, text) in [
        ("exit 7", "exit code 7 not in allowed returns [0]"),
        ("kill -9 $$", "signal: killed"),
        ("echo printed; exit 1", "printed"),
    ] {
        let failure = env.apply(&exec("", command), &[]).failure(0).to_owned();
        assert!(failure.contains(text), "{failure}");
    }
    let missing = "- exec:\n    - /no/such/program: {}\n";
    let failure = env.apply(missing, &[]).failure(0).to_owned();
    assert_eq!(
        failure,
        "fork/exec /no/such/program: no such file or directory"
    );
    let misplaced = format!("- exec:\n    - /bin/true: {{cwd: {}}}\n", env.at("gone"));
    let failure = env.apply(&misplaced, &[]).failure(0).to_owned();
    assert!(failure.starts_with("chdir "), "{failure}");
}
