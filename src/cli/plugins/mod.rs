//! Plugin commands: App Builder definitions in `NAME-plugin.yaml` files.
//!
//! Plugins are searched only if the first word is not a built-in command, or for the top-level help:
//! built-in commands are not slowed down and can't be replaced. A broken plugin causes a warning and
//! does not affect other commands.
//!
//! The commands of a definition are mounted as `ccm COMMAND`, as upstream does, and as
//! `ccm NAME COMMAND`, as upstream documents. `discover` finds the files, `definition` and `input`
//! parse them, `mount` builds the clap commands, `run` executes a call.

mod definition;
mod discover;
mod input;
mod mount;
mod problem;
mod run;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use self::definition::Entry;
use self::discover::{Plugin, PluginError};
use self::run::Call;
use super::{CliError, Verdict, diagnostic, environment};
use ccm_core::facts::FactPaths;

/// Installed plugins.
pub(super) struct Plugins {
    plugins: Vec<Plugin>,
    problems: Vec<PluginError>,
}

/// Result of calling a plugin command.
pub(super) enum PluginCall {
    Completed(Result<Verdict, CliError>),
    /// Help text or usage error.
    Usage(clap::Error),
}

impl Plugins {
    /// Finds the plugins of the system and of the user.
    pub(super) fn find() -> Self {
        let homes = FactPaths::from_env(&environment::variables()).config;
        let directories: Vec<PathBuf> = homes.iter().map(|home| home.join("plugins")).collect();
        let (plugins, problems) = discover::find(&directories);
        Self { plugins, problems }
    }

    /// Returns the commands mounted at top level, each with its plugin. If names are equal, the
    /// first plugin wins.
    fn mounted(&self, builtin: &clap::Command) -> BTreeMap<&str, (&Plugin, &Entry)> {
        let mut mounted = BTreeMap::new();
        for plugin in &self.plugins {
            for entry in plugin.definition.iter().flat_map(|it| &it.commands) {
                for name in entry.names() {
                    if builtin.find_subcommand(name).is_none() {
                        mounted.entry(name).or_insert((plugin, entry));
                    }
                }
            }
        }
        mounted
    }

    /// Adds the list of plugin commands to the help of the program.
    pub(super) fn add_to_help(&self, builtin: clap::Command) -> clap::Command {
        let mounted = self.mounted(&builtin);
        let own = mounted
            .iter()
            .filter(|(name, (_, entry))| entry.name == **name);
        let rows: Vec<(&str, String)> = own
            .map(|(name, (_, entry))| (*name, mount::summary(&entry.description)))
            .collect();
        if rows.is_empty() {
            return builtin;
        }
        let width = rows
            .iter()
            .map(|(name, _)| name.len())
            .max()
            .unwrap_or_default();
        let mut text = String::from("Plugins:\n");
        for (name, description) in rows {
            let line = format!("  {name:width$}  {description}");
            text.push_str(line.trim_end());
            text.push('\n');
        }
        if let Some(help) = builtin.get_after_help() {
            text.push_str(&format!("\n{help}"));
        }
        builtin.after_help(text)
    }

    /// Returns warnings about broken plugins and commands that are not mounted.
    pub(super) fn warnings(&self, builtin: &clap::Command) -> Vec<String> {
        let mut lines: Vec<String> = self.problems.iter().map(warning).collect();
        let mounted = self.mounted(builtin);
        for plugin in &self.plugins {
            let definition = match &plugin.definition {
                Ok(definition) => definition,
                Err(err) => {
                    lines.push(warning(err));
                    continue;
                }
            };
            for name in definition.commands.iter().flat_map(Entry::names) {
                let other = match mounted.get(name) {
                    Some((owner, _)) if owner.name == plugin.name => continue,
                    Some((owner, _)) => format!("plugin {}", owner.name),
                    None => "ccm itself".to_owned(),
                };
                lines.push(format!(
                    "ccm: warning: {}: command {name} is already defined by {other}: use ccm {} {name}",
                    plugin.path.display(),
                    plugin.name
                ));
            }
        }
        lines
    }

    /// Calls the plugin command that the first word names, if there is one. The words are the
    /// arguments after `ccm` and its global flags.
    pub(super) fn call(&self, words: &[OsString], builtin: &clap::Command) -> Option<PluginCall> {
        let (first, rest) = words.split_first()?;
        let first = first.to_str()?;
        if let Some((plugin, entry)) = self.mounted(builtin).get(first) {
            let command = mount::command(entry).name(first.to_owned());
            return Some(call_one(plugin, entry, command, first, rest));
        }
        let plugin = self.plugins.iter().find(|plugin| plugin.name == first)?;
        let definition = match &plugin.definition {
            Ok(definition) => definition,
            Err(err) => {
                let diagnostics = err.diagnostic().cloned().into_iter().collect();
                let error = CliError::failed(err.to_string()).with_diagnostics(diagnostics);
                return Some(PluginCall::Completed(Err(error)));
            }
        };
        let command = mount::group(first, &definition.description, &definition.commands);
        let matches = match parse(command, first, rest) {
            Ok(matches) => matches,
            Err(err) => return Some(PluginCall::Usage(err)),
        };
        let (entry, matches) = mount::called(&definition.commands, &matches)?;
        Some(PluginCall::Completed(execute(plugin, entry, matches)))
    }
}

/// Returns a warning, with the source line if the problem has a position.
fn warning(error: &PluginError) -> String {
    match error.diagnostic() {
        Some(diagnostic) => diagnostic::render_as("warning", diagnostic)
            .trim_end()
            .into(),
        None => format!("ccm: warning: {error}"),
    }
}

/// Calls a command that is mounted at top level.
fn call_one(
    plugin: &Plugin,
    entry: &Entry,
    command: clap::Command,
    first: &str,
    rest: &[OsString],
) -> PluginCall {
    let matches = match parse(command, first, rest) {
        Ok(matches) => matches,
        Err(err) => return PluginCall::Usage(err),
    };
    let subcommand = mount::called(&entry.commands, &matches);
    let (entry, matches) = subcommand.unwrap_or((entry, &matches));
    PluginCall::Completed(execute(plugin, entry, matches))
}

fn parse(
    command: clap::Command,
    first: &str,
    rest: &[OsString],
) -> Result<clap::ArgMatches, clap::Error> {
    let name = format!("ccm {first}");
    let words = std::iter::once(OsString::from(&name)).chain(rest.iter().cloned());
    command.bin_name(name.clone()).try_get_matches_from(words)
}

/// Executes a command, or fails if its definition has problems.
fn execute(
    plugin: &Plugin,
    entry: &Entry,
    matches: &clap::ArgMatches,
) -> Result<Verdict, CliError> {
    let file = plugin.path.as_path();
    if let Some(first) = entry.problems.first() {
        let problems = entry.problems.iter();
        let diagnostics = problems
            .map(|problem| problem::diagnostic(file, &plugin.text, problem))
            .collect();
        let error = CliError::failed(format!("{}: {first}", file.display()));
        return Err(error.with_diagnostics(diagnostics));
    }
    let Some(exec) = &entry.exec else {
        return Err(CliError::usage(format!(
            "{} requires a subcommand",
            entry.name
        )));
    };
    let variable = |name: &str| std::env::var(name).ok();
    let input = mount::call_input(entry, matches, variable)?;
    let call = Call {
        exec,
        input,
        file,
        name: &entry.name,
    };
    call.run()
}

/// Returns the configuration directories: the user's, then the system's.
fn config_homes(variables: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let directories = FactPaths::from_env(variables).config;
    let homes = directories
        .iter()
        .rev()
        .filter_map(|path| path.ancestors().nth(2));
    homes.map(Path::to_owned).collect()
}
