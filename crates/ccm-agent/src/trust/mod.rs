//! Trust: authenticates and authorizes requests, assignments, bundles and external data.
//!
//! With signers in the configuration, a request must be signed by one of them, for this subject,
//! recently, and not be a replay; then the policy of the signer decides. Without a `trust` section
//! only NATS servers on this machine are trusted, see `loopback`. With `required: false` unsigned
//! requests are accepted, too. `nats::request_signature` defines what a signature covers,
//! `replay_cache` stores accepted requests, `audit` and `refusals` record decisions, `read_policy`
//! limits what templates may read, `generations` orders assignments. `signed_sources` verifies
//! bundles and external data, `rollout_proof` assignments of signed rollouts. `signer_set` adds
//! successors of signers and leaves out retired ones, `signer_refresh` reads both from the fleet.

pub(crate) mod audit;
mod generations;
mod last_accepted;
pub(crate) mod loopback;
mod read_policy;
pub(crate) mod refusals;
pub(crate) mod replay_cache;
mod rollout_proof;
mod signed_sources;
pub(crate) mod signer_refresh;
mod signer_set;

use std::path::Path;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use parking_lot::Mutex;

use super::config;
use ccm_core::model::decision::{AssignmentSignature, DirectSignature};
use ccm_core::model::incarnation::Incarnation;
use ccm_core::model::node::{Assignment, NodeName, Token};
use ccm_core::model::policy::{Policy, PolicyRequest};
use ccm_core::model::resource::Resource;
use ccm_core::model::signer_update::SignerUpdates;
use ccm_core::system::{Clock, FileError, files};
use ccm_nats::request_signature::{KeyError, PublicKey, SignatureClaim, SignatureError};
use ccm_nats::{Headers, Verb};
use ccm_value::text::go_time;
use generations::Generations;
use last_accepted::LastAccepted;
use replay_cache::{Now, ReplayCache, SignerQuota};
use rollout_proof::LastDecision;
pub(crate) use rollout_proof::RolloutProofError;
pub(crate) use signed_sources::{
    SIGNATURE_LIMIT, SourceKind, Sources, UnsignedSource, check_digest,
};
use signer_set::{Scope, SignerSet};

/// Longest file with a generation or a boot id.
const MAX_BYTES: u64 = 4096;

/// Largest configurable clock skew; requests are stored that long.
const MAX_SKEW: TimeDelta = TimeDelta::hours(24);

/// Why a request is denied. No text reveals more than the sender knows.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Denied {
    #[error(transparent)]
    Signature(#[from] SignatureError),
    #[error("signer is not trusted here")]
    Unknown,
    #[error("signature is too old")]
    Expired,
    #[error("signature is from the future")]
    Future,
    #[error("request was signed before this node started to record requests")]
    BeforeRecording,
    #[error("request was seen before")]
    Replayed,
    #[error("too many signed requests at once")]
    QuotaExceeded,
    #[error("denied by policy")]
    Policy,
    #[error("could not store the request id")]
    Storage(#[source] FileError),
}

/// What else decides about an assignment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AcceptContext<'a> {
    /// Incarnation of the fleet, needed for one that is new to this node.
    pub(crate) fleet: Option<&'a Incarnation>,
    /// The same assignment was accepted before: it stays valid if its signer is retired.
    pub(crate) is_repeated: bool,
}

impl AcceptContext<'_> {
    fn scope(&self) -> Scope {
        match self.is_repeated {
            true => Scope::AlsoRetired,
            false => Scope::Current,
        }
    }
}

/// Why an assignment is not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UntrustedAssignment {
    #[error("assignment is not signed")]
    Unsigned,
    #[error("signer of the assignment is not trusted here")]
    Unknown,
    #[error("signature does not match the assignment")]
    Signature,
    #[error("the policy of the assignment's signer does not allow apply")]
    Policy,
    #[error("assignment of generation {found} is older than the accepted {accepted}")]
    Older { found: u64, accepted: u64 },
    #[error("assignment is of an earlier incarnation of the fleet than the accepted one")]
    OlderIncarnation,
    #[error("assignment is of another incarnation of the fleet than the present one")]
    OtherIncarnation,
    #[error("assignment is of an incarnation of the fleet from the future, {}", go_time(.0))]
    FutureIncarnation(DateTime<Utc>),
    #[error(transparent)]
    RolloutProof(#[from] RolloutProofError),
    #[error(
        "assignment of generation {found} is beyond {most}, the limit for a signer with a policy"
    )]
    TooFar { found: u64, most: u64 },
    #[error(
        "the stored generations can't be read: remove generations.json and generation from the state directory"
    )]
    Damaged,
    #[error("could not store the generation: {0}")]
    Storage(#[source] FileError),
}

/// A denied request: the cause, and its signer if known.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub(crate) struct RefusedRequest {
    pub(crate) signer: Arc<str>,
    #[source]
    pub(crate) cause: Denied,
}

impl From<Denied> for RefusedRequest {
    fn from(cause: Denied) -> Self {
        Self {
            signer: Arc::default(),
            cause,
        }
    }
}

impl From<SignatureError> for RefusedRequest {
    fn from(cause: SignatureError) -> Self {
        Denied::from(cause).into()
    }
}

/// Authenticated requester.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requester {
    /// Name of the signer in the configuration; empty if the request is not signed.
    pub(crate) name: Arc<str>,
    policy: Option<Arc<Policy>>,
}

impl Requester {
    /// Checks a request against the policy, as far as it is known.
    pub(crate) fn may(&self, policy_request: &PolicyRequest<'_>) -> Result<(), Denied> {
        match &self.policy {
            Some(policy) if !policy.decide_partial(policy_request).is_allowed() => {
                Err(Denied::Policy)
            }
            _ => Ok(()),
        }
    }

    /// Checks an assignment against the policy.
    fn may_follow(&self, assignment: &Assignment) -> Result<(), UntrustedAssignment> {
        let policy_request = PolicyRequest {
            verb: Verb::Apply.as_str(),
            noop: assignment.noop,
            ..PolicyRequest::default()
        };
        self.may(&policy_request)
            .map_err(|_| UntrustedAssignment::Policy)
    }

    /// Checks a resource and its provider against the policy.
    pub(crate) fn may_apply(
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

/// A configured signer.
struct TrustedSigner {
    text: String,
    key: PublicKey,
    requester: Requester,
}

/// Decides which requests, assignments and sources are accepted.
pub(crate) struct Authorizer {
    clock: Arc<dyn Clock>,
    /// `None` without a `trust` section.
    rules: Option<Rules>,
}

struct Rules {
    required: bool,
    skew: TimeDelta,
    sources: bool,
    signers: SignerSet,
    replay_cache: Mutex<ReplayCache>,
    generations: Generations,
    last_accepted: LastAccepted,
    last_decision: LastDecision,
}

/// Why the `trust` section is invalid or its state could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("key of signer {name:?}: {cause}")]
    Key { name: String, cause: KeyError },
    #[error("clock_skew is longer than a day")]
    Skew,
    #[error("{path} is damaged: remove it to trust the signers of the configuration only")]
    Damaged {
        path: String,
        #[source]
        cause: serde_json::Error,
    },
    #[error(transparent)]
    File(#[from] FileError),
}

impl Authorizer {
    /// Opens the state below a directory. `boot` is the boot id of the machine: state written
    /// before another boot may be incomplete.
    pub(crate) fn open(
        trust: Option<&config::Trust>,
        collective: &Token,
        directory: &Path,
        boot: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TrustError> {
        let rules = match trust {
            Some(trust) => Some(Rules::open(
                trust,
                collective,
                directory,
                boot,
                Now::of(&*clock),
            )?),
            None => None,
        };
        Ok(Self { clock, rules })
    }

    /// Reports whether signatures are verified.
    pub(crate) fn is_strict(&self) -> bool {
        self.rules.is_some()
    }

    /// Returns whether unsigned requests are refused; `None` without a `trust` section.
    pub(crate) fn requires_signatures(&self) -> Option<bool> {
        self.rules.as_ref().map(|rules| rules.required)
    }

    /// Authenticates a request and returns its requester. A signed request is admitted once.
    pub(crate) fn admit(
        &self,
        verb: Verb,
        subject: &str,
        headers: &Headers,
        body: &[u8],
    ) -> Result<Requester, RefusedRequest> {
        match &self.rules {
            None => Ok(Requester::default()),
            Some(rules) => rules.admit(&*self.clock, verb, subject, headers, body),
        }
    }

    /// Returns the requester of a request that was authenticated by other means, by the key that
    /// signed it.
    pub(crate) fn requester_of(&self, key: &str) -> Result<Requester, Denied> {
        let Some(rules) = &self.rules else {
            return Ok(Requester::default());
        };
        match rules.find(key) {
            Some(signer) => Ok(signer.requester.clone()),
            None if !rules.required => Ok(Requester::default()),
            None => Err(Denied::Unknown),
        }
    }

    /// Returns the public keys of the signers, without retired ones.
    pub(crate) fn signers(&self) -> Vec<String> {
        let rules = self.rules.as_ref();
        rules.map_or_else(Vec::new, |rules| rules.signers.keys())
    }

    /// Accepts statements about signers. Returns whether there were new ones.
    pub(crate) fn add_signer_updates(&self, updates: &SignerUpdates) -> Result<bool, FileError> {
        match &self.rules {
            None => Ok(false),
            Some(rules) => rules.signers.add(updates),
        }
    }

    /// Returns the verifier of configured sources, if those must be signed.
    pub(crate) fn sources(&self) -> Option<Sources<'_>> {
        let rules = self.rules.as_ref().filter(|rules| rules.sources)?;
        let clock = &*self.clock;
        Some(Sources { rules, clock })
    }

    /// Authorizes an assignment and returns its requester. Older ones are refused from then on.
    pub(crate) fn accept(
        &self,
        assignment: &Assignment,
        node: &NodeName,
        context: AcceptContext<'_>,
    ) -> Result<Requester, UntrustedAssignment> {
        match &self.rules {
            None => Ok(Requester::default()),
            Some(rules) => rules.accept(self.clock.now(), assignment, node, context),
        }
    }
}

impl Rules {
    fn open(
        trust: &config::Trust,
        collective: &Token,
        directory: &Path,
        boot: &str,
        now: Now,
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
            signers: SignerSet::open(signers, collective.clone(), directory.join("signers.json"))?,
            replay_cache: Mutex::new(ReplayCache::open(&directory.join("seen"), boot, now)?),
            generations: Generations::new(directory),
            last_accepted: LastAccepted::new(directory.join("sources.json")),
            last_decision: LastDecision::new(directory.join("decided.json")),
        })
    }

    fn find(&self, key: &str) -> Option<Arc<TrustedSigner>> {
        self.signers.find(key, Scope::Current)
    }

    /// Cheap checks come first: unknown signers cost no cryptography, and requests that the policy
    /// denies are not stored.
    fn admit(
        &self,
        clock: &dyn Clock,
        verb: Verb,
        subject: &str,
        headers: &Headers,
        body: &[u8],
    ) -> Result<Requester, RefusedRequest> {
        let claim = match SignatureClaim::read(headers) {
            Err(SignatureError::Unsigned) if !self.required => return Ok(Requester::default()),
            claim => claim?,
        };
        let signer = self.find(claim.signer).ok_or(Denied::Unknown)?;
        let age = clock.now().signed_duration_since(claim.time);
        if age > self.skew {
            return Err(Denied::Expired.into());
        }
        if -age > self.skew {
            return Err(Denied::Future.into());
        }
        let id = claim.verify(&signer.key, subject, body)?;
        // Whether the request is noop is not known yet.
        let policy_request = |noop| PolicyRequest {
            verb: verb.as_str(),
            noop,
            ..PolicyRequest::default()
        };
        let requester = &signer.requester;
        if let (Err(cause), Err(_)) = (
            requester.may(&policy_request(false)),
            requester.may(&policy_request(true)),
        ) {
            let signer = Arc::clone(&requester.name);
            return Err(RefusedRequest { signer, cause });
        }
        // One more second, because times are stored in whole seconds.
        let kept = self.skew + TimeDelta::seconds(1);
        let until = claim.time.checked_add_signed(kept);
        let until = until.unwrap_or(DateTime::<Utc>::MAX_UTC);
        let mut replay_cache = self.replay_cache.lock();
        let quota = SignerQuota::new(&signer.text, requester.has_policy());
        replay_cache.add(Now::of(clock), claim.time, until, *id.as_bytes(), quota)?;
        Ok(requester.clone())
    }

    fn accept(
        &self,
        now: DateTime<Utc>,
        assignment: &Assignment,
        node: &NodeName,
        context: AcceptContext<'_>,
    ) -> Result<Requester, UntrustedAssignment> {
        let scope = context.scope();
        let requester = match &assignment.signature {
            None if !self.required => Requester::default(),
            None => return Err(UntrustedAssignment::Unsigned),
            Some(AssignmentSignature::Direct(signature)) => {
                self.verify_direct(signature, assignment, node, scope)?
            }
            Some(AssignmentSignature::Rollout(proof)) => {
                return self.accept_rollout(now, proof, assignment, node, scope);
            }
            Some(AssignmentSignature::Rollback(proof)) => {
                return self.accept_rollback(now, proof, assignment, node, scope);
            }
        };
        requester.may_follow(assignment)?;
        let key = assignment
            .signature
            .as_ref()
            .map(AssignmentSignature::signer);
        let position = self
            .generations
            .position(key.unwrap_or_default(), assignment)?;
        if let Some(incarnation) = &position.incarnation
            && incarnation.created().signed_duration_since(now) > self.skew
        {
            // It would make all later incarnations look old.
            return Err(UntrustedAssignment::FutureIncarnation(
                incarnation.created(),
            ));
        }
        self.last_decision.check_direct(&position)?;
        let info = generations::SignerInfo {
            key: key.unwrap_or_default(),
            // An unsigned assignment must not block a signed one.
            has_policy: requester.has_policy() || key.is_none(),
            fleet: context.fleet,
        };
        let has_no_policy = |key: &str| {
            let signer = self.signers.find(key, Scope::AlsoRetired);
            signer.is_some_and(|signer| !signer.requester.has_policy())
        };
        self.generations.accept(info, position, has_no_policy)?;
        Ok(requester)
    }

    /// Verifies the signature of an assignment for this node and generation.
    fn verify_direct(
        &self,
        signature: &DirectSignature,
        assignment: &Assignment,
        node: &NodeName,
        scope: Scope,
    ) -> Result<Requester, UntrustedAssignment> {
        let signer = self
            .signers
            .find(&signature.signer, scope)
            .ok_or(UntrustedAssignment::Unknown)?;
        let bytes = assignment
            .signable(node)
            .map_err(|_| UntrustedAssignment::Signature)?;
        if !signer.key.is_signature_valid(&bytes, &signature.signature) {
            return Err(UntrustedAssignment::Signature);
        }
        Ok(signer.requester.clone())
    }
}

/// Returns the boot id of the machine; empty if unknown.
pub(crate) fn boot_id() -> String {
    let file = Path::new("/proc/sys/kernel/random/boot_id");
    let text = files::read_to_string(file, MAX_BYTES).unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests;
