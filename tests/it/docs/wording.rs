//! The list of replaced phrases in docs/wording.md: none of them is used any more, and each replacement
//! is where the list says.

use std::path::{Path, PathBuf};

use regex::Regex;

use super::document;

const PAGE: &str = "docs/wording.md";

/// Where texts for readers are.
const DIRECTORIES: [&str; 9] = [
    "crates",
    "ddl",
    "docs",
    "examples",
    "packaging",
    "schemas",
    "scripts",
    "src",
    "tests",
];

/// Returns the rows of the list: old phrase, new phrase, file.
fn rows() -> Vec<[String; 3]> {
    let page = document(PAGE);
    let (_, table) = page.split_once("|---|---|---|\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [old, new, file] = cells.try_into().unwrap();
        [old.to_owned(), new.to_owned(), file.to_owned()]
    })
    .collect()
}

/// Returns a text with single spaces, so that phrases can continue in the next line.
fn words(text: &str) -> String {
    let words: Vec<&str> = text
        .split_whitespace()
        .filter(|word| !["///", "//!", "//", "#"].contains(word))
        .collect();
    words.join(" ")
}

fn collect(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else {
            found.push(path);
        }
    }
}

#[test]
fn replaced_phrases_are_not_used() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    for directory in DIRECTORIES {
        collect(&root.join(directory), &mut files);
    }
    files.retain(|path| *path != root.join(PAGE));
    let rows = rows();
    assert!(rows.len() >= 30, "{} phrases", rows.len());
    let phrases: Vec<String> = rows.iter().map(|[old, ..]| regex::escape(old)).collect();
    let old = Regex::new(&format!(r"(?i)\b(?:{})\b", phrases.join("|"))).unwrap();
    for path in files {
        // Pictures and recorded bytes have no text.
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        if let Some(found) = old.find(&words(&text)) {
            panic!("{}: {:?} is in {PAGE}", path.display(), found.as_str());
        }
    }
}

#[test]
fn replacements_are_where_the_list_says() {
    for [_, new, file] in rows() {
        let text = words(&document(&file));
        assert!(text.contains(&new), "{file}: {new}");
    }
}
