//! Problems of plugin files with their source lines and suggestions.

use std::path::Path;

use ccm_value::diagnostic::Diagnostic;
use ccm_value::document::DocumentError;

/// Parts of messages, and their suggestions. The first match is used.
const SUGGESTIONS: [(&str, &str); 21] = [
    (
        "no commands are defined",
        "add commands: and below it a list such as \"- name: …\"",
    ),
    (
        "commands must be a list",
        "start each command with \"- name: …\"",
    ),
    (
        "must be a list of strings",
        "write one text on each line, after \"- \"",
    ),
    ("must be a list", "start each item with \"- name: …\""),
    (
        "must be a string",
        "write the text on the line of the key, in quotes if necessary",
    ),
    (
        "must be true or false",
        "write true or false, without quotes",
    ),
    ("must be a number", "write digits only, such as 3"),
    (
        "is not supported",
        "remove it, or use type: exec with a command or script",
    ),
    (
        "type is missing",
        "add type: exec with a command, or type: parent with commands",
    ),
    (
        "a parent needs commands",
        "add commands: and below it a list such as \"- name: …\"",
    ),
    ("only one of command and script", "remove one of them"),
    (
        "a command or a script is required",
        "add command: with a command line",
    ),
    ("is not NAME=VALUE", "write a list of NAME=VALUE"),
    ("backoff needs", "add max_attempts, such as max_attempts: 5"),
    ("_sleep", "write a number with a unit, such as 500ms or 20s"),
    (
        "unknown type",
        "write string, bool, int, uint, float, counter, existing_file or existing_dir",
    ),
    ("duplicate", "rename one of them, or remove it"),
    ("name", "use letters, digits, _ . and -"),
    ("is reserved", "use another name"),
    ("short must be", "write one character, such as short: v"),
    ("both type and enum", "remove type or enum"),
];

/// Suggestion for every other problem.
const OTHER: &str = "see the chapter on plugins of the documentation for the format";

/// Returns a problem with its position, source line and suggestion.
pub(super) fn diagnostic(file: &Path, text: &str, problem: &DocumentError) -> Diagnostic {
    let mut diagnostic = Diagnostic::of_document(&file.to_string_lossy(), text, problem);
    diagnostic.help.get_or_insert_with(|| {
        let mut known = SUGGESTIONS.iter();
        let found = known.find(|(part, _)| problem.message.contains(part));
        found.map_or(OTHER, |(_, help)| help).into()
    });
    diagnostic
}
