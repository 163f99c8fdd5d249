//! Examples and exit codes in the help of each command.
//!
//! `examples.txt` has a block per command: its name and the kind of its exit codes, then the lines
//! of the examples, indented. A command without a block has no examples; a test fails for it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::Command;

use super::topics::topic_list;

/// Blocks of all commands.
const TEXT: &str = include_str!("examples.txt");

/// Meaning of the exit codes, by the kind that a block names.
const EXIT_CODES: [(&str, &[(&str, &str)]); 11] = [
    ("plain", &[SUCCESS, ("1", "the command failed"), USAGE]),
    (
        "run",
        &[
            ("0", "all resources are stable or were changed"),
            ("1", "a resource failed, or the run could not start"),
            ("2", "invalid arguments or manifest; nothing was changed"),
            ("130", "interrupted"),
            (
                "2, 4, 6",
                "with --detailed-exitcodes: changed, failed, both",
            ),
        ],
    ),
    (
        "pipe",
        &[
            (
                "0",
                "a response was printed, also for a resource that failed",
            ),
            ("1", "the request could not be read"),
            USAGE,
        ],
    ),
    (
        "agent",
        &[
            ("0", "stopped by SIGTERM or SIGINT"),
            ("1", "the agent could not start"),
            ("2", "invalid arguments or configuration"),
        ],
    ),
    ("policy", &[("0", "allowed"), ("1", "denied"), USAGE]),
    (
        "validate",
        &[
            ("0", "no problems"),
            ("1", "the manifest could not be fetched"),
            ("2", "the manifest has problems, or invalid arguments"),
        ],
    ),
    (
        "doctor",
        &[("0", "no check failed"), ("1", "a check failed"), USAGE],
    ),
    (
        "list",
        &[
            SUCCESS,
            ("1", "the command failed"),
            ("2", "a given node is unknown, or invalid arguments"),
        ],
    ),
    (
        "request",
        &[
            ("0", "all selected nodes succeeded"),
            ("1", "a node failed, refused the request or was busy"),
            ("2", "a node did not reply, or invalid arguments"),
            ("3", "halted by --max-failures"),
        ],
    ),
    (
        "rollout",
        &[
            ("0", "done, or rolled back"),
            ("1", "nodes failed or are unhealthy"),
            ("2", "nodes are unreachable, or invalid arguments"),
            ("3", "halted or aborted"),
        ],
    ),
    (
        "drift",
        &[
            ("0", "no drift"),
            (
                "1",
                "nodes differ from their assignment, failed, or refused the check",
            ),
            (
                "2",
                "a node did not reply or has not reported on its assignment, or invalid arguments",
            ),
        ],
    ),
];

const SUCCESS: (&str, &str) = ("0", "success");
const USAGE: (&str, &str) = ("2", "invalid arguments");

/// Examples and exit codes of one command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Lines of the examples, indented.
    pub examples: &'static str,
    pub exit_codes: &'static [(&'static str, &'static str)],
}

impl Block {
    /// Returns the text that follows the flags in the help.
    fn help(&self) -> String {
        let mut text = format!("Examples:\n{}\n\nExit codes:\n", self.examples);
        let width = self.exit_codes.iter().map(|(code, _)| code.len()).max();
        let width = width.unwrap_or_default();
        for (code, meaning) in self.exit_codes {
            // Writing to a string does not fail.
            let _ = writeln!(text, "  {code:width$}  {meaning}");
        }
        text
    }
}

/// Returns the blocks by command, such as `ccm fleet rollout`.
pub(super) fn blocks() -> BTreeMap<&'static str, Block> {
    let blocks = TEXT.split("\n\n").filter_map(|block| {
        let (heading, examples) = block.split_once('\n')?;
        let (command, kind) = heading.split_once(": ")?;
        let (_, exit_codes) = EXIT_CODES.iter().find(|(name, _)| *name == kind)?;
        let examples = examples.trim_end();
        Some((
            command,
            Block {
                examples,
                exit_codes,
            },
        ))
    });
    blocks.collect()
}

/// Adds examples and exit codes to the help of all commands, and the topics to that of the program.
pub(in crate::cli) fn with_examples(command: Command) -> Command {
    let command = add(command, "ccm", &blocks());
    let help = command.get_after_help().map(ToString::to_string);
    let help = help.unwrap_or_default();
    command.after_help(format!("{help}\n{}", topic_list()))
}

fn add(command: Command, name: &str, blocks: &BTreeMap<&str, Block>) -> Command {
    let command = match blocks.get(name) {
        Some(block) => command.after_help(block.help()),
        None => command,
    };
    command.mut_subcommands(|child| {
        let name = format!("{name} {}", child.get_name());
        add(child, &name, blocks)
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;
    use crate::cli::help::pages::visible_commands;
    use crate::cli::help::topics::TOPICS;
    use ccm_value::text::split_words;

    fn command_names() -> Vec<String> {
        let name = |command: &Command| {
            let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
            name.to_owned()
        };
        let commands = visible_commands(Cli::command());
        commands.iter().map(name).collect()
    }

    #[test]
    fn every_command_has_examples_and_exit_codes() {
        let blocks = blocks();
        let names = command_names();
        let missing: Vec<&String> = names
            .iter()
            .filter(|name| !blocks.contains_key(name.as_str()))
            .collect();
        assert!(missing.is_empty(), "add to examples.txt: {missing:?}");
        let unknown: Vec<&&str> = blocks
            .keys()
            .filter(|name| !names.iter().any(|known| known == **name))
            .collect();
        assert!(unknown.is_empty(), "no such command: {unknown:?}");
    }

    #[test]
    fn every_block_is_read() {
        let headings = TEXT.lines().filter(|line| line.starts_with("ccm"));
        assert_eq!(headings.count(), blocks().len());
    }

    /// Returns the call of the program in a line that is typed into a shell.
    fn call_in(typed: &str) -> Option<&str> {
        let start = typed.find("ccm ")?;
        let call = typed[start..].trim_end_matches(")\"");
        call.split(" <").next()
    }

    fn assert_valid_call(place: &str, call: &str) {
        let words = split_words(call).unwrap();
        if let Err(err) = Cli::command().try_get_matches_from(words) {
            panic!("{place}: {call}: {err}");
        }
    }

    #[test]
    fn every_call_in_a_topic_is_valid() {
        for (name, _, text) in TOPICS {
            // A call can continue in the next line.
            let text = text.replace("\\\n", " ");
            let lines = text
                .lines()
                .filter_map(|line| line.trim().strip_prefix("$ "));
            let without_comments = lines.map(|line| line.split(" #").next().unwrap_or(line));
            let calls: Vec<&str> = without_comments.filter_map(call_in).collect();
            assert!(calls.len() >= 2, "{name}: {calls:?}");
            for call in calls {
                assert_valid_call(name, call);
            }
        }
    }

    #[test]
    fn every_example_is_a_valid_call_of_its_command() {
        for (name, block) in blocks() {
            let mut is_shown = false;
            for line in block.examples.lines().map(str::trim) {
                let Some(typed) = line.strip_prefix("$ ") else {
                    assert!(line.starts_with("# "), "{name}: {line}");
                    continue;
                };
                let call = call_in(typed).unwrap_or_else(|| panic!("{name}: {typed}"));
                is_shown |= call.starts_with(name) || name == "ccm";
                assert_valid_call(name, call);
            }
            assert!(is_shown, "{name}: no example calls it");
        }
    }
}
