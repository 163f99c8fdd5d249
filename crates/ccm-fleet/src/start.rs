//! How a rollout begins: a request becomes a proposal, which can be shown, and a proposal becomes a
//! stored rollout, signed by whoever starts it.
//!
//! Nothing is changed before [`Proposal::start`]. Who drives the rollout afterwards is not decided
//! here; that is [`super::executor`]. Entry points translate their words into a [`Request`] and show
//! what comes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::SubsecRound as _;

use super::assignments::requires_signature;
use super::bundle_store::{Bundles, BundlesError, Wanted};
use super::decision;
use super::inventory::{Inventory, Unreadable};
use super::node_reply::line_of;
use super::preview::{self, Outlook, Question, Silence};
use super::rollout_store::{RolloutError, Rollouts, Stored, new_id};
use super::selection::{Selection, SelectionError};
use super::summarize::{Answer, Outcome};
use super::waves::{PlanError, candidates, plan as cut};
use ccm_core::filter::FilterError;
use ccm_core::model::node::{Assignment, BundleRef, NodeName};
use ccm_core::model::rollout::{Lease, Plan, ROLLOUT, Rollout, Settings, State};
use ccm_core::system::{Clock as _, RandomError, SystemClock, random};
use ccm_nats::request_signature::{KeyError, Signer};
use ccm_nats::rollout_decision::content_digest;
use ccm_nats::streams::DESIRED;
use ccm_nats::{Connection, NatsError, Subjects};
use ccm_value::Value;

/// What somebody wants rolled out.
#[derive(Clone, Debug)]
pub struct Request {
    pub bundle: Wanted,
    pub selection: Selection,
    pub settings: Settings,
    /// Laid over the data of the manifest.
    pub data: Value,
    /// Nodes only say what they would do.
    pub noop: bool,
}

/// Why a rollout does not begin. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Random(#[from] RandomError),
    #[error("a node may wait longer for its slot than it may stay silent")]
    GovernorTimeout,
    #[error("unknown nodes: {}", .0.join(", "))]
    UnknownNodes(Vec<String>),
    #[error("{count} of the nodes require signatures, {first} among them, and nobody signs")]
    SignatureRequired { count: usize, first: NodeName },
    #[error("the rollout can't be signed: {0}")]
    Signing(#[from] KeyError),
    #[error(transparent)]
    Selection(#[from] SelectionError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Bundles(#[from] BundlesError),
    #[error(transparent)]
    Rollout(#[from] RolloutError),
    #[error(transparent)]
    Nats(#[from] NatsError),
}

/// What a request amounts to now.
#[derive(Clone, Debug)]
pub struct Proposal {
    pub bundle: BundleRef,
    pub data: Value,
    pub noop: bool,
    pub settings: Settings,
    /// How the nodes were chosen, for people.
    pub selection: Vec<String>,
    pub plan: Plan,
    /// Those of the plan that are away.
    pub offline: Vec<NodeName>,
    /// Nodes that are left out because whether they are meant can't be told.
    pub undecided: Vec<(NodeName, FilterError)>,
    /// Records of the fleet that could not be read.
    pub unreadable: Vec<Unreadable>,
    /// Those of the plan that follow only what is signed.
    pub signature_required: Vec<NodeName>,
}

/// Finds out what a request amounts to. Changes nothing.
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
    let bundle = Bundles::open(connection).await?.find(&bundle).await?.bundle;
    let inventory = Inventory::load(connection, subjects).await?;
    let resolved = inventory.resolve(&selection)?;
    if !resolved.unknown.is_empty() {
        return Err(StartError::UnknownNodes(resolved.unknown));
    }
    // A part of the fleet is a part of those that are there.
    let offline = if selection.is_part() {
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
        selection: selection.described(),
        signature_required: members.filter(is_strict).cloned().collect(),
        plan,
        offline,
        undecided: resolved.undecided,
        unreadable: inventory.unreadable().to_vec(),
    })
}

impl Proposal {
    /// Asks the nodes what the rollout would change, many at once, and returns their answers in
    /// the order of the plan. Changes nothing.
    pub async fn ask(
        &self,
        connection: &Connection,
        subjects: &Subjects,
        caller: &str,
        limit: Duration,
    ) -> Result<Vec<Answer>, NatsError> {
        let question = |node: &NodeName| Question {
            node: node.clone(),
            bundle: self.bundle.clone(),
            data: self.data.clone(),
        };
        let nodes = self.plan.waves.iter().flat_map(|wave| &wave.nodes);
        let questions = nodes.map(question).collect();
        let asked = preview::ask(connection, subjects, questions, caller, limit).await?;
        let answers = asked.into_iter().map(|(question, said)| {
            let (outcome, text) = meaning(said);
            Answer {
                node: question.node,
                outcome,
                text,
            }
        });
        Ok(answers.collect())
    }

    /// Stores the rollout. With a signer it is signed; without one it must have no node that
    /// requires that. Whoever gives a lease drives it.
    pub async fn start(
        self,
        connection: &Connection,
        subjects: &Subjects,
        signer: Option<&Signer>,
        caller: String,
        lease: Option<Lease>,
    ) -> Result<Stored, StartError> {
        if let (None, Some(first)) = (signer, self.signature_required.first()) {
            return Err(StartError::SignatureRequired {
                count: self.signature_required.len(),
                first: first.clone(),
            });
        }
        let rollouts = Rollouts::open(connection, subjects).await?;
        // Only microseconds are signed.
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
            state: State::Running,
            wave: 0,
            nodes: BTreeMap::new(),
            previous: Default::default(),
            previous_digests: BTreeMap::new(),
            decision: None,
            rollback: None,
            forgiven: None,
            lease,
        };
        if let Some(signer) = signer {
            rollout.previous_digests =
                previous_digests(connection, subjects, &rollout.plan).await?;
            decision::sign(&mut rollout, signer)?;
        }
        Ok(rollouts.create(rollout).await?)
    }
}

/// Returns what a node's answer comes to, for people.
fn meaning(said: Result<Outlook, Silence>) -> (Outcome, String) {
    match said {
        Err(Silence::NoAnswer) => (Outcome::NoAnswer, Silence::NoAnswer.to_string()),
        Err(silence) => (Outcome::Failed, silence.to_string()),
        Ok(outlook) if outlook.events.is_empty() => (Outcome::Ok, "nothing".into()),
        Ok(Outlook { events, .. }) => {
            let lines: Vec<String> = events.iter().map(line_of).collect();
            let outcome = if events.iter().any(|event| event.failed) {
                Outcome::Failed
            } else {
                Outcome::Changed
            };
            (outcome, lines.join("; "))
        }
    }
}

/// Returns the digests of what the nodes of a plan are assigned now. What can't be read has none:
/// no controller replaces it.
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
    for entry in desired.entries(&subjects.keys()).await? {
        if let Some(node) = members.get(&entry.key)
            && let Ok(assignment) = serde_json::from_slice::<Assignment>(&entry.value)
            && let Some(digest) = content_digest(&assignment)?
        {
            digests.entry(digest).or_default().insert((*node).clone());
        }
    }
    Ok(digests)
}
