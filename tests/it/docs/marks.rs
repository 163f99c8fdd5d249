//! Marks of a document: comments that no reader sees, which say what is done with the block below them.
//!
//! - `<!-- test: run -->`: the commands of the block are typed into a shell and print what is shown
//! - `<!-- test: run, exit code N -->`: the last command returns this exit code
//! - `<!-- test: file NAME -->`: the block is a file
//! - `<!-- test: schema NAME -->`: the block is a document that satisfies a schema
//! - `<!-- test: COMMAND -->`: a command that readers do not see; no block follows
//! - `<!-- test: not run, REASON -->`: the block can't be run here

use std::fmt::Write as _;

/// One thing that a document wants to be done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    File { name: String, text: String },
    Run { command: String, shown: String },
    Satisfy { schema: String, text: String },
}

/// A line that starts or ends a block, also inside of a list.
fn is_fence(line: &str) -> bool {
    line.trim_start().starts_with("```")
}

/// Returns the mark in a line.
fn mark_in(line: &str) -> Option<&str> {
    line.trim_start()
        .strip_prefix("<!-- test: ")?
        .strip_suffix(" -->")
}

/// Returns the rest of a block whose first line is `fence`, without its indentation.
fn rest_of_block<'t>(fence: &str, lines: &mut impl Iterator<Item = &'t str>) -> String {
    let indentation = fence.len() - fence.trim_start().len();
    let inside = lines.take_while(|line| line.trim() != "```");
    let inside = inside.map(|line| line.get(indentation..).unwrap_or_default());
    inside.fold(String::new(), |text, line| text + line + "\n")
}

/// Returns what the marks of a document require, in order.
pub(super) fn steps(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(mark) = mark_in(line) else {
            continue;
        };
        let mut block = || {
            let fence = lines.next().unwrap_or_default();
            assert!(is_fence(fence), "{mark}: no block follows");
            rest_of_block(fence, &mut lines)
        };
        match mark.split_once(' ') {
            None if mark == "run" => steps.extend(typed(&block())),
            Some(("run,", code)) => {
                let mut typed = typed(&block());
                let code = code.strip_prefix("exit code ").unwrap();
                let Some(Step::Run { command, .. }) = typed.last_mut() else {
                    panic!("{mark}: no command");
                };
                // A line of its own after the command, which may end with a here-document.
                *command = format!("set +e\n{command}\ncode=$?\nset -e\n[ $code -eq {code} ]");
                steps.extend(typed);
            }
            Some(("not", reason)) => {
                assert!(reason.starts_with("run, "), "{mark}");
                block();
            }
            Some(("file", name)) => steps.push(Step::File {
                name: name.into(),
                text: block(),
            }),
            Some(("schema", name)) => steps.push(Step::Satisfy {
                schema: name.into(),
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

/// Returns the lines before blocks that have no mark and are not generated.
pub(super) fn unmarked_blocks(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut previous = "";
    let (mut is_inside, mut is_generated) = (false, false);
    for line in text.lines() {
        if line.starts_with("<!-- generated") {
            is_generated = true;
        } else if line.starts_with("<!-- end generated") {
            is_generated = false;
        }
        if is_fence(line) {
            if !is_inside && !is_generated && mark_in(previous).is_none() {
                found.push(previous);
            }
            is_inside = !is_inside;
        }
        previous = line;
    }
    found
}

/// Returns the blocks of a document, with their language and without indentation.
pub(super) fn blocks(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            found.push((language.to_owned(), rest_of_block(line, &mut lines)));
        }
    }
    found
}

#[test]
fn a_block_in_a_list_has_a_mark_and_loses_its_indentation() {
    let text = "1. First\n\n   <!-- test: file a.yaml -->\n   ```yaml\n   a:\n     b: 1\n   ```\n";
    let wanted = Step::File {
        name: "a.yaml".into(),
        text: "a:\n  b: 1\n".into(),
    };
    assert_eq!(steps(text), [wanted]);
    assert!(unmarked_blocks(text).is_empty());
}

#[test]
fn a_block_without_a_mark_is_found_in_lists_and_in_any_language() {
    let text = "1. First\n   ```yaml\n   a: 1\n   ```\n\nText:\n```text\nhello\n```\n";
    assert_eq!(unmarked_blocks(text), ["1. First", "Text:"]);
}
