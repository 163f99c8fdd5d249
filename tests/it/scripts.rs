//! Scripts of developers: what they say about figures that are missing, and about an old compiler.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

/// Runs Python with the modules of `scripts/lib`, and returns what it prints.
fn python(code: &str) -> String {
    let output = Command::new("python3")
        .args(["-B", "-c", code])
        .env("PYTHONPATH", "scripts/lib")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn figures_that_only_one_commit_prints_are_listed() {
    let text = python(
        "import bench_compare as it\n\
         ours = it.figures('p50: 3 ms\\nnew: 4 MiB\\n')\n\
         theirs = it.figures('p50: 4 ms\\nold: 5 MiB\\n')\n\
         print('\\n'.join(it.comparison('agent', [[ours, theirs]])))",
    );
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    assert_eq!(
        lines[2..],
        [
            "p50: 3 ms",
            "number 1: 0.75 (0.75 to 0.75)",
            "only in this work tree, or not in every round:",
            "new: 4 MiB",
            "only in the other commit, or not in every round:",
            "old: 5 MiB",
        ]
    );
}

#[test]
fn programs_that_were_not_measured_are_listed_with_the_reason() {
    let text = python(
        "import peers as it\n\
         ours = {'name': 'ccm-fleet', 'version': '1.0', 'costs': [[0.1, 1024]] * 4}\n\
         theirs = {'name': 'Salt', 'version': '2.0', 'costs': [[0.2, 2048]] * 4}\n\
         failed = {'name': 'Puppet', 'error': 'not installed: first\\nlast'}\n\
         options = it.argparse.Namespace(files=10, rounds=5, cpu_time=False, lock=None)\n\
         print(it.report([failed, theirs, ours], options))\n\
         print(it.report([theirs], options))",
    );
    // The order of the programs does not decide which is ours.
    assert!(
        text.contains("| Salt 2.0 | 200 ms, 2 MiB (2.0 x, 2.0 x) |"),
        "{text}"
    );
    assert!(text.contains("| ccm-fleet 1.0 | 100 ms, 1 MiB |"), "{text}");
    assert!(
        text.contains("- Not measured: Puppet: not installed: first: last\n"),
        "{text}"
    );
    assert!(
        text.contains("| Salt 2.0 | 200 ms, 2 MiB |"),
        "no ratios without ccm: {text}"
    );
}

#[test]
fn a_program_that_is_too_slow_for_all_files_is_compared_with_as_many_files() {
    let text = python(
        "import peers as it\n\
         ours = {'name': 'ccm-fleet', 'version': '1.0', 'files': 50, 'costs': [[0.1, 1024]] * 4,\n\
                 'fewer': [[0.02, 1024]] * 2}\n\
         slow = {'name': 'Ansible', 'version': '2.0', 'files': 5, 'costs': [[0.2, 2048]] * 4,\n\
                 'note': 'Ansible: too slow'}\n\
         options = it.argparse.Namespace(files=50, rounds=5, cpu_time=False, lock='here')\n\
         print(it.report([slow, ours], options))",
    );
    assert!(
        text.contains("| 200 ms, 2 MiB (2.0 x, 2.0 x) | 5 files: 200 ms, 2 MiB (10 x, 2.0 x) |"),
        "{text}"
    );
    assert!(text.contains("Ansible: too slow: the ratios are"), "{text}");
}

#[test]
fn an_old_compiler_is_named_in_one_line_before_anything_is_installed() {
    let directory = tempfile::tempdir().unwrap();
    let rustc = directory.path().join("rustc");
    std::fs::write(&rustc, "#!/bin/sh\necho 'rustc 1.63.0 (Debian)'\n").unwrap();
    std::fs::set_permissions(&rustc, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", directory.path().display());
    for script in ["scripts/demo", "scripts/test"] {
        let output = Command::new(script)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("PATH", &path)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{script}: {output:?}");
        assert_eq!(output.stdout, b"", "{script}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(error.lines().count(), 1, "{script}: {error}");
        let version = env!("CARGO_PKG_RUST_VERSION");
        let wanted =
            format!("Rust {version} or newer is needed, found 1.63.0: install it with rustup");
        assert!(error.starts_with(&wanted), "{script}: {error}");
    }
}
