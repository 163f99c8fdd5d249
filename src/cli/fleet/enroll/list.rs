//! `ccm fleet enroll list`: requests that wait for a decision, and enrolled nodes.

use serde_json::{Value, json};

use super::Context;
use crate::cli::fleet::list_output::print_list;
use crate::cli::fleet::request::FormatArgs;
use crate::cli::{CliError, runtime};
use ccm_core::model::enrolment::{EnrolledNode, PendingNode};
use ccm_fleet::role_permissions::Role;
use ccm_value::text::to_the_second;

/// List requests that wait for a decision
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// List enrolled and revoked nodes as well
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    format: FormatArgs,
}

/// One line of the list.
struct Row {
    node: String,
    state: &'static str,
    since: String,
    by: String,
    key: String,
    note: String,
}

pub(super) fn run(args: &Args, context: &Context<'_>) -> Result<(), CliError> {
    let (requests, nodes) = runtime::block_on(async {
        let store = context.store().await?;
        let requests = store.requests(None).await?;
        let nodes = match args.all {
            true => store.all_enrolled().await?,
            false => Vec::new(),
        };
        Ok((requests, nodes))
    })?;
    let requests = requests
        .iter()
        .filter(|it| args.all || it.rejected.is_none());
    // Without the trust directory nobody knows which signing key is the current one.
    let trust = context.directory.find()?;
    let is_current = |node: &EnrolledNode| {
        let trust = trust.as_ref();
        trust.is_none_or(|trust| trust.has_signed(Role::Agent, &node.jwt))
    };
    let nodes = nodes
        .iter()
        .map(|node| Row::of_node(node, is_current(node)));
    let rows = requests.map(Row::of_request).chain(nodes);
    let mut rows: Vec<Row> = rows.collect();
    rows.sort_by(|a, b| (&a.node, a.state, &a.key).cmp(&(&b.node, b.state, &b.key)));
    let title = ["NODE", "STATE", "SINCE", "BY", "KEY", "NOTE"];
    let rows = rows.into_iter().map(|row| {
        let document = row.document();
        let state = row.state.to_owned();
        let cells = [row.node, state, row.since, row.by, row.key, row.note];
        (cells, document)
    });
    print_list(context.console, args.format.format(), "nodes", title, rows)
}

impl Row {
    fn of_request(request: &PendingNode) -> Self {
        let (state, since, by, note) = match &request.rejected {
            Some(rejection) => (
                "rejected",
                rejection.time,
                rejection.by.clone(),
                rejection.reason.clone(),
            ),
            None => (
                "pending",
                request.requested,
                format!("token {}", request.token),
                String::new(),
            ),
        };
        Self {
            node: request.node.to_string(),
            state,
            since: to_the_second(&since),
            by,
            key: request.public_key.clone(),
            note,
        }
    }

    /// Returns the row of a node, whose credentials may be of a previous signing key.
    fn of_node(node: &EnrolledNode, is_current: bool) -> Self {
        let (state, since) = match node.revoked {
            Some(revoked) => ("revoked", revoked),
            None if !is_current => ("old key", node.approved),
            None => ("enrolled", node.approved),
        };
        let groups: Vec<&str> = node.grants.groups.iter().map(|it| it.as_str()).collect();
        Self {
            node: node.node.to_string(),
            state,
            since: to_the_second(&since),
            by: node.approved_by.clone(),
            key: node.public_key.clone(),
            note: groups.join(","),
        }
    }

    fn document(&self) -> Value {
        json!({
            "node": self.node,
            "state": self.state,
            "since": self.since,
            "by": self.by,
            "public_key": self.key,
            "note": self.note,
        })
    }
}
