//! docs/compatibility.md: every row of its tables names a test that exists, and the differences that
//! no other module shows.

use std::path::{Path, PathBuf};

use ccm_core::system::Digest;

use crate::support::agent::AgentProcess;
use crate::support::poll::wait_for;
use crate::support::{TestEnv, processes_with};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the sources of tests, each with its path as a module: `crates/x/src/a/tests.rs` is `…::a`.
fn test_sources() -> Vec<(String, String)> {
    fn collect(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|suffix| suffix == "rs") {
                found.push(path);
            }
        }
    }
    let mut files = Vec::new();
    for directory in ["tests/it", "src", "crates"] {
        collect(&root().join(directory), &mut files);
    }
    let module = |path: &Path| {
        let path = path.with_extension("");
        let words = path.iter().map(|word| word.to_str().unwrap());
        let words: Vec<&str> = words.filter(|w| !["mod", "tests"].contains(w)).collect();
        words.join("::")
    };
    files
        .iter()
        .map(|path| (module(path), std::fs::read_to_string(path).unwrap()))
        .collect()
}

/// Reports whether `MODULE::NAME` is a test in the sources.
fn is_test(sources: &[(String, String)], reference: &str) -> bool {
    let Some((module, name)) = reference.rsplit_once("::") else {
        return false;
    };
    let function = format!("fn {name}()");
    sources.iter().any(|(path, text)| {
        let is_module = path == module || path.ends_with(&format!("::{module}"));
        let before = text.split_once(&function).map(|(before, _)| before);
        is_module
            && before.is_some_and(|before| {
                let before = before.trim_end().trim_end_matches("async").trim_end();
                // Attributes such as `expect` may be between the one of the test and the function.
                before
                    .rsplit("#[")
                    .take_while(|it| it.trim_end().ends_with(']'))
                    .any(|attribute| {
                        let name = attribute.split(['(', ']']).next();
                        matches!(name, Some("test" | "tokio::test"))
                    })
            })
    })
}

/// Reports whether `FILE: CASE` is a case of a data file.
fn is_case(reference: &str) -> bool {
    let Some((file, case)) = reference.split_once(": ") else {
        return false;
    };
    let text = std::fs::read_to_string(root().join(file)).unwrap_or_default();
    text.contains(&format!("{case:?}"))
}

/// Returns the cells of the last column of each row, with the number of the line.
fn references(page: &str) -> Vec<(usize, Vec<&str>)> {
    let mut rows = Vec::new();
    for (number, line) in page.lines().enumerate() {
        let is_row = line.starts_with('|') && !line.starts_with("|---");
        if is_row && !line.ends_with("| Test |") {
            let cell = line.trim_end_matches([' ', '|']).rsplit(" | ").next();
            let quoted = cell.unwrap_or_default().split('`').skip(1).step_by(2);
            rows.push((number + 1, quoted.collect()));
        }
    }
    rows
}

#[test]
fn every_row_of_the_page_names_a_test_that_exists() {
    let page = std::fs::read_to_string(root().join("docs/compatibility.md")).unwrap();
    let sources = test_sources();
    let rows = references(&page);
    let mut wrong = String::new();
    for (line, tests) in &rows {
        if tests.is_empty() {
            wrong.push_str(&format!("line {line}: no test\n"));
        }
        for test in tests {
            if !is_test(&sources, test) && !is_case(test) {
                wrong.push_str(&format!("line {line}: no test {test:?}\n"));
            }
        }
    }
    assert!(wrong.is_empty(), "docs/compatibility.md:\n{wrong}");
    assert!(rows.len() > 90, "only {} rows were found", rows.len());
}

#[test]
fn a_name_without_a_test_is_reported() {
    let sources = test_sources();
    assert!(is_test(&sources, "nested::a_failed_child_fails_its_apply"));
    assert!(is_test(
        &sources,
        "hiera::hierarchy::the_document_is_not_changed"
    ));
    for wrong in [
        "nested::no_such_test",
        "exec::a_failed_child_fails_its_apply",
        "nested::child",
        "a_failed_child_fails_its_apply",
    ] {
        assert!(!is_test(&sources, wrong), "{wrong}");
    }
    let attributed = |attributes: &str| {
        let text = format!("{attributes}\nfn works() {{}}\n");
        is_test(&[("m".to_owned(), text)], "m::works")
    };
    assert!(attributed("#[test]"));
    assert!(attributed(
        "#[tokio::test(flavor = \"multi_thread\")]\nasync"
    ));
    assert!(attributed("#[test]\n#[expect(dead_code, reason = \"x\")]"));
    assert!(!attributed("#[cfg(unix)]"));
    assert!(!attributed("#[test]\nfn other() {}\n#[cfg(unix)]"));
    assert_eq!(
        references("| a | b | Test |\n|---|---|---|\n| x | y | |\n"),
        [(3, vec![])]
    );
}

#[test]
fn unquoted_text_in_text_properties_is_kept_as_written() {
    let env = TestEnv::new();
    let path = env.at("f");
    let applied = env.apply(
        &format!("- file: {{name: {path}, ensure: present, owner: root, group: root, mode: 0644, content: 5.10}}\n"),
        &[],
    );
    assert_eq!(applied.event(0)["properties"]["mode"], "0644");
    assert_eq!(env.read("f"), "5.10");
}

#[test]
fn an_entry_without_a_value_has_the_defaults_of_its_list() {
    let env = TestEnv::new();
    let applied = env.apply("- exec: [{defaults: {command: /bin/true}}, {a: }]\n", &[]);
    assert_eq!(applied.event(0)["properties"]["command"], "/bin/true");
}

#[test]
fn an_entry_that_is_no_map_or_has_two_types_is_refused() {
    let env = TestEnv::new();
    for entry in [
        "- exec: [a]",
        "- {exec: {name: /bin/true}, file: {name: /a}}",
    ] {
        env.write("m.yaml", format!("ccm:\n  resources:\n    {entry}\n"));
        let error = env.ccm(&["apply", "m.yaml"]).error(2);
        assert!(error.contains("m.yaml:3:"), "{entry}: {error}");
    }
}

#[test]
fn hiera_accepts_the_documented_flag_for_system_facts() {
    let env = TestEnv::new();
    env.write("d.yaml", "data: {os: \"{{ Facts.host.info.os }}\"}\n");
    let text = env.ccm(&["hiera", "parse", "-S", "d.yaml", "--yaml"]).ok();
    assert_eq!(text, "os: linux\n");
}

#[test]
fn the_error_of_a_missing_fact_names_it() {
    let env = TestEnv::new();
    let error = env.ccm(&["facts", "host.nothing"]).error(1);
    assert!(error.contains("host.nothing"), "{error}");
}

#[test]
fn a_checksum_may_be_in_upper_case() {
    let env = TestEnv::new();
    let path = env.write("a.tgz", "content");
    let checksum = Digest::of(b"content").to_string().to_uppercase();
    assert_ne!(checksum, checksum.to_lowercase());
    // Another checksum would be a download from a server that does not exist.
    env.assert_stable(&format!(
        "- archive: {{name: {path}, ensure: present, url: 'http://127.0.0.1:1/a.tgz', owner: root, group: root, checksum: {checksum}}}\n"
    ));
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    let env = TestEnv::new();
    env.write(
        "m.yaml",
        b"ccm:\n  resources:\n    - exec: {name: /bin/true, alias: \"\xff\"}\n",
    );
    let error = env.ccm(&["apply", "m.yaml"]).error(2);
    assert!(error.to_lowercase().contains("utf-8"), "{error}");
}

#[test]
fn more_than_128_levels_are_refused() {
    let env = TestEnv::new();
    let nested = |levels: usize| {
        format!(
            "data: {{a: {}{}}}\n",
            "[".repeat(levels),
            "]".repeat(levels)
        )
    };
    // The document and `data` are two levels.
    env.write("ok.yaml", nested(126));
    let _ = env.ccm(&["hiera", "parse", "ok.yaml"]).ok();
    env.write("deep.yaml", nested(127));
    let error = env.ccm(&["hiera", "parse", "deep.yaml"]).error(2);
    assert!(error.contains("128 levels"), "{error}");
}

#[test]
fn a_check_of_the_command_line_has_name_and_format() {
    let env = TestEnv::new();
    let event = env
        .ccm(&[
            "ensure",
            "exec",
            "/bin/true",
            "--check",
            "/bin/true x",
            "--json",
        ])
        .json();
    let check = &event["properties"]["health_checks"][0];
    assert_eq!(check["name"], "true");
    assert_eq!(check["format"], "nagios");
}

#[test]
fn the_status_of_an_absent_file_has_no_time_in_yaml() {
    let env = TestEnv::new();
    let absent = env.ccm(&["status", "file", &env.at("none")]).ok();
    assert!(!absent.contains("mtime"), "{absent}");
    env.write("here", "x");
    let present = env.ccm(&["status", "file", &env.at("here")]).ok();
    assert!(present.contains("mtime: "), "{present}");
}

#[test]
fn render_checks_requirements() {
    let env = TestEnv::new();
    env.write(
        "m.yaml",
        "ccm:\n  resources:\n    - exec: {name: /bin/true, require: ['exec#none']}\n",
    );
    let error = env.ccm(&["apply", "m.yaml", "--render"]).error(2);
    assert!(error.contains("exec#none"), "{error}");
}

#[test]
fn a_denied_child_manifest_is_not_announced() {
    let env = TestEnv::new();
    env.write(
        "grandchild.yaml",
        "ccm:\n  resources:\n    - exec: {name: /bin/true}\n",
    );
    env.write(
        "child.yaml",
        "ccm:\n  resources:\n    - apply: {name: grandchild.yaml}\n",
    );
    env.write(
        "m.yaml",
        "ccm:\n  resources:\n    - apply: {name: child.yaml, allow_apply: false}\n",
    );
    let outcome = env.ccm(&["apply", "m.yaml"]);
    assert!(
        outcome.stdout.contains("apply resources are denied"),
        "{outcome:?}"
    );
    assert!(
        !outcome
            .stdout
            .contains("Executing manifest manifest=child.yaml"),
        "{outcome:?}"
    );
}

#[test]
fn an_agent_that_is_terminated_finishes_its_run() {
    let env = TestEnv::new();
    let tag = format!("75{}", std::process::id());
    let directory = env.at("");
    let script = format!(
        "cd {directory}; touch begun; until [ -e go ]; do sleep 0.0{tag}; done; touch done"
    );
    let text = format!(
        "ccm:\n  resources:\n    - exec: [{{one: {{provider: shell, command: '{script}'}}}}, {{two: {{command: /usr/bin/touch {directory}second}}}}]\n"
    );
    let manifest = env.write("m.yaml", text);
    let lines = format!("manifests: [{manifest}]\n");
    let agent = AgentProcess::start(&env, "web1.lab", "nats://127.0.0.1:1", &lines);
    wait_for("the first resource", || env.exists("begun"));
    agent.signal("TERM");
    wait_for("the end of the agent to begin", || {
        agent.log().contains("topping")
    });
    env.write("go", "");
    assert_eq!(agent.wait(), Some(0));
    assert!(env.exists("done"), "the first resource was not finished");
    assert!(env.exists("second"), "the run was not finished");
    assert_eq!(processes_with(&tag), Vec::<u32>::new());
}
