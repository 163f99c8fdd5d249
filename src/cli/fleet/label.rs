//! `ccm fleet label`: labels that operators attach to nodes.

use std::str::FromStr;

use serde_json::json;

use super::FleetArgs;
use super::candidates;
use super::reply_report::Format;
use super::request::{FormatArgs, inventory};
use crate::cli::output::{Console, print_error};
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::model::label::{LabelError, LabelName, Labels, parse_label};
use ccm_core::model::node::NodeName;
use ccm_nats::kv::Bucket;
use ccm_nats::streams::LABELS;

/// Number of attempts when another client changes the labels at the same time.
const MAX_ATTEMPTS: usize = 10;

/// Show, set (NAME=VALUE) and remove (NAME-) labels of a node
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Node, which may not exist yet
    #[arg(value_name = "NODE", add = candidates::nodes())]
    node: NodeName,

    /// Labels to set or remove
    #[arg(value_name = "NAME=VALUE|NAME-", allow_hyphen_values = false)]
    changes: Vec<Change>,

    #[command(flatten)]
    format: FormatArgs,
}

/// One change of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Set(LabelName, String),
    Remove(LabelName),
}

impl FromStr for Change {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        match text.strip_suffix('-').filter(|_| !text.contains('=')) {
            Some(name) => Ok(Self::Remove(name.parse()?)),
            None => parse_label(text).map(|(name, value)| Self::Set(name, value)),
        }
    }
}

impl Change {
    fn apply(&self, labels: &mut Labels) {
        match self {
            Self::Set(name, value) => labels.set(name.clone(), value.clone()),
            Self::Remove(name) => labels.remove(name),
        };
    }
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let subjects = fleet.subjects()?;
    let key = subjects.key(&args.node.token());
    let labels = runtime::block_on(async {
        let connection = fleet.connect().await?;
        let inventory = inventory(&connection, &subjects, console).await?;
        if !args.changes.is_empty() && !inventory.has_reported_itself(&args.node) {
            // Labels may be set before the node exists, but the name may also be mistyped.
            print_error(&format!("ccm: warning: node {} is unknown", args.node));
        }
        let bucket = connection
            .bucket(LABELS)
            .await
            .map_err(CliError::of_fleet)?;
        update_labels(&bucket, &key, &args.changes).await
    })?;
    let document = json!({ "node": args.node, "labels": labels });
    match args.format.format() {
        Format::Text => {
            for (name, value) in labels.iter() {
                console.print(&format!("{name}={value}\n"));
            }
        }
        Format::Json | Format::Lines => console.print(&format!("{document}\n")),
    }
    Ok(Verdict::default())
}

/// Changes the labels of a node and returns them; retries on concurrent changes.
async fn update_labels(bucket: &Bucket, key: &str, changes: &[Change]) -> Result<Labels, CliError> {
    let mut tries = 0;
    loop {
        let found = bucket.get(key).await.map_err(CliError::failed)?;
        let (before, revision) = match &found {
            Some(entry) => {
                let labels: Labels = serde_json::from_slice(&entry.value)
                    .map_err(|err| CliError::failed(err).at(format_args!("labels of {key}")))?;
                (labels, Some(entry.revision))
            }
            None => (Labels::default(), None),
        };
        let mut labels = before.clone();
        for change in changes {
            change.apply(&mut labels);
        }
        if labels == before {
            return Ok(labels);
        }
        let text = serde_json::to_string(&labels).map_err(CliError::failed)?;
        let put = match revision {
            Some(revision) => bucket.update(key, text.into(), revision).await,
            None => bucket.create(key, text.into()).await,
        };
        tries += 1;
        match put {
            Ok(_) => return Ok(labels),
            Err(err) if err.is_conflict() && tries < MAX_ATTEMPTS => {}
            Err(err) => return Err(CliError::failed(err)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_sets_or_removes_a_label() {
        let name = |text: &str| text.parse::<LabelName>().unwrap();
        for (text, change) in [
            ("role=web", Change::Set(name("role"), "web".into())),
            ("role=", Change::Set(name("role"), String::new())),
            ("note=a-", Change::Set(name("note"), "a-".into())),
            ("role-", Change::Remove(name("role"))),
        ] {
            assert_eq!(text.parse(), Ok(change));
        }
        assert!("role".parse::<Change>().is_err());
        assert!("-".parse::<Change>().is_err());
    }
}
