//! docs/reference/functions.md names every function, and its examples have the results that it shows.

use std::collections::BTreeSet;

use regex::Regex;

use super::root;
use crate::support::TestEnv;

const PAGE: &str = "docs/reference/functions.md";
const GO_PAGE: &str = "docs/reference/functions-go.md";
const JINJA_PAGE: &str = "docs/reference/functions-jinja.md";

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|err| panic!("{path}: {err}"))
}

/// Returns the part of the page below a heading of the second level.
fn section(title: &str) -> String {
    let page = text(PAGE);
    let (_, rest) = page.split_once(&format!("\n## {title}\n")).unwrap();
    rest.split("\n## ").next().unwrap().to_owned()
}

/// Returns the cells of the rows of all tables in a text.
fn rows(text: &str) -> Vec<Vec<String>> {
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let row = row.replace("\\|", "\u{1}");
        let cells = row.trim_matches('|').split('|');
        let cell = |cell: &str| cell.trim().trim_matches('`').replace('\u{1}', "|");
        cells.map(cell).collect()
    })
    .collect()
}

/// Returns what a pattern finds in a source of the template engines.
fn in_source(file: &str, pattern: &str) -> BTreeSet<String> {
    let source = text(&format!("crates/{file}"));
    let pattern = Regex::new(pattern).unwrap();
    let found = pattern.captures_iter(&source);
    found.map(|name| name[1].to_owned()).collect()
}

/// Returns the names in the arms of a function of a source that takes a name.
fn arms(file: &str, function: &str) -> BTreeSet<String> {
    let source = text(&format!("crates/ccm-template/src/{file}"));
    let (_, body) = source
        .split_once(&format!("fn {function}(name: &str)"))
        .unwrap();
    // The function ends at the brace with its own indentation, in an `impl` or outside.
    let body = body.split("\n}\n").next().unwrap();
    let body = body.split("\n    }\n").next().unwrap();
    let arm = Regex::new(r#"(?m)^\s*((?:\|?\s*"[^"]+"\s*\|?\s*)+)(?:=>|if)"#).unwrap();
    let name = Regex::new(r#""([^"]+)""#).unwrap();
    let arms = arm.captures_iter(body).map(|arm| arm[1].to_owned());
    arms.flat_map(|arm| {
        let names = name.captures_iter(&arm).map(|name| name[1].to_owned());
        names.collect::<Vec<_>>()
    })
    .collect()
}

/// Returns the names in the first cells of the rows; functions with the same meaning share a row.
fn named(text: &str) -> BTreeSet<String> {
    let rows = rows(text).into_iter();
    rows.flat_map(|row| {
        let names = row[0].split(", ");
        let names = names.map(|name| name.trim_matches('`').to_owned());
        names.collect::<Vec<_>>()
    })
    .collect()
}

#[test]
fn every_function_has_a_row() {
    let mut expressions = in_source(
        "ccm-template/src/expr/ast.rs",
        r#"\("([a-zA-Z]+)", Self::\w+\),"#,
    );
    for file in ["text", "number", "list", "map", "date"] {
        let file = format!("ccm-template/src/expr/builtins/{file}.rs");
        expressions.extend(in_source(&file, r#"(?m)^    [a-z_]+\(\s*"([A-Za-z0-9]+)""#));
    }
    assert!(expressions.len() > 60, "{expressions:?}");
    assert_eq!(named(&section("Expressions")), expressions);
    let shared = in_source(
        "ccm-template/src/functions.rs",
        r#"(?m)^    \("(\w+)", (?:\||template)"#,
    );
    assert_eq!(named(&section("All languages")), shared);
    let jet = arms("jet/builtins.rs", "named");
    assert!(jet.len() > 20, "{jet:?}");
    assert_eq!(named(&section("jet")), jet);
    let mut checks = in_source(
        "ccm-core/src/hiera/validators.rs",
        r#"(?m)^    \("(is\w+)", "is_"#,
    );
    checks.insert("isRegex".into());
    assert_eq!(named(&section("Validators")), checks);
}

#[test]
fn every_function_of_go_templates_is_listed() {
    let mut listed = named(&text(GO_PAGE));
    // These are part of the language, or are found outside of the groups.
    for name in ["and", "or", "fail", "hello"] {
        assert!(listed.remove(name), "{name}");
    }
    let directory = "crates/ccm-template/src/go/sprig";
    let mut files: Vec<String> = std::fs::read_dir(root().join(directory))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "mod.rs")
        .map(|name| format!("go/sprig/{name}"))
        .collect();
    files.push("go/builtin.rs".into());
    let known: BTreeSet<String> = files.iter().flat_map(|file| arms(file, "find")).collect();
    assert!(known.len() > 180, "{}", known.len());
    assert_eq!(listed, known);
}

#[test]
fn every_global_function_of_jinja_is_listed() {
    let listed = named(&text(JINJA_PAGE));
    let environment = minijinja::Environment::new();
    let known: BTreeSet<&str> = environment.globals().map(|(name, _)| name).collect();
    assert!(known.contains("range"), "{known:?}");
    let missing: Vec<_> = known
        .iter()
        .filter(|name| !listed.contains(**name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Returns the names of the filters or tests of the jinja engine, as its description lists them.
fn names_of_jinja(field: &str) -> BTreeSet<String> {
    let description = format!("{:?}", minijinja::Environment::new());
    let (_, list) = description.split_once(&format!(" {field}: [")).unwrap();
    let (list, _) = list.split_once(']').unwrap();
    let names = list.split(", ").map(|name| name.trim_matches('"'));
    names.map(ToOwned::to_owned).collect()
}

#[test]
fn filters_and_tests_of_jinja_are_those_of_the_engine() {
    for (title, field) in [("Filters", "filters"), ("Tests", "tests")] {
        let page = text(JINJA_PAGE);
        let (_, part) = page.split_once(&format!("\n## {title}\n")).unwrap();
        let listed = named(part.split("\n## ").next().unwrap());
        assert!(listed.len() > 25, "{listed:?}");
        assert_eq!(listed, names_of_jinja(field), "{title}");
    }
}

#[test]
fn examples_of_functions_have_the_results_that_are_shown() {
    let env = TestEnv::new();
    env.write("data.yaml", "port: 8080\n");
    env.write("motd", "welcome");
    env.write("port.templ", "port {{ Data.port }}");
    let mut checked = 0;
    for (text, engine, left, right) in [
        (section("All languages"), "expr", "{{ ", " }}"),
        (section("Expressions"), "expr", "{{ ", " }}"),
        (section("jet"), "jet", "[[ ", " ]]"),
        (text(GO_PAGE), "go", "{{ ", " }}"),
        (text(JINJA_PAGE), "jinja", "{{ ", " }}"),
    ] {
        // One template with all examples.
        let rows = rows(&text).into_iter();
        let rows: Vec<_> = rows.filter(|row| !row[4].is_empty()).collect();
        let lines = rows
            .iter()
            .map(|row| format!("{left}{}{right}\u{1}", row[3]));
        let template: String = lines.collect();
        let args = ["template", "--engine", engine, "--data", "data.yaml", "-"];
        let printed = env.ccm_with_input(&args, &template).ok();
        for (row, line) in rows.iter().zip(printed.split('\u{1}')) {
            assert_eq!(line.trim_end(), row[4], "{engine}: {}", row[3]);
            checked += 1;
        }
    }
    assert!(checked > 300, "{checked} examples");
}

#[test]
fn every_function_has_a_call_and_a_meaning() {
    for text in [
        section("All languages") + &section("Expressions") + &section("jet"),
        text(GO_PAGE),
        text(JINJA_PAGE),
    ] {
        for row in rows(&text) {
            let is_complete = row.len() == 5 && !row[1].is_empty() && !row[2].is_empty();
            assert!(is_complete, "{row:?}");
        }
    }
}

#[test]
fn validators_accept_and_refuse_their_examples() {
    let env = TestEnv::new();
    for row in rows(&section("Validators")) {
        for (value, is_accepted) in [(&row[4], true), (&row[5], false)] {
            let data = format!("data:\n  # @validate {}\n  it: {value:?}\n", row[1]);
            env.write("data.yaml", data);
            let outcome = env.ccm(&["hiera", "parse", "data.yaml"]);
            assert_eq!(outcome.code == Some(0), is_accepted, "{value}: {outcome:?}");
        }
    }
}
