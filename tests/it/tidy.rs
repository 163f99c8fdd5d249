//! Rules about the source itself that a machine can check.

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

/// What each room may import beside `model`; faces may import anything and nobody imports a face.
const ARROWS: [(&str, &[&str]); 16] = [
    ("model", &[]),
    ("system", &[]),
    ("nats", &["system", "run"]),
    ("template", &[]),
    ("facts", &["system"]),
    ("health", &["system", "template", "facts"]),
    ("hiera", &["template"]),
    ("resource", &["system", "template"]),
    ("manifest", &["template", "hiera"]),
    (
        "engine",
        &[
            "system", "template", "facts", "health", "hiera", "resource", "manifest",
        ],
    ),
    (
        "run",
        &[
            "system", "template", "facts", "health", "hiera", "resource", "manifest", "engine",
        ],
    ),
    (
        "agent",
        &[
            "system", "nats", "template", "facts", "health", "hiera", "manifest", "engine", "run",
        ],
    ),
    ("fleet", &["system", "nats", "template", "manifest"]),
    ("cfengine", &["system", "template", "resource"]),
    (
        "choria",
        &["system", "nats", "template", "facts", "engine", "run"],
    ),
    (
        "cli",
        &[
            "system", "nats", "template", "facts", "hiera", "resource", "manifest", "engine",
            "run", "agent", "fleet", "cfengine", "choria",
        ],
    ),
];

#[test]
fn rooms_import_only_what_the_map_allows() {
    let src = root().join("src");
    let mut wrong = Vec::new();
    for file in sources(&src) {
        let inside = file.strip_prefix(&src).unwrap();
        let room = inside.iter().next().unwrap().to_str().unwrap();
        if inside.components().count() == 1 {
            continue; // main.rs and lib.rs hold no rooms
        }
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == room) else {
            wrong.push(format!("{room} is a room without a row in ARROWS"));
            continue;
        };
        let text = std::fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            for (at, _) in line.match_indices("crate::") {
                let rest = &line[at + "crate::".len()..];
                let target: String = rest
                    .chars()
                    .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                    .collect();
                let known = ARROWS.iter().any(|(name, _)| *name == target);
                if known && target != room && target != "model" && !allowed.contains(&&*target) {
                    let place = format!("{}:{}", inside.display(), number + 1);
                    wrong.push(format!("{place}: {room} must not import {target}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_source_file_opens_with_its_idea() {
    for directory in ["src", "tests", "benches"] {
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

/// Where a shell may be started: for commands whose author asked for one, goss's own commands, and
/// scripts of plugins.
const SHELLS: [&str; 3] = [
    "src/cli/plugins/run.rs",
    "src/health/goss/probe/command.rs",
    "src/resource/exec.rs",
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
    for file in sources(&root().join("src")) {
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
fn nothing_panics_because_nobody_reads() {
    let macros = ["print!(", "println!(", "eprint!(", "eprintln!("];
    for file in sources(&root().join("src")) {
        let text = std::fs::read_to_string(&file).unwrap();
        for name in macros {
            assert!(!text.contains(name), "{} holds {name}", file.display());
        }
    }
}

#[test]
fn no_test_is_ignored_and_no_stub_is_left() {
    let marks = ["#[ignore", "#[should_panic", "todo!(", "unimplemented!("];
    for directory in ["src", "tests"] {
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
