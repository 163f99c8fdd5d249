//! `ccm fleet ensure`: one resource on many nodes, with the flags of `ccm ensure`.
//!
//! Templates are resolved where the resource is: by each node, from its own facts and data.

use std::io::Read as _;
use std::path::Path;

use clap::{ArgMatches, Command, FromArgMatches, Subcommand};
use serde_json::{Map, Value, json};

use super::Place;
use super::reply_report::Show;
use super::request::{AskArgs, Errand, PaceArgs, WORK};
use super::select::SelectArgs;
use crate::cli::ensure::{Host, Typed};
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::model::request::{ENSURE_REQUEST, parse_ensure};
use ccm_core::model::resource::{Properties, Resource};
use ccm_core::system::files;
use ccm_nats::Verb;
use ccm_value::document;

/// The largest document of properties; servers take messages of a megabyte unless told otherwise.
const MAX_PROPERTIES_BYTES: u64 = 8 * 1024 * 1024;

/// Brings one resource to a wanted state on nodes
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Says what would be done, changes nothing
    #[arg(long, global = true, help_heading = "Run")]
    noop: bool,

    /// Shows what changes in files, or would change
    #[arg(long, global = true, help_heading = "Run")]
    diff: bool,

    /// A JSON or YAML file of properties, over those of the flags; - reads standard input
    #[arg(long, value_name = "FILE", global = true, help_heading = "Run")]
    properties: Option<String>,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    ask: AskArgs,

    #[command(flatten)]
    pace: PaceArgs,

    #[command(subcommand)]
    typed: Remote,
}

/// The types with their flags. Those that also choose nodes have another name here.
#[derive(Debug)]
struct Remote(Typed);

impl Remote {
    fn rename(types: Command) -> Command {
        let owned = |cmd: Command| {
            cmd.mut_arg("owner", |arg| {
                arg.help("The owner, or owner and group; root unless given")
            })
            .mut_arg("group", |arg| {
                arg.long("file-group").help("The group; root unless given")
            })
        };
        types
            .mut_subcommand("file", owned)
            .mut_subcommand("archive", owned)
            .mut_subcommand("exec", |cmd| {
                cmd.mut_arg("timeout", |arg| arg.long("exec-timeout"))
            })
    }
}

impl Subcommand for Remote {
    fn augment_subcommands(cmd: Command) -> Command {
        Self::rename(Typed::augment_subcommands(cmd))
    }

    fn augment_subcommands_for_update(cmd: Command) -> Command {
        Self::rename(Typed::augment_subcommands_for_update(cmd))
    }

    fn has_subcommand(name: &str) -> bool {
        Typed::has_subcommand(name)
    }
}

impl FromArgMatches for Remote {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Typed::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

pub(super) fn run(args: Args, place: &Place, console: &Console) -> Result<Verdict, CliError> {
    let selection = args.select.careful_selection(&[])?;
    let resource = args.typed.0.resource(Host::Remote)?;
    let more = match args.properties.as_deref() {
        Some(file) => read_properties(file)?,
        None => Map::new(),
    };
    let mut errand = Errand::of(Verb::Ensure, selection, &args.ask);
    errand.ask.body = request(&resource, more)?.into();
    errand.ask.noop = args.noop;
    errand.ask.diff = args.diff;
    errand.ask.limit = args.ask.limit(WORK);
    errand.ask.binding = true;
    errand.pace = args.pace.pace();
    errand.show = Show::Noteworthy;
    errand.run(place, console)
}

/// Returns the request for a resource, with properties laid over. What no node could read is
/// refused here.
fn request(resource: &Resource, more: Map<String, Value>) -> Result<String, CliError> {
    let mut properties = serde_json::to_value(resource).map_err(CliError::failed)?;
    if let Some(entries) = properties.as_object_mut() {
        reveal(resource, entries);
        entries.extend(more);
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

/// Puts secrets back that are hidden wherever a resource is only shown.
fn reveal(resource: &Resource, entries: &mut Map<String, Value>) {
    if let Properties::Scaffold(scaffold) = &resource.properties {
        entries.insert("source".into(), scaffold.source.as_str().into());
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
        _ => Err(CliError::usage("expected properties and their values").at(file)),
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
        let resource = line.args.typed.0.resource(Host::Remote);
        let resource = resource.map_err(|err| err.to_string())?;
        let more = more.as_object().cloned().unwrap_or_default();
        let text = request(&resource, more).map_err(|err| err.to_string())?;
        serde_json::from_str(&text).map_err(|err| err.to_string())
    }

    #[test]
    fn a_file_on_other_nodes_is_roots_unless_said() {
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
    fn a_group_chooses_nodes_and_a_file_group_owns_files() {
        let request = body("file /a --group web --file-group staff", json!({})).unwrap();
        assert_eq!(request["properties"]["group"], "staff");
    }

    #[test]
    fn properties_of_a_file_win_over_flags() {
        let request = body("package nginx latest", json!({"ensure": "1.24"})).unwrap();
        assert_eq!(request["properties"]["ensure"], "1.24");
        let error = body("package nginx", json!({"ensur": "1.24"})).unwrap_err();
        assert!(error.contains("did you mean \"ensure\""), "{error}");
    }

    #[test]
    fn a_secret_travels_as_what_it_is() {
        let line = "archive /a.tgz https://u:p@h/a.tgz --password s3 --header A:b";
        let request = body(line, json!({})).unwrap();
        let properties = &request["properties"];
        assert_eq!(properties["password"], "s3");
        assert_eq!(properties["headers"]["A"], "b");
        assert_eq!(properties["url"], "https://u:p@h/a.tgz");
    }

    #[test]
    fn a_relative_path_means_nothing_on_other_nodes() {
        let error = body("file motd", json!({})).unwrap_err();
        assert_eq!(error, "path 'motd' must be absolute: it is on other nodes");
    }
}
