//! Commands that people add: App Builder definitions in `NAME-plugin.yaml` files.
//!
//! Nobody looks for them unless the first word is none of our own commands, or somebody asks what
//! commands there are: a built-in command pays nothing, and no plugin can take its place. A broken
//! plugin is told to whoever might have wanted it and never stands in anybody's way.
//!
//! The commands of a definition are commands of `ccm`, as upstream mounts them, and also commands of
//! `ccm NAME`, as upstream's documents have it. Read next: `discover` finds files, `definition` and
//! `input` read them, `mount` parses a call, `run` carries it out.

mod definition;
mod discover;
mod input;
mod mount;
mod run;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use self::definition::Entry;
use self::discover::{Plugin, PluginError};
use self::run::Call;
use super::{CliError, Verdict, environment};
use ccm_core::facts::Places;

/// All plugins there are.
pub(super) struct Plugins {
    plugins: Vec<Plugin>,
    problems: Vec<PluginError>,
}

/// What a person gets who called a plugin.
pub(super) enum Called {
    Done(Result<Verdict, CliError>),
    /// The parser has something to say: help, or what was wrong.
    Told(clap::Error),
}

impl Plugins {
    /// Finds the plugins of this machine and this user.
    pub(super) fn find() -> Self {
        let homes = Places::from_env(&environment::variables()).config;
        let places: Vec<PathBuf> = homes.iter().map(|home| home.join("plugins")).collect();
        let (plugins, problems) = discover::find(&places);
        Self { plugins, problems }
    }

    /// Returns the commands that can be called by their own name, each with its plugin. Of equal
    /// names the first plugin's is called.
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

    /// Returns the program with a list of all plugins' commands in its help.
    pub(super) fn described(&self, builtin: clap::Command) -> clap::Command {
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
        builtin.after_help(text)
    }

    /// Returns a line for everything that is wrong with plugins.
    pub(super) fn warnings(&self, builtin: &clap::Command) -> Vec<String> {
        let mut lines: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        let mounted = self.mounted(builtin);
        for plugin in &self.plugins {
            let definition = match &plugin.definition {
                Ok(definition) => definition,
                Err(err) => {
                    lines.push(err.to_string());
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
                    "{}: {other} has a command {name}: use ccm {} {name}",
                    plugin.path.display(),
                    plugin.name
                ));
            }
        }
        lines
    }

    /// Calls what the first of these words names, if that is a plugin's. The words are what stands
    /// behind `ccm` and its own flags.
    pub(super) fn call(&self, words: &[OsString], builtin: &clap::Command) -> Option<Called> {
        let (first, rest) = words.split_first()?;
        let first = first.to_str()?;
        if let Some((plugin, entry)) = self.mounted(builtin).get(first) {
            let command = mount::command(entry).name(first.to_owned());
            return Some(call_one(plugin, entry, command, first, rest));
        }
        let plugin = self.plugins.iter().find(|plugin| plugin.name == first)?;
        let definition = match &plugin.definition {
            Ok(definition) => definition,
            Err(err) => return Some(Called::Done(Err(CliError::failed(err.to_string())))),
        };
        let command = mount::group(first, &definition.description, &definition.commands);
        let matches = match parse(command, first, rest) {
            Ok(matches) => matches,
            Err(err) => return Some(Called::Told(err)),
        };
        let (entry, matches) = mount::called(&definition.commands, &matches)?;
        Some(Called::Done(carry_out(plugin, entry, matches)))
    }
}

/// Calls one command by its own name.
fn call_one(
    plugin: &Plugin,
    entry: &Entry,
    command: clap::Command,
    first: &str,
    rest: &[OsString],
) -> Called {
    let matches = match parse(command, first, rest) {
        Ok(matches) => matches,
        Err(err) => return Called::Told(err),
    };
    let below = mount::called(&entry.commands, &matches);
    let (entry, matches) = below.unwrap_or((entry, &matches));
    Called::Done(carry_out(plugin, entry, matches))
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

/// Carries out a call of a command that may have problems.
fn carry_out(
    plugin: &Plugin,
    entry: &Entry,
    matches: &clap::ArgMatches,
) -> Result<Verdict, CliError> {
    let file = plugin.path.as_path();
    if let Some(problem) = entry.problems.first() {
        return Err(CliError::failed(format!("{}: {problem}", file.display())));
    }
    let Some(exec) = &entry.exec else {
        return Err(CliError::usage(format!("{} needs a command", entry.name)));
    };
    let variable = |name: &str| std::env::var(name).ok();
    let given = mount::given(entry, matches, variable)?;
    let call = Call {
        exec,
        given,
        file,
        name: &entry.name,
    };
    call.run()
}

/// Returns where configuration is kept: the user's directory, then the system's.
fn config_homes(variables: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let ours = Places::from_env(variables).config;
    let homes = ours.iter().rev().filter_map(|path| path.ancestors().nth(2));
    homes.map(Path::to_owned).collect()
}
