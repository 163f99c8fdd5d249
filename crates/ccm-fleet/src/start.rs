//! Start of a rollout: a [`Request`] is resolved to a [`Proposal`], which can be shown and
//! previewed; a proposal is stored as a rollout, signed if there is a signer.
//!
//! Nothing is changed before [`Proposal::start`]. The rollout is then driven by
//! [`super::executor`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, SubsecRound as _, TimeDelta, Utc};

use super::assignments::requires_signature;
use super::bundle_store::{BundleSelector, BundleStore, BundleStoreError};
use super::decision;
use super::inventory::{Inventory, Unreadable};
use super::node_reply::event_line;
use super::preview::{self, Preview, PreviewError, PreviewRequest};
use super::rollout_store::{RolloutError, RolloutStore, StoredRollout, new_id};
use super::selection::{Selection, SelectionError};
use super::summarize::{Outcome, ReplyLine};
use super::waves::{PlanError, candidates, plan as cut};
use ccm_core::filter::FilterError;
use ccm_core::model::node::{Assignment, BundleRef, NodeName};
use ccm_core::model::rollout::{Lease, Plan, ROLLOUT, Rollout, RolloutState, Settings};
use ccm_core::system::{Clock as _, RandomError, SystemClock, random};
use ccm_nats::request_signature::{KeyError, Signer};
use ccm_nats::rollout_decision::content_digest;
use ccm_nats::streams::DESIRED;
use ccm_nats::{Connection, NatsError, Subjects};
use ccm_value::Value;
use ccm_value::text::{parse_time, parse_wait};

/// The parameters of a rollout.
#[derive(Clone, Debug)]
pub struct Request {
    pub bundle: BundleSelector,
    pub selection: Selection,
    pub settings: Settings,
    /// Merged over the data of the manifest.
    pub data: Value,
    /// Noop: nodes only report what they would change.
    pub noop: bool,
}

/// Why a text is no deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeadlineError {
    #[error("expected a time such as 2027-01-15T08:00:00Z, or 2h")]
    Invalid,
    #[error("is too far in the future")]
    TooLate,
}

/// Returns the time of a deadline: an RFC 3339 time, or a duration from now on.
pub fn parse_deadline(text: &str, now: DateTime<Utc>) -> Result<DateTime<Utc>, DeadlineError> {
    if let Ok(time) = parse_time(text) {
        return Ok(time.to_utc());
    }
    let span = parse_wait(text).ok().filter(|span| !span.is_zero());
    let span = span.ok_or(DeadlineError::Invalid)?;
    let span = TimeDelta::from_std(span).map_err(|_| DeadlineError::TooLate)?;
    now.checked_add_signed(span).ok_or(DeadlineError::TooLate)
}

/// Why a rollout can't start. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Random(#[from] RandomError),
    #[error("the governor timeout must be shorter than the node timeout")]
    GovernorTimeout,
    #[error("unknown nodes: {}", .0.join(", "))]
    UnknownNodes(Vec<String>),
    #[error(
        "{count} of the nodes require signatures, such as {first}, and the rollout is not signed"
    )]
    SignatureRequired { count: usize, first: NodeName },
    #[error("the rollout can't be signed: {0}")]
    Signing(#[from] KeyError),
    #[error(transparent)]
    Selection(#[from] SelectionError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    BundleStore(#[from] BundleStoreError),
    #[error(transparent)]
    Rollout(#[from] RolloutError),
    #[error(transparent)]
    Nats(#[from] NatsError),
}

/// A rollout that can be started.
#[derive(Clone, Debug)]
pub struct Proposal {
    pub bundle: BundleRef,
    pub data: Value,
    pub noop: bool,
    pub settings: Settings,
    /// The selection as flags, for people.
    pub selection: Vec<String>,
    pub plan: Plan,
    /// Offline nodes of the plan.
    pub offline: Vec<NodeName>,
    /// Nodes that are left out because the selection could not be evaluated for them.
    pub undecided: Vec<(NodeName, FilterError)>,
    /// Inventory records that could not be read.
    pub unreadable: Vec<Unreadable>,
    /// Nodes of the plan that require signatures.
    pub signature_required: Vec<NodeName>,
}

/// Resolves a request to a proposal. Changes nothing.
pub async fn propose(
    connection: &Connection,
    subjects: &Subjects,
    request: Request,
) -> Result<Proposal, StartError> {
    let Request {
        bundle,
        selection,
        settings,
        data,
        noop,
    } = request;
    let longest_wait = settings.governor.as_ref().map(|it| it.timeout.duration());
    if longest_wait.is_some_and(|longest| longest >= settings.node_timeout) {
        return Err(StartError::GovernorTimeout);
    }
    let bundle = BundleStore::open(connection)
        .await?
        .find(&bundle)
        .await?
        .bundle;
    let inventory = if settings.order_by.is_none() {
        Inventory::load_for(connection, subjects, &selection).await?
    } else {
        Inventory::load(connection, subjects).await?
    };
    let resolved = inventory.resolve(&selection)?;
    if !resolved.unknown.is_empty() {
        return Err(StartError::UnknownNodes(resolved.unknown));
    }
    // A sample or limit selects online nodes only.
    let offline = if selection.is_subset() {
        Vec::new()
    } else {
        resolved.offline
    };
    let mut nodes = resolved.chosen;
    nodes.extend(offline.iter().cloned());
    let plan = cut(&candidates(&inventory, &nodes), &settings)?;
    let is_strict = |node: &&NodeName| inventory.status(node).is_some_and(requires_signature);
    let members = plan.waves.iter().flat_map(|wave| &wave.nodes);
    Ok(Proposal {
        bundle,
        data,
        noop,
        settings,
        selection: selection.to_flags(),
        signature_required: members.filter(is_strict).cloned().collect(),
        plan,
        offline,
        undecided: resolved.undecided,
        unreadable: inventory.unreadable().to_vec(),
    })
}

impl Proposal {
    /// Requests a preview of the rollout from its nodes, and returns the results in the order of
    /// the plan. Changes nothing.
    pub async fn preview(
        &self,
        connection: &Connection,
        subjects: &Subjects,
        caller: &str,
        timeout: Duration,
    ) -> Result<Vec<ReplyLine>, NatsError> {
        let request = |node: &NodeName| PreviewRequest {
            node: node.clone(),
            bundle: self.bundle.clone(),
            data: self.data.clone(),
        };
        let nodes = self.plan.waves.iter().flat_map(|wave| &wave.nodes);
        let requests = nodes.map(request).collect();
        let results = preview::request_all(connection, subjects, requests, caller, timeout).await?;
        let lines = results.into_iter().map(|(request, result)| {
            let (outcome, text) = outcome_and_text(result);
            ReplyLine {
                node: request.node,
                outcome,
                text,
            }
        });
        Ok(lines.collect())
    }

    /// Stores the rollout, signed if there is a signer. Without a signer no node may require
    /// signatures. The holder of the lease drives it. Calls `waiting` with the reason while NATS does
    /// not reply.
    pub async fn start(
        self,
        connection: &Connection,
        subjects: &Subjects,
        signer: Option<&Signer>,
        caller: String,
        lease: Option<Lease>,
        waiting: impl Fn(&RolloutError),
    ) -> Result<StoredRollout, StartError> {
        if let (None, Some(first)) = (signer, self.signature_required.first()) {
            return Err(StartError::SignatureRequired {
                count: self.signature_required.len(),
                first: first.clone(),
            });
        }
        let rollouts = RolloutStore::open(connection, subjects).await?;
        // Signatures have microsecond precision.
        let now = SystemClock.now().trunc_subsecs(6);
        let mut rollout = Rollout {
            protocol: ROLLOUT.into(),
            id: new_id(now, random()?)?,
            collective: subjects.collective().clone(),
            bundle: self.bundle,
            data: self.data,
            noop: self.noop,
            selection: self.selection,
            created: now,
            caller,
            settings: self.settings,
            plan: self.plan,
            state: RolloutState::Running,
            wave: 0,
            nodes: Default::default(),
            previous: Default::default(),
            previous_digests: BTreeMap::new(),
            decision: None,
            rollback: None,
            forgiven: None,
            lease,
            controls: Vec::new(),
        };
        if let Some(signer) = signer {
            rollout.previous_digests =
                previous_digests(connection, subjects, &rollout.plan).await?;
            decision::sign(&mut rollout, signer)?;
        }
        Ok(rollouts.create(rollout, waiting).await?)
    }
}

/// Returns the outcome and text of a preview.
fn outcome_and_text(result: Result<Preview, PreviewError>) -> (Outcome, String) {
    match result {
        Err(PreviewError::NoReply) => (Outcome::NoReply, PreviewError::NoReply.to_string()),
        Err(error) => (Outcome::Failed, error.to_string()),
        Ok(preview) if preview.events.is_empty() => (Outcome::Ok, "no changes".into()),
        Ok(Preview { events, .. }) => {
            let lines: Vec<String> = events.iter().map(event_line).collect();
            let outcome = if events.iter().any(|event| event.failed) {
                Outcome::Failed
            } else {
                Outcome::WouldChange
            };
            (outcome, lines.join("; "))
        }
    }
}

/// Returns the digests of the current assignments of the nodes of a plan. An assignment that can't
/// be read has none: no controller replaces it.
async fn previous_digests(
    connection: &Connection,
    subjects: &Subjects,
    plan: &Plan,
) -> Result<BTreeMap<String, BTreeSet<NodeName>>, StartError> {
    let members = plan.waves.iter().flat_map(|wave| &wave.nodes);
    let members: BTreeMap<String, &NodeName> = members
        .map(|node| (subjects.key(&node.token()), node))
        .collect();
    let desired = connection.bucket(DESIRED).await?;
    let mut digests: BTreeMap<String, BTreeSet<NodeName>> = BTreeMap::new();
    for entry in desired.entries(&subjects.all_keys()).await? {
        if let Some(node) = members.get(&entry.key)
            && let Ok(assignment) = serde_json::from_slice::<Assignment>(&entry.value)
            && let Some(digest) = content_digest(&assignment)?
        {
            digests.entry(digest).or_default().insert((*node).clone());
        }
    }
    Ok(digests)
}
