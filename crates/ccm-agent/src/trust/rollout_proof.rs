//! Decisions: assignments that follow from the signed decision of a rollout, or from its signed
//! rollback. The controller that wrote them signed nothing and needs no trust.
//!
//! Whoever can write to the bucket of assignments chooses their generation, so what is older is
//! told by when it was decided: a decision of an earlier time than one that was accepted is
//! refused, also after a restart. What is signed is laid out in `model::decision` and checked by
//! `nats::decision`; here is whose signature counts.

use std::path::PathBuf;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{MAX_BYTES, Requester, Rules, TrustedSigner, UntrustedAssignment};
use ccm_core::model::decision::{
    MemberProof, Provenance, ProvenanceSignature, RollbackProof, RolloutDecision, RolloutProof,
};
use ccm_core::model::node::{Assignment, NodeName, Token};
use ccm_core::system::files::{self, Durability};
use ccm_nats::rollout_decision::{content_digest, is_member, is_rollback_signed, is_signed};
use ccm_value::json;
use ccm_value::text::{go_time, timestamp};

/// Why an assignment does not follow from what was signed.
#[derive(Debug, thiserror::Error)]
pub enum RolloutProofError {
    #[error("signer of rollout {0} is not trusted here")]
    Unknown(Token),
    #[error("signature does not fit the decision of rollout {0}")]
    Signature(Token),
    #[error("this node is not a member of rollout {0} as it was signed")]
    NotMember(Token),
    #[error("assignment is not what was signed for rollout {0}")]
    Content(Token),
    #[error("signer of the rollback of rollout {0} is not trusted here")]
    RollbackUnknown(Token),
    #[error("signature does not fit the rollback of rollout {0}")]
    RollbackSignature(Token),
    #[error("assignment is not what this node had before rollout {0}, as that was signed")]
    NotPrevious(Token),
    #[error("rollout {rollout} is of collective {collective}")]
    Collective { rollout: Token, collective: Token },
    #[error("decided in the future, at {}", go_time(.0))]
    Future(DateTime<Utc>),
    #[error(
        "decided at {}, before what was accepted, of {}",
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

/// The last decision that was accepted.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Accepted {
    #[serde(with = "timestamp")]
    decided: DateTime<Utc>,
    /// The highest generation of a directly signed assignment before: none of those counts again.
    generation: u64,
}

/// Remembers which decision was accepted last, with the node's state.
pub(super) struct Decisions {
    path: PathBuf,
}

impl Decisions {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Fails if a directly signed assignment of this generation is from before a decision that
    /// was accepted.
    pub(super) fn check_direct(&self, found: u64) -> Result<(), UntrustedAssignment> {
        match self.read()? {
            Some(Accepted { generation, .. }) if found <= generation => Err(UntrustedAssignment::Older {
                found,
                accepted: generation,
            }),
            _ => Ok(()),
        }
    }

    /// Remembers when something was decided: from then on what was decided earlier is refused.
    /// Fails if this was. `generation` is that of the last directly signed assignment.
    fn advance(&self, decided: DateTime<Utc>, generation: u64) -> Result<(), UntrustedAssignment> {
        if let Some(accepted) = self.read()? {
            let (found, last) = (decided, accepted.decided);
            // Only microseconds are signed.
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
            generation,
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
    /// Returns who stands for an assignment of a rollout, if it may be followed. From then on what
    /// was decided earlier may not.
    pub(super) fn accept_decided(
        &self,
        now: DateTime<Utc>,
        decided: &RolloutProof,
        assignment: &Assignment,
        node: &NodeName,
    ) -> Result<Requester, UntrustedAssignment> {
        let decision = &decided.member.decision;
        if assignment.rollout.as_ref() != Some(&decision.rollout) {
            return Err(RolloutProofError::Content(decision.rollout.clone()).into());
        }
        let requester = self.decided(&decided.member, assignment, node)?;
        requester.may_follow(assignment)?;
        self.advance(now, decision.created)?;
        Ok(requester)
    }

    /// Returns who stands for an assignment that was put back, if it may be followed: the one who
    /// stood for it when it was first assigned. That it is put back, and not something even older,
    /// is for the signers of the rollback and of the rollout to say.
    pub(super) fn accept_restored(
        &self,
        now: DateTime<Utc>,
        restored: &RollbackProof,
        assignment: &Assignment,
        node: &NodeName,
    ) -> Result<Requester, UntrustedAssignment> {
        let RollbackProof {
            origin,
            member,
            rollback,
        } = restored;
        let rollout = || member.decision.rollout.clone();
        let by = self.find(&rollback.signer);
        let by = by.ok_or_else(|| RolloutProofError::RollbackUnknown(rollout()))?;
        if !is_rollback_signed(rollback, &member.decision, &by.key) {
            return Err(RolloutProofError::RollbackSignature(rollout()).into());
        }
        by.requester.may_follow(assignment)?;
        self.member(member, node)?;
        let content = content_digest(assignment).map_err(|_| UntrustedAssignment::Signature)?;
        if content != member.previous {
            return Err(RolloutProofError::NotPrevious(rollout()).into());
        }
        let requester = match origin {
            _ if assignment.manifests.is_empty() => by.requester.clone(),
            None if !self.required => Requester::default(),
            None => return Err(UntrustedAssignment::Unsigned),
            Some(Provenance { generation, by, .. }) => match by {
                ProvenanceSignature::Rollout(member) => self.decided(member, assignment, node)?,
                ProvenanceSignature::Direct(signature) => {
                    let first = Assignment {
                        generation: *generation,
                        ..assignment.clone()
                    };
                    self.direct(signature, &first, node)?
                }
            },
        };
        requester.may_follow(assignment)?;
        self.advance(now, rollback.decided)?;
        Ok(requester)
    }

    /// Returns who decided that a node becomes this.
    fn decided(
        &self,
        member: &MemberProof,
        assignment: &Assignment,
        node: &NodeName,
    ) -> Result<Requester, UntrustedAssignment> {
        let signer = self.member(member, node)?;
        let content = content_digest(assignment).map_err(|_| UntrustedAssignment::Signature)?;
        if content.as_deref() != Some(&member.decision.content) {
            return Err(RolloutProofError::Content(member.decision.rollout.clone()).into());
        }
        Ok(signer.requester.clone())
    }

    /// Returns who decided about a node.
    fn member(&self, member: &MemberProof, node: &NodeName) -> Result<&TrustedSigner, RolloutProofError> {
        let RolloutDecision {
            signer, rollout, ..
        } = &member.decision;
        let signer = self.find(signer);
        let signer = signer.ok_or_else(|| RolloutProofError::Unknown(rollout.clone()))?;
        if !is_signed(&member.decision, &signer.key) {
            return Err(RolloutProofError::Signature(rollout.clone()));
        }
        if !is_member(member, node) {
            return Err(RolloutProofError::NotMember(rollout.clone()));
        }
        Ok(signer)
    }

    fn advance(&self, now: DateTime<Utc>, decided: DateTime<Utc>) -> Result<(), UntrustedAssignment> {
        // It would make everything that is decided until then look old.
        if decided.signed_duration_since(now) > self.skew {
            return Err(RolloutProofError::Future(decided).into());
        }
        self.decisions.advance(decided, self.generations.highest()?)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests arrange the world by hand")]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    fn open(room: &tempfile::TempDir) -> Decisions {
        Decisions::new(room.path().join("decided.json"))
    }

    #[test]
    fn what_was_decided_earlier_is_refused_also_after_a_restart() {
        let room = tempfile::tempdir().unwrap();
        open(&room).advance(at(20), 3).unwrap();
        open(&room).advance(at(20), 9).unwrap();
        let error = open(&room).advance(at(19), 9).unwrap_err().to_string();
        assert!(error.contains("1970-01-01T00:00:19Z"), "{error}");
        assert!(error.contains("1970-01-01T00:00:20Z"), "{error}");
        open(&room).advance(at(21), 9).unwrap();
    }

    #[test]
    fn what_was_signed_directly_before_a_decision_does_not_come_back() {
        let room = tempfile::tempdir().unwrap();
        open(&room).check_direct(1).unwrap();
        open(&room).advance(at(20), 3).unwrap();
        let error = open(&room).check_direct(3).unwrap_err();
        assert!(matches!(error, UntrustedAssignment::Older { .. }), "{error}");
        open(&room).check_direct(4).unwrap();
    }

    #[test]
    fn a_damaged_file_accepts_nothing() {
        let room = tempfile::tempdir().unwrap();
        let decisions = open(&room);
        std::fs::write(&decisions.path, "{").unwrap();
        let error = decisions.advance(at(1), 0).unwrap_err().to_string();
        assert!(error.ends_with("decided.json is damaged"), "{error}");
        assert!(decisions.check_direct(9).is_err());
    }
}
