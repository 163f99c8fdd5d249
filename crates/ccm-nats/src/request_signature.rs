//! Signatures of requests, assignments and bundles with nkeys.
//!
//! A request signature covers the subject, the envelope headers and the body: a version, then each
//! part with its length in front, so that no two requests have the same encoding. Headers are signed
//! as text; nothing is parsed before the signature is verified. Which keys are trusted, and for how
//! long, is decided in `ccm_agent::trust`.

use std::fmt;

use chrono::{DateTime, SecondsFormat, Utc};
use data_encoding::BASE64URL_NOPAD;
use nkeys::{KeyPair, KeyPairType};

use super::{Headers, NatsError, Subject};
use ccm_core::model::decision::{AssignmentSignature, DirectSignature};
use ccm_core::model::envelope::{
    CALLER, DEADLINE, DIFF, FILTER, NOOP, REQUEST_ID, SIGNATURE, SIGNER, TIMESTAMP,
};
use ccm_core::model::node::{Assignment, NodeName};
use ccm_core::model::signature::{BUNDLE_SIGNATURE, BundleSignature};
use ccm_core::system::{Clock as _, Digest, SystemClock, random};
use ccm_value::secret::Secret;
use ccm_value::text::parse_time;

/// Version of the signed encoding.
const VERSION: &str = "ccm.request.v1";

/// The signed headers, in order. A missing header is signed as empty, as the envelope reads it.
const SIGNED_HEADERS: [&str; 7] = [REQUEST_ID, TIMESTAMP, CALLER, NOOP, FILTER, DEADLINE, DIFF];

/// Maximum length of a signed header; checked before the signature.
const MAX_HEADER: usize = 16 * 1024;

/// An invalid key, or a value that can't be signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("not an nkey seed: a seed begins with S")]
    Seed,
    #[error("not a public nkey: a user key begins with U")]
    Public,
    #[error("value can't be serialized for signing")]
    Unserializable,
}

/// Why a request signature is invalid. No message contains text of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("request is not signed")]
    Unsigned,
    #[error("header {0} is missing")]
    Missing(&'static str),
    #[error("header {0} is given more than once")]
    Repeated(&'static str),
    #[error("header {0} is longer than {MAX_HEADER} bytes")]
    TooLong(&'static str),
    #[error("header {0} is invalid")]
    Invalid(&'static str),
    #[error("signature does not match the request")]
    Signature,
}

/// A signing key.
#[derive(Clone)]
pub struct Signer(KeyPair);

impl Signer {
    /// Returns a signer with a new key.
    pub fn generate() -> Self {
        Self(KeyPair::new(KeyPairType::User))
    }

    /// Returns the signer of an nkey seed.
    pub fn from_seed(seed: &str) -> Result<Self, KeyError> {
        let pair = KeyPair::from_seed(seed.trim()).map_err(|_| KeyError::Seed)?;
        Ok(Self(pair))
    }

    /// Returns the public key.
    pub fn public_key(&self) -> String {
        self.0.public_key()
    }

    /// Returns the secret seed.
    pub fn seed(&self) -> Result<Secret, KeyError> {
        self.0.seed().map(Secret::new).map_err(|_| KeyError::Seed)
    }

    /// Signs a request with the current time: sets signer, timestamp and signature, and a request
    /// id if there is none. Envelope headers must not be changed afterwards.
    pub fn sign(
        &self,
        subject: &Subject,
        headers: &mut Headers,
        body: &[u8],
    ) -> Result<(), NatsError> {
        self.sign_at(SystemClock.now(), subject, headers, body)
    }

    /// Signs a request with a given time.
    pub fn sign_at(
        &self,
        now: DateTime<Utc>,
        subject: &Subject,
        headers: &mut Headers,
        body: &[u8],
    ) -> Result<(), NatsError> {
        if headers.get(REQUEST_ID).is_none_or(str::is_empty) {
            headers.set(REQUEST_ID, &format!("{:032x}", random()?))?;
        }
        headers.set(TIMESTAMP, &now.to_rfc3339_opts(SecondsFormat::Nanos, true))?;
        headers.set(SIGNER, &self.public_key())?;
        let signature = self.sign_bytes(&signed_bytes(subject.as_str(), headers, body));
        headers.set(SIGNATURE, &signature.map_err(|_| header(SIGNATURE))?)
    }

    /// Signs an assignment for one node; replaces an existing signature.
    pub fn sign_assignment(
        &self,
        assignment: &mut Assignment,
        node: &NodeName,
    ) -> Result<(), KeyError> {
        let bytes = assignment
            .signable(node)
            .map_err(|_| KeyError::Unserializable)?;
        let signature = DirectSignature {
            signer: self.public_key(),
            signature: self.sign_bytes(&bytes)?,
        };
        assignment.signature = Some(AssignmentSignature::Direct(signature));
        Ok(())
    }

    /// Signs a bundle or data document for its source URL.
    pub fn sign_bundle(
        &self,
        source: &str,
        digest: &Digest,
        now: DateTime<Utc>,
    ) -> Result<BundleSignature, KeyError> {
        let mut signature = BundleSignature {
            protocol: BUNDLE_SIGNATURE.into(),
            source: source.into(),
            digest: digest.to_string(),
            signed: now,
            signer: self.public_key(),
            signature: String::new(),
        };
        let bytes = signature.signable().map_err(|_| KeyError::Unserializable)?;
        signature.signature = self.sign_bytes(&bytes)?;
        Ok(signature)
    }

    /// Returns the signature of bytes in base64url.
    pub(crate) fn sign_bytes(&self, bytes: &[u8]) -> Result<String, KeyError> {
        let signature = self.0.sign(bytes).map_err(|_| KeyError::Seed)?;
        Ok(BASE64URL_NOPAD.encode(&signature))
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Signer({})", self.public_key())
    }
}

fn header(name: &str) -> NatsError {
    NatsError::Header(name.into())
}

/// A public key for verification.
#[derive(Clone)]
pub struct PublicKey(KeyPair);

impl PublicKey {
    /// Parses a public nkey.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let pair = KeyPair::from_public_key(text).map_err(|_| KeyError::Public)?;
        Ok(Self(pair))
    }

    /// Reports whether this key signed the bytes.
    pub fn is_signature_valid(&self, bytes: &[u8], signature: &str) -> bool {
        let signature = BASE64URL_NOPAD.decode(signature.as_bytes());
        signature.is_ok_and(|signature| self.0.verify(bytes, &signature).is_ok())
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "PublicKey({})", self.0.public_key())
    }
}

/// The unverified signature headers of a request.
#[derive(Clone, Copy, Debug)]
pub struct SignatureClaim<'h> {
    /// The claimed public key.
    pub signer: &'h str,
    /// The claimed time.
    pub time: DateTime<Utc>,
    signature: &'h str,
    headers: &'h Headers,
}

impl<'h> SignatureClaim<'h> {
    /// Parses the signature headers.
    pub fn read(headers: &'h Headers) -> Result<Self, SignatureError> {
        if [SIGNER, SIGNATURE].map(|name| headers.count(name)) == [0, 0] {
            return Err(SignatureError::Unsigned);
        }
        for name in SIGNED_HEADERS.into_iter().chain([SIGNER, SIGNATURE]) {
            if headers.count(name) > 1 {
                return Err(SignatureError::Repeated(name));
            }
            if headers
                .get(name)
                .is_some_and(|text| text.len() > MAX_HEADER)
            {
                return Err(SignatureError::TooLong(name));
            }
        }
        let required = |name| match headers.get(name) {
            None | Some("") => Err(SignatureError::Missing(name)),
            Some(text) => Ok(text),
        };
        required(REQUEST_ID)?;
        let time =
            parse_time(required(TIMESTAMP)?).map_err(|_| SignatureError::Invalid(TIMESTAMP))?;
        Ok(Self {
            signer: required(SIGNER)?,
            time: time.to_utc(),
            signature: required(SIGNATURE)?,
            headers,
        })
    }

    /// Verifies that the key signed this request, and returns its id for replay detection: equal
    /// only for a request that was sent before.
    pub fn verify(
        &self,
        key: &PublicKey,
        subject: &str,
        body: &[u8],
    ) -> Result<Digest, SignatureError> {
        let bytes = signed_bytes(subject, self.headers, body);
        if key.is_signature_valid(&bytes, self.signature) {
            Ok(Digest::of(&join_with_lengths(&[
                self.signer.as_bytes(),
                &bytes,
            ])))
        } else {
            Err(SignatureError::Signature)
        }
    }
}

/// Returns the signed encoding of a request.
fn signed_bytes(subject: &str, headers: &Headers, body: &[u8]) -> Vec<u8> {
    let digest = Digest::of(body);
    let mut parts = vec![VERSION.as_bytes(), subject.as_bytes()];
    parts.extend(SIGNED_HEADERS.map(|name| headers.get(name).unwrap_or_default().as_bytes()));
    parts.push(digest.as_bytes());
    join_with_lengths(&parts)
}

/// Concatenates parts, each with its length in front, so that the boundaries are signed, too.
fn join_with_lengths(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBJECT: &str = "ccm.v1.default.node.web1.ensure";
    const BODY: &[u8] = b"{}";

    fn signed(signer: &Signer) -> Headers {
        let mut headers = Headers::new()
            .with(CALLER, "ann")
            .and_then(|headers| headers.with(NOOP, "false"))
            .unwrap();
        let subject = SUBJECT.parse().unwrap();
        signer.sign(&subject, &mut headers, BODY).unwrap();
        headers
    }

    fn check(
        headers: &Headers,
        signer: &Signer,
        subject: &str,
        body: &[u8],
    ) -> Result<Digest, SignatureError> {
        let key = PublicKey::parse(&signer.public_key()).unwrap();
        SignatureClaim::read(headers)?.verify(&key, subject, body)
    }

    #[test]
    fn signed_request_is_verified_and_has_a_stable_id() {
        let signer = Signer::generate();
        let headers = signed(&signer);
        let id = check(&headers, &signer, SUBJECT, BODY).unwrap();
        assert_eq!(check(&headers, &signer, SUBJECT, BODY), Ok(id));
        let other = check(&signed(&signer), &signer, SUBJECT, BODY).unwrap();
        assert_ne!(id, other, "each request has an id and a time of its own");
    }

    #[test]
    fn every_altered_part_breaks_the_signature() {
        let signer = Signer::generate();
        let good = signed(&signer);
        for (name, value) in [
            (REQUEST_ID, "other"),
            (TIMESTAMP, "2026-01-01T00:00:00Z"),
            (CALLER, "eve"),
            (NOOP, "true"),
            (FILTER, "{}"),
            (DEADLINE, "2099-01-01T00:00:00Z"),
        ] {
            let altered = good.clone().with(name, value).unwrap();
            let found = check(&altered, &signer, SUBJECT, BODY);
            assert_eq!(found, Err(SignatureError::Signature), "{name}");
        }
        let elsewhere = SUBJECT.replace("web1", "web2");
        assert_eq!(
            check(&good, &signer, &elsewhere, BODY),
            Err(SignatureError::Signature)
        );
        assert_eq!(
            check(&good, &signer, SUBJECT, b"[]"),
            Err(SignatureError::Signature)
        );
        let other_signer = Signer::generate();
        assert_eq!(
            check(&good, &other_signer, SUBJECT, BODY),
            Err(SignatureError::Signature)
        );
    }

    #[test]
    fn invalid_signature_headers_have_specific_errors() {
        let good = signed(&Signer::generate());
        let read = |headers: &Headers| SignatureClaim::read(headers).map(|_| ()).unwrap_err();
        assert_eq!(read(&Headers::new()), SignatureError::Unsigned);
        for name in [REQUEST_ID, SIGNER, SIGNATURE] {
            assert_eq!(
                read(&good.clone().with(name, "").unwrap()),
                SignatureError::Missing(name)
            );
        }
        let long = "x".repeat(MAX_HEADER + 1);
        for (name, value, expected) in [
            (TIMESTAMP, "soon", SignatureError::Invalid(TIMESTAMP)),
            (CALLER, long.as_str(), SignatureError::TooLong(CALLER)),
        ] {
            assert_eq!(read(&good.clone().with(name, value).unwrap()), expected);
        }
    }

    #[test]
    fn boundaries_between_parts_are_signed() {
        assert_ne!(
            join_with_lengths(&[b"ab", b"c"]),
            join_with_lengths(&[b"a", b"bc"])
        );
        assert_ne!(
            join_with_lengths(&[b"", b"a"]),
            join_with_lengths(&[b"a", b""])
        );
    }

    #[test]
    fn seed_restores_the_signer_and_is_not_shown_in_debug() {
        let signer = Signer::generate();
        let seed = signer.seed().unwrap();
        let again = Signer::from_seed(&format!("{}\n", seed.reveal())).unwrap();
        assert_eq!(again.public_key(), signer.public_key());
        assert!(!format!("{signer:?}").contains(seed.reveal()));
        for bad in ["", "x", &signer.public_key()] {
            assert!(Signer::from_seed(bad).is_err(), "{bad}");
        }
        assert!(PublicKey::parse(seed.reveal()).is_err());
    }

    #[test]
    fn malformed_signatures_are_invalid() {
        let signer = Signer::generate();
        let key = PublicKey::parse(&signer.public_key()).unwrap();
        assert!(key.is_signature_valid(b"x", &signer.sign_bytes(b"x").unwrap()));
        for bad in ["", "!", "AAAA", &"A".repeat(86), &"A".repeat(10_000)] {
            assert!(!key.is_signature_valid(b"x", bad), "{bad}");
        }
    }
}
