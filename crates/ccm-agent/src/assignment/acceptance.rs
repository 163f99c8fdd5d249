//! Which assignment a node follows: the one in the bucket, if it is accepted, or the last accepted
//! one.

use super::{Assignments, read_document};
use crate::trust::loopback::LoopbackError;
use crate::trust::{AcceptContext, Requester, RolloutProofError, UntrustedAssignment};
use ccm_core::model::incarnation::Incarnation;
use ccm_core::model::node::{Assignment, NodeReport, Refusal};
use ccm_core::system::files;
use ccm_nats::kv::Lookup;
use ccm_nats::streams::DESIRED;
use ccm_nats::{Bytes, NatsError};

/// What the bucket has for this node.
enum StoredAssignment {
    Text(Bytes),
    /// The key was removed, in the incarnation of the assignment that the node has.
    Removed,
    /// Nothing, as in a fleet whose storage was lost.
    Unknown,
}

/// Why an assignment is refused.
#[derive(Debug, thiserror::Error)]
enum AssignmentRefusal {
    /// The content is not quoted: it may be a secret.
    #[error("the assignment is malformed at line {}, column {}", .0.line(), .0.column())]
    Unreadable(#[from] serde_json::Error),
    #[error(transparent)]
    LoopbackError(#[from] LoopbackError),
    #[error(transparent)]
    UntrustedAssignment(#[from] UntrustedAssignment),
}

impl Assignments {
    /// Returns the assignment in NATS, or the last accepted one while NATS is unreachable or has
    /// lost it.
    pub(super) async fn current(&mut self) -> Option<(Assignment, Requester)> {
        match self.fetch().await {
            Ok(StoredAssignment::Text(text)) => match self.parse(&text).await {
                Ok((assignment, requester)) => {
                    self.write_document("assignment.json", &assignment);
                    self.set_refusal(None);
                    Some((assignment, requester))
                }
                // The connection was lost; that is no refusal.
                Err((_, AssignmentRefusal::LoopbackError(LoopbackError::Unknown(_)))) => {
                    self.last_accepted()
                }
                Err((found, reason)) => {
                    self.refuse(found.as_ref(), &reason);
                    self.last_accepted()
                }
            },
            Ok(StoredAssignment::Removed) => {
                let _ = files::remove(&self.file("assignment.json"));
                self.set_refusal(None);
                None
            }
            Ok(StoredAssignment::Unknown) | Err(NatsError::NoBucket(_)) => {
                // The report is lost as well.
                if let Some((_, is_published)) = &mut self.report {
                    *is_published = false;
                }
                self.last_accepted()
            }
            Err(NatsError::Denied(denial)) => {
                self.log_error("Could not read the assignment", &denial);
                self.last_accepted()
            }
            Err(_) => self.last_accepted(),
        }
    }

    async fn fetch(&self) -> Result<StoredAssignment, NatsError> {
        if !self.connection.is_up() {
            return Err(NatsError::Closed);
        }
        let bucket = self.connection.bucket(DESIRED).await?;
        let key = self.subjects.key(&self.node.identity.name.token());
        Ok(match bucket.look_up(&key).await? {
            Lookup::Value(entry) => StoredAssignment::Text(entry.value),
            Lookup::Removed if self.is_of_this_incarnation().await? => StoredAssignment::Removed,
            Lookup::Removed | Lookup::Unknown => StoredAssignment::Unknown,
        })
    }

    /// Reports whether the assignment on disk is of the present incarnation of the fleet.
    async fn is_of_this_incarnation(&self) -> Result<bool, NatsError> {
        let last: Option<Assignment> = read_document(&self.file("assignment.json"));
        let own = last.and_then(|last| last.incarnation);
        let present = self.connection.incarnation().await?;
        Ok(!Incarnation::differs(own.as_ref(), present.as_ref()))
    }

    /// Returns the incarnation of the fleet if an assignment has another one than the last; it
    /// decides what a signer with a policy may assign.
    async fn new_incarnation(
        &self,
        assignment: &Assignment,
        last: Option<&Assignment>,
    ) -> Option<Incarnation> {
        let last = last.and_then(|last| last.incarnation.as_ref());
        if assignment.incarnation.as_ref() == last {
            return None;
        }
        self.connection.incarnation().await.ok().flatten()
    }

    /// Parses and authorizes an assignment. A refusal comes with what could be parsed.
    async fn parse(
        &self,
        text: &[u8],
    ) -> Result<(Assignment, Requester), (Option<Assignment>, AssignmentRefusal)> {
        let found: Assignment =
            serde_json::from_slice(text).map_err(|err| (None, AssignmentRefusal::from(err)))?;
        let checked = match &self.node.services.loopback_only {
            Some(loopback) => loopback.check().await.map_err(AssignmentRefusal::from),
            None => Ok(()),
        };
        let last: Option<Assignment> = read_document(&self.file("assignment.json"));
        let incarnation = self.new_incarnation(&found, last.as_ref()).await;
        let context = AcceptContext {
            fleet: incarnation.as_ref(),
            is_repeated: last.as_ref() == Some(&found),
        };
        match checked.and_then(|()| Ok(self.accept(&found, context)?)) {
            Ok(requester) => Ok((found, requester)),
            Err(reason) => Err((Some(found), reason)),
        }
    }

    /// Authorizes an assignment.
    fn accept(
        &self,
        assignment: &Assignment,
        context: AcceptContext<'_>,
    ) -> Result<Requester, UntrustedAssignment> {
        let collective = self.subjects.collective();
        let mut decisions = assignment.signature.iter().flat_map(|it| it.decisions());
        if let Some(foreign) = decisions.find(|it| it.collective != *collective) {
            let unproven = RolloutProofError::Collective {
                rollout: foreign.rollout.clone(),
                collective: foreign.collective.clone(),
            };
            return Err(unproven.into());
        }
        self.node
            .services
            .authorizer
            .accept(assignment, &self.node.identity.name, context)
    }

    /// Returns the last accepted assignment, if it is still authorized.
    pub(super) fn last_accepted(&self) -> Option<(Assignment, Requester)> {
        let loopback = self.node.services.loopback_only.as_ref();
        if loopback.is_some_and(|loopback| loopback.remote().is_some()) {
            return None;
        }
        let assignment = read_document(&self.file("assignment.json"))?;
        let context = AcceptContext {
            fleet: None,
            is_repeated: true,
        };
        let requester = self.accept(&assignment, context).ok()?;
        Some((assignment, requester))
    }

    /// Records, logs and reports why an assignment is refused.
    fn refuse(&mut self, found: Option<&Assignment>, reason: &AssignmentRefusal) {
        let signature = found.and_then(|found| found.signature.as_ref());
        let refusal = Refusal {
            time: self.node.services.clock.now(),
            what: Refusal::ASSIGNMENT.into(),
            generation: found.map(|found| found.generation),
            incarnation: found.and_then(|found| found.incarnation.clone()),
            who: signature.map_or_else(String::new, |it| it.signer().to_owned()),
            reason: reason.to_string(),
        }
        .shortened();
        let is_repeated = |before: &Refusal| before.is_repeated_by(&refusal);
        if self.refused.as_ref().is_some_and(is_repeated) {
            return;
        }
        self.log_error("Not following the assignment", &refusal.reason);
        self.node.services.refusals.add(refusal.clone());
        self.set_refusal(Some(refusal));
    }

    /// Updates the refusal in the report.
    fn set_refusal(&mut self, refusal: Option<Refusal>) {
        self.refused.clone_from(&refusal);
        let before = self.report.as_ref().map(|(report, _)| report);
        if before.and_then(|report| report.refusal.as_ref()) == refusal.as_ref() {
            return;
        }
        let report = NodeReport {
            refusal,
            timestamp: self.node.services.clock.now(),
            ..before.cloned().unwrap_or_else(|| self.empty_report())
        };
        self.store_report(report);
    }
}
