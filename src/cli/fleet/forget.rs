//! `ccm fleet forget`: retires nodes and removes every record of them.

use std::net::IpAddr;

use serde_json::json;

use super::FleetArgs;
use super::candidates;
use super::list_output::print_list;
use super::request::{FormatArgs, caller};
use super::trust::{TrustArgs, push};
use crate::cli::output::{Console, is_confirmed};
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::model::node::NodeName;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::forget::{NodeRecords, RecordType, Registry};
use ccm_fleet::role_permissions::Role;
use ccm_fleet::trust::TrustDir;
use ccm_nats::Connection;

/// Retire nodes: remove every record of them and revoke their credentials
///
/// Removes presence, facts, labels, assignment, report, registrations and enrolment. Events stay
/// until they expire. Needs the permissions of a controller; credentials are revoked if there is a
/// trust directory.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Nodes
    #[arg(value_name = "NODE", required = true, add = candidates::nodes())]
    nodes: Vec<NodeName>,

    #[command(flatten)]
    directory: TrustArgs,

    /// Address of the nodes whose registrations are removed, besides those they were enrolled with;
    /// repeatable
    #[arg(long, value_name = "IP")]
    address: Vec<IpAddr>,

    /// Also retire nodes that are online
    #[arg(long)]
    force: bool,

    /// Skip the confirmation prompt
    #[arg(long, short)]
    yes: bool,

    #[command(flatten)]
    format: FormatArgs,
}

/// What happened to the records of one type, or to the credentials.
struct Row {
    node: NodeName,
    item: String,
    result: String,
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let trust = args.directory.find()?;
    let mut rows = Vec::new();
    let removed = runtime::block_on(async {
        let connection = args.directory.connect(fleet).await?;
        let records = find(args, fleet, &connection, trust.as_ref()).await?;
        if !args.yes {
            let question = question(&args.nodes);
            // The connection must be served while the user thinks.
            let confirmation =
                tokio::task::spawn_blocking(move || is_confirmed(&question, "--yes"));
            if !confirmation.await.map_err(CliError::failed)?? {
                return Ok(());
            }
        }
        for found in &records {
            forget(args, found, trust.as_ref(), &mut rows).await?;
        }
        Ok(())
    });
    if rows.is_empty() {
        removed?;
        return Ok(Verdict::default());
    }
    // Nodes before the one that failed are gone, and the user must know.
    let rows = rows.into_iter().map(|Row { node, item, result }| {
        let document = json!({ "node": node, "item": item, "result": result });
        ([node.to_string(), item, result], document)
    });
    let title = ["NODE", "ITEM", "RESULT"];
    print_list(console, args.format.format(), "items", title, rows)?;
    removed?;
    Ok(Verdict::default())
}

/// Reads the records of all nodes. Fails before anything is removed.
async fn find(
    args: &Args,
    fleet: &FleetArgs,
    connection: &Connection,
    trust: Option<&TrustDir>,
) -> Result<Vec<NodeRecords>, CliError> {
    let subjects = fleet.subjects()?;
    let registry = Registry {
        stream: fleet.nats.registration_stream(),
        addresses: &args.address,
    };
    let mut all = Vec::new();
    for node in &args.nodes {
        let records = NodeRecords::find(connection, &subjects, node, registry).await?;
        if records.is_empty() && keys(&records, trust)?.is_empty() {
            return Err(CliError::usage(format!("node {node} is unknown"))
                .hint("check the name with `ccm fleet nodes`"));
        }
        if records.is_online() && !args.force {
            return Err(CliError::usage(format!("node {node} is online")).hint(
                "stop its agent; a node that was lost is online until its presence expires; \
                 --force retires it all the same",
            ));
        }
        all.push(records);
    }
    Ok(all)
}

/// Returns the keys of a node that are not revoked yet.
fn keys(records: &NodeRecords, trust: Option<&TrustDir>) -> Result<Vec<String>, CliError> {
    let mut keys: Vec<String> = records
        .public_key()
        .map(str::to_owned)
        .into_iter()
        .collect();
    if let Some(trust) = trust {
        let issued = trust.user(Role::Agent, records.node().as_str())?;
        keys.extend(issued.map(|user| user.public_key));
        let revoked = trust.revocations()?;
        keys.retain(|key| !revoked.contains_key(key));
    }
    keys.sort_unstable();
    keys.dedup();
    Ok(keys)
}

/// Revokes the credentials of a node, then removes its records.
async fn forget(
    args: &Args,
    records: &NodeRecords,
    trust: Option<&TrustDir>,
    rows: &mut Vec<Row>,
) -> Result<(), CliError> {
    let now = SystemClock.now();
    let node = records.node();
    let keys = keys(records, trust)?;
    // Revoked first: a node that is connected would write its records again.
    let credentials = match trust {
        Some(trust) if !keys.is_empty() => {
            let mut trust = TrustDir::open(trust.path())?;
            let lock = trust.lock(&SystemClock)?;
            let mut jwt = String::new();
            for key in &keys {
                jwt = trust.revoke(key, now)?;
            }
            drop(lock);
            push(&trust, &jwt).await?;
            format!("revoked: {}", keys.join(", "))
        }
        Some(_) => "none that are valid".to_owned(),
        None => format!(
            "not revoked, no trust directory: run `ccm fleet forget {node}` where it is, or remove \
             the user from the configuration of the server"
        ),
    };
    records.remove(trust.is_some(), &caller(), now).await?;
    for (record_type, count) in records.counts() {
        let result = match (record_type, count) {
            (_, 0) => "none".to_owned(),
            (RecordType::Enrolment, _) if trust.is_none() => {
                "kept: it has the key that must be revoked".to_owned()
            }
            (RecordType::Presence, _) if args.force && trust.is_none() => {
                "removed; it returns while the agent runs".to_owned()
            }
            (_, 1) => "removed".to_owned(),
            (_, count) => format!("{count} removed"),
        };
        rows.push(Row {
            node: node.clone(),
            item: record_type.to_string(),
            result,
        });
    }
    rows.push(Row {
        node: node.clone(),
        item: "credentials".into(),
        result: credentials,
    });
    Ok(())
}

/// Returns the text of the confirmation prompt.
fn question(nodes: &[NodeName]) -> String {
    let names: Vec<&str> = nodes.iter().map(NodeName::as_str).collect();
    format!("Remove all records of {}?", names.join(", "))
}
