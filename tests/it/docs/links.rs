//! Links between documents: every file and every heading exists, and the book links to nothing
//! outside of it. `scripts/docs` checks the links of the built book.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use regex::Regex;

use super::{book_pages, document, readmes};

/// Returns a document without blocks and spans of code.
fn prose(text: &str) -> String {
    let mut lines = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            let spans = line.split('`').enumerate();
            let spans = spans.map(|(at, span)| if at % 2 == 1 { "" } else { span });
            lines.push(spans.collect::<Vec<_>>().join("`"));
        }
    }
    lines.join("\n")
}

/// Returns the anchors of a document: one for each heading, as GitHub and mdBook build them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut is_code = false;
    let mut found = BTreeSet::new();
    let link = Regex::new(r"\[([^\]]*)\]\([^)]*\)").unwrap();
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        let title = line.trim_start_matches('#');
        if is_code || title == line || !title.starts_with(' ') {
            continue;
        }
        let title = link.replace_all(title.trim(), "$1");
        let letters = title.to_lowercase();
        let letters = letters.chars().filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        });
        let anchor: String = letters.collect();
        let count = counts.entry(anchor.clone()).or_default();
        found.insert(match *count {
            0 => anchor.clone(),
            n => format!("{anchor}-{n}"),
        });
        *count += 1;
    }
    found
}

/// Returns the targets of the links and images of a document.
fn targets(text: &str) -> Vec<String> {
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let prose = prose(text);
    link.captures_iter(&prose)
        .map(|link| link[1].into())
        .collect()
}

/// Returns a path without `.` and `..`.
fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(clean.pop()),
            Component::CurDir => {}
            part => clean.push(part),
        }
    }
    clean
}

#[test]
fn every_link_has_a_target() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut names = book_pages();
    names.extend(readmes());
    names.extend(["CONTRIBUTING.md", "CHANGELOG.md", "RELEASE-CHECKLIST.md"].map(str::to_owned));
    for entry in std::fs::read_dir(root.join("crates")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        names.push(format!("crates/{name}/README.md"));
    }
    let mut problems = Vec::new();
    let mut checked = 0;
    for name in &names {
        let text = document(name);
        for target in targets(&text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            checked += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = match file {
                "" => PathBuf::from(name),
                file => clean(&Path::new(name).parent().unwrap().join(file)),
            };
            if name.starts_with("docs/") && !path.starts_with("docs") {
                problems.push(format!("{name}: {target} is not part of the book"));
            } else if !root.join(&path).exists() {
                problems.push(format!("{name}: {target} does not exist"));
            } else if !anchor.is_empty()
                && !anchors(&document(path.to_str().unwrap())).contains(anchor)
            {
                problems.push(format!("{name}: {target}: no such heading"));
            }
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
    assert!(checked > 100, "only {checked} links");
}

#[test]
fn every_page_is_in_the_summary_of_the_book() {
    let listed: BTreeSet<String> = targets(&document("docs/SUMMARY.md"))
        .iter()
        .map(|target| format!("docs/{target}"))
        .collect();
    let pages: BTreeSet<String> = book_pages().into_iter().collect();
    let missing: Vec<&String> = pages
        .difference(&listed)
        .filter(|name| *name != "docs/SUMMARY.md")
        .collect();
    assert!(missing.is_empty(), "add to docs/SUMMARY.md: {missing:?}");
}

#[test]
fn anchors_are_those_of_github() {
    let text = "# One\n## `ccm` & more: a test\n```\n# no heading\n```\n## One\n";
    let wanted = ["one", "ccm--more-a-test", "one-1"].map(str::to_owned);
    assert_eq!(anchors(text), wanted.into());
}
