//! Generated documentation of the command line: the long help and the manual pages.

use std::ffi::OsString;

use clap::Command;
use clap_mangen::Man;

use crate::cli::CliError;

/// Returns the help of every command as one text.
pub(in crate::cli) fn long_help(root: Command) -> String {
    let help: Vec<String> = visible_commands(root)
        .into_iter()
        .map(|command| {
            let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
            let name = name.to_owned();
            let help = command.bin_name(name).render_help().to_string();
            help.trim_end().to_owned()
        })
        .collect();
    format!("{}\n", help.join("\n\n"))
}

/// Manual page of one command.
pub(in crate::cli) struct ManPage {
    /// Command as it is typed, such as `ccm fleet rollout`.
    pub command: String,
    pub text: String,
}

impl ManPage {
    /// Returns the name that `man` finds the page by.
    pub(in crate::cli) fn file_name(&self) -> String {
        format!("{}.1", self.command.replace(' ', "-"))
    }
}

/// Returns the manual page of every command.
pub(in crate::cli) fn man_pages(root: Command) -> Result<Vec<ManPage>, CliError> {
    let source = format!("ccm {}", root.get_version().unwrap_or_default());
    let mut pages = Vec::new();
    for command in visible_commands(root) {
        let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
        let name = name.to_owned();
        let title = name.replace(' ', "-").to_uppercase();
        let page = Man::new(command).title(title).source(source.clone());
        let mut text = Vec::new();
        page.render(&mut text).map_err(CliError::failed)?;
        pages.push(ManPage {
            command: name,
            text: with_sections(&String::from_utf8(text).map_err(CliError::failed)?),
        });
    }
    Ok(pages)
}

/// Gives examples and exit codes the sections that manual pages usually have.
fn with_sections(page: &str) -> String {
    page.replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n")
        .replace("\nExit codes:\n", "\n.SH \"EXIT STATUS\"\n")
}

/// Returns the manual page of the command that `words` name, such as `fleet rollout`. Without words
/// returns the pages of all commands, one after the other.
pub(in crate::cli) fn man_text(root: Command, words: &[OsString]) -> Result<String, CliError> {
    let mut pages = man_pages(root)?;
    if !words.is_empty() {
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let name = format!("ccm {}", words.join(" "));
        pages.retain(|page| page.command == name);
        if pages.is_empty() {
            return Err(CliError::usage(format!("no manual page for {name}")));
        }
    }
    Ok(pages.into_iter().map(|page| page.text).collect())
}

/// Returns the program and all its subcommands that are not hidden, parents first.
pub(super) fn visible_commands(root: Command) -> Vec<Command> {
    let mut root = root.disable_help_subcommand(true);
    root.build();
    let mut pending = vec![root];
    let mut commands = Vec::new();
    while let Some(command) = pending.pop() {
        let subcommands = command.get_subcommands();
        let visible = subcommands.filter(|command| !command.is_hide_set());
        let visible: Vec<Command> = visible.cloned().collect();
        pending.extend(visible.into_iter().rev());
        commands.push(command);
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn page(words: &[&str]) -> Result<String, String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        man_text(crate::cli::with_help(), &words).map_err(|err| err.to_string())
    }

    #[test]
    fn the_long_help_has_every_command_and_flag() {
        let text = long_help(crate::cli::Cli::command());
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
    fn a_manual_page_describes_one_command() {
        let page = page(&["ensure", "file"]).unwrap();
        assert!(page.contains(".TH CCM-ENSURE-FILE 1 "), "{page}");
        assert_eq!(page.matches("\n.TH ").count(), 1, "{page}");
        assert!(page.contains("\\-\\-content\\-file"), "{page}");
        assert!(
            page.contains("\n.SH EXAMPLES\n  # Write a file\n"),
            "{page}"
        );
        assert!(page.contains("\n.SH \"EXIT STATUS\"\n"), "{page}");
        assert!(!page.contains("cfengine\\-module"), "{page}");
    }

    #[test]
    fn every_command_has_a_manual_page() {
        let pages = page(&[]).unwrap();
        for title in ["CCM", "CCM-ENSURE-FILE", "CCM-FLEET-ROLLOUT-START"] {
            assert!(pages.contains(&format!("\n.TH {title} 1 ")), "{title}");
        }
    }

    #[test]
    fn an_unknown_command_has_no_manual_page() {
        assert_eq!(page(&["frob"]), Err("no manual page for ccm frob".into()));
    }
}
