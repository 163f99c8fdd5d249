//! Command line: argument parsing, dispatch, output and exit codes.
//!
//! One file per command. The commands call the libraries; no resource logic is here.

mod agent;
mod apply;
mod argfile;
mod cfengine;
mod choria;
mod completion;
mod data;
mod diagnosis;
mod diagnostic;
mod doctor;
mod ensure;
mod environment;
mod error;
mod facts;
mod fleet;
mod help;
mod hiera;
mod host;
mod interrupt;
mod keys;
mod output;
mod plugins;
mod registration;
mod runtime;
mod secrets;
mod session;
mod signing;
mod status;
mod table;
mod template;
mod util;
mod validate;
mod version;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args as _, CommandFactory, FromArgMatches as _, Parser, Subcommand};

use ccm_core::engine::Level;
use environment::{ConnectionArgs, NATS_HEADING};
use error::CliError;
use output::{Console, print_error};
use plugins::{PluginCall, Plugins};

/// Name of the program.
const PROGRAM: &str = "ccm";

/// Configuration management for one node or a whole fleet, compatible with Choria CCM
#[derive(Debug, Parser)]
#[command(
    name = PROGRAM,
    version = version::long(),
    disable_help_subcommand = false,
    // The commands that connect show these flags.
    mut_args(|arg| match arg.get_help_heading() {
        Some(NATS_HEADING) => arg.hide(true),
        _ => arg,
    })
)]
struct Cli {
    #[command(flatten)]
    global: GlobalArgs,

    #[command(subcommand)]
    command: Command,
}

/// Flags of every command.
#[derive(Debug, clap::Args)]
struct GlobalArgs {
    /// Enable debug logging
    #[arg(long, global = true, help_heading = "Logging")]
    debug: bool,

    /// Enable info logging
    #[arg(long, global = true, help_heading = "Logging")]
    info: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// All commands; each is also in [`named_command`].
#[derive(Debug, Subcommand)]
enum Command {
    /// Manage individual resources
    Ensure(Box<ensure::Args>),
    /// Apply a manifest
    Apply(apply::Args),
    /// Run the agent: apply manifests continuously and serve requests over NATS
    Agent(agent::Args),
    /// Diagnose this node: what is wrong, and what to do
    ///
    /// Nothing is changed. The exit code is 0 if no check failed, else 1.
    Doctor(doctor::Args),
    /// Get resource status
    #[command(alias = "info")]
    Status(status::Args),
    /// Manage session stores
    Session(session::Args),
    /// Show system facts
    Facts(facts::Args),
    /// Hierarchical data resolver
    Hiera(hiera::Args),
    /// Render a template
    Template(template::Args),
    /// Check a manifest and print every problem with its position
    Validate(validate::Args),
    /// Manage a fleet of nodes over NATS
    Fleet(fleet::Args),
    /// Service registration: query, watch and change entries
    #[command(visible_aliases = ["reg", "r"])]
    Registration(registration::Args),
    /// Package module for CFEngine
    Cfengine(cfengine::Args),
    /// External agent for the Choria server
    Choria(choria::Args),
    /// Manage keys for signing requests
    Keys(keys::Args),
    /// Encrypt values for nodes, and edit documents with encrypted values
    Secrets(secrets::Args),
    /// Utilities for scripts
    Util(util::Args),
}

/// Result of a command, from which the exit code is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Verdict {
    changed: bool,
    failed: bool,
    /// Use Puppet's detailed exit codes: 2 changed, 4 failed, 6 both.
    detailed: bool,
    /// Explicit exit code; overrides the other fields.
    exit: Option<u8>,
}

impl Verdict {
    /// Returns a verdict with an explicit exit code.
    fn exit(code: u8) -> Self {
        Self {
            exit: Some(code),
            ..Self::default()
        }
    }

    fn code(self) -> u8 {
        match self {
            Self {
                exit: Some(code), ..
            } => code,
            Self {
                detailed: true,
                changed,
                failed,
                ..
            } => u8::from(changed) * 2 + u8::from(failed) * 4,
            Self { failed: true, .. } => 1,
            _ => 0,
        }
    }
}

/// Returns the log level that `--debug` and `--info` select, if any.
fn log_level(debug: bool, info: bool) -> Option<Level> {
    match (debug, info) {
        (true, _) => Some(Level::Debug),
        (_, true) => Some(Level::Info),
        _ => None,
    }
}

/// Runs the program with these arguments and returns its exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    match completion::run(&args) {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => {}
        Err(err) => return print_clap_error(&err),
    }
    if let Some(text) = generated_text(&args) {
        let print = |text: String| Console::new(false, false).print(&text);
        return exit_code(text.map(print).map(|()| Verdict::default()));
    }
    let args = match argfile::expand(args) {
        Ok(args) => args,
        Err(err) => return exit_code(Err(err)),
    };
    if args.len() < 2 {
        // Without arguments, print the help and succeed.
        let plugins = Plugins::find();
        print_error(&plugins.add_to_help(with_help()).render_help().to_string());
        print_warnings(&plugins);
        return ExitCode::SUCCESS;
    }
    let cli = match parse(&args) {
        Ok(cli) => cli,
        Err(err) => return run_plugin_or_fail(&args, &err),
    };
    let GlobalArgs { debug, info, .. } = cli.global;
    let mut console = Console::new(debug, info);
    let result = match cli.command {
        Command::Ensure(args) => ensure::run(*args, &mut console),
        Command::Apply(args) => apply::run(args, &mut console),
        Command::Agent(args) => agent::run(args, log_level(debug, info), &mut console),
        Command::Doctor(args) => doctor::run(&args, &console),
        Command::Status(args) => status::run(&args, &mut console),
        Command::Session(args) => session::run(args, &mut console),
        Command::Facts(args) => facts::run(&args, &mut console),
        Command::Hiera(args) => hiera::run(args, &mut console),
        Command::Template(args) => template::run(&args, &mut console),
        Command::Validate(args) => validate::run(&args, &mut console),
        Command::Fleet(args) => fleet::run(args, &mut console),
        Command::Registration(args) => registration::run(args, &mut console),
        Command::Cfengine(args) => cfengine::run(args, &mut console),
        Command::Choria(args) => choria::run(args, &mut console),
        Command::Keys(args) => keys::run(&args, &mut console),
        Command::Secrets(args) => secrets::run(&args, &mut console),
        Command::Util(args) => util::run(&args, &mut console),
    };
    let write_error = console.write_error().map(CliError::failed);
    exit_code(result.and_then(|verdict| write_error.map_or(Ok(verdict), Err)))
}

fn parse(args: &[OsString]) -> Result<Cli, clap::Error> {
    match named_command(args) {
        Some(command) => Cli::from_arg_matches(&command.try_get_matches_from(args)?),
        None => Cli::try_parse_from(args),
    }
}

/// Returns the definition of the command that the first argument names, without all others: to define
/// those takes longer than the rest of a start. Errors and help come from the complete definition.
fn named_command(args: &[OsString]) -> Option<clap::Command> {
    let words = args.iter().skip(1).map(|word| word.to_str());
    let mut words = words.skip_while(|word| matches!(word, Some("--debug" | "--info")));
    let (name, next) = (words.next()??, words.next().flatten());
    let command = clap::Command::new(name.to_owned());
    let command = match name {
        "ensure" => ensure::Args::define(command, next),
        "apply" => apply::Args::augment_args(command),
        "agent" => agent::Args::augment_args(command),
        "doctor" => doctor::Args::augment_args(command),
        "status" => status::Args::augment_args(command),
        "session" => session::Args::augment_args(command),
        "facts" => facts::Args::augment_args(command),
        "hiera" => hiera::Args::augment_args(command),
        "template" => template::Args::augment_args(command),
        "validate" => validate::Args::augment_args(command),
        "fleet" => fleet::Args::augment_args(command),
        "registration" => registration::Args::augment_args(command),
        "cfengine" => cfengine::Args::augment_args(command),
        "choria" => choria::Args::augment_args(command),
        "keys" => keys::Args::augment_args(command),
        "secrets" => secrets::Args::augment_args(command),
        "util" => util::Args::augment_args(command),
        _ => return None,
    };
    let program = GlobalArgs::augment_args(clap::Command::new(PROGRAM));
    Some(program.subcommand(command))
}

/// Prints an error and returns the exit code.
fn exit_code(result: Result<Verdict, CliError>) -> ExitCode {
    match result {
        Ok(verdict) => ExitCode::from(verdict.code()),
        Err(err) => {
            err.print();
            ExitCode::from(err.exit_code())
        }
    }
}

/// Handles arguments that are not a valid call of a built-in command: a plugin's command, a request
/// for help, or a usage error.
fn run_plugin_or_fail(args: &[OsString], err: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    if err.kind() == ErrorKind::DisplayVersion {
        return print_clap_error(err);
    }
    let is_global_flag = |word: &&OsString| ["--debug", "--info"].iter().any(|flag| *word == flag);
    let words: Vec<OsString> = args
        .iter()
        .skip(1)
        .skip_while(is_global_flag)
        .cloned()
        .collect();
    let command = with_help();
    let is_help = |word: &OsString| word == "help" || word == "-h" || word == "--help";
    let (wants_help, words) = match words.split_first() {
        Some((first, rest)) if is_help(first) => (true, rest),
        _ => (false, words.as_slice()),
    };
    let first = words.first().and_then(|word| word.to_str());
    let is_builtin = first.is_some_and(|word| command.find_subcommand(word).is_some());
    let is_candidate = match err.kind() {
        ErrorKind::InvalidSubcommand => !is_builtin,
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            first.is_none()
        }
        _ => false,
    };
    if !is_candidate {
        // The help that was rendered while parsing has no examples.
        return match command.try_get_matches_from(args) {
            Err(err) => print_clap_error(&err),
            Ok(_) => print_clap_error(err),
        };
    }
    let plugins = Plugins::find();
    let help = [OsString::from("--help")];
    let words = match (wants_help, words) {
        (true, [first, ..]) => [std::slice::from_ref(first), &help].concat(),
        _ => words.to_vec(),
    };
    match plugins.call(&words, &command) {
        Some(PluginCall::Completed(result)) => return exit_code(result),
        Some(PluginCall::Usage(err)) => return print_clap_error(&err),
        None => print_warnings(&plugins),
    }
    match plugins.add_to_help(command).try_get_matches_from(args) {
        Err(err) => print_clap_error(&err),
        Ok(_) => print_clap_error(err),
    }
}

fn print_clap_error(err: &clap::Error) -> ExitCode {
    let _ = err.print();
    ExitCode::from(if err.use_stderr() { 2 } else { 0 })
}

/// Returns the command line definition with examples, exit codes and topics in its help. Other runs
/// do without them, which saves time.
fn with_help() -> clap::Command {
    help::with_examples(Cli::command())
}

/// Returns the version, completion script, help text or manual page that the first argument selects.
fn generated_text(args: &[OsString]) -> Option<Result<String, CliError>> {
    let (flag, words) = args.get(1..)?.split_first()?;
    let program = Path::new(args.first()?);
    let flag = flag.to_str()?;
    if let Some(shell) = flag.strip_prefix("--completion-script-") {
        return Some(completion::script(shell, program));
    }
    match flag {
        "--completion-bash" => Some(completion::candidate_lines(words)),
        // The most frequent call of scripts needs no definition of commands.
        "--version" | "-V" if words.is_empty() => {
            Some(Ok(format!("{PROGRAM} {}\n", version::long())))
        }
        "--help-long" => Some(Ok(help::long_help(with_help()))),
        "--help-man" => Some(help::man_text(with_help(), words)),
        "help" => match words {
            [topic] => help::topic(topic.to_str()?).map(|text| Ok(text.to_owned())),
            _ => None,
        },
        _ => None,
    }
}

/// Prints warnings about plugins that could not be loaded or mounted.
fn print_warnings(plugins: &Plugins) {
    for line in plugins.warnings(&Cli::command()) {
        print_error(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_its_own_definition() {
        let complete = Cli::command();
        for command in complete.get_subcommands() {
            let args = [PROGRAM, command.get_name()].map(OsString::from);
            let named = named_command(&args).unwrap_or_else(|| panic!("{}", command.get_name()));
            let named = named.find_subcommand(command.get_name()).unwrap();
            let flags = |command: &clap::Command| {
                let ids = command.get_arguments().map(|arg| arg.get_id().to_string());
                ids.collect::<Vec<_>>()
            };
            assert_eq!(flags(named), flags(command), "{}", command.get_name());
        }
    }

    #[test]
    fn the_short_way_prints_the_version_that_the_definition_has() {
        let args = [PROGRAM, "--version"].map(OsString::from);
        let text = generated_text(&args).unwrap().unwrap();
        assert_eq!(text, Cli::command().render_version());
    }

    #[test]
    fn detailed_exit_codes_add_up_as_in_puppet() {
        let verdict = |changed, failed, detailed| Verdict {
            changed,
            failed,
            detailed,
            exit: None,
        };
        assert_eq!(verdict(true, false, false).code(), 0);
        assert_eq!(verdict(true, true, false).code(), 1);
        assert_eq!(verdict(true, false, true).code(), 2);
        assert_eq!(verdict(false, true, true).code(), 4);
        assert_eq!(verdict(true, true, true).code(), 6);
        assert_eq!(verdict(false, false, true).code(), 0);
    }
}
