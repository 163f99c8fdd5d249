//! The documents say what is so: marked examples are typed into a shell and print what they show,
//! and every command and flag that is named anywhere exists.
//!
//! Marks are comments that no reader sees: `<!-- test: run -->` before a block that is run,
//! `<!-- test: file NAME -->` before one that is a file, `<!-- test: COMMAND -->` for a command.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::support::TestEnv;

/// What documents write to, here below a scratch directory.
const PLACES: [&str; 2] = ["/srv", "/var/cfengine/modules/packages"];

/// What a shell prints after each command, to separate the outputs.
const END: &str = "\u{1}";

fn document(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// One thing that a document wants to be done.
#[derive(Debug)]
enum Step {
    File { name: String, text: String },
    Run { command: String, shown: String },
}

/// Returns what the marks of a document require, in order.
fn steps(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let mark = line.strip_prefix("<!-- test: ");
        let Some(mark) = mark.and_then(|mark| mark.strip_suffix(" -->")) else {
            continue;
        };
        let mut block = || {
            let fence = lines.next().unwrap_or_default();
            assert!(fence.starts_with("```"), "{mark}: no block follows");
            let inside = lines.by_ref().take_while(|line| *line != "```");
            inside.fold(String::new(), |text, line| text + line + "\n")
        };
        match mark.split_once(' ') {
            None if mark == "run" => steps.extend(typed(&block())),
            Some(("file", name)) => steps.push(Step::File {
                name: name.into(),
                text: block(),
            }),
            _ => steps.push(Step::Run {
                command: mark.into(),
                shown: String::new(),
            }),
        }
    }
    steps
}

/// Returns the commands of a block, each with what is shown below it. A here-document belongs to
/// its command.
fn typed(block: &str) -> Vec<Step> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut until = None;
    for line in block.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            until = command
                .split_once("<<")
                .map(|(_, end)| end.trim_matches('\''));
            found.push((command.into(), String::new()));
            continue;
        }
        let (command, shown) = found.last_mut().expect("a block begins with a command");
        match until {
            Some(end) => {
                write!(command, "\n{line}").unwrap();
                until = until.filter(|_| line != end);
            }
            None => writeln!(shown, "{line}").unwrap(),
        }
    }
    let steps = found.into_iter();
    steps
        .map(|(command, shown)| Step::Run { command, shown })
        .collect()
}

/// Does what a document says in one shell, and compares what it prints with what is shown.
fn follow(name: &str) {
    let env = TestEnv::new();
    let here = |text: &str| {
        PLACES.iter().fold(text.to_owned(), |text, place| {
            text.replace(place, &env.at(&place[1..]))
        })
    };
    for place in PLACES {
        std::fs::create_dir_all(env.path(&place[1..])).unwrap();
    }
    std::fs::create_dir(env.path("bin")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ccm"), env.path("bin/ccm")).unwrap();
    let mut script = String::from("set -e\n");
    let mut expected = Vec::new();
    for step in steps(&document(name)) {
        match step {
            Step::File { name, text } => {
                env.write(&name, here(&text));
            }
            Step::Run { command, shown } => {
                writeln!(script, "{}\nprintf '{END}'", here(&command)).unwrap();
                expected.push((command, here(&shown)));
            }
        }
    }
    assert!(!expected.is_empty(), "{name} has no examples");
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(env.root())
        .env_clear()
        .env("HOME", env.root())
        .env("TMPDIR", env.root())
        .env("PATH", format!("{}:/usr/bin:/bin", env.at("bin")))
        .output()
        .unwrap();
    assert!(output.status.success(), "{name}: {output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    for ((command, shown), printed) in expected.iter().zip(printed.split(END)) {
        if !shown.is_empty() {
            assert_eq!(
                without_times(printed),
                without_times(shown),
                "{name}: {command}"
            );
        }
    }
}

/// Returns a text without how long things took.
fn without_times(text: &str) -> String {
    let words = text.split_inclusive([' ', '\n']);
    let words = words.filter(|word| !word.starts_with("runtime="));
    words.collect()
}

#[test]
fn examples_of_the_readme_print_what_they_show() {
    follow("README.md");
}

#[test]
fn examples_of_the_guide_print_what_they_show() {
    follow("docs/guide.md");
}

/// Returns every call of the program in a document: in blocks, and between backquotes.
fn calls(text: &str) -> Vec<String> {
    // A table's bar between alternatives is not a pipe.
    let text = text.replace("\\|", " ");
    let is_call = |line: &&str| line.starts_with("ccm ");
    let lines = text
        .lines()
        .map(|line| line.trim_start().trim_start_matches(['$', '#', ' ']));
    let spans = text.split('`').skip(1).step_by(2);
    let all = lines.filter(is_call).chain(spans.filter(is_call));
    // A comment behind a command, and what comes after a pipe, is not its own.
    let own = all.map(|call| call.split([';', '|', '#', '&', ')']).next().unwrap_or(call));
    own.map(|call| call.replace(['[', ']', '"'], " ")).collect()
}

/// Flags that stand alone and that no help lists, as with upstream.
const UNLISTED: [&str; 5] = [
    "--completion-script-bash",
    "--completion-script-fish",
    "--completion-script-zsh",
    "--help-long",
    "--help-man",
];

#[test]
fn every_command_and_flag_that_documents_name_exists() {
    let env = TestEnv::new();
    let mut helps: BTreeMap<Vec<String>, String> = BTreeMap::new();
    let mut help = |path: &[String]| {
        let run_help = || {
            let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
            args.push("--help");
            env.ccm(&args).ok()
        };
        helps.entry(path.to_vec()).or_insert_with(run_help).clone()
    };
    let mut checked = 0;
    for name in [
        "README.md",
        "docs/guide.md",
        "docs/monitoring.md",
        "docs/enrolment.md",
        "docs/security.md",
        "docs/choria.md",
        "docs/choria-events.md",
        "docs/scale.md",
    ] {
        for call in calls(&document(name)) {
            let mut path: Vec<String> = Vec::new();
            let words: Vec<&str> = call.split_whitespace().skip(1).collect();
            for word in &words {
                let listed = |line: &str| line.split_whitespace().next() == Some(*word);
                let text = help(&path);
                let commands = text.split("Commands:\n").nth(1).unwrap_or_default();
                let commands = commands.split("\n\n").next().unwrap_or_default();
                match commands.lines().any(listed) {
                    true => path.push((*word).into()),
                    false => break,
                }
            }
            let is_known = !path.is_empty() || words[0].starts_with("--");
            assert!(is_known, "{name}: no command in {call:?}");
            let text = help(&path);
            for flag in words.iter().filter(|word| word.starts_with("--")) {
                let flag = flag.split(['=', '/', ',', '.']).next().unwrap_or(flag);
                let is_there = text
                    .split(|c: char| c.is_whitespace() || c == ',')
                    .any(|word| word == flag);
                let is_there = is_there || flag == "--" || UNLISTED.contains(&flag);
                assert!(is_there, "{name}: no {flag} in {call:?}");
                checked += 1;
            }
        }
    }
    for flag in UNLISTED {
        env.ccm(&[flag]).ok();
    }
    assert!(checked > 50, "only {checked} flags found");
}
