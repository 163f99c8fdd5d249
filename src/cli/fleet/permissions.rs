//! `ccm fleet permissions`: prints the NATS permissions of a role for the server's configuration.
//!
//! The templates are in `packaging/nats` and filled by `ccm_fleet::role_permissions`.

use std::net::IpAddr;

use clap::Subcommand;

use super::FleetArgs;
use super::candidates;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::model::enrolment::NodeGrants;
use ccm_core::model::governor::GovernorName;
use ccm_core::model::node::{NodeName, Token};
use ccm_fleet::role_permissions::{self, AgentFeatures, FleetNames};

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

    #[command(flatten)]
    grants: GrantArgs,

    #[command(flatten)]
    features: FeatureArgs,
}

/// Permissions of a node in addition to those that every node has.
#[derive(Debug, clap::Args)]
pub(super) struct GrantArgs {
    /// Group of the node; repeatable
    #[arg(long, value_name = "NAME")]
    group: Vec<Token>,

    /// IP address under which the node registers services; repeatable
    #[arg(long, value_name = "IP")]
    address: Vec<IpAddr>,

    /// Governor that limits runs of the node; repeatable
    #[arg(long, value_name = "NAME")]
    governor: Vec<GovernorName>,

    /// Additional object bucket with bundles of the node; repeatable
    #[arg(long, value_name = "NAME")]
    object_bucket: Vec<Token>,

    /// Key-value bucket with data of the node; repeatable
    #[arg(long, value_name = "NAME")]
    kv_bucket: Vec<Token>,
}

impl GrantArgs {
    pub(super) fn grants(&self) -> NodeGrants {
        NodeGrants {
            groups: self.group.clone(),
            addresses: self.address.clone(),
            governors: self.governor.clone(),
            object_buckets: self.object_bucket.clone(),
            kv_buckets: self.kv_bucket.clone(),
        }
    }
}

/// Optional features of agents.
#[derive(Debug, clap::Args)]
pub(super) struct FeatureArgs {
    /// Allow nodes to look up and watch registered services; required to register services
    #[arg(long)]
    registrations: bool,

    /// Allow nodes to publish events for Choria tools
    #[arg(long)]
    choria_events: bool,

    /// Allow nodes to serve Choria's clients in this collective, and to publish events for Choria
    /// tools; repeatable
    #[arg(long, value_name = "COLLECTIVE")]
    choria_server: Vec<Token>,

    /// Choria collective of the governors
    #[arg(long, value_name = "NAME", default_value = "mcollective")]
    governor_collective: Token,
}

impl FeatureArgs {
    pub(super) fn features(&self) -> AgentFeatures {
        AgentFeatures {
            registrations: self.registrations,
            choria_events: self.choria_events,
            choria_server: self.choria_server.clone(),
            governor_collective: self.governor_collective.clone(),
        }
    }
}

#[derive(Debug, clap::Args)]
struct UserArgs {
    /// Name of the user: replies are then received below _INBOX_NAME, which the user's NATS context
    /// must set as inbox_prefix
    name: Option<Token>,
}

pub(super) fn run(
    args: &Args,
    fleet: &FleetArgs,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    let names = fleet.names()?;
    let text = match &args.role {
        Role::Agent(args) => args.lines(&names),
        Role::Operator(args) => args.lines(&names, role_permissions::Role::Operator, "_INBOX"),
        Role::Controller(args) => args.lines(&names, role_permissions::Role::Controller, "_INBOX"),
        Role::Monitor(args) => {
            args.lines(&names, role_permissions::Role::Monitor, "_INBOX_MONITOR")
        }
    };
    console.print(&text);
    Ok(Verdict::default())
}

impl AgentArgs {
    fn lines(&self, names: &FleetNames) -> String {
        let (grants, features) = (self.grants.grants(), self.features.features());
        role_permissions::agent_lines(names, &self.node, &grants, &features)
    }
}

impl UserArgs {
    fn lines(&self, names: &FleetNames, role: role_permissions::Role, inbox: &str) -> String {
        match &self.name {
            Some(name) => role_permissions::user_lines(names, role, &format!("_INBOX_{name}")),
            None => role_permissions::user_lines(names, role, inbox),
        }
    }
}
