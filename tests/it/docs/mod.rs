//! The documents say what is so: marked examples are typed into a shell and print what they show,
//! every command and flag that is named anywhere exists, and every link has a target.
//!
//! Marks are comments that no reader sees, such as `<!-- test: run -->` before a block; `marks` reads them.

mod demo;
mod links;
mod marks;
mod wording;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use ccm_nats::Verb;
use regex::Regex;

use self::marks::{Step, blocks, steps, unmarked_blocks};
use crate::schema;
use crate::support::TestEnv;
use crate::support::nats::tool;

/// What documents write to, here below a scratch directory.
const PLACES: [&str; 2] = ["/srv", "/var/cfengine/modules/packages"];

/// What a shell prints after each command, to separate the outputs.
const END: &str = "\u{1}";

fn document(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// Does what a document says in one shell, and returns the first difference from what it shows.
fn follow(text: &str) -> Result<(), String> {
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
    let start_fleet = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/docs/start-fleet");
    for (name, program) in [
        ("ccm", Path::new(env!("CARGO_BIN_EXE_ccm"))),
        ("nats-server", &tool("nats-server")),
        ("start-fleet", Path::new(start_fleet)),
    ] {
        std::os::unix::fs::symlink(program, env.path("bin").join(name)).unwrap();
    }
    let mut script = String::from("set -e\nip link set lo up\n");
    let mut expected = Vec::new();
    for step in steps(text) {
        match step {
            Step::File { name, text } => {
                env.write(&name, here(&text));
            }
            Step::Run { command, shown } => {
                writeln!(script, "{}\nprintf '{END}'", here(&command)).unwrap();
                expected.push((command, here(&shown)));
            }
            Step::Satisfy { schema, text } => {
                let parsed = serde_yaml::from_str(&text);
                schema::assert_valid(&schema, &parsed.unwrap());
            }
        }
    }
    if expected.is_empty() {
        return Ok(());
    }
    // A network of its own: ports are free, and what is left running ends with the shell.
    let output = Command::new("unshare")
        .args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-c", &script])
        .current_dir(env.root())
        .env_clear()
        .env("HOME", env.root())
        .env("TMPDIR", env.root())
        .env("REPOSITORY", env!("CARGO_MANIFEST_DIR"))
        .env(
            "PATH",
            format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", env.at("bin")),
        )
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let printed: Vec<&str> = printed.split(END).collect();
    if !output.status.success() {
        let (command, _) = &expected[printed.len() - 1];
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "{command}: {}: {printed:#?}{errors}",
            output.status
        ));
    }
    for ((command, shown), printed) in expected.iter().zip(printed) {
        if !shown.is_empty() {
            let (mut printed, mut shown) = (normal(printed), normal(shown));
            // Nodes reply in any order.
            if command.starts_with("ccm fleet") {
                printed.sort();
                shown.sort();
            }
            if printed != shown {
                return Err(format!("{command}: printed {printed:#?}, shown {shown:#?}"));
            }
        }
    }
    Ok(())
}

/// Fails if a document of the repository is not followed by the program.
fn assert_followed(name: &str) {
    if let Err(problem) = follow(&document(name)) {
        panic!("{name}: {problem}");
    }
}

/// Returns the lines of a text without what differs between runs: times, ids, digests, keys and column widths.
fn normal(text: &str) -> Vec<String> {
    static PATTERNS: LazyLock<[Regex; 9]> = LazyLock::new(|| {
        [
            r"runtime=\S+",
            r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?Z?",
            r"\b(\d+(\.\d+)?(ms|µs|m|s|h))+\b( ago)?|\bnow\b",
            r"\b\d{8}-\d{6}-[0-9a-z]+\b",
            r"\b[0-9a-f]{8,64}\b",
            r"\b[UA][A-Z2-7]{55}\b",
            r"\b[0-9A-Za-z]{27}\b",
            r"\b\d+ bytes\b",
            r"\b\w+@[\w.-]+",
        ]
        .map(|pattern| Regex::new(pattern).unwrap())
    });
    let text = PATTERNS.iter().fold(text.to_owned(), |text, pattern| {
        pattern.replace_all(&text, "*").into_owned()
    });
    // A blank line at the end does not show in a block.
    let lines = text.trim_end().lines().map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.join(" ")
    });
    lines.collect()
}

/// Returns the files of the book, below `docs/`.
pub(crate) fn book_pages() -> Vec<String> {
    fn collect(directory: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|suffix| suffix == "md") {
                let name = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap();
                found.push(name.to_str().unwrap().to_owned());
            }
        }
    }
    let mut found = Vec::new();
    collect(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("docs"),
        &mut found,
    );
    found.sort();
    found
}

/// Returns the README files of the repository and of its examples.
fn readmes() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let examples = std::fs::read_dir(root.join("examples")).unwrap();
    let examples = examples.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let examples = examples.map(|name| format!("examples/{name}/README.md"));
    let mut found: Vec<String> = examples.filter(|name| root.join(name).exists()).collect();
    found.extend(["README.md", "examples/README.md"].map(str::to_owned));
    found.sort();
    found
}

#[test]
fn the_readme_of_the_examples_describes_each() {
    let text = document("examples/README.md");
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).unwrap()
    {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let heading = format!("\n## {name}\n");
        assert!(!path.is_dir() || text.contains(&heading), "{name}");
    }
}

#[test]
fn examples_of_the_book_print_what_they_show() {
    let has_marks = |name: &&String| !steps(&document(name)).is_empty();
    let pages = book_pages();
    let pages: Vec<&String> = pages.iter().filter(has_marks).collect();
    assert!(pages.len() > 5, "{pages:?}");
    for name in pages {
        assert_followed(name);
    }
}

#[test]
fn examples_of_readmes_print_what_they_show() {
    let names = readmes();
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        assert_followed(&name);
    }
}

#[test]
fn a_block_with_an_exit_code_must_return_it() {
    let block =
        |command: &str| format!("<!-- test: run, exit code 3 -->\n```console\n$ {command}\n```\n");
    assert_eq!(follow(&block("(exit 3)")), Ok(()));
    for command in ["true", "(exit 4)"] {
        assert!(follow(&block(command)).is_err(), "{command}");
    }
}

#[test]
fn every_block_is_run_or_says_why_not() {
    // The examples of commands come from the help, whose calls are tested there.
    let is_written = |name: &String| !name.starts_with("docs/reference/commands/");
    let mut names: Vec<String> = book_pages().into_iter().filter(is_written).collect();
    names.extend(readmes());
    names.push("CONTRIBUTING.md".into());
    for name in names {
        let text = document(&name);
        let found = unmarked_blocks(&text);
        assert!(found.is_empty(), "{name}: no mark after {found:?}");
    }
}

#[test]
fn blocks_of_yaml_and_json_can_be_parsed() {
    let mut checked = 0;
    for name in book_pages().into_iter().chain(readmes()) {
        for (language, block) in blocks(&document(&name)) {
            let parsed = match language.as_str() {
                "json" => serde_json::from_str(&block).map_err(|err| err.to_string()),
                "yaml" => serde_yaml::from_str(&block).map_err(|err| err.to_string()),
                _ => continue,
            };
            let parsed: Result<serde_json::Value, String> = parsed;
            assert!(parsed.is_ok(), "{name}: {parsed:?} in\n{block}");
            checked += 1;
        }
    }
    assert!(checked > 50, "only {checked} blocks");
}

/// Returns every call of the program in a document: in blocks, and between backquotes.
fn calls(text: &str) -> Vec<String> {
    // A table's bar between alternatives is not a pipe.
    let text = text.replace("\\|", " ");
    // `ccm help` has no help of its own; its topics are tested with the reference.
    let is_call = |line: &&str| line.starts_with("ccm ") && !line.starts_with("ccm help");
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
fn the_guide_lists_every_verb() {
    let guide = document("docs/guide.md");
    let (_, table) = guide.split_once("| Verb | Body | Reply |\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let listed: BTreeSet<&str> = cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    assert_eq!(listed, Verb::ALL.map(Verb::as_str).into());
}

#[test]
fn the_guide_lists_every_variable_of_nats() {
    let variable = Regex::new(r"\bNATS_[A-Z_]+\b").unwrap();
    let names = |text: &str| -> BTreeSet<String> {
        let found = variable.find_iter(text);
        found.map(|it| it.as_str().to_owned()).collect()
    };
    let guide = document("docs/guide.md");
    let (_, table) = guide.split_once("| Flag | Variable | Value |\n").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let code = document("crates/ccm-nats/src/context/mod.rs");
    assert_eq!(names(table), names(&code));
}

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
    let mut names = book_pages();
    // The first two name commands of upstream and of plugins; the last ones are generated.
    names.retain(|name| {
        !["docs/plugins.md", "docs/compatibility.md"].contains(&name.as_str())
            && !name.starts_with("docs/reference/commands/")
    });
    names.extend(readmes());
    for name in &names {
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
