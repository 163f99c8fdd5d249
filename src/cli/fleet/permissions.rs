//! `ccm fleet permissions`: prints the NATS permissions of a role for the server's configuration.
//!
//! The templates are in `packaging/nats`. A line with a list placeholder such as `@GROUP@` is
//! repeated for each value; a line that ends with `# with --flag` is printed with that flag only.

use std::net::IpAddr;

use clap::Subcommand;

use super::FleetArgs;
use super::candidates;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::model::governor::GovernorName;
use ccm_core::model::node::{NodeName, Token};

const AGENT: &str = include_str!("../../../packaging/nats/agent.conf");
const OPERATOR: &str = include_str!("../../../packaging/nats/operator.conf");
const CONTROLLER: &str = include_str!("../../../packaging/nats/controller.conf");
const MONITOR: &str = include_str!("../../../packaging/nats/monitor.conf");

/// Print the NATS permissions of a role, for inclusion in a server configuration
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    Agent(Box<AgentArgs>),
    /// User who sends requests, uploads bundles and starts rollouts
    Operator(UserArgs),
    /// Controller, which assigns manifests and manages streams and buckets
    Controller(UserArgs),
    /// Read-only access for the web page and dashboards
    Monitor(UserArgs),
}

/// Agent of one node
#[derive(Debug, clap::Args)]
struct AgentArgs {
    /// Name of the node
    #[arg(add = candidates::nodes())]
    node: NodeName,

    /// Group of the node; repeatable
    #[arg(long, value_name = "NAME")]
    group: Vec<Token>,

    /// IP address under which the node registers services; repeatable
    #[arg(long, value_name = "IP")]
    address: Vec<IpAddr>,

    /// Allow the node to look up and watch registered services; implied by --address
    #[arg(long)]
    registrations: bool,

    /// Governor that limits runs of the node; repeatable
    #[arg(long, value_name = "NAME")]
    governor: Vec<GovernorName>,

    /// Choria collective of the governors
    #[arg(long, value_name = "NAME", default_value = "mcollective")]
    governor_collective: Token,

    /// Additional object bucket with bundles of the node; repeatable
    #[arg(long, value_name = "NAME")]
    object_bucket: Vec<Token>,

    /// Key-value bucket with data of the node; repeatable
    #[arg(long, value_name = "NAME")]
    kv_bucket: Vec<Token>,

    /// Allow the node to publish events for Choria tools
    #[arg(long)]
    choria_events: bool,
}

#[derive(Debug, clap::Args)]
struct UserArgs {
    /// Name of the user: replies are then received below _INBOX_NAME, which the user's NATS context
    /// must set as inbox_prefix
    name: Option<Token>,
}

/// Values for the placeholders of a template.
struct Values {
    /// Placeholders with one value.
    single: Vec<(&'static str, String)>,
    /// Placeholders with any number of values, one line each.
    lists: Vec<(&'static str, Vec<String>)>,
    flags: Vec<(&'static str, bool)>,
}

pub(super) fn run(
    args: &Args,
    fleet: &FleetArgs,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    // Validates the prefix.
    fleet.subjects()?;
    let mut single = vec![
        ("@PREFIX@", fleet.prefix.clone()),
        ("@COLLECTIVE@", fleet.collective.to_string()),
    ];
    let (template, values) = match &args.role {
        Role::Agent(args) => {
            let token = args.node.token();
            single.push(("@NODE@", token.to_string()));
            single.push(("@INBOX@", format!("_INBOX_{token}")));
            single.push(("@GOVERNORS@", args.governor_collective.to_string()));
            (AGENT, args.values(single))
        }
        Role::Operator(args) => (OPERATOR, args.values(single, "_INBOX")),
        Role::Controller(args) => (CONTROLLER, args.values(single, "_INBOX")),
        Role::Monitor(args) => (MONITOR, args.values(single, "_INBOX_MONITOR")),
    };
    console.print(&fill(template, &values));
    Ok(Verdict::default())
}

impl AgentArgs {
    fn values(&self, single: Vec<(&'static str, String)>) -> Values {
        let words = |tokens: &[Token]| tokens.iter().map(Token::to_string).collect();
        let address = |address: &IpAddr| address.to_string().replace('.', "_");
        Values {
            single,
            lists: vec![
                ("@GROUP@", words(&self.group)),
                ("@ADDRESS@", self.address.iter().map(address).collect()),
                (
                    "@GOVERNOR@",
                    self.governor.iter().map(|name| name.to_string()).collect(),
                ),
                ("@OBJECTS@", words(&self.object_bucket)),
                ("@VALUES@", words(&self.kv_bucket)),
            ],
            flags: vec![
                (
                    "registrations",
                    self.registrations || !self.address.is_empty(),
                ),
                ("choria-events", self.choria_events),
            ],
        }
    }
}

impl UserArgs {
    fn values(&self, mut single: Vec<(&'static str, String)>, inbox: &str) -> Values {
        let inbox = match &self.name {
            Some(name) => format!("_INBOX_{name}"),
            None => inbox.to_owned(),
        };
        single.push(("@INBOX@", inbox));
        Values {
            single,
            lists: Vec::new(),
            flags: Vec::new(),
        }
    }
}

/// Fills a template. The header comment, which explains the placeholders, is replaced by one that
/// names the inbox; comments above lines that are all omitted are omitted as well.
fn fill(template: &str, values: &Values) -> String {
    let single = |text: &str| {
        let mut text = text.to_owned();
        for (name, value) in &values.single {
            text = text.replace(name, value);
        }
        text
    };
    let mut out = single("# The NATS context of this user must set inbox_prefix to @INBOX@.\n");
    let body = template
        .lines()
        .skip_while(|line| line.starts_with('#') || line.is_empty());
    let mut comment = String::new();
    // Whether a line below the comment was read, printed or not.
    let mut is_used = false;
    for line in body {
        let text = line.trim_start();
        if is_used && !text.starts_with('"') {
            comment.clear();
        }
        if text.starts_with('#') {
            comment.push_str(&single(line));
            comment.push('\n');
            is_used = false;
            continue;
        }
        is_used = true;
        for line in expand(line, values) {
            out.push_str(&std::mem::take(&mut comment));
            out.push_str(&single(&line));
            out.push('\n');
        }
    }
    out
}

/// Expands one line of a template.
fn expand(line: &str, values: &Values) -> Vec<String> {
    let (line, flag) = match line.split_once(" # with --") {
        Some((line, flag)) => (line, Some(flag)),
        None => (line, None),
    };
    if let Some(flag) = flag
        && !values.flags.iter().any(|(name, on)| *name == flag && *on)
    {
        return Vec::new();
    }
    match values.lists.iter().find(|(name, _)| line.contains(name)) {
        Some((name, list)) => list.iter().map(|value| line.replace(name, value)).collect(),
        None => vec![line.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Values {
        Values {
            single: vec![("@NODE@", "web1".into()), ("@INBOX@", "_INBOX_web1".into())],
            lists: vec![("@GROUP@", vec!["a".into(), "b".into()])],
            flags: vec![("registrations", false)],
        }
    }

    #[test]
    fn lists_are_expanded_and_unused_lines_omitted() {
        let template = "# Opening.\n\nx: [\n  # Groups.\n  \"g.@GROUP@\"\n  # Services.\n  \
                        \"r\" # with --registrations\n  # Itself.\n  \"@NODE@\"\n  # None.\n  \
                        \"s\" # with --registrations\n]\n";
        let filled = fill(template, &values());
        assert_eq!(
            filled,
            "# The NATS context of this user must set inbox_prefix to _INBOX_web1.\n\
             x: [\n  # Groups.\n  \"g.a\"\n  \"g.b\"\n  # Itself.\n  \"web1\"\n]\n"
        );
    }

    #[test]
    fn all_placeholders_of_every_role_are_filled() {
        for template in [AGENT, OPERATOR, CONTROLLER, MONITOR] {
            let mut values = values();
            for name in ["@PREFIX@", "@COLLECTIVE@", "@GOVERNORS@"] {
                values.single.push((name, "x".into()));
            }
            for name in ["@ADDRESS@", "@GOVERNOR@", "@OBJECTS@", "@VALUES@"] {
                values.lists.push((name, vec!["y".into()]));
            }
            let filled = fill(template, &values);
            assert!(!filled.contains('@'), "{filled}");
        }
    }

    #[test]
    fn only_a_controller_may_create_consumers() {
        for template in [AGENT, OPERATOR, MONITOR] {
            let rules = template.lines().filter(|line| line.contains('"'));
            for rule in rules {
                assert!(!rule.contains("CONSUMER.CREATE"), "{rule}");
                assert!(!rule.contains("$JS.API.>"), "{rule}");
            }
        }
    }
}
