//! Conversion of plugin commands to clap commands, and of parsed arguments to values.
//!
//! Plugin commands are parsed separately from the built-in ones, so their flags may have any name.
//! Types, defaults and environment variables are handled by `input`.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::definition::{Body, Entry};
use super::input::{Input, InputType};
use crate::cli::CliError;
use ccm_value::Value;
use ccm_value::value::Map;

/// Flag that skips the confirmation prompt.
const NO_PROMPT: &str = "no-prompt";

/// Arguments and flags of a call.
#[derive(Debug, PartialEq)]
pub(super) struct CallInput {
    pub(super) arguments: Value,
    pub(super) flags: Value,
    pub(super) needs_confirmation: bool,
}

/// Returns the clap command of an entry, with its subcommands.
pub(super) fn command(entry: &Entry) -> Command {
    let mut command = group(&entry.name, &entry.description, &entry.commands)
        .visible_aliases(entry.aliases.iter().map(String::clone));
    if entry.exec.is_some() || !entry.problems.is_empty() {
        command = command
            .subcommand_required(false)
            .arg_required_else_help(false)
            .args_conflicts_with_subcommands(true)
            .subcommand_negates_reqs(true);
    }
    let mut may_be_required = true;
    for input in &entry.arguments {
        // clap allows required arguments only before optional ones; `input` checks the others.
        may_be_required = may_be_required && is_required(input);
        command = command.arg(argument(input).required(may_be_required));
    }
    for input in &entry.flags {
        command = command.arg(flag(input));
        if input.is_on_by_default() {
            let opposite = Arg::new(opposite(input))
                .long(format!("no-{}", input.name))
                .action(ArgAction::SetTrue)
                .overrides_with(input.name.clone())
                .help(format!("Turn --{} off", input.name));
            command = command.arg(opposite);
        }
    }
    let has_prompt = entry
        .exec
        .as_ref()
        .is_some_and(|exec| exec.confirm_prompt.is_some());
    if has_prompt {
        let help = "Skip the confirmation prompt";
        let flag = Arg::new(NO_PROMPT)
            .long(NO_PROMPT)
            .action(ArgAction::SetTrue);
        command = command.arg(flag.help(help));
    }
    // A command with problems accepts any arguments, so that its problem is reported.
    if entry.problems.is_empty() {
        command
    } else {
        command.arg(
            Arg::new("anything")
                .num_args(0..)
                .trailing_var_arg(true)
                .allow_hyphen_values(true)
                .hide(true),
        )
    }
}

/// Returns a clap command that only has subcommands.
pub(super) fn group(name: &str, description: &str, entries: &[Entry]) -> Command {
    Command::new(name.to_owned())
        .about(summary(description))
        .long_about(plain(description))
        .subcommands(entries.iter().map(command))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
}

/// Returns the first line of a description.
pub(super) fn summary(description: &str) -> String {
    plain(description.lines().next().unwrap_or_default())
}

/// Replaces control characters, which a terminal would interpret.
fn plain(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n', " ")
}

fn is_required(input: &Input) -> bool {
    input.required && input.default.is_none() && input.env.is_none()
}

fn argument(input: &Input) -> Arg {
    let arg = Arg::new(input.name.clone()).help(help(input));
    choices(arg, input)
}

fn flag(input: &Input) -> Arg {
    let mut arg = Arg::new(input.name.clone())
        .long(input.name.clone())
        .help(help(input));
    if let Some(short) = input.short {
        arg = arg.short(short);
    }
    match input.type_name {
        InputType::Bool => arg.action(ArgAction::SetTrue),
        InputType::Counter => arg.action(ArgAction::Count),
        _ => {
            let name = input.placeholder.as_ref().unwrap_or(&input.name);
            let arg = arg.value_name(name.to_uppercase());
            choices(arg.required(is_required(input)), input)
        }
    }
}

fn choices(arg: Arg, input: &Input) -> Arg {
    if input.choices.is_empty() {
        arg
    } else {
        arg.value_parser(PossibleValuesParser::new(input.choices.clone()))
    }
}

fn help(input: &Input) -> String {
    let mut text = plain(&input.description);
    let notes = [("default", &input.default), ("env", &input.env)];
    for (label, value) in notes {
        if let Some(value) = value {
            text.push_str(&format!(" [{label}: {}]", plain(value)));
        }
    }
    text
}

/// Returns the clap id of a `--no-` flag; names of inputs contain no spaces.
fn opposite(input: &Input) -> String {
    format!("no {}", input.name)
}

/// Returns the subcommand that was called and its matches.
pub(super) fn called<'e, 'm>(
    entries: &'e [Entry],
    matches: &'m ArgMatches,
) -> Option<(&'e Entry, &'m ArgMatches)> {
    let (name, below) = matches.subcommand()?;
    let entry = entries.iter().find(|entry| entry.name == name)?;
    Some(called(&entry.commands, below).unwrap_or((entry, below)))
}

/// Returns the validated arguments and flags of a call.
pub(super) fn call_input(
    entry: &Entry,
    matches: &ArgMatches,
    variable: impl Fn(&str) -> Option<String> + Copy,
) -> Result<CallInput, CliError> {
    let values = |inputs: &[Input]| -> Result<Value, CliError> {
        let mut map = Map::new();
        for input in inputs {
            let value = input.value(typed(input, matches).as_deref(), variable)?;
            map.insert(input.name.as_str().into(), value);
        }
        Ok(map.into())
    };
    let exec = entry.exec.as_ref();
    let has_prompt =
        exec.is_some_and(|exec| exec.confirm_prompt.is_some() && exec.body != Body::Missing);
    Ok(CallInput {
        arguments: values(&entry.arguments)?,
        flags: values(&entry.flags)?,
        needs_confirmation: has_prompt && !matches.get_flag(NO_PROMPT),
    })
}

/// Returns the value on the command line, if any.
fn typed(input: &Input, matches: &ArgMatches) -> Option<String> {
    if input.is_switch() {
        let is_off = input.is_on_by_default() && matches.get_flag(&opposite(input));
        let is_on = matches.get_flag(&input.name);
        return match (is_on, is_off) {
            (true, _) => Some("true".into()),
            (_, true) => Some("false".into()),
            _ => None,
        };
    }
    let is_flag = input.kind == super::input::InputKind::Flag;
    if input.type_name == InputType::Counter && is_flag {
        let count = matches.get_count(&input.name);
        return (count > 0).then(|| count.to_string());
    }
    matches.get_one::<String>(&input.name).cloned()
}

#[cfg(test)]
mod tests {
    use super::super::definition::Definition;
    use super::*;

    const DEFINITION: &str = "
name: x
commands:
  - name: site
    type: parent
    description: Does things
    commands:
      - name: deploy
        aliases: [d]
        type: exec
        command: x
        confirm_prompt: Really?
        arguments:
          - {name: version, required: true}
          - {name: place, enum: [here, there], default: here}
        flags:
          - {name: force, bool: true, short: f}
          - {name: color, bool: true, default: true}
          - {name: loud, type: counter, short: v}
          - {name: port, type: uint16, env: PORT}
          - {name: debug, description: Ours}
  - name: odd
    type: rpc
";

    fn parse(args: &[&str]) -> Result<CallInput, String> {
        let definition = Definition::parse(DEFINITION).unwrap();
        let command = group("x", "", &definition.commands);
        command.clone().debug_assert();
        let words = std::iter::once(&"x").chain(args);
        let matches = command
            .try_get_matches_from(words)
            .map_err(|err| err.to_string())?;
        let (entry, matches) = called(&definition.commands, &matches).unwrap();
        let input = call_input(entry, matches, |name| (name == "PORT").then(|| "80".into()));
        input.map_err(|err| err.to_string())
    }

    #[test]
    fn arguments_and_flags_are_read_with_their_types() {
        let input = parse(&[
            "site",
            "d",
            "1.2",
            "-f",
            "-vv",
            "--no-color",
            "--debug",
            "x",
        ])
        .unwrap();
        assert_eq!(
            input.arguments,
            [("version", Value::from("1.2")), ("place", "here".into())]
                .into_iter()
                .collect()
        );
        let flags: Value = [
            ("force", Value::Bool(true)),
            ("color", Value::Bool(false)),
            ("loud", Value::Int(2)),
            ("port", Value::Int(80)),
            ("debug", "x".into()),
        ]
        .into_iter()
        .collect();
        assert_eq!(input.flags, flags);
        assert!(input.needs_confirmation);
        assert!(
            !parse(&["site", "deploy", "1", "--no-prompt"])
                .unwrap()
                .needs_confirmation
        );
    }

    #[test]
    fn invalid_arguments_are_refused() {
        for args in [
            &["site", "deploy"][..],
            &["site", "deploy", "1", "nowhere"],
            &["site", "deploy", "1", "--port", "70000"],
            &["site", "deploy", "1", "--frob"],
            &["site"],
        ] {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn a_command_with_a_problem_accepts_any_arguments() {
        assert!(parse(&["odd", "--what", "ever"]).is_ok());
    }
}
