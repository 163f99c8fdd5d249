//! Trust: who may ask this node for what. Asked before anything of a request is looked at, filters
//! included.
//!
//! With signers in the agent's file a request must carry the signature of one of them, made for
//! this very subject, not long ago, and never seen before. Then the signer's policy decides. Where
//! the file says nothing, only servers on this machine are obeyed: that is `loopback`. With
//! `required: false` everything counts that NATS lets through. What a signature covers is
//! `nats::trust`, what was seen is `seen`, what is remembered of it is `audit` and `refusals`. What
//! templates may read for a signer is `rights`, how far assignments have come `generations`.
//! Bundles and data from elsewhere are `vouch`, assignments that follow from a signed rollout
//! `decided`.

pub mod audit;
mod generations;
mod last_accepted;
pub mod loopback;
mod read_policy;
pub mod refusals;
mod replay_cache;
mod rollout_proof;
mod signed_sources;

use std::path::Path;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use parking_lot::Mutex;

use super::config;
use ccm_core::model::decision::{AssignmentSignature, DirectSignature};
use ccm_core::model::node::{Assignment, NodeName};
use ccm_core::model::policy::{Policy, PolicyRequest};
use ccm_core::model::resource::Resource;
use ccm_core::system::{Clock, FileError, files};
use ccm_nats::request_signature::{KeyError, PublicKey, SignatureClaim, SignatureError};
use ccm_nats::{Headers, Verb};
use generations::Generations;
use last_accepted::LastAccepted;
use replay_cache::{By, ReplayCache};
use rollout_proof::Decisions;
pub use rollout_proof::RolloutProofError;
pub use signed_sources::{SourceKind, SIGNATURE_LIMIT, Sources, UnsignedSource, check_digest};

/// No file that holds a generation or the name of a boot is longer.
const MAX_BYTES: u64 = 4096;

/// The farthest that clocks may be apart; requests are remembered that long.
const MAX_SKEW: TimeDelta = TimeDelta::hours(24);

/// Why a request is not obeyed. No text tells more than the sender knows.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    #[error(transparent)]
    SignatureError(#[from] SignatureError),
    #[error("signer is not trusted here")]
    Unknown,
    #[error("signature is too old")]
    Expired,
    #[error("signature is from the future")]
    Future,
    #[error("request was made before this node began to remember requests")]
    Forgotten,
    #[error("request was seen before")]
    Replayed,
    #[error("too many signed requests at once")]
    Flooded,
    #[error("denied by policy")]
    Policy,
    #[error("could not remember the request")]
    Memory(#[source] FileError),
}

/// Why an assignment is not followed.
#[derive(Debug, thiserror::Error)]
pub enum UntrustedAssignment {
    #[error("assignment is not signed")]
    Unsigned,
    #[error("signer of the assignment is not trusted here")]
    Unknown,
    #[error("signature does not fit the assignment")]
    Signature,
    #[error("the policy of the assignment's signer allows no apply")]
    Policy,
    #[error("assignment of generation {found} is older than the accepted {accepted}")]
    Older { found: u64, accepted: u64 },
    #[error(transparent)]
    RolloutProofError(#[from] RolloutProofError),
    #[error(
        "assignment of generation {found} is beyond {most}, which a signer with a policy may reach"
    )]
    Far { found: u64, most: u64 },
    #[error(
        "the generations that were accepted can't be read: remove generations.json and generation from the state directory"
    )]
    Damaged,
    #[error("could not remember the generation: {0}")]
    Memory(#[source] FileError),
}

/// Why a request is not admitted, and who signed it, where that is known.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct Refused {
    pub signer: Arc<str>,
    #[source]
    pub cause: Denied,
}

impl From<Denied> for Refused {
    fn from(cause: Denied) -> Self {
        Self {
            signer: Arc::default(),
            cause,
        }
    }
}

impl From<SignatureError> for Refused {
    fn from(cause: SignatureError) -> Self {
        Denied::from(cause).into()
    }
}

/// One who asks and is believed.
#[derive(Clone, Debug, Default)]
pub struct Requester {
    /// The name that this node's file gives the signer; empty where nothing was signed.
    pub name: Arc<str>,
    policy: Option<Arc<Policy>>,
}

impl Requester {
    /// Says whether the requester may ask for this at all, as far as that is known.
    pub fn may(&self, asked: &PolicyRequest<'_>) -> Result<(), Denied> {
        match &self.policy {
            Some(policy) if !policy.decide_partial(asked).is_allowed() => Err(Denied::Policy),
            _ => Ok(()),
        }
    }

    /// Says whether the requester may have an assignment followed.
    fn may_follow(&self, assignment: &Assignment) -> Result<(), UntrustedAssignment> {
        let asked = PolicyRequest {
            verb: Verb::Apply.as_str(),
            noop: assignment.noop,
            ..PolicyRequest::default()
        };
        self.may(&asked).map_err(|_| UntrustedAssignment::Policy)
    }

    /// Says whether the requester may have a resource applied by a provider, or why not.
    pub fn may_apply(
        &self,
        verb: &str,
        resource: &Resource,
        provider: &str,
        noop: bool,
    ) -> Result<(), ccm_core::model::policy::Denied> {
        match &self.policy {
            None => Ok(()),
            Some(policy) => policy.check_resource(verb, resource, provider, noop),
        }
    }
}

/// One whose signature counts.
struct TrustedSigner {
    text: String,
    key: PublicKey,
    requester: Requester,
}

/// Decides who is believed.
pub struct Authorizer {
    clock: Arc<dyn Clock>,
    /// Nothing where the agent's file says nothing.
    rules: Option<Rules>,
}

struct Rules {
    required: bool,
    skew: TimeDelta,
    sources: bool,
    signers: Vec<TrustedSigner>,
    seen: Mutex<ReplayCache>,
    generations: Generations,
    newest: LastAccepted,
    decisions: Decisions,
}

/// Why there is no authorizer.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("key of signer {name:?}: {cause}")]
    Key { name: String, cause: KeyError },
    #[error("clock_skew is longer than a day")]
    Skew,
    #[error(transparent)]
    File(#[from] FileError),
}

impl Authorizer {
    /// Returns one that keeps what it has seen below a directory. `boot` names this start of the
    /// machine: what was kept before another one may be incomplete.
    pub fn open(
        trust: Option<&config::Trust>,
        directory: &Path,
        boot: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TrustError> {
        let rules = match trust {
            Some(trust) => Some(Rules::open(trust, directory, boot, clock.now())?),
            None => None,
        };
        Ok(Self { clock, rules })
    }

    /// Whether signatures are looked at here.
    pub fn is_strict(&self) -> bool {
        self.rules.is_some()
    }

    /// Returns whether what is not signed is refused; nothing where the agent's file says nothing.
    pub fn requires_signatures(&self) -> Option<bool> {
        self.rules.as_ref().map(|rules| rules.required)
    }

    /// Returns who asks, if this request may be looked at. It can't be admitted twice.
    pub fn admit(
        &self,
        verb: Verb,
        subject: &str,
        headers: &Headers,
        body: &[u8],
    ) -> Result<Requester, Refused> {
        match &self.rules {
            None => Ok(Requester::default()),
            Some(rules) => rules.admit(self.clock.now(), verb, subject, headers, body),
        }
    }

    /// Returns who decides about what the agent's own file names, where that must be signed.
    pub fn sources(&self) -> Option<Sources<'_>> {
        let rules = self.rules.as_ref().filter(|rules| rules.sources)?;
        let clock = &*self.clock;
        Some(Sources { rules, clock })
    }

    /// Returns who stands for an assignment, if it may be followed. From then on an older one may
    /// not.
    pub fn accept(&self, assignment: &Assignment, node: &NodeName) -> Result<Requester, UntrustedAssignment> {
        match &self.rules {
            None => Ok(Requester::default()),
            Some(rules) => rules.accept(self.clock.now(), assignment, node),
        }
    }
}

impl Rules {
    fn open(
        trust: &config::Trust,
        directory: &Path,
        boot: &str,
        now: DateTime<Utc>,
    ) -> Result<Self, TrustError> {
        let mut signers = Vec::new();
        for signer in &trust.signers {
            let key = PublicKey::parse(&signer.key).map_err(|cause| TrustError::Key {
                name: signer.name.clone(),
                cause,
            })?;
            signers.push(TrustedSigner {
                text: signer.key.clone(),
                key,
                requester: Requester {
                    name: signer.name.as_str().into(),
                    policy: signer.policy.clone().map(Arc::new),
                },
            });
        }
        let skew = TimeDelta::from_std(trust.clock_skew)
            .ok()
            .filter(|skew| *skew <= MAX_SKEW)
            .ok_or(TrustError::Skew)?;
        Ok(Self {
            required: trust.required,
            sources: trust.sources,
            skew,
            signers,
            seen: Mutex::new(ReplayCache::open(&directory.join("seen"), boot, now)?),
            generations: Generations::new(directory),
            newest: LastAccepted::new(directory.join("sources.json")),
            decisions: Decisions::new(directory.join("decided.json")),
        })
    }

    fn find(&self, key: &str) -> Option<&TrustedSigner> {
        self.signers.iter().find(|signer| signer.text == key)
    }

    /// The cheap questions come first: a stranger costs no arithmetic, and what the signer may not
    /// ask for at all is not remembered.
    fn admit(
        &self,
        now: DateTime<Utc>,
        verb: Verb,
        subject: &str,
        headers: &Headers,
        body: &[u8],
    ) -> Result<Requester, Refused> {
        let claim = match SignatureClaim::read(headers) {
            Err(SignatureError::Unsigned) if !self.required => return Ok(Requester::default()),
            claim => claim?,
        };
        let signer = self.find(claim.signer).ok_or(Denied::Unknown)?;
        let age = now.signed_duration_since(claim.time);
        if age > self.skew {
            return Err(Denied::Expired.into());
        }
        if -age > self.skew {
            return Err(Denied::Future.into());
        }
        let id = claim.verify(&signer.key, subject, body)?;
        // Whether anything will be changed is not known yet.
        let asked = |noop| PolicyRequest {
            verb: verb.as_str(),
            noop,
            ..PolicyRequest::default()
        };
        let requester = &signer.requester;
        if let (Err(cause), Err(_)) = (requester.may(&asked(false)), requester.may(&asked(true))) {
            let signer = Arc::clone(&requester.name);
            return Err(Refused { signer, cause });
        }
        // A second more, because only whole ones are kept.
        let kept = self.skew + TimeDelta::seconds(1);
        let until = claim.time.checked_add_signed(kept);
        let until = until.unwrap_or(DateTime::<Utc>::MAX_UTC);
        let mut seen = self.seen.lock();
        let by = By::new(&signer.text, requester.has_policy());
        seen.add(now, claim.time, until, *id.as_bytes(), by)?;
        Ok(requester.clone())
    }

    fn accept(
        &self,
        now: DateTime<Utc>,
        assignment: &Assignment,
        node: &NodeName,
    ) -> Result<Requester, UntrustedAssignment> {
        let requester = match &assignment.signature {
            None if !self.required => Requester::default(),
            None => return Err(UntrustedAssignment::Unsigned),
            Some(AssignmentSignature::Direct(signature)) => {
                self.direct(signature, assignment, node)?
            }
            Some(AssignmentSignature::Rollout(decided)) => {
                return self.accept_decided(now, decided, assignment, node);
            }
            Some(AssignmentSignature::Rollback(restored)) => {
                return self.accept_restored(now, restored, assignment, node);
            }
        };
        requester.may_follow(assignment)?;
        self.decisions.check_direct(assignment.generation)?;
        let key = assignment
            .signature
            .as_ref()
            .map(AssignmentSignature::signer);
        let by = generations::By {
            key: key.unwrap_or_default(),
            // What nobody signed must not hold up what somebody did.
            has_policy: requester.has_policy() || key.is_none(),
        };
        let is_free = |key: &str| {
            let signer = self.find(key);
            signer.is_some_and(|signer| !signer.requester.has_policy())
        };
        self.generations
            .accept(by, assignment.generation, is_free)?;
        Ok(requester)
    }

    /// Returns who signed an assignment for this node and its generation.
    fn direct(
        &self,
        signature: &DirectSignature,
        assignment: &Assignment,
        node: &NodeName,
    ) -> Result<Requester, UntrustedAssignment> {
        let signer = self.find(&signature.signer).ok_or(UntrustedAssignment::Unknown)?;
        let bytes = assignment.signable(node).map_err(|_| UntrustedAssignment::Signature)?;
        if !signer.key.is_signature_valid(&bytes, &signature.signature) {
            return Err(UntrustedAssignment::Signature);
        }
        Ok(signer.requester.clone())
    }
}

/// Returns what names this start of the machine; nothing where the system does not say.
pub fn this_boot() -> String {
    let file = Path::new("/proc/sys/kernel/random/boot_id");
    let text = files::read_to_string(file, MAX_BYTES).unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests;
