//! Sources: who stands for the bundles and the data that the agent's own file names.
//!
//! A source that is not on this machine counts only with a signature beside it, of a signer the
//! file lists, for this very place and content, and not older than the last one that was accepted;
//! when that was is `newest`. What a signature covers is `model::signature`. Fetching is left to
//! `agent::feed` and `agent::data`.

use chrono::{DateTime, Utc};

use super::last_accepted::not_older;
use super::{Requester, Rules};
use ccm_core::model::policy::PolicyRequest;
use ccm_core::model::signature::{BundleSignature, signature_location};
use ccm_core::system::{Clock, Digest};
use ccm_nats::Verb;
use ccm_value::secret::{redact_url, url_identity};
use ccm_value::text::go_time;

/// No signature is larger.
pub const SIGNATURE_LIMIT: u64 = 16 * 1024;

/// Why what a source holds is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsignedSource {
    #[error(
        "{0} is not signed: put what `ccm fleet sign --file FILE --source {0}` prints at {place}, \
         or set trust.sources: off",
        place = signature_location(.0)
    )]
    Unsigned(String),
    #[error("its signature can't be read")]
    Unreadable,
    #[error("its signer is not trusted here")]
    Unknown,
    #[error("its signature is for another source: {0}")]
    Elsewhere(String),
    #[error("its signature does not fit: sign it again")]
    Signature,
    #[error("it is not the one that was signed: sign it again")]
    Digest,
    #[error("the policy of its signer allows no apply")]
    Policy,
    #[error(
        "its signer has a policy: data reaches every resource, so a signer without one must sign it"
    )]
    Bound,
    #[error("it was signed in the future, at {}: mind the clocks", go_time(.0))]
    Future(DateTime<Utc>),
    #[error(
        "it was signed at {}, before the one that was accepted, of {}: sign it again to go back",
        go_time(.signed),
        go_time(.accepted)
    )]
    Older {
        signed: DateTime<Utc>,
        accepted: DateTime<Utc>,
    },
    #[error("could not remember when it was signed: {0}")]
    Memory(String),
}

impl UnsignedSource {
    /// Whether it may pass while the source stays as it is: a clock is set, a disk has room again.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Future(_) | Self::Memory(_))
    }
}

/// What a source holds, which decides what its signer must be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// Resources: each is held against the policy of the bundle's signer.
    Bundle,
    /// Values that any resource may use, so there is nothing to hold against a policy.
    Data,
}

/// Decides who is believed about sources.
pub struct Sources<'k> {
    pub(super) rules: &'k Rules,
    pub(super) clock: &'k dyn Clock,
}

impl Sources<'_> {
    /// Returns the signature that a text beside a source is, before anything of the source is
    /// looked at. `before` is that of the last copy, in case it is all that is known.
    pub fn verify(
        &self,
        text: Option<&[u8]>,
        source: &str,
        holds: SourceKind,
        before: Option<&BundleSignature>,
    ) -> Result<BundleSignature, UnsignedSource> {
        let text = text.ok_or_else(|| UnsignedSource::Unsigned(source.to_owned()))?;
        let signature: BundleSignature =
            serde_json::from_slice(text).map_err(|_| UnsignedSource::Unreadable)?;
        self.vouch(&signature, source, holds)?;
        // It would make everything that is signed until then look old.
        let ahead = signature.signed.signed_duration_since(self.clock.now());
        if ahead > self.rules.skew {
            return Err(UnsignedSource::Future(signature.signed));
        }
        self.rules.newest.check(source, signature.signed)?;
        if let Some(before) = before {
            not_older(signature.signed, before.signed)?;
        }
        Ok(signature)
    }

    /// Returns who stands for a copy that was kept with its signature. From then on an older one
    /// is refused. Asked each time: a copy may be from before signatures were wanted, or its signer
    /// no longer be trusted.
    pub fn accept(
        &self,
        signature: Option<&BundleSignature>,
        source: &str,
        holds: SourceKind,
    ) -> Result<Requester, UnsignedSource> {
        let signature = signature.ok_or_else(|| UnsignedSource::Unsigned(source.to_owned()))?;
        let requester = self.vouch(signature, source, holds)?;
        self.rules.newest.advance(source, signature.signed)?;
        Ok(requester)
    }

    fn vouch(
        &self,
        signature: &BundleSignature,
        source: &str,
        holds: SourceKind,
    ) -> Result<Requester, UnsignedSource> {
        let signer = self.rules.find(&signature.signer);
        let signer = signer.ok_or(UnsignedSource::Unknown)?;
        let bytes = signature
            .signable()
            .map_err(|_| UnsignedSource::Unreadable)?;
        if !signer.key.is_signature_valid(&bytes, &signature.signature) {
            return Err(UnsignedSource::Signature);
        }
        // One of an older version names the query itself.
        if url_identity(&signature.source) != source {
            let elsewhere = redact_url(&signature.source).into_owned();
            return Err(UnsignedSource::Elsewhere(elsewhere));
        }
        let requester = signer.requester.clone();
        let asked = PolicyRequest {
            verb: Verb::Apply.as_str(),
            ..PolicyRequest::default()
        };
        match holds {
            SourceKind::Bundle => requester.may(&asked).map_err(|_| UnsignedSource::Policy)?,
            SourceKind::Data if requester.policy.is_some() => return Err(UnsignedSource::Bound),
            SourceKind::Data => {}
        }
        Ok(requester)
    }
}

/// Checks that a content is the one that was signed, where one was.
pub fn check_digest(signature: Option<&BundleSignature>, digest: &Digest) -> Result<(), UnsignedSource> {
    match signature {
        Some(signature) if signature.digest != digest.to_string() => Err(UnsignedSource::Digest),
        _ => Ok(()),
    }
}
