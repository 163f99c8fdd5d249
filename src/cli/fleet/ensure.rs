//! `ccm fleet ensure`: manages one resource on nodes, with the flags of `ccm ensure`.
//!
//! Each node resolves the templates with its own facts and data.

use std::io::Read as _;
use std::path::Path;

use clap::{ArgMatches, Command, FromArgMatches, Subcommand};
use serde_json::{Map, Value, json};

use super::FleetArgs;
use super::reply_report::TextStyle;
use super::request::{BatchArgs, FleetCall, RUN_TIMEOUT, RequestArgs};
use super::select::SelectArgs;
use crate::cli::ensure::{ResourceCommand, Target};
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::model::request::{ENSURE_REQUEST, parse_ensure};
use ccm_core::model::resource::{Properties, Resource};
use ccm_core::system::files;
use ccm_fleet::selection::Selection;
use ccm_nats::Verb;
use ccm_value::document;

/// Size limit of a properties file; the default limit of NATS servers is 1 MB per message.
const MAX_PROPERTIES_BYTES: u64 = 8 * 1024 * 1024;

/// Manage a resource on nodes
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Do not make changes, only show what would be done
    #[arg(long, global = true, help_heading = "Run")]
    noop: bool,

    /// Show differences in file contents
    #[arg(long, global = true, help_heading = "Run")]
    diff: bool,

    /// JSON or YAML file with properties that override the flags; - reads standard input
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, global = true, help_heading = "Run")]
    properties: Option<String>,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    request: RequestArgs,

    #[command(flatten)]
    batch: BatchArgs,

    #[command(subcommand)]
    command: RemoteResourceCommand,
}

/// Resource subcommands with flags renamed that would clash with the node selection.
#[derive(Debug)]
struct RemoteResourceCommand(ResourceCommand);

impl RemoteResourceCommand {
    fn rename(types: Command) -> Command {
        let rename_owner = |cmd: Command| {
            cmd.mut_arg("owner", |arg| {
                arg.help("Owner, or owner and group [default: root]")
            })
            .mut_arg("group", |arg| {
                arg.long("file-group").help("Group [default: root]")
            })
        };
        types
            .mut_subcommand("file", rename_owner)
            .mut_subcommand("archive", rename_owner)
            .mut_subcommand("exec", |cmd| {
                cmd.mut_arg("timeout", |arg| arg.long("exec-timeout"))
                    .mut_arg("command", |arg| {
                        arg.help("Command to run; each node expands {{…}} and ${…} in it")
                    })
                    .mut_arg("logoutput", |arg| {
                        arg.visible_alias("output")
                            .help("Print the output of the command, and log it on the nodes")
                    })
            })
    }
}

impl Subcommand for RemoteResourceCommand {
    fn augment_subcommands(cmd: Command) -> Command {
        Self::rename(ResourceCommand::augment_subcommands(cmd))
    }

    fn augment_subcommands_for_update(cmd: Command) -> Command {
        Self::rename(ResourceCommand::augment_subcommands_for_update(cmd))
    }

    fn has_subcommand(name: &str) -> bool {
        ResourceCommand::has_subcommand(name)
    }
}

impl FromArgMatches for RemoteResourceCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        ResourceCommand::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

pub(super) fn run(args: Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let selection = args.select.explicit_selection(&[])?;
    let resource = args.command.0.resource(Target::Remote)?;
    let overrides = match args.properties.as_deref() {
        Some(file) => read_properties(file)?,
        None => Map::new(),
    };
    let mut call = call(&resource, overrides, selection, &args.request)?;
    call.request.noop = args.noop;
    call.request.diff = args.diff;
    call.batch = args.batch.settings();
    call.run(fleet, console)
}

/// Returns the call that manages a resource. The output of an exec with `logoutput` is printed.
pub(super) fn call(
    resource: &Resource,
    overrides: Map<String, Value>,
    selection: Selection,
    args: &RequestArgs,
) -> Result<FleetCall, CliError> {
    let logs_output = match overrides.get("logoutput") {
        Some(value) => value.as_bool().unwrap_or_default(),
        None => matches!(&resource.properties, Properties::Exec(exec) if exec.logoutput),
    };
    let mut call = FleetCall::new(Verb::Ensure, selection, args);
    call.request.body = request(resource, overrides)?.into();
    call.request.timeout = args.limit(RUN_TIMEOUT);
    call.request.sends_deadline = true;
    call.style = TextStyle::HideOk;
    call.shows_output = logs_output;
    Ok(call)
}

/// Returns the validated request for a resource, with properties overridden.
fn request(resource: &Resource, overrides: Map<String, Value>) -> Result<String, CliError> {
    let mut properties = serde_json::to_value(resource).map_err(CliError::failed)?;
    if let Some(entries) = properties.as_object_mut() {
        reveal(resource, entries);
        entries.extend(overrides);
    }
    let request = json!({
        "protocol": ENSURE_REQUEST,
        "type": resource.type_name().as_str(),
        "properties": properties,
    });
    let text = request.to_string();
    parse_ensure(&text).map_err(CliError::usage)?;
    Ok(text)
}

/// Inserts the secrets, which serialization redacts.
fn reveal(resource: &Resource, entries: &mut Map<String, Value>) {
    if let Properties::Scaffold(scaffold) = &resource.properties {
        entries.insert("source".into(), scaffold.source.as_str().into());
    }
    if let Properties::User(user) = &resource.properties
        && !user.password.is_empty()
    {
        entries.insert("password".into(), user.password.reveal().into());
    }
    let Properties::Archive(archive) = &resource.properties else {
        return;
    };
    entries.insert("url".into(), archive.url.as_str().into());
    if !archive.password.is_empty() {
        entries.insert("password".into(), archive.password.reveal().into());
    }
    if !archive.headers.is_empty() {
        let headers = archive.headers.iter();
        let headers = headers.map(|(name, value)| (name.clone(), value.reveal().into()));
        entries.insert("headers".into(), Value::Object(headers.collect()));
    }
}

fn read_properties(file: &str) -> Result<Map<String, Value>, CliError> {
    let text = match file {
        "-" => {
            let mut text = String::new();
            let mut input = std::io::stdin().lock().take(MAX_PROPERTIES_BYTES);
            input
                .read_to_string(&mut text)
                .map_err(|err| CliError::usage(err).at("standard input"))?;
            text
        }
        file => {
            files::read_to_string(Path::new(file), MAX_PROPERTIES_BYTES).map_err(CliError::usage)?
        }
    };
    let node = document::parse(&text).map_err(|err| CliError::usage(err).at(file))?;
    let document = serde_json::to_value(node.to_value());
    match document.map_err(|err| CliError::usage(err).at(file))? {
        Value::Object(entries) => Ok(entries),
        Value::Null => Ok(Map::new()),
        _ => Err(CliError::usage("expected a mapping of properties").at(file)),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn body(line: &str, more: Value) -> Result<Value, String> {
        let words = ["ccm"].into_iter().chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|err| err.to_string())?;
        let resource = line.args.command.0.resource(Target::Remote);
        let resource = resource.map_err(|err| err.to_string())?;
        let more = more.as_object().cloned().unwrap_or_default();
        let text = request(&resource, more).map_err(|err| err.to_string())?;
        serde_json::from_str(&text).map_err(|err| err.to_string())
    }

    #[test]
    fn a_remote_file_is_owned_by_root_by_default() {
        let request = body("file /srv/motd --content hi --node web1", json!({})).unwrap();
        assert_eq!(
            request,
            json!({
                "protocol": ENSURE_REQUEST,
                "type": "file",
                "properties": {
                    "name": "/srv/motd", "ensure": "present", "content": "hi",
                    "owner": "root", "group": "root", "mode": "0644"
                }
            })
        );
    }

    #[test]
    fn group_selects_nodes_and_file_group_sets_the_group() {
        let request = body("file /a --group web --file-group staff", json!({})).unwrap();
        assert_eq!(request["properties"]["group"], "staff");
    }

    #[test]
    fn properties_from_a_file_override_flags() {
        let request = body("package nginx latest", json!({"ensure": "1.24"})).unwrap();
        assert_eq!(request["properties"]["ensure"], "1.24");
        let error = body("package nginx", json!({"ensur": "1.24"})).unwrap_err();
        assert!(error.contains("did you mean \"ensure\""), "{error}");
    }

    #[test]
    fn secrets_are_sent_unredacted() {
        let line = "archive /a.tgz https://u:p@h/a.tgz --password s3 --header A:b";
        let request = body(line, json!({})).unwrap();
        let properties = &request["properties"];
        assert_eq!(properties["password"], "s3");
        assert_eq!(properties["headers"]["A"], "b");
        assert_eq!(properties["url"], "https://u:p@h/a.tgz");
    }

    #[test]
    fn a_relative_path_is_refused() {
        let error = body("file motd", json!({})).unwrap_err();
        assert_eq!(
            error,
            "path 'motd' must be absolute because it is on another node"
        );
    }
}
