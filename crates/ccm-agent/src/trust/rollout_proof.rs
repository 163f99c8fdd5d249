//! Rollout proofs: accepts assignments that follow from a signed rollout decision, or from its
//! signed rollback. The controller that wrote them needs no signing key.
//!
//! Whoever can write to the assignment bucket can choose the generation, so age is determined by
//! the time of the decision: one earlier than the last accepted is refused, also after a restart.
//! `model::decision` defines the signed content, `nats::rollout_decision` verifies it.

use std::path::PathBuf;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::generations::Position;
use super::signer_set::Scope;
use super::{MAX_BYTES, Requester, Rules, TrustedSigner, UntrustedAssignment};
use ccm_core::model::decision::{
    MemberProof, Provenance, ProvenanceSignature, RollbackProof, RolloutDecision, RolloutProof,
};
use ccm_core::model::incarnation::Incarnation;
use ccm_core::model::node::{Assignment, NodeName, Token};
use ccm_core::system::files::{self, Durability};
use ccm_nats::rollout_decision::{content_digest, is_member, is_rollback_signed, is_signed};
use ccm_value::json;
use ccm_value::text::{go_time, timestamp};

/// Why an assignment does not follow from a signed decision.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RolloutProofError {
    #[error("signer of rollout {0} is not trusted here")]
    Unknown(Token),
    #[error("signature does not match the decision of rollout {0}")]
    Signature(Token),
    #[error("this node is not a member of the signed rollout {0}")]
    NotMember(Token),
    #[error("assignment is not the one signed for rollout {0}")]
    Content(Token),
    #[error("signer of the rollback of rollout {0} is not trusted here")]
    RollbackUnknown(Token),
    #[error("signature does not match the rollback of rollout {0}")]
    RollbackSignature(Token),
    #[error("assignment is not the signed one from before rollout {0}")]
    NotPrevious(Token),
    #[error("rollout {rollout} belongs to collective {collective}")]
    Collective { rollout: Token, collective: Token },
    #[error("decided in the future, at {}", go_time(.0))]
    Future(DateTime<Utc>),
    #[error(
        "decided at {}, before the accepted decision of {}",
        go_time(.found),
        go_time(.accepted)
    )]
    Older {
        found: DateTime<Utc>,
        accepted: DateTime<Utc>,
    },
    #[error("{path} is damaged")]
    Damaged {
        path: String,
        #[source]
        cause: serde_json::Error,
    },
}

/// Last accepted decision.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Accepted {
    #[serde(with = "timestamp")]
    decided: DateTime<Utc>,
    /// Highest generation of directly signed assignments before it; those are refused from then on.
    generation: u64,
    /// Incarnation of that generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    incarnation: Option<Incarnation>,
}

impl Accepted {
    fn position(&self) -> Position {
        Position {
            incarnation: self.incarnation.clone(),
            generation: self.generation,
        }
    }
}

/// Last accepted decision on disk.
pub(super) struct LastDecision {
    path: PathBuf,
}

impl LastDecision {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Fails if a directly signed assignment at this position is older than an accepted decision.
    pub(super) fn check_direct(&self, found: &Position) -> Result<(), UntrustedAssignment> {
        match self.read()?.map(|accepted| accepted.position()) {
            Some(accepted) if *found <= accepted => Err(accepted.older(found)),
            _ => Ok(()),
        }
    }

    /// Stores the time of a decision: earlier ones are refused from then on. Fails if this one is
    /// earlier. `direct` is the position of the last directly signed assignment.
    fn advance(&self, decided: DateTime<Utc>, direct: Position) -> Result<(), UntrustedAssignment> {
        if let Some(accepted) = self.read()? {
            let (found, last) = (decided, accepted.decided);
            // Signed times have microseconds.
            if found.timestamp_micros() < last.timestamp_micros() {
                let accepted = last;
                return Err(RolloutProofError::Older { found, accepted }.into());
            }
            if found.timestamp_micros() == last.timestamp_micros() {
                return Ok(());
            }
        }
        let accepted = Accepted {
            decided,
            generation: direct.generation,
            incarnation: direct.incarnation,
        };
        let text = json::compact(&accepted).map_err(|cause| self.damaged(cause))?;
        files::write_private(&self.path, text.as_bytes(), Durability::Complete)?;
        Ok(())
    }

    fn read(&self) -> Result<Option<Accepted>, UntrustedAssignment> {
        match files::read_to_string(&self.path, MAX_BYTES) {
            Ok(text) => serde_json::from_str(&text)
                .map(Some)
                .map_err(|cause| self.damaged(cause).into()),
            Err(err) if err.is_not_found() => Ok(None),
            Err(err) => Err(err.into()),
        }
    }

    fn damaged(&self, cause: serde_json::Error) -> RolloutProofError {
        RolloutProofError::Damaged {
            path: self.path.display().to_string(),
            cause,
        }
    }
}

impl Rules {
    /// Verifies an assignment of a rollout and returns its requester. Earlier decisions are refused
    /// from then on.
    pub(super) fn accept_rollout(
        &self,
        now: DateTime<Utc>,
        proof: &RolloutProof,
        assignment: &Assignment,
        node: &NodeName,
        scope: Scope,
    ) -> Result<Requester, UntrustedAssignment> {
        let decision = &proof.member.decision;
        if assignment.rollout.as_ref() != Some(&decision.rollout) {
            return Err(RolloutProofError::Content(decision.rollout.clone()).into());
        }
        let requester = self.verify_content(&proof.member, assignment, node, scope)?;
        requester.may_follow(assignment)?;
        self.advance(now, decision.created)?;
        Ok(requester)
    }

    /// Verifies an assignment restored by a rollback and returns its original requester. The
    /// signatures of the rollback and of the rollout prove that this is the assignment from before
    /// the rollout.
    pub(super) fn accept_rollback(
        &self,
        now: DateTime<Utc>,
        proof: &RollbackProof,
        assignment: &Assignment,
        node: &NodeName,
        scope: Scope,
    ) -> Result<Requester, UntrustedAssignment> {
        let RollbackProof {
            origin,
            member,
            rollback,
        } = proof;
        let rollout = || member.decision.rollout.clone();
        let by = self.signers.find(&rollback.signer, scope);
        let by = by.ok_or_else(|| RolloutProofError::RollbackUnknown(rollout()))?;
        if !is_rollback_signed(rollback, &member.decision, &by.key) {
            return Err(RolloutProofError::RollbackSignature(rollout()).into());
        }
        by.requester.may_follow(assignment)?;
        self.verify_member(member, node, scope)?;
        let content = content_digest(assignment).map_err(|_| UntrustedAssignment::Signature)?;
        if content != member.previous {
            return Err(RolloutProofError::NotPrevious(rollout()).into());
        }
        let requester = match origin {
            _ if assignment.manifests.is_empty() => by.requester.clone(),
            None if !self.required => Requester::default(),
            None => return Err(UntrustedAssignment::Unsigned),
            Some(Provenance {
                generation,
                incarnation,
                by,
                ..
            }) => match by {
                ProvenanceSignature::Rollout(member) => {
                    self.verify_content(member, assignment, node, scope)?
                }
                ProvenanceSignature::Direct(signature) => {
                    let first = Assignment {
                        generation: *generation,
                        incarnation: incarnation.clone(),
                        ..assignment.clone()
                    };
                    self.verify_direct(signature, &first, node, scope)?
                }
            },
        };
        requester.may_follow(assignment)?;
        self.advance(now, rollback.decided)?;
        Ok(requester)
    }

    /// Verifies that a decision assigns this content to a node, and returns its signer.
    fn verify_content(
        &self,
        member: &MemberProof,
        assignment: &Assignment,
        node: &NodeName,
        scope: Scope,
    ) -> Result<Requester, UntrustedAssignment> {
        let signer = self.verify_member(member, node, scope)?;
        let content = content_digest(assignment).map_err(|_| UntrustedAssignment::Signature)?;
        if content.as_deref() != Some(&member.decision.content) {
            return Err(RolloutProofError::Content(member.decision.rollout.clone()).into());
        }
        Ok(signer.requester.clone())
    }

    /// Verifies that a node is a member of a signed decision, and returns its signer.
    fn verify_member(
        &self,
        member: &MemberProof,
        node: &NodeName,
        scope: Scope,
    ) -> Result<Arc<TrustedSigner>, RolloutProofError> {
        let RolloutDecision {
            signer, rollout, ..
        } = &member.decision;
        let signer = self.signers.find(signer, scope);
        let signer = signer.ok_or_else(|| RolloutProofError::Unknown(rollout.clone()))?;
        if !is_signed(&member.decision, &signer.key) {
            return Err(RolloutProofError::Signature(rollout.clone()));
        }
        if !is_member(member, node) {
            return Err(RolloutProofError::NotMember(rollout.clone()));
        }
        Ok(signer)
    }

    fn advance(
        &self,
        now: DateTime<Utc>,
        decided: DateTime<Utc>,
    ) -> Result<(), UntrustedAssignment> {
        // It would make all later decisions look old.
        if decided.signed_duration_since(now) > self.skew {
            return Err(RolloutProofError::Future(decided).into());
        }
        self.last_decision
            .advance(decided, self.generations.highest()?)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    fn generation(generation: u64) -> Position {
        Position {
            incarnation: None,
            generation,
        }
    }

    fn open(directory: &tempfile::TempDir) -> LastDecision {
        LastDecision::new(directory.path().join("decided.json"))
    }

    #[test]
    fn an_earlier_decision_is_refused_also_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        open(&directory).advance(at(20), generation(3)).unwrap();
        open(&directory).advance(at(20), generation(9)).unwrap();
        let error = open(&directory)
            .advance(at(19), generation(9))
            .unwrap_err()
            .to_string();
        assert!(error.contains("1970-01-01T00:00:19Z"), "{error}");
        assert!(error.contains("1970-01-01T00:00:20Z"), "{error}");
        open(&directory).advance(at(21), generation(9)).unwrap();
    }

    #[test]
    fn a_direct_assignment_from_before_a_decision_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        open(&directory).check_direct(&generation(1)).unwrap();
        open(&directory).advance(at(20), generation(3)).unwrap();
        let error = open(&directory).check_direct(&generation(3)).unwrap_err();
        assert!(
            matches!(error, UntrustedAssignment::Older { .. }),
            "{error}"
        );
        open(&directory).check_direct(&generation(4)).unwrap();
    }

    #[test]
    fn with_a_damaged_file_nothing_is_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let last_decision = open(&directory);
        std::fs::write(&last_decision.path, "{").unwrap();
        let error = last_decision
            .advance(at(1), generation(0))
            .unwrap_err()
            .to_string();
        assert!(error.ends_with("decided.json is damaged"), "{error}");
        assert!(last_decision.check_direct(&generation(9)).is_err());
    }
}
