//! `SystemRunner` with real processes. Each test ends the processes it starts.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

fn sh(script: &str) -> Command<'static> {
    Command::new("/bin/sh", ["-c", script])
}

fn run(command: &Command<'_>) -> Output {
    SystemRunner::new().run(command).unwrap()
}

fn error_of(command: &Command<'_>) -> String {
    let error = SystemRunner::new().run(command).unwrap_err();
    error.to_string()
}

fn lines(bytes: &[u8]) -> BTreeSet<&str> {
    str::from_utf8(bytes).unwrap().lines().collect()
}

/// Whether a process exists and is not a zombie.
fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, fields)| !fields.starts_with(['Z', 'X']))
}

/// Creates a program that prints a word.
fn program(path: &Path, word: &str, mode: u32) {
    #[expect(clippy::disallowed_methods, reason = "a test prepares a program")]
    {
        std::fs::write(path, format!("#!/bin/sh\necho {word}\n")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}

#[test]
fn output_and_exit_code_are_data() {
    let output = run(&sh("echo out; echo err >&2; exit 7"));
    assert_eq!(output.code, 7);
    assert_eq!(output.stdout_text(), "out\n");
    assert_eq!(output.stderr_text(), "err\n");
    assert!(!output.is_success());
}

#[test]
fn the_environment_is_minimal() {
    let output = run(&Command::new("env", [""; 0]));
    let expected = BTreeSet::from([
        "PATH=/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin:/usr/local/sbin",
        "LANG=C",
        "LC_ALL=C",
    ]);
    assert_eq!(lines(&output.stdout), expected);
}

#[test]
fn given_variables_come_last_and_the_last_of_equal_names_wins() {
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let output = run(&Command {
        env: vec![
            variable("A", "1"),
            variable("LANG", "de_DE"),
            variable("A", "2=3"),
        ],
        ..Command::new("env", [""; 0])
    });
    let seen = lines(&output.stdout);
    assert_eq!(seen.len(), 4);
    assert!(seen.is_superset(&BTreeSet::from(["A=2=3", "LANG=de_DE", "LC_ALL=C"])));
}

#[test]
fn the_default_working_directory_is_the_root() {
    assert_eq!(run(&Command::new("pwd", [""; 0])).stdout_text(), "/\n");
    let output = run(&Command {
        cwd: Some("/usr".into()),
        ..Command::new("pwd", [""; 0])
    });
    assert_eq!(output.stdout_text(), "/usr\n");
}

#[test]
fn standard_input_is_empty() {
    assert_eq!(run(&Command::new("cat", [""; 0])).stdout_text(), "");
}

#[test]
fn a_process_leads_its_own_group() {
    let output = run(&sh("cut -d' ' -f1,5 /proc/$$/stat"));
    let text = output.stdout_text();
    let (pid, group) = text.trim().split_once(' ').unwrap();
    assert_eq!(pid, group);
}

#[test]
fn a_name_is_searched_in_the_path_of_the_command_and_the_process_sees_that_path() {
    let dir = tempfile::tempdir().unwrap();
    program(&dir.path().join("hello"), "$PATH", 0o755);
    let path = format!("{}:/nowhere", dir.path().display());
    let by_path = Command {
        path: Some(path.clone()),
        ..Command::new("hello", [""; 0])
    };
    assert_eq!(run(&by_path).stdout_text(), format!("{path}\n"));
    let by_variable = Command {
        env: vec![("PATH".into(), path.clone())],
        ..Command::new("hello", [""; 0])
    };
    assert_eq!(run(&by_variable).stdout_text(), format!("{path}\n"));
    let elsewhere = Command {
        env: vec![("PATH".into(), path.clone())],
        ..Command::new("sh", ["-c", "echo $PATH"])
    };
    assert_eq!(run(&elsewhere).stdout_text(), format!("{path}\n"));
    let by_both = Command {
        env: vec![("PATH".into(), "/other".into())],
        ..by_path
    };
    assert_eq!(run(&by_both).stdout_text(), format!("{path}\n"));
}

#[test]
fn the_search_skips_directories_non_executables_and_relative_entries() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["plain", "folder", "good"] {
        let dir = dir.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        match name {
            "folder" => std::fs::create_dir(dir.join("hello")).unwrap(),
            "plain" => program(&dir.join("hello"), "wrong", 0o644),
            _ => program(&dir.join("hello"), "right", 0o755),
        }
    }
    let at = dir.path().display();
    let command = Command {
        cwd: Some(dir.path().join("good")),
        path: Some(format!("{at}/plain:{at}/folder:{at}/good")),
        ..Command::new("hello", [""; 0])
    };
    assert_eq!(run(&command).stdout_text(), "right\n");
    let relative = Command {
        path: Some(".::good".into()),
        ..command
    };
    assert_eq!(
        error_of(&relative),
        r#"exec: "hello": executable file not found in $PATH"#
    );
}

#[test]
fn a_program_that_cannot_start_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    program(&file, "no", 0o644);
    let plain = Command::new(file.to_str().unwrap(), [""; 0]);
    assert_eq!(
        error_of(&plain),
        format!("fork/exec {}: permission denied", file.display())
    );
    let missing = Command::new("/no/such", [""; 0]);
    assert_eq!(
        error_of(&missing),
        "fork/exec /no/such: no such file or directory"
    );
    let nul = Command::new("/bin/true", ["a\0b"]);
    assert!(error_of(&nul).starts_with("fork/exec /bin/true: "));
}

#[test]
fn a_directory_that_cannot_be_entered_is_named() {
    let command = Command {
        cwd: Some("/no/such".into()),
        ..sh("true")
    };
    assert_eq!(
        error_of(&command),
        "chdir /no/such: no such file or directory"
    );
    let command = Command {
        cwd: Some("/etc/passwd".into()),
        ..command
    };
    assert_eq!(error_of(&command), "chdir /etc/passwd: not a directory");
}

#[test]
fn no_command_is_an_error() {
    assert_eq!(
        error_of(&Command::new("", [""; 0])),
        "command not specified"
    );
}

#[test]
fn an_exit_by_signal_is_an_error() {
    assert_eq!(error_of(&sh("kill -9 $$")), "signal: killed");
    assert_eq!(error_of(&sh("kill -TERM $$")), "signal: terminated");
    assert_eq!(signal_name(11, true), "segmentation fault (core dumped)");
    assert_eq!(signal_name(34, false), "signal 34");
}

#[test]
fn only_the_beginning_of_a_stream_is_kept() {
    let output = run(&Command {
        max_output: 5,
        ..sh("echo 123456789; echo 1234 >&2; exit 3")
    });
    assert_eq!(output.stdout_text(), "12345");
    assert!(output.stdout_truncated);
    assert_eq!(output.stderr_text(), "1234\n");
    assert!(!output.stderr_truncated);
    assert_eq!(output.code, 3);
}

#[test]
fn large_output_on_both_streams_does_not_block() {
    let output = run(&sh(
        "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2",
    ));
    assert_eq!(output.stdout.len(), DEFAULT_MAX_OUTPUT);
    assert_eq!(output.stderr.len(), DEFAULT_MAX_OUTPUT);
    assert!(output.stdout_truncated && output.stderr_truncated);
}

#[test]
fn every_line_is_passed_on_even_beyond_the_limit() {
    let lines_seen = RefCell::new(Vec::new());
    let on_line = |line: &str| lines_seen.borrow_mut().push(line.to_owned());
    let output = run(&Command {
        max_output: 3,
        on_line: Some(&on_line),
        ..Command::new(
            "/bin/sh",
            ["-c", "echo a; echo; echo bb; echo no >&2; printf c"],
        )
    });
    assert_eq!(output.stdout_text(), "a\n\n");
    assert_eq!(lines_seen.into_inner(), ["a", "", "bb", "c"]);
}

#[test]
fn lines_are_passed_on_while_the_process_runs() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    // The process continues only after its first line was passed on; otherwise the timeout ends it.
    let script = format!(
        "mkfifo {0}; echo ready; read word < {0}; echo $word",
        fifo.display()
    );
    let lines_seen = RefCell::new(Vec::new());
    let on_line = |line: &str| {
        if line == "ready" {
            let mut pipe = std::fs::OpenOptions::new().write(true).open(&fifo).unwrap();
            std::io::Write::write_all(&mut pipe, b"go\n").unwrap();
        }
        lines_seen.borrow_mut().push(line.to_owned());
    };
    run(&Command {
        on_line: Some(&on_line),
        timeout: Some(Duration::from_secs(30)),
        ..Command::new("/bin/sh", ["-c", &script])
    });
    assert_eq!(lines_seen.into_inner(), ["ready", "go"]);
}

#[test]
fn a_timeout_names_the_program_and_the_limit() {
    let command = Command {
        timeout: Some(Duration::from_millis(50)),
        ..Command::new("sleep", ["600"])
    };
    assert_eq!(
        error_of(&command),
        r#"command "sleep" timed out after 50ms"#
    );
}

/// Runs a script until it has created the file `ready`, then cancels it.
fn cancel_once_ready(script: &str, ready: &Path) -> RunError {
    let cancel = Cancel::new().unwrap();
    let runner = SystemRunner::cancellable(cancel.clone());
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !ready.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            cancel.cancel();
        });
        runner.run(&sh(script)).unwrap_err()
    })
}

#[test]
fn cancelling_kills_descendants_in_other_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    // A child, a grandchild, one in a session of its own with a child there, and one that
    // ignores what can be ignored.
    let script = format!(
        "sleep 600 & echo $! > {at}/child
         (sleep 600 & echo $! > {at}/grandchild; wait) &
         setsid sh -c 'sleep 600 & echo $! > {at}/inner; echo $$ > {at}/session; wait' &
         sh -c 'trap \"\" TERM INT HUP; echo $$ > {at}/deaf; sleep 600' &
         while ! test -s {at}/session || ! test -s {at}/deaf || ! test -s {at}/grandchild
         do sleep 0.01; done
         echo $$ > {at}/self; touch {at}/ready; wait"
    );
    let error = cancel_once_ready(&script, &dir.path().join("ready"));
    assert_eq!(error.to_string(), r#"command "/bin/sh" was cancelled"#);
    for name in ["child", "grandchild", "session", "inner", "deaf", "self"] {
        let pid = std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert!(!is_alive(&pid), "{name} is alive");
    }
}

#[test]
fn cancelling_kills_orphans_by_group_and_output() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    // The inner shells exit first, so their children belong to init. The first is still in the
    // group, the second has a parent there, the third shares the output.
    let script = format!(
        "sh -c 'sleep 600 >/dev/null 2>&1 & echo $! > {at}/member'
         sh -c '(setsid sh -c \"echo \\$\\$ > {at}/below; exec sleep 600\" >/dev/null 2>&1 & wait) &'
         sh -c 'setsid sh -c \"echo \\$\\$ > {at}/writer; exec sleep 600\" &'
         while ! test -s {at}/below || ! test -s {at}/writer; do sleep 0.01; done
         touch {at}/ready; sleep 600"
    );
    cancel_once_ready(&script, &dir.path().join("ready"));
    for name in ["member", "below", "writer"] {
        let pid = std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert!(!is_alive(&pid), "{name} is alive");
    }
}

#[test]
fn the_killed_process_is_reaped() {
    let dir = tempfile::tempdir().unwrap();
    let (pid, ready) = (dir.path().join("pid"), dir.path().join("ready"));
    let (pid_at, ready_at) = (pid.display(), ready.display());
    let script = format!("echo $$ > {pid_at}; touch {ready_at}; exec sleep 600");
    cancel_once_ready(&script, &ready);
    let pid = std::fs::read_to_string(pid).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists());
}

#[test]
fn a_growing_process_tree_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    // Each process starts the next one in a session of its own. The chain stops growing at 300 and
    // exits soon after, in case the test fails.
    let script = format!(
        "cat > {at}/next <<'END'
echo $$ >> {at}/pids
test $1 -gt 5 && touch {at}/ready
test $1 -lt 300 || exec sleep 20
setsid sh {at}/next $(($1 + 1)) >/dev/null 2>&1 &
wait
END
         sh {at}/next 1"
    );
    cancel_once_ready(&script, &dir.path().join("ready"));
    let pids = std::fs::read_to_string(dir.path().join("pids")).unwrap();
    let living: Vec<&str> = pids.lines().filter(|pid| is_alive(pid)).collect();
    assert_eq!(living, [""; 0]);
}

#[test]
fn a_process_that_closes_its_output_is_still_waited_for() {
    let output = run(&sh("exec >&- 2>&-; sleep 0.2; exit 4"));
    assert_eq!(output.code, 4);
}

#[test]
fn a_daemon_that_keeps_the_output_open_is_not_killed() {
    // The limit passes within the grace period, but the process itself exited in time.
    let output = run(&Command {
        timeout: Some(Duration::from_millis(1900)),
        ..sh("sleep 600 & echo $!; exit 5")
    });
    let pid = output.stdout_text().into_owned();
    assert_eq!(output.code, 5);
    assert!(is_alive(&pid));
    run(&Command::new("kill", ["-9", pid.trim()]));
}

#[test]
fn a_cancelled_runner_starts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    let cancel = Cancel::new().unwrap();
    cancel.cancel();
    cancel.cancel();
    let command = Command::new("touch", [file.to_str().unwrap()]);
    let error = SystemRunner::cancellable(cancel).run(&command).unwrap_err();
    assert!(matches!(error, RunError::Cancelled { .. }));
    assert!(!file.exists());
}

#[test]
fn a_token_is_prepared_once_before_the_first_command_that_is_no_query() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let cancel = Cancel::prepared_by(move |cancel| {
        assert!(!cancel.is_cancelled());
        counted.fetch_add(1, Ordering::SeqCst);
    });
    let runner = SystemRunner::cancellable(cancel.unwrap());
    let query = Command {
        is_query: true,
        ..sh("true")
    };
    runner.run(&query).unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 0);
    runner.run(&sh("true")).unwrap();
    runner.run(&sh("true")).unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[test]
fn a_limit_of_zero_or_beyond_the_clock_is_no_limit() {
    for limit in [Duration::ZERO, Duration::MAX] {
        let output = run(&Command {
            timeout: Some(limit),
            ..sh("sleep 0.05; echo done")
        });
        assert_eq!(output.stdout_text(), "done\n");
    }
}

#[test]
fn a_program_is_located_by_name_or_by_an_absolute_path() {
    let runner = SystemRunner::new();
    assert!(runner.locate("sh").is_some_and(|path| path.is_absolute()));
    assert_eq!(
        runner.locate("/bin/sh").as_deref(),
        Some(Path::new("/bin/sh"))
    );
    assert_eq!(runner.locate("/etc/passwd"), None);
    assert_eq!(runner.locate("no-such-program"), None);
}

#[test]
fn a_process_reads_its_input_and_then_the_end() {
    let input = "line\n".repeat(100_000);
    let command = Command {
        input: input.clone().into(),
        ..Command::new("cat", [""; 0])
    };
    let output = SystemRunner::new().run(&command).unwrap();
    assert_eq!(output.stdout_text(), input);
}
