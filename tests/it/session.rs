//! Sessions: several calls of `ccm ensure` that know of each other.

use crate::support::TestEnv;

fn open(env: &mut TestEnv) -> String {
    let line = env.ccm(&["session", "new"]).ok();
    let store = line
        .trim()
        .strip_prefix("export CCM_SESSION_STORE=")
        .unwrap()
        .replace("$DIR", env.root().to_str().unwrap());
    env.set("CCM_SESSION_STORE", &store);
    store
}

#[test]
fn upstreams_shell_example_is_changed_then_stable() {
    for (round, counts) in [("first", (2, 0)), ("second", (0, 2))] {
        let mut env = TestEnv::new();
        let shared = std::env::temp_dir().join(format!("ccm-it-{}", std::process::id()));
        std::fs::create_dir_all(&shared).unwrap();
        let (f, x) = (shared.join("F"), shared.join("X"));
        let (f, x) = (f.to_str().unwrap(), x.to_str().unwrap());
        open(&mut env);
        let file = [
            "ensure",
            "file",
            f,
            "--content",
            "hello",
            "--owner",
            "root:root",
            "--mode",
            "0644",
        ];
        let _ = env.ccm(&file).ok();
        let touch = format!("/usr/bin/touch {x}");
        let subscribe = format!("file#{f}");
        let exec = [
            "ensure",
            "exec",
            &touch,
            "--refresh-only",
            "--subscribe",
            &subscribe,
        ];
        let _ = env.ccm(&exec).ok();
        let report = env.ccm(&["session", "report", "--remove"]).ok();
        let (changed, stable) = counts;
        for line in [
            "      Total Resources: 2\n".to_owned(),
            format!("     Stable Resources: {stable}\n"),
            format!("    Changed Resources: {changed}\n"),
            "     Failed Resources: 0\n".to_owned(),
        ] {
            assert!(report.contains(&line), "{round}: {line:?} in {report}");
        }
        if round == "second" {
            std::fs::remove_dir_all(shared).unwrap();
        }
    }
}

#[test]
fn a_failed_requirement_skips_what_needs_it() {
    let mut env = TestEnv::new();
    open(&mut env);
    let _ = env.ccm(&["ensure", "exec", "/bin/false"]).error(1);
    let marker = env.at("marker");
    let outcome = env.ccm(&[
        "ensure",
        "exec",
        &format!("/usr/bin/touch {marker}"),
        "--require",
        "exec#/bin/false",
    ]);
    assert_eq!(outcome.code, Some(1));
    assert!(
        outcome
            .stdout
            .contains("skipped due to unmet requirement ensure=present"),
        "{outcome:?}"
    );
    assert!(outcome.stdout.contains("unmet=exec#/bin/false"));
    assert!(!env.exists("marker"));
}

#[test]
fn references_without_a_session_are_refused_before_anything_runs() {
    let env = TestEnv::new();
    let touch = format!("/usr/bin/touch {}", env.at("x"));
    for (flag, word) in [("--require", "requires"), ("--subscribe", "subscribe")] {
        let error = env
            .ccm(&["ensure", "exec", &touch, flag, "file#/a"])
            .error(2);
        assert!(
            error.contains(&format!("session store should be set when using {word}")),
            "{error}"
        );
    }
    assert!(!env.exists("x"));
}

#[test]
fn a_store_that_is_missing_is_found_out_before_anything_runs() {
    let env = TestEnv::new();
    let touch = format!("/usr/bin/touch {}", env.at("x"));
    let error = env
        .ccm(&["ensure", "--session", "gone", "exec", &touch])
        .error(2);
    assert!(
        error.contains("session store gone does not exist"),
        "{error}"
    );
    assert!(!env.exists("x"));
}

#[test]
fn a_given_directory_is_created_and_an_existing_one_refused() {
    let env = TestEnv::new();
    let line = env.ccm(&["session", "new", "--directory", "s"]).ok();
    assert_eq!(line, "export CCM_SESSION_STORE=$DIR/s\n");
    assert!(env.path("s").is_dir());
    let error = env.ccm(&["session", "new", "--directory", "s"]).error(1);
    assert!(
        error.contains("session store $DIR/s already exists"),
        "{error}"
    );
}

#[test]
fn only_stores_below_the_temporary_directory_are_removed() {
    let mut env = TestEnv::new();
    let _ = env.ccm(&["session", "new", "--directory", "s"]).ok();
    env.set("TMPDIR", "/usr");
    let outcome = env.ccm(&["session", "report", "--session", "s", "--remove"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("Session Summary"), "{outcome:?}");
    assert!(
        outcome.stderr.contains("level=WARN msg=\"Session store is outside of the temporary directory and is not removed\""),
        "{outcome:?}"
    );
    assert!(env.exists("s"));
}

#[test]
fn a_report_without_a_store_says_so_and_an_empty_one_is_zeros() {
    let env = TestEnv::new();
    let error = env.ccm(&["session", "report"]).error(2);
    assert!(error.contains("no session store specified"), "{error}");
    let report = env.ccm(&["session", "report", "--session", "gone"]).ok();
    assert!(report.contains("      Total Resources: 0\n"), "{report}");
    assert!(!report.contains("Run Time"), "{report}");
}

#[test]
fn events_in_a_store_are_what_upstream_reads() {
    let mut env = TestEnv::new();
    let store = open(&mut env);
    let _ = env.ccm(&["ensure", "exec", "/bin/true"]).ok();
    let entry = std::fs::read_dir(&store).unwrap().next().unwrap().unwrap();
    let name = entry.file_name().into_string().unwrap();
    let text = std::fs::read_to_string(entry.path()).unwrap();
    let event: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        name,
        format!("{}.event", event["event_id"].as_str().unwrap())
    );
    assert_eq!(event["protocol"], "io.choria.ccm.v1.transaction.event");
    assert!(text.starts_with("{\n  \"protocol\": ") && !text.ends_with('\n'));
}

#[test]
fn a_summary_can_be_had_as_json() {
    let mut env = TestEnv::new();
    open(&mut env);
    let _ = env.ccm(&["ensure", "exec", "/bin/true"]).ok();
    let summary = env.ccm(&["session", "report", "--json"]).json();
    assert_eq!(summary["changed_resources"], 1);
}

#[test]
fn a_session_that_others_can_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut env = TestEnv::new();
    let store = open(&mut env);
    let mode = std::path::Path::new(&store)
        .metadata()
        .unwrap()
        .permissions();
    assert_eq!(mode.mode() & 0o7777, 0o700);
    for mode in [0o770, 0o702] {
        std::fs::set_permissions(&store, std::fs::Permissions::from_mode(mode)).unwrap();
        let outcome = env.ccm(&["ensure", "exec", "/usr/bin/touch made"]);
        assert_ne!(outcome.code, Some(0));
        assert!(outcome.stderr.contains("run chmod go-w"), "{outcome:?}");
    }
    assert!(!env.exists("made"));
}
