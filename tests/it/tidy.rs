//! Rules about the source itself that a machine can check.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|suffix| suffix == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every source file of the program and of its libraries.
fn program_sources() -> Vec<PathBuf> {
    let crates = std::fs::read_dir(root().join("crates")).unwrap().flatten();
    let mut directories: Vec<PathBuf> = crates.map(|entry| entry.path().join("src")).collect();
    directories.push(root().join("src"));
    directories.sort();
    directories.iter().flat_map(|it| sources(it)).collect()
}

/// A module, and the modules of its own crate that it imports beside `model` and the fixtures of tests.
type Row = (&'static str, &'static [&'static str]);

/// The arrows inside the crates that have more than one layer; those between crates are cargo's.
const ARROWS: &[(&str, &[Row])] = &[
    (
        "crates/ccm-core/src",
        &[
            ("filter", &[]),
            ("hiera", &[]),
            ("model", &[]),
            ("secrets", &[]),
            ("system", &[]),
            ("facts", &["system"]),
            ("manifest", &["hiera", "secrets"]),
            ("resource", &["system"]),
            ("health", &["facts", "system"]),
            (
                "engine",
                &[
                    "health", "hiera", "manifest", "resource", "secrets", "system",
                ],
            ),
            (
                "run",
                &[
                    "engine", "health", "hiera", "manifest", "resource", "secrets", "system",
                ],
            ),
        ],
    ),
    (
        "crates/ccm-fleet/src",
        &[
            ("assignments", &[]),
            ("audit", &[]),
            ("backup", &[]),
            ("bundle", &[]),
            ("fixture", &[]),
            ("labels", &[]),
            ("nats_waits", &[]),
            ("preview", &[]),
            ("records", &[]),
            ("reply_body", &[]),
            ("role_permissions", &[]),
            ("rollout_encoding", &[]),
            ("scatter", &[]),
            ("selection", &[]),
            ("summarize", &[]),
            ("bundle_diff", &["bundle"]),
            ("decision", &["assignments"]),
            ("drift", &["preview", "records"]),
            ("inventory", &["records", "selection"]),
            ("node_progress", &["records"]),
            ("node_reply", &["reply_body", "scatter", "summarize"]),
            ("run_history", &["records"]),
            ("trust", &["role_permissions"]),
            ("batches", &["node_reply", "scatter", "summarize"]),
            ("controls", &["decision"]),
            ("enrolment", &["audit", "role_permissions", "trust"]),
            ("node_condition", &["inventory"]),
            ("rollout_chunks", &["decision", "rollout_encoding"]),
            ("waves", &["inventory"]),
            ("forget", &["audit", "enrolment"]),
            ("planner", &["controls"]),
            (
                "rollout_store",
                &["controls", "rollout_chunks", "rollout_encoding"],
            ),
            ("bundle_store", &["bundle", "bundle_diff", "rollout_store"]),
            (
                "doctor",
                &["enrolment", "inventory", "node_condition", "rollout_store"],
            ),
            (
                "late_reports",
                &["node_progress", "records", "rollout_store"],
            ),
            (
                "executor",
                &[
                    "assignments",
                    "decision",
                    "late_reports",
                    "nats_waits",
                    "node_progress",
                    "planner",
                    "records",
                    "rollout_store",
                ],
            ),
            (
                "start",
                &[
                    "assignments",
                    "bundle_store",
                    "decision",
                    "inventory",
                    "node_reply",
                    "preview",
                    "rollout_store",
                    "selection",
                    "summarize",
                    "waves",
                ],
            ),
            (
                "web",
                &[
                    "bundle_store",
                    "controls",
                    "decision",
                    "executor",
                    "labels",
                    "nats_waits",
                    "node_reply",
                    "preview",
                    "records",
                    "reply_body",
                    "rollout_chunks",
                    "rollout_store",
                    "run_history",
                    "scatter",
                    "selection",
                    "start",
                    "summarize",
                ],
            ),
        ],
    ),
    (
        "src",
        &[
            ("cfengine", &[]),
            ("choria", &[]),
            ("cli", &["cfengine", "choria"]),
        ],
    ),
];

/// Returns the modules that a source names below `crate::`, or below as many `super::` as lead from it
/// to the root of its crate, with the number of the line.
fn imports(text: &str, depth: usize) -> Vec<(usize, String)> {
    let word = |text: &str| -> String {
        let is_word = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        text.trim_start().chars().take_while(is_word).collect()
    };
    let is_comment = |at: usize| {
        let start = text[..at].rfind('\n').map_or(0, |end| end + 1);
        text[start..at].trim_start().starts_with("//")
    };
    let above = "super::".repeat(depth);
    let is_whole = |at: usize, path: &str| {
        path == "crate::"
            || !text[..at].ends_with("super::") && !text[at + path.len()..].starts_with("super::")
    };
    let paths = text.match_indices("crate::");
    let paths = paths.chain(text.match_indices(above.as_str()));
    let mut found = Vec::new();
    for (at, path) in paths {
        if is_comment(at) || !is_whole(at, path) {
            continue;
        }
        let line = text[..at].lines().count();
        let rest = &text[at + path.len()..];
        let Some(group) = rest.strip_prefix('{') else {
            found.push((line, word(rest)));
            continue;
        };
        let mut depth = 1;
        let mut start = 0;
        for (end, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if (c == ',' && depth == 1) || depth == 0 {
                found.push((line, word(&group[start..end])));
                start = end + 1;
            }
            if depth == 0 {
                break;
            }
        }
    }
    found
}

#[test]
fn imports_of_one_path_and_of_a_group_are_found() {
    let text = "//! [`crate::x`]\nuse crate::a::B;\nuse crate::{c, d::{E, f},\n    g};\n";
    let names: Vec<String> = imports(text, 1).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["a", "c", "d", "g"]);
    let text = "use super::a;\nuse super::super::{b, c::D};\nuse super::super::super::e;\n";
    let names = |depth| -> Vec<String> {
        let found = imports(text, depth).into_iter();
        found.map(|(_, name)| name).collect()
    };
    assert_eq!(names(1), ["a"]);
    assert_eq!(names(2), ["b", "c"]);
}

#[test]
fn modules_import_exactly_what_the_table_says() {
    let mut wrong = Vec::new();
    for (source, rows) in ARROWS {
        let directory = root().join(source);
        let mut unused: BTreeSet<(&str, &str)> = BTreeSet::new();
        for (module, targets) in *rows {
            if !directory.join(module).is_dir() && !directory.join(format!("{module}.rs")).is_file()
            {
                wrong.push(format!("{source}: there is no module {module}"));
            }
            unused.extend(targets.iter().map(|target| (*module, *target)));
        }
        for file in sources(&directory) {
            let inside = file.strip_prefix(&directory).unwrap();
            let first = inside.iter().next().unwrap().to_str().unwrap();
            let module = first.trim_end_matches(".rs");
            if ["main", "lib"].contains(&module) {
                continue;
            }
            let Some((_, allowed)) = rows.iter().find(|(name, _)| *name == module) else {
                wrong.push(format!("{source}: {module} has no row"));
                continue;
            };
            let text = std::fs::read_to_string(&file).unwrap();
            let depth = inside.iter().count() - usize::from(inside.ends_with("mod.rs"));
            for (line, target) in imports(&text, depth) {
                let known = rows.iter().any(|(name, _)| *name == target);
                unused.retain(|arrow| *arrow != (module, target.as_str()));
                let is_common = ["model", "fixture"].contains(&target.as_str());
                if known && target != module && !is_common && !allowed.contains(&&*target) {
                    let place = format!("{source}/{}:{line}", inside.display());
                    wrong.push(format!("{place}: {module} must not import {target}"));
                }
            }
        }
        let stale = unused.iter().map(|(module, target)| {
            format!("{source}: {module} no longer imports {target}; take it out of its row")
        });
        wrong.extend(stale);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_source_file_opens_with_its_idea() {
    for directory in ["src", "crates", "tests", "benches"] {
        for file in sources(&root().join(directory)) {
            let text = std::fs::read_to_string(&file).unwrap();
            let is_test_part = file.ends_with("tests.rs");
            assert!(
                text.starts_with("//!") || is_test_part,
                "{} does not open with //!",
                file.display()
            );
        }
    }
}

#[test]
fn every_test_file_belongs_to_the_one_binary() {
    let directory = root().join("tests/it");
    let main = std::fs::read_to_string(directory.join("main.rs")).unwrap();
    for entry in std::fs::read_dir(&directory).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let module = name.trim_end_matches(".rs");
        assert!(
            module == "main" || main.contains(&format!("mod {module};")),
            "tests/it/{name} is not named in main.rs"
        );
    }
}

/// Where a shell may be started: for commands whose author requests one, goss's own commands, and
/// scripts of plugins.
const SHELLS: [&str; 3] = [
    "crates/ccm-core/src/health/goss/probe/command.rs",
    "crates/ccm-core/src/resource/exec.rs",
    "src/cli/plugins/run.rs",
];

#[test]
fn a_shell_is_started_only_for_those_who_ask_for_one() {
    let shells = [
        "sh",
        "bash",
        "dash",
        "/bin/sh",
        "/bin/bash",
        "/usr/bin/sh",
        "/usr/bin/env",
    ];
    let mut found = Vec::new();
    for file in program_sources() {
        let name = file
            .strip_prefix(root())
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let is_test = name.ends_with("tests.rs") || name.contains("/tests/");
        if !is_test
            && shells
                .iter()
                .any(|shell| code.contains(&format!("\"{shell}\"")))
        {
            found.push(name);
        }
    }
    assert_eq!(found, SHELLS);
}

#[test]
fn nothing_panics_on_a_closed_output() {
    let macros = ["print!(", "println!(", "eprint!(", "eprintln!("];
    for file in program_sources() {
        let text = std::fs::read_to_string(&file).unwrap();
        for name in macros {
            assert!(!text.contains(name), "{} holds {name}", file.display());
        }
    }
}

#[test]
fn no_test_is_ignored_and_no_stub_is_left() {
    let marks = ["#[ignore", "#[should_panic", "todo!(", "unimplemented!("];
    for directory in ["src", "crates", "tests"] {
        for file in sources(&root().join(directory)) {
            if file.ends_with("tidy.rs") {
                continue;
            }
            let text = std::fs::read_to_string(&file).unwrap();
            for mark in marks {
                assert!(!text.contains(mark), "{} holds {mark}", file.display());
            }
        }
    }
}

/// Names of modules that were replaced by the words of the field. `link` and `words` are left out: a
/// resource type and the words of a shell have these names.
const OLD_MODULES: [&str; 28] = [
    "act",
    "book",
    "bustle",
    "desk",
    "fold",
    "gather",
    "guard",
    "happening",
    "hear",
    "herald",
    "in_place",
    "judge",
    "look",
    "many",
    "newest",
    "note",
    "outbox",
    "owed",
    "seen",
    "shelf",
    "slots",
    "steer",
    "sweep",
    "turn",
    "verbs",
    "vouch",
    "way",
    "work",
];

/// Names of types that were replaced by the words of the field.
const OLD_TYPES: [&str; 10] = [
    "Answer",
    "Asked",
    "DataKeeper",
    "Desk",
    "Found",
    "Hands",
    "Heard",
    "PauseBook",
    "Told",
    "What",
];

#[test]
fn no_module_or_type_has_a_name_that_was_replaced() {
    let mut wrong = Vec::new();
    for directory in ["src", "crates", "tests", "benches"] {
        for file in sources(&root().join(directory)) {
            let name = file.strip_prefix(root()).unwrap();
            let mut parts = name.iter().filter_map(|part| part.to_str());
            let is_old = |part: &str| OLD_MODULES.contains(&part.trim_end_matches(".rs"));
            if parts.any(is_old) {
                wrong.push(name.display().to_string());
            }
            let text = std::fs::read_to_string(&file).unwrap();
            for old in OLD_TYPES {
                let declared = ["struct", "enum", "trait"].map(|word| format!("{word} {old}"));
                let is_declared = |text: &str| {
                    declared.iter().any(|start| {
                        let rest = text.split_once(start.as_str()).map(|(_, rest)| rest);
                        let next = rest.and_then(|rest| rest.chars().next());
                        next.is_some_and(|c| !c.is_ascii_alphanumeric() && c != '_')
                    })
                };
                if text.lines().any(is_declared) {
                    wrong.push(format!("{}: {old}", name.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
