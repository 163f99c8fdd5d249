//! docs/reference/messages.md lists every subject, bucket and error code of the program.

use std::collections::BTreeSet;

use ccm_nats::streams;
use regex::Regex;

use super::root;

const PAGE: &str = "docs/reference/messages.md";

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|err| panic!("{path}: {err}"))
}

/// Returns the first cells of the table below a heading row, without backquotes.
fn first_column(heading: &str) -> Vec<String> {
    let page = text(PAGE);
    let (_, table) = page.split_once(heading).unwrap();
    let rows = table.lines().skip_while(|line| !line.starts_with("|--"));
    let rows = rows.skip(1).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| row.split('|').nth(1).unwrap().trim().replace('`', ""));
    cells.collect()
}

/// Returns the subjects that the functions of a source build, with `*` for what varies.
fn subjects_in(file: &str, prefix: &str) -> BTreeSet<String> {
    let source = text(&format!("crates/ccm-nats/src/{file}"));
    let code = source.split("#[cfg(test)]").next().unwrap();
    let literal = Regex::new(r#""((?:[a-z0-9]+|\{\w+\})(?:\.(?:[a-z0-9]+|\{\w+\}))+)""#).unwrap();
    let name = Regex::new(r"\{\w+\}").unwrap();
    let functions = code.split("pub fn ").skip(1);
    let functions = functions.filter(|function| {
        let signature = function.split('{').next().unwrap();
        signature.contains("-> Subject") || signature.contains("-> Result<Subject")
    });
    functions
        .flat_map(|function| literal.captures_iter(function))
        .map(|found| format!("{prefix}{}", name.replace_all(&found[1], "*")))
        .collect()
}

#[test]
fn every_subject_is_listed() {
    let mut known = subjects_in("subject.rs", "ccm.v1.*.");
    known.extend(subjects_in("subject/enrolment.rs", "ccm.v1.*."));
    known.extend(subjects_in("subject/choria.rs", ""));
    assert!(known.len() > 8, "{known:?}");
    known.insert("choria.ccm.registration.v1.*.*.*.*.*".into());
    let variable = Regex::new(r"\b[A-Z]+\b").unwrap();
    let cells = first_column("| Subject | Direction | Content |");
    let cells = cells.iter().flat_map(|cell| cell.split(", "));
    let listed: BTreeSet<String> = cells
        .map(|subject| variable.replace_all(subject, "*").into_owned())
        .collect();
    let missing: Vec<_> = known.difference(&listed).collect();
    assert!(missing.is_empty(), "not listed: {missing:?}");
    // A row can describe a part of a subject, such as the events of runs.
    for subject in &listed {
        let is_known = known.iter().any(|known| {
            let known: ccm_nats::Subject = known.parse().unwrap();
            known.matches(subject)
        });
        assert!(is_known, "no such subject: {subject}");
    }
}

#[test]
fn every_bucket_and_stream_is_listed() {
    let listed = first_column("| Name | Kind | Content | Written by |");
    let listed: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
    let known = streams::ALL.map(|name| {
        let name = name.strip_prefix("KV_").unwrap_or(name);
        name.strip_prefix("OBJ_").unwrap_or(name)
    });
    assert_eq!(listed, known.into());
}

#[test]
fn every_code_of_an_error_is_listed() {
    let source = text("crates/ccm-agent/src/handlers.rs");
    let page = text(PAGE);
    let (_, table) = page.split_once("| Code | Meaning |\n").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let numbers = |text: &str, pattern: &str| -> BTreeSet<String> {
        let pattern = Regex::new(pattern).unwrap();
        let found = pattern.captures_iter(text).map(|found| found[1].to_owned());
        found.collect()
    };
    let known = numbers(&source, r"const [A-Z_]+: u16 = (\d{3});");
    assert!(known.len() > 5, "{known:?}");
    assert_eq!(numbers(table, r"(?m)^\| (\d{3}) \|"), known);
}
