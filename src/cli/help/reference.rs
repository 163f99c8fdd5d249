//! Command reference of the book: Markdown pages from the definition of the command line.
//!
//! A page has a command with its subcommands. The commands of `ccm fleet` have a page each. Flags
//! that a command inherits from all its parents are described once, on the page of the parent.

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};

use super::examples::{Block, blocks};
use super::pages::visible_commands;

/// Headings of flags that all commands below a command have.
const INHERITED: [&str; 2] = ["NATS", "Logging"];

/// Commands whose subcommands have pages of their own.
const DIVIDED: [&str; 2] = ["ccm", "ccm fleet"];

/// Page of the book.
pub(in crate::cli) struct CommandPage {
    /// File name without a directory, such as `fleet-rollout.md`.
    pub file_name: String,
    pub text: String,
}

/// Returns a page for each command, with the commands below it.
pub(in crate::cli) fn command_pages(root: Command) -> Vec<CommandPage> {
    let blocks = blocks();
    let mut pages: Vec<(String, CommandPage)> = Vec::new();
    for command in visible_commands(root) {
        let name = full_name(&command);
        let parent = name.rsplit_once(' ').map_or("", |(parent, _)| parent);
        if parent.is_empty() || DIVIDED.contains(&parent) {
            let page = CommandPage {
                file_name: format!("{}.md", name.replace(' ', "-")),
                text: format!("# {name}\n"),
            };
            pages.push((name.clone(), page));
        } else if let Some((_, page)) = pages.last_mut() {
            page.text.push_str(&format!("\n## {name}\n"));
        }
        if let Some((_, page)) = pages.last_mut() {
            page.text
                .push_str(&section(&command, blocks.get(name.as_str())));
        }
    }
    pages.into_iter().map(|(_, page)| page).collect()
}

fn full_name(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    name.to_owned()
}

/// Returns the description of one command, without its heading.
fn section(command: &Command, block: Option<&Block>) -> String {
    let about = command.get_long_about().or_else(|| command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let mut command = command.clone();
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let mut text = format!("\n{}\n\n```text\n{usage}\n```\n", sentence(&about));
    text.push_str(&subcommands(&command));
    text.push_str(&arguments(&command));
    text.push_str(&options(&command));
    if let Some(block) = block {
        let lines: Vec<&str> = block.examples.lines().map(str::trim).collect();
        text.push_str(&format!(
            "\nExamples:\n\n```console\n{}\n```\n",
            lines.join("\n")
        ));
        text.push_str("\n| Exit code | Meaning |\n|---|---|\n");
        for (code, meaning) in block.exit_codes {
            text.push_str(&format!("| {code} | {} |\n", cell(meaning)));
        }
    }
    text
}

/// Returns the table of subcommands, with links to their descriptions.
fn subcommands(command: &Command) -> String {
    let children: Vec<&Command> = command
        .get_subcommands()
        .filter(|child| !child.is_hide_set())
        .collect();
    if children.is_empty() {
        return String::new();
    }
    let is_divided = DIVIDED.contains(&full_name(command).as_str());
    let mut text = String::from("\n| Command | Purpose |\n|---|---|\n");
    for child in children {
        let name = full_name(child);
        let file = name.replace(' ', "-");
        let target = if is_divided {
            format!("{file}.md")
        } else {
            format!("#{file}")
        };
        let about = child.get_about().map(ToString::to_string);
        let about = cell(&about.unwrap_or_default());
        // Writing to a string does not fail.
        let _ = writeln!(text, "| [`{name}`]({target}) | {about} |");
    }
    text
}

/// Returns the table of positional arguments.
fn arguments(command: &Command) -> String {
    let all: Vec<&Arg> = command
        .get_positionals()
        .filter(|arg| !arg.is_hide_set())
        .collect();
    if all.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n| Argument | Default | Meaning |\n|---|---|---|\n");
    for arg in all {
        let name = code(&arg.to_string());
        let _ = writeln!(text, "| {name} | {} | {} |", default(arg), meaning(arg));
    }
    text
}

/// Returns the tables of flags, one for each heading.
fn options(command: &Command) -> String {
    let is_parent = DIVIDED.contains(&full_name(command).as_str())
        || !full_name(command).trim_start_matches("ccm ").contains(' ');
    let shown = command.get_arguments().filter(|arg| {
        let heading = arg.get_help_heading().unwrap_or_default();
        let is_inherited = INHERITED.contains(&heading) && !is_parent;
        let is_builtin = ["help", "version"].contains(&arg.get_id().as_str());
        !arg.is_positional() && !arg.is_hide_set() && !is_builtin && !is_inherited
    });
    let mut headings: Vec<(&str, Vec<&Arg>)> = Vec::new();
    for arg in shown {
        let heading = arg.get_help_heading().unwrap_or("Option");
        match headings.iter_mut().find(|(name, _)| *name == heading) {
            Some((_, list)) => list.push(arg),
            None => headings.push((heading, vec![arg])),
        }
    }
    let mut text = String::new();
    for (heading, list) in headings {
        let _ = write!(text, "\n| {heading} | Default | Meaning |\n|---|---|---|\n");
        for arg in list {
            let _ = writeln!(
                text,
                "| {} | {} | {} |",
                flag(arg),
                default(arg),
                meaning(arg)
            );
        }
    }
    text
}

/// Returns the names of a flag with its value.
fn flag(arg: &Arg) -> String {
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    let values = match arg.get_value_names() {
        Some(names) if takes_value(arg) => format!(" {}", names.join(" ")),
        _ => String::new(),
    };
    code(&format!("{}{values}", names.join(", ")))
}

/// Returns the default value, also one that is a part of the help, or nothing.
fn default(arg: &Arg) -> String {
    if let (_, Some(text)) = split_default(&help_text(arg)) {
        return cell(text);
    }
    if !takes_value(arg) {
        return String::new();
    }
    let values = arg.get_default_values().iter();
    let values: Vec<String> = values.map(|value| code(&value.to_string_lossy())).collect();
    values.join(", ")
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

fn help_text(arg: &Arg) -> String {
    arg.get_help().map(ToString::to_string).unwrap_or_default()
}

/// Splits `[default: …]` from the end of a help text.
fn split_default(help: &str) -> (&str, Option<&str>) {
    match help.split_once(" [default: ") {
        Some((text, default)) => (text, Some(default.trim_end_matches(']'))),
        None => (help, None),
    }
}

/// Returns the description of an argument, with its values and its environment variable.
fn meaning(arg: &Arg) -> String {
    let help = help_text(arg);
    let mut text = cell(split_default(&help).0);
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if takes_value(arg) && !values.is_empty() {
        let _ = write!(text, ". Values: {}", values.join(", "));
    }
    if let Some(variable) = arg.get_env() {
        let _ = write!(text, ". Environment: `{}`", variable.to_string_lossy());
    }
    text
}

/// Returns a span of code for a cell of a table.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

/// Returns a text for a cell of a table: brackets and bars are not Markdown.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
        .replace('<', "&lt;")
        .replace('\n', " ")
}

/// Returns a text with a full stop.
fn sentence(text: &str) -> String {
    let text = text.replace('<', "&lt;");
    format!("{}.", text.trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    fn page(name: &str) -> String {
        let pages = command_pages(Cli::command());
        let page = pages.into_iter().find(|page| page.file_name == name);
        page.unwrap().text
    }

    #[test]
    fn a_page_has_flags_defaults_examples_and_exit_codes() {
        let text = page("ccm-apply.md");
        for part in [
            "# ccm apply\n",
            "| `--noop` |  | Do not make changes",
            "| `--hiera SOURCE` |",
            "Environment: `CCM_HIERA_DATA`",
            "$ ccm apply site.yaml --noop --diff",
            "| 130 | interrupted |",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn subcommands_are_sections_of_the_page_of_their_command() {
        let text = page("ccm-fleet-rollout.md");
        assert!(text.contains("\n## ccm fleet rollout start\n"), "{text}");
        assert!(text.contains("](#ccm-fleet-rollout-start)"), "{text}");
        assert!(!text.contains("--sign-with"), "{text}");
        assert!(page("ccm-fleet.md").contains("--sign-with"));
    }
}
