//! The whole command line on one page: as text, and as a manual page.
//!
//! Both are read off the definition of the command line; nothing is said here that it does not say.

use clap::{Arg, Command};

/// Returns the help of every command, one below the other.
pub(super) fn long_help(root: Command) -> String {
    let mut text = String::new();
    each(root, &mut |command, _| {
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        let shown = command.clone().bin_name(name(command)).render_help();
        text.push_str(shown.to_string().trim_end());
    });
    text.push('\n');
    text
}

/// Returns the manual page, for `man -l -` and for packages.
pub(super) fn man_page(root: Command) -> String {
    let summary = about(&root);
    let version = escaped(root.get_version().unwrap_or_default());
    let mut page = format!(
        ".TH CCM 1 \"\" \"ccm {version}\"\n.SH NAME\nccm \\- {summary}\n.SH SYNOPSIS\n\\fBccm\\fR \
         [OPTIONS] COMMAND\n.SH OPTIONS\n"
    );
    each(root, &mut |command, parent| {
        if parent.is_some() {
            let usage = escaped(&usage(command));
            page.push_str(&format!(".SS {usage}\n{}\n", about(command)));
        }
        for arg in command.get_arguments() {
            if !arg.is_hide_set() && !is_told(arg, parent) {
                page.push_str(&described(arg));
            }
        }
        if parent.is_none() {
            page.push_str(".SH COMMANDS\n");
        }
    });
    page
}

/// Reports whether a flag is told above: of everything, or of the group that a command is in.
fn is_told(arg: &Arg, parent: Option<&Command>) -> bool {
    parent.is_some_and(|parent| {
        let mut above = parent.get_arguments();
        arg.get_id() == "help"
            || above.any(|above| above.is_global_set() && above.get_id() == arg.get_id())
    })
}

/// Visits a command and all that are visible below it, each with the one that it belongs to.
fn each(mut root: Command, visit: &mut impl FnMut(&Command, Option<&Command>)) {
    root.build();
    let mut waiting = vec![(&root, None)];
    while let Some((command, parent)) = waiting.pop() {
        visit(command, parent);
        let below = command.get_subcommands();
        let below: Vec<_> = below
            .filter(|command| !command.is_hide_set() && command.get_name() != "help")
            .map(|below| (below, Some(command)))
            .collect();
        waiting.extend(below.into_iter().rev());
    }
}

fn name(command: &Command) -> String {
    let whole = command.get_bin_name();
    whole.unwrap_or_else(|| command.get_name()).to_owned()
}

fn about(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string);
    escaped(&about.unwrap_or_default())
}

fn usage(command: &Command) -> String {
    let line = command.clone().bin_name(name(command)).render_usage();
    line.to_string().trim_start_matches("Usage: ").to_owned()
}

fn described(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let shown = escaped(&arg.to_string());
    format!(".TP\n\\fB{shown}\\fR\n{}\n", escaped(&help))
}

/// Returns a text that a formatter prints as it is.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let lines = text.lines().map(|line| {
        if line.starts_with(['.', '\'']) {
            format!("\\&{line}")
        } else {
            line.to_owned()
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_long_help_has_every_command_and_flag() {
        let text = long_help(super::super::Cli::command());
        for part in [
            "Usage: ccm ensure file [OPTIONS]",
            "--content-file",
            "Usage: ccm fleet rollout start",
            "--max-unreachable",
        ] {
            assert!(text.contains(part), "{part}");
        }
        assert!(!text.contains("--cfengine-module"));
    }

    #[test]
    fn the_manual_page_escapes_what_a_formatter_would_read() {
        assert_eq!(
            escaped(".hiera\n'x' a\\b --c"),
            "\\&.hiera\n\\&'x' a\\eb \\-\\-c"
        );
        let page = man_page(super::super::Cli::command());
        assert!(page.starts_with(".TH CCM 1 "));
        assert_eq!(page.matches("\\fB\\-\\-debug\\fR").count(), 1, "{page}");
        assert!(page.contains("\\-\\-session <DIR>"), "{page}");
        assert!(
            page.contains("\n.SS ccm ensure file [OPTIONS] <NAME> [ENSURE]\n"),
            "{page}"
        );
        assert!(
            page.contains("\n.TP\n\\fB\\-\\-content\\-file <FILE>\\fR\n"),
            "{page}"
        );
    }
}
