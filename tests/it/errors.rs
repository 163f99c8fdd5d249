//! Errors of documents, as data: each directory of `tests/data/errors` has the input of one command
//! and the expected output.
//!
//! `command.txt` has the arguments (`validate manifest.yaml` by default), `stdin` the standard
//! input. `expected.txt` has the exit code, standard error, and the errors of a response or of events. With
//! `CCM_UPDATE_EXPECTED=1` the files are written instead of compared.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::http::Server;
use crate::support::{Outcome, TestEnv, files_below};

const EXPECTED: &str = "expected.txt";

/// Returns the directories of all cases.
fn cases() -> Vec<PathBuf> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/errors");
    let mut cases: Vec<PathBuf> = std::fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    cases.sort();
    cases
}

/// Copies the input of a case into a new environment and runs its command.
fn run(case: &Path) -> Outcome {
    let mut env = TestEnv::new();
    for name in files_below(case) {
        env.write_secret(&name, std::fs::read(case.join(&name)).unwrap());
    }
    // Plugins are in directories of the configuration.
    env.set("XDG_CONFIG_HOME", &env.at("config"));
    let command = match env.exists("command.txt") {
        true => env.read("command.txt"),
        false => "validate manifest.yaml".into(),
    };
    let input = match env.exists("stdin") {
        true => env.read("stdin"),
        false => String::new(),
    };
    let args: Vec<&str> = command.split_whitespace().collect();
    env.ccm_with_input(&args, &input)
}

/// Returns what a user sees.
fn transcript(outcome: &Outcome) -> String {
    let mut text = format!("exit code {}\n", outcome.code.unwrap());
    text.push_str(&outcome.stderr);
    let Ok(document) = serde_json::from_str::<Value>(&outcome.stdout) else {
        return text;
    };
    if let Some(error) = document["error"].as_str() {
        writeln!(text, "response: {error}").unwrap();
    }
    for event in document["events"].as_array().into_iter().flatten() {
        for error in event["error"].as_array().unwrap() {
            let label = format!("{}#{}", event["type"], event["name"]).replace('"', "");
            writeln!(text, "event of {label}: {}", error.as_str().unwrap()).unwrap();
        }
    }
    text
}

#[test]
fn every_broken_input_has_its_message() {
    let update = std::env::var_os("CCM_UPDATE_EXPECTED").is_some();
    let mut differences = String::new();
    for case in cases() {
        let found = transcript(&run(&case));
        let file = case.join(EXPECTED);
        if update {
            std::fs::write(&file, found).unwrap();
            continue;
        }
        let expected = std::fs::read_to_string(&file).unwrap_or_default();
        if found != expected {
            let name = case.file_name().unwrap().to_string_lossy();
            write!(differences, "{name}:\n{found}\nexpected:\n{expected}\n").unwrap();
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

#[test]
fn there_are_at_least_sixty_cases() {
    assert!(cases().len() >= 60, "{}", cases().len());
}

#[test]
fn every_message_has_a_position_and_one_suggestion() {
    for case in cases() {
        let expected = std::fs::read_to_string(case.join(EXPECTED)).unwrap();
        let blocks = expected.split("ccm: error: ").skip(1);
        for block in blocks.chain(expected.split("ccm: warning: ").skip(1)) {
            assert!(block.contains("--> "), "{case:?}: {block}");
            for place in block.split("--> ").skip(1) {
                assert_located(place, &format!("{case:?}: {block}"));
            }
            assert_eq!(block.matches("= help: ").count(), 1, "{case:?}: {block}");
        }
    }
}

/// Fails unless a place of a message has line and column and, below its source line, a caret at the
/// column. Only an empty file has no position, and only sensitive resources have no source line.
fn assert_located(place: &str, context: &str) {
    let lines: Vec<&str> = place.lines().collect();
    let mut numbers = lines[0].rsplit(':').map_while(|it| it.parse().ok());
    let (Some(column), Some(line)) = (numbers.next(), numbers.next()) else {
        assert!(context.contains("found nothing"), "no position: {context}");
        return;
    };
    let Some(at) = lines.iter().position(|it| it.trim() == "|") else {
        assert!(context.contains("hidden"), "no source line: {context}");
        return;
    };
    let (number, source) = lines[at + 1].split_once(" |").unwrap();
    assert_eq!(number.trim().parse::<usize>().unwrap(), line, "{context}");
    let (_, below) = lines[at + 2].split_once("| ").unwrap();
    let caret = below.find('^').map(|before| before + 1);
    // Of a long line, a part is shown; redacted text has another length.
    if !source.contains('…') && !source.contains("REDACTED") {
        assert_eq!(caret, Some(column), "{context}");
    }
    assert!(caret.is_some(), "no caret: {context}");
}

#[test]
fn no_message_shows_a_secret_or_a_type_of_go() {
    for case in cases() {
        let expected = std::fs::read_to_string(case.join(EXPECTED)).unwrap();
        for word in ["hunter2", "HUNTER"] {
            assert!(!expected.contains(word), "{case:?}: {expected}");
        }
        // Events keep the texts of upstream.
        let shown = expected
            .lines()
            .filter(|line| !line.starts_with("event of "));
        for line in shown {
            for word in [
                "interface {}",
                "strconv",
                "float64",
                "int64",
                "i32",
                "type int",
                "types string",
                "nil pointer",
            ] {
                assert!(!line.contains(word), "{case:?}: {line}");
            }
        }
    }
}

/// Manifest with one problem at a resource and one in an expression.
const BROKEN: &str = "ccm:\n  resources:\n    - exec: {name: a, comand: x}\n    - exec: {name: b, command: 'echo {{ 1 + }}'}\n";

#[test]
fn validate_prints_problems_as_json() {
    let env = TestEnv::new();
    env.write("m.yaml", BROKEN);
    let outcome = env.ccm(&["validate", "m.yaml", "--json"]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(2), ""));
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(
        (&report["valid"], &report["manifest"]),
        (&false.into(), &"m.yaml".into())
    );
    let problems = report["problems"].as_array().unwrap();
    assert_eq!(problems.len(), 2, "{report:#}");
    assert_eq!(
        problems[0],
        serde_json::json!({
            "file": "m.yaml", "line": 3, "column": 23, "message": "unknown property \"comand\"",
            "resource": "exec", "help": "did you mean \"command\"?", "notes": [],
            "source_line": "    - exec: {name: a, comand: x}",
        })
    );
    env.write(
        "m.yaml",
        "ccm: {resources: [{exec: {name: a, command: /bin/true}}]}\n",
    );
    let report = env.ccm(&["validate", "m.yaml", "--json"]).json();
    assert_eq!(
        (&report["valid"], &report["resources"]),
        (&true.into(), &1.into())
    );
}

#[test]
fn validate_prints_annotations_of_github() {
    let env = TestEnv::new();
    env.write("m.yaml", BROKEN);
    let outcome = env.ccm(&["validate", "m.yaml", "--format", "github"]);
    assert_eq!(outcome.code, Some(2));
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(
        lines[0],
        "::error file=m.yaml,line=3,col=23,title=ccm validate::unknown property \"comand\" (exec)%0Ahelp: did you mean \"command\"?"
    );
}

#[test]
fn validate_prints_sarif() {
    let env = TestEnv::new();
    env.write("m.yaml", BROKEN);
    let outcome = env.ccm(&["validate", "m.yaml", "--format", "sarif"]);
    assert_eq!(outcome.code, Some(2));
    let log: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(log["version"], "2.1.0");
    let results = log["runs"][0]["results"].as_array().unwrap();
    assert_eq!(results.len(), 2, "{log:#}");
    let place = &results[0]["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "m.yaml");
    assert_eq!(
        place["region"],
        serde_json::json!({"startLine": 3, "startColumn": 23})
    );
    let rule = &log["runs"][0]["tool"]["driver"]["rules"][0]["id"];
    assert_eq!(&results[0]["ruleId"], rule);
}

#[test]
fn a_missing_manifest_is_an_error_in_every_format() {
    let env = TestEnv::new();
    let run = |format| env.ccm(&["validate", "none.yaml", "--format", format]);
    let error = run("text").error(2);
    assert!(error.contains("none.yaml"), "{error}");
    for format in ["json", "github", "sarif"] {
        let outcome = run(format);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(2), ""));
        assert!(outcome.stdout.contains("none.yaml"), "{outcome:?}");
        if format != "github" {
            serde_json::from_str::<Value>(&outcome.stdout).unwrap();
        }
    }
}

/// Runs `validate` on a manifest with a template of resources and returns the annotation of GitHub
/// and the position in SARIF.
fn reported_places(template: &str) -> (String, Value) {
    let env = TestEnv::new();
    env.write("m.yaml", "ccm:\n  resources_jet_file: resources.jet\n");
    env.write("resources.jet", template);
    let github = env.ccm(&["validate", "m.yaml", "--format", "github"]);
    let sarif = env.ccm(&["validate", "m.yaml", "--format", "sarif"]);
    let sarif: Value = serde_json::from_str(&sarif.stdout).unwrap();
    let place = &sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"];
    (github.stdout, place.clone())
}

#[test]
fn an_error_in_a_template_is_reported_at_its_line_in_the_template() {
    let (github, sarif) = reported_places("- exec: {name: a}\n\n- exec: {name: [[ 1 + ]]}\n");
    assert!(
        github.starts_with("::error file=resources.jet,line=3,"),
        "{github}"
    );
    assert_eq!(sarif["artifactLocation"]["uri"], "resources.jet");
    assert_eq!(sarif["region"]["startLine"], 3);
}

#[test]
fn an_error_in_rendered_text_is_reported_at_the_line_of_its_template() {
    let (github, sarif) = reported_places("[[ if true ]]\n- exec: {name: a, nope: 1}\n[[ end ]]\n");
    assert!(
        github.starts_with("::error file=resources.jet,line=2,"),
        "{github}"
    );
    assert_eq!(sarif["artifactLocation"]["uri"], "resources.jet");
}

#[test]
fn a_manifest_over_http_that_is_not_a_bundle_is_named_by_its_url() {
    let env = TestEnv::new();
    let server = Server::serving("ccm: {resources: [{exec: {name: /bin/true}}]}\n");
    let url = server.url("/site.yaml");
    let error = env.ccm(&["apply", &url]).error(2);
    let (first, hint) = error.split_once('\n').unwrap();
    assert_eq!(first, format!("ccm: error: {url} is not a .tar.gz bundle"));
    assert!(hint.contains("apply it as a local file"), "{hint}");
}
