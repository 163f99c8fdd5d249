//! Parser for plugin definitions: the supported subset of App Builder's format.
//!
//! A command with an unsupported key or type is kept with its problem, which is reported when the
//! command is called. Only a file without any commands is refused as a whole.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use super::input::{Input, InputKind, InputType};
use ccm_value::document::{self, DocumentError, Node};
use ccm_value::text::parse_wait;

/// Limits on the nesting and number of commands of a file.
const MAX_DEPTH: usize = 16;
const MAX_COMMANDS: usize = 1_000;

/// App Builder types that are not supported.
const NOT_SUPPORTED: [&str; 7] = [
    "ccm_manifest",
    "discover",
    "form",
    "kv",
    "rest",
    "rpc",
    "scaffold",
];

/// Keys that do not affect execution.
const IGNORED: [&str; 2] = ["cheat", "tags"];

const COMMON: [&str; 4] = ["name", "description", "aliases", "type"];
const OF_PARENT: [&str; 1] = ["commands"];
const OF_EXEC: [&str; 12] = [
    "arguments",
    "backoff",
    "banner",
    "command",
    "commands",
    "confirm_prompt",
    "dir",
    "environment",
    "flags",
    "no_helper",
    "script",
    "shell",
];
const OF_DEFINITION: [&str; 7] = [
    "author",
    "cheat",
    "commands",
    "description",
    "help_template",
    "name",
    "version",
];

/// Parsed plugin file.
#[derive(Debug, PartialEq)]
pub(super) struct Definition {
    pub(super) description: String,
    pub(super) commands: Vec<Entry>,
}

/// Command of a plugin.
#[derive(Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) aliases: Vec<String>,
    pub(super) arguments: Vec<Input>,
    pub(super) flags: Vec<Input>,
    /// What to execute; `None` for a parent.
    pub(super) exec: Option<Exec>,
    pub(super) commands: Vec<Entry>,
    /// Reasons why the command can't be called; its subcommands still can.
    pub(super) problems: Vec<DocumentError>,
}

/// What a command executes. All strings are templates except the prompt.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Exec {
    pub(super) body: Body,
    pub(super) environment: Vec<String>,
    pub(super) dir: Option<String>,
    pub(super) banner: Option<String>,
    /// Confirmation prompt; not a template.
    pub(super) confirm_prompt: Option<String>,
    pub(super) backoff: Option<Backoff>,
}

#[derive(Debug, Default, PartialEq)]
pub(super) enum Body {
    /// Neither a command nor a script; reported as a problem.
    #[default]
    Missing,
    /// Split into words like a shell does, and executed without a shell.
    Words(String),
    /// Passed to a shell: the given one, or the user's.
    Script { text: String, shell: Option<String> },
}

/// Retry policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Backoff {
    pub(super) max_attempts: u32,
    pub(super) steps: u32,
    pub(super) min_sleep: Duration,
    pub(super) max_sleep: Duration,
}

impl Definition {
    /// Parses a plugin file.
    pub(super) fn parse(text: &str) -> Result<Self, DocumentError> {
        let node = document::parse(text)?;
        let mut reader = Reader::default();
        let description = reader.line(&node, "description");
        reader.check_keys(&node, &[&OF_DEFINITION]);
        let mut count = 0;
        let commands = commands(&node, 0, &mut count, &mut reader.problems)?;
        if let Some(problem) = reader.problems.into_iter().next() {
            return Err(problem);
        }
        if commands.is_empty() {
            return Err(DocumentError::new(node.mark, "no commands are defined"));
        }
        Ok(Self {
            description,
            commands,
        })
    }
}

/// Parses the `commands` key of a node.
fn commands(
    node: &Node,
    depth: usize,
    count: &mut usize,
    problems: &mut Vec<DocumentError>,
) -> Result<Vec<Entry>, DocumentError> {
    let Some(list) = node.get("commands").filter(|list| !list.is_null()) else {
        return Ok(Vec::new());
    };
    let Some(items) = list.items() else {
        problems.push(wrong(list, "commands must be a list"));
        return Ok(Vec::new());
    };
    *count += items.len();
    if depth >= MAX_DEPTH || *count > MAX_COMMANDS {
        return Err(wrong(
            list,
            &format!("more than {MAX_COMMANDS} commands, or more than {MAX_DEPTH} levels of them"),
        ));
    }
    let mut names = BTreeSet::new();
    let mut found = Vec::with_capacity(items.len());
    for item in items {
        let entry = Entry::read(item, depth, count)?;
        for name in entry.names() {
            if !names.insert(name.to_owned()) {
                return Err(wrong(item, &format!("duplicate command {name:?}")));
            }
        }
        found.push(entry);
    }
    Ok(found)
}

impl Entry {
    /// Returns the name and the aliases.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let aliases = self.aliases.iter().map(String::as_str);
        std::iter::once(self.name.as_str()).chain(aliases)
    }

    fn read(node: &Node, depth: usize, count: &mut usize) -> Result<Self, DocumentError> {
        let mut reader = Reader::default();
        let name = reader.line(node, "name");
        let aliases = reader.lines(node, "aliases");
        for name in std::iter::once(&name).chain(&aliases) {
            if !is_name(name) {
                return Err(wrong(
                    node,
                    &format!("invalid command name {name:?}: use letters, digits, _ . and -"),
                ));
            }
        }
        let description = reader.line(node, "description");
        let mut arguments = Vec::new();
        let mut flags = Vec::new();
        let type_name = reader.line(node, "type");
        let exec = match type_name.as_str() {
            "parent" => {
                reader.check_keys(node, &[&COMMON, &OF_PARENT, &IGNORED]);
                None
            }
            "exec" => {
                reader.check_keys(node, &[&COMMON, &OF_EXEC, &IGNORED]);
                arguments = reader.inputs(node, "arguments", InputKind::Argument);
                flags = reader.inputs(node, "flags", InputKind::Flag);
                Some(reader.exec(node))
            }
            "" => {
                reader.wrong(node, "type is missing: exec or parent");
                None
            }
            other if NOT_SUPPORTED.contains(&other) => {
                let at = node.get("type").unwrap_or(node);
                reader.wrong(at, &format!("type {other} is not supported"));
                None
            }
            other => {
                let mark = node.get("type").unwrap_or(node).mark;
                let known = ["exec", "parent"];
                let problem = DocumentError::unknown_name(mark, "type", other, &known);
                reader.problems.push(problem);
                None
            }
        };
        let commands = commands(node, depth + 1, count, &mut reader.problems)?;
        if type_name == "parent" && commands.is_empty() {
            reader.wrong(node, "a parent needs commands");
        }
        Ok(Self {
            name,
            description,
            aliases,
            arguments,
            flags,
            exec,
            commands,
            problems: reader.problems,
        })
    }
}

/// Returns whether a word is a valid name of a command, argument or flag.
pub(super) fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    text.len() <= 64 && !text.starts_with(['-', '.']) && !text.is_empty() && text.chars().all(plain)
}

fn wrong(node: &Node, message: &str) -> DocumentError {
    DocumentError::new(node.mark, message)
}

/// Parses keys and collects problems.
#[derive(Default)]
struct Reader {
    problems: Vec<DocumentError>,
}

impl Reader {
    fn wrong(&mut self, node: &Node, message: &str) {
        self.problems.push(wrong(node, message));
    }

    /// Reports every key that is not in these lists.
    fn check_keys(&mut self, node: &Node, known: &[&[&str]]) {
        let Some(entries) = node.entries() else {
            return self.wrong(node, "expected a mapping");
        };
        for (key, _) in entries {
            let name = key.text().map_or("", |text| text);
            if !known.iter().any(|names| names.contains(&name)) {
                let problem = wrong(key, &format!("key {name} is not supported"));
                self.problems
                    .push(match document::nearest(name, &known.concat()) {
                        Some(near) => problem.with_help(format!("did you mean {near:?}?")),
                        None => problem,
                    });
            }
        }
    }

    /// Returns the string value of a key, if it has one.
    fn text(&mut self, node: &Node, key: &str) -> Option<String> {
        let value = node.get(key).filter(|value| !value.is_null())?;
        match value.text() {
            Some(text) => Some(text.to_string()),
            None => {
                self.wrong(value, &format!("{key} must be a string"));
                None
            }
        }
    }

    /// Returns the trimmed string value of a key; empty if it is missing.
    fn line(&mut self, node: &Node, key: &str) -> String {
        let text = self.text(node, key).unwrap_or_default();
        text.trim().to_owned()
    }

    fn lines(&mut self, node: &Node, key: &str) -> Vec<String> {
        let Some(value) = node.get(key).filter(|value| !value.is_null()) else {
            return Vec::new();
        };
        let items = value.items().unwrap_or_default();
        let lines: Vec<String> = items
            .iter()
            .filter_map(|item| Some(item.text()?.to_string()))
            .collect();
        if value.items().is_none() || lines.len() != items.len() {
            self.wrong(value, &format!("{key} must be a list of strings"));
        }
        lines
    }

    fn flag(&mut self, node: &Node, key: &str) -> bool {
        let Some(value) = node.get(key).filter(|value| !value.is_null()) else {
            return false;
        };
        match value.text().map(|text| &**text) {
            Some("true") => true,
            Some("false") => false,
            _ => {
                self.wrong(value, &format!("{key} must be true or false"));
                false
            }
        }
    }

    fn exec(&mut self, node: &Node) -> Exec {
        let command = self.text(node, "command");
        let script = self.text(node, "script");
        let shell = self.text(node, "shell");
        self.flag(node, "no_helper");
        let body = match (command, script) {
            (Some(_), Some(_)) => {
                self.wrong(node, "only one of command and script is allowed");
                Body::Missing
            }
            (None, None) => {
                self.wrong(node, "a command or a script is required");
                Body::Missing
            }
            (Some(text), None) if shell.as_deref() == Some("true") => {
                Body::Script { text, shell: None }
            }
            (Some(command), None) => Body::Words(command),
            (None, Some(text)) => Body::Script { text, shell },
        };
        let environment = self.lines(node, "environment");
        if let Some(pair) = environment.iter().find(|pair| !pair.contains('=')) {
            self.wrong(node, &format!("environment {pair:?} is not NAME=VALUE"));
        }
        Exec {
            body,
            environment,
            dir: self.text(node, "dir"),
            banner: self.text(node, "banner"),
            confirm_prompt: self.text(node, "confirm_prompt"),
            backoff: self.backoff(node),
        }
    }

    fn backoff(&mut self, node: &Node) -> Option<Backoff> {
        let node = node.get("backoff").filter(|node| !node.is_null())?;
        self.check_keys(
            node,
            &[&["max_attempts", "steps", "min_sleep", "max_sleep"]],
        );
        let attempts = self.number(node, "max_attempts");
        let steps = self.number(node, "steps").or(attempts);
        let min_sleep = self.sleep(node, "min_sleep", Duration::from_millis(500));
        let max_sleep = self.sleep(node, "max_sleep", Duration::from_secs(20));
        match (attempts, steps) {
            (Some(max_attempts), Some(steps)) if max_attempts > 0 && steps > 1 => Some(Backoff {
                max_attempts,
                steps,
                min_sleep: min_sleep.min(max_sleep),
                max_sleep: min_sleep.max(max_sleep),
            }),
            _ => {
                let message = "backoff needs max_attempts, and 2 steps or more";
                self.wrong(node, message);
                None
            }
        }
    }

    fn number(&mut self, node: &Node, key: &str) -> Option<u32> {
        let value = node.get(key).filter(|value| !value.is_null())?;
        let number = value.text().and_then(|text| text.parse().ok());
        if number.is_none() {
            self.wrong(value, &format!("{key} must be a number"));
        }
        number
    }

    fn sleep(&mut self, node: &Node, key: &str, default: Duration) -> Duration {
        let Some(text) = self.text(node, key) else {
            return default;
        };
        parse_wait(&text).unwrap_or_else(|err| {
            self.wrong(node, &format!("{key}: {err}"));
            default
        })
    }

    fn inputs(&mut self, node: &Node, key: &str, kind: InputKind) -> Vec<Input> {
        let Some(list) = node.get(key).filter(|list| !list.is_null()) else {
            return Vec::new();
        };
        let Some(items) = list.items() else {
            self.wrong(list, &format!("{key} must be a list"));
            return Vec::new();
        };
        let mut found: Vec<Input> = Vec::with_capacity(items.len());
        for item in items {
            let input = self.input(item, kind);
            let is_duplicate = found.iter().any(|other| {
                other.name == input.name || (input.short.is_some() && other.short == input.short)
            });
            if is_duplicate {
                self.wrong(item, &format!("{key}: duplicate {:?}", input.name));
            } else if !is_name(&input.name) {
                self.wrong(item, &format!("{key}: invalid name {:?}", input.name));
            } else if kind == InputKind::Flag && input.is_reserved() {
                let message = format!("flags: {:?} is reserved", input.name);
                self.wrong(item, &message);
            } else {
                found.push(input);
            }
        }
        found
    }

    fn input(&mut self, node: &Node, kind: InputKind) -> Input {
        const OF_ALL: [&str; 7] = [
            "name",
            "description",
            "required",
            "enum",
            "default",
            "validate",
            "type",
        ];
        const OF_FLAG: [&str; 4] = ["placeholder", "bool", "env", "short"];
        let of_kind: &[&str] = match kind {
            InputKind::Argument => &[],
            InputKind::Flag => &OF_FLAG,
        };
        self.check_keys(node, &[&OF_ALL, of_kind]);
        let name = self.line(node, "name");
        let word = self.line(node, "type");
        let is_bool = kind == InputKind::Flag && self.flag(node, "bool");
        let type_name = match (InputType::named(&word), is_bool) {
            (_, true) => InputType::Bool,
            (Some(found), false) => found,
            (None, false) => {
                let at = node.get("type").unwrap_or(node);
                self.wrong(at, &format!("{name}: unknown type {word:?}"));
                InputType::Text
            }
        };
        let mut short = self.line(node, "short").chars().collect::<Vec<_>>();
        if short.len() > 1 {
            self.wrong(node, &format!("{name}: short must be 1 character"));
        }
        let input = Input {
            kind,
            description: self.line(node, "description"),
            required: self.flag(node, "required"),
            default: self.text(node, "default"),
            choices: self.lines(node, "enum"),
            type_name,
            validate: self.text(node, "validate"),
            placeholder: self.text(node, "placeholder"),
            env: self.text(node, "env"),
            short: short.pop(),
            name,
        };
        if !input.choices.is_empty() && type_name != InputType::Text {
            let message = format!("{}: sets both type and enum", input.name);
            self.wrong(node, &message);
        }
        input
    }
}
