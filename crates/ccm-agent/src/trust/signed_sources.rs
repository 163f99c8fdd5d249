//! Signed sources: verifies the signatures of configured bundles and external data.
//!
//! A remote source needs a signature beside it, by a configured signer, for this location and
//! content, and not older than the last accepted one, see `last_accepted`. `model::signature`
//! defines what a signature covers. Fetching is in `manifest_watch` and `data_cache`.

use chrono::{DateTime, Utc};

use super::last_accepted::check_not_older;
use super::{Requester, Rules};
use ccm_core::model::policy::PolicyRequest;
use ccm_core::model::signature::{BundleSignature, signature_location};
use ccm_core::system::{Clock, Digest};
use ccm_nats::Verb;
use ccm_value::secret::{redact_url, url_identity};
use ccm_value::text::go_time;

/// Longest signature file.
pub(crate) const SIGNATURE_LIMIT: u64 = 16 * 1024;

/// Why the content of a source is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnsignedSource {
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
    #[error("its signature does not match: sign it again")]
    Signature,
    #[error("its content is not what was signed: sign it again")]
    Digest,
    #[error("the policy of its signer does not allow apply")]
    Policy,
    #[error(
        "its signer has a policy: data reaches every resource, so a signer without one must sign it"
    )]
    Bound,
    #[error("it was signed in the future, at {}: check the clocks", go_time(.0))]
    Future(DateTime<Utc>),
    #[error(
        "it was signed at {}, before the accepted one of {}: sign it again to go back",
        go_time(.signed),
        go_time(.accepted)
    )]
    Older {
        signed: DateTime<Utc>,
        accepted: DateTime<Utc>,
    },
    #[error("could not store the signing time: {0}")]
    Storage(String),
}

impl UnsignedSource {
    /// Reports whether the refusal may end without a new signature, as with a wrong clock or a full
    /// disk.
    pub(crate) fn is_temporary(&self) -> bool {
        matches!(self, Self::Future(_) | Self::Storage(_))
    }
}

/// Content of a source; decides what its signer must be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceKind {
    /// Resources; each is checked against the policy of the signer.
    Bundle,
    /// Values that any resource may use, so a policy can not be applied.
    Data,
}

/// Verifier of configured sources.
pub(crate) struct Sources<'k> {
    pub(super) rules: &'k Rules,
    pub(super) clock: &'k dyn Clock,
}

impl Sources<'_> {
    /// Parses and verifies the signature of a source, before its content is read. `before` is the
    /// signature of the cached content, in case no other is known.
    pub(crate) fn verify(
        &self,
        text: Option<&[u8]>,
        source: &str,
        kind: SourceKind,
        before: Option<&BundleSignature>,
    ) -> Result<BundleSignature, UnsignedSource> {
        let text = text.ok_or_else(|| UnsignedSource::Unsigned(source.to_owned()))?;
        let signature: BundleSignature =
            serde_json::from_slice(text).map_err(|_| UnsignedSource::Unreadable)?;
        self.check_signature(&signature, source, kind)?;
        // It would make all later signatures look old.
        let ahead = signature.signed.signed_duration_since(self.clock.now());
        if ahead > self.rules.skew {
            return Err(UnsignedSource::Future(signature.signed));
        }
        self.rules.last_accepted.check(source, signature.signed)?;
        if let Some(before) = before {
            check_not_older(signature.signed, before.signed)?;
        }
        Ok(signature)
    }

    /// Verifies the signature of cached content and returns its signer; older signatures are
    /// refused from then on. Done for each use: the content may be older than the requirement, or
    /// its signer no longer trusted.
    pub(crate) fn accept(
        &self,
        signature: Option<&BundleSignature>,
        source: &str,
        kind: SourceKind,
    ) -> Result<Requester, UnsignedSource> {
        let signature = signature.ok_or_else(|| UnsignedSource::Unsigned(source.to_owned()))?;
        let requester = self.check_signature(signature, source, kind)?;
        self.rules.last_accepted.advance(source, signature.signed)?;
        Ok(requester)
    }

    fn check_signature(
        &self,
        signature: &BundleSignature,
        source: &str,
        kind: SourceKind,
    ) -> Result<Requester, UnsignedSource> {
        let signer = self.rules.find(&signature.signer);
        let signer = signer.ok_or(UnsignedSource::Unknown)?;
        let bytes = signature
            .signable()
            .map_err(|_| UnsignedSource::Unreadable)?;
        if !signer.key.is_signature_valid(&bytes, &signature.signature) {
            return Err(UnsignedSource::Signature);
        }
        // Signatures of older versions include the query.
        if url_identity(&signature.source) != source {
            let elsewhere = redact_url(&signature.source).into_owned();
            return Err(UnsignedSource::Elsewhere(elsewhere));
        }
        let requester = signer.requester.clone();
        let policy_request = PolicyRequest {
            verb: Verb::Apply.as_str(),
            ..PolicyRequest::default()
        };
        match kind {
            SourceKind::Bundle => requester
                .may(&policy_request)
                .map_err(|_| UnsignedSource::Policy)?,
            SourceKind::Data if requester.policy.is_some() => return Err(UnsignedSource::Bound),
            SourceKind::Data => {}
        }
        Ok(requester)
    }
}

/// Checks that content has the signed digest, if it is signed.
pub(crate) fn check_digest(
    signature: Option<&BundleSignature>,
    digest: &Digest,
) -> Result<(), UnsignedSource> {
    match signature {
        Some(signature) if signature.digest != digest.to_string() => Err(UnsignedSource::Digest),
        _ => Ok(()),
    }
}
