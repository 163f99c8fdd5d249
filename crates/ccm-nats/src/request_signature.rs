//! Signatures on requests: who asks, for what, where and when, so that it can't be changed,
//! repeated elsewhere or made up on the way.
//!
//! A signature covers the subject, the headers of the envelope and the body. What it covers is laid
//! out as a version and then each part with its length before it, so no two requests look alike.
//! Headers count as the text they are: nothing is read before it is known to be genuine. Whom a
//! node believes, and for how long, is not known here; that is `agent::trust`.

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

/// What every signed request begins with; another layout gets another version.
const VERSION: &str = "ccm.request.v1";

/// The headers that a signature covers, in order. A header that is not there counts as empty, as
/// it does for whoever reads the envelope.
const COVERED: [&str; 7] = [REQUEST_ID, TIMESTAMP, CALLER, NOOP, FILTER, DEADLINE, DIFF];

/// The longest header that is covered; longer ones are refused before anything is computed.
const MAX_HEADER: usize = 16 * 1024;

/// Why a text is no key, or a key signs nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("this is no nkey seed: a seed begins with S")]
    Seed,
    #[error("this is no public nkey, such as one that begins with U")]
    Public,
    #[error("this can't be written down, so it can't be signed")]
    Unwritable,
}

/// Why a request is not what its signer signed. No text holds anything that the sender chose.
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
    #[error("header {0} can't be read")]
    Unreadable(&'static str),
    #[error("signature does not fit the request")]
    Signature,
}

/// One who signs.
#[derive(Clone)]
pub struct Signer(KeyPair);

impl Signer {
    /// Returns a signer that nobody had before.
    pub fn generate() -> Self {
        Self(KeyPair::new(KeyPairType::User))
    }

    /// Returns the signer whose seed this is.
    pub fn from_seed(seed: &str) -> Result<Self, KeyError> {
        let pair = KeyPair::from_seed(seed.trim()).map_err(|_| KeyError::Seed)?;
        Ok(Self(pair))
    }

    /// Returns the key by which others know this signer.
    pub fn public_key(&self) -> String {
        self.0.public_key()
    }

    /// Returns what the signer must keep to itself.
    pub fn seed(&self) -> Result<Secret, KeyError> {
        self.0.seed().map(Secret::new).map_err(|_| KeyError::Seed)
    }

    /// Signs a request that goes out now: sets who signs, when, the signature, and a request id
    /// where there is none. Headers of the envelope must not be changed afterwards.
    pub fn sign(
        &self,
        subject: &Subject,
        headers: &mut Headers,
        body: &[u8],
    ) -> Result<(), NatsError> {
        self.sign_at(SystemClock.now(), subject, headers, body)
    }

    /// Signs a request as of another time.
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
        let signature = self.sign_bytes(&covered(subject.as_str(), headers, body));
        headers.set(SIGNATURE, &signature.map_err(|_| header(SIGNATURE))?)
    }

    /// Signs an assignment for one node, in place of who signed it before.
    pub fn sign_assignment(
        &self,
        assignment: &mut Assignment,
        node: &NodeName,
    ) -> Result<(), KeyError> {
        let bytes = assignment
            .signable(node)
            .map_err(|_| KeyError::Unwritable)?;
        let signature = DirectSignature {
            signer: self.public_key(),
            signature: self.sign_bytes(&bytes)?,
        };
        assignment.signature = Some(AssignmentSignature::Direct(signature));
        Ok(())
    }

    /// Signs a bundle, or a document of data, for the place where it will be found.
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
        let bytes = signature.signable().map_err(|_| KeyError::Unwritable)?;
        signature.signature = self.sign_bytes(&bytes)?;
        Ok(signature)
    }

    /// Returns a signature over bytes, as text.
    pub fn sign_bytes(&self, bytes: &[u8]) -> Result<String, KeyError> {
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

/// A key that signatures can be checked with.
#[derive(Clone)]
pub struct PublicKey(KeyPair);

impl PublicKey {
    /// Returns the key that a text stands for.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let pair = KeyPair::from_public_key(text).map_err(|_| KeyError::Public)?;
        Ok(Self(pair))
    }

    /// Whether the holder of this key signed the bytes.
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

/// What a request says about its signature, before anybody believes it.
#[derive(Clone, Copy, Debug)]
pub struct SignatureClaim<'h> {
    /// The public key of whoever is said to have signed.
    pub signer: &'h str,
    /// When that is said to have happened.
    pub time: DateTime<Utc>,
    signature: &'h str,
    headers: &'h Headers,
}

impl<'h> SignatureClaim<'h> {
    /// Reads the claim that headers make.
    pub fn read(headers: &'h Headers) -> Result<Self, SignatureError> {
        if [SIGNER, SIGNATURE].map(|name| headers.count(name)) == [0, 0] {
            return Err(SignatureError::Unsigned);
        }
        for name in COVERED.into_iter().chain([SIGNER, SIGNATURE]) {
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
        let given = |name| match headers.get(name) {
            None | Some("") => Err(SignatureError::Missing(name)),
            Some(text) => Ok(text),
        };
        given(REQUEST_ID)?;
        let time = parse_time(given(TIMESTAMP)?).map_err(|_| SignatureError::Unreadable(TIMESTAMP))?;
        Ok(Self {
            signer: given(SIGNER)?,
            time: time.to_utc(),
            signature: given(SIGNATURE)?,
            headers,
        })
    }

    /// Checks that the holder of a key signed this very request, and returns what it is known by:
    /// the same only for a request that was sent before.
    pub fn verify(&self, key: &PublicKey, subject: &str, body: &[u8]) -> Result<Digest, SignatureError> {
        let bytes = covered(subject, self.headers, body);
        if key.is_signature_valid(&bytes, self.signature) {
            Ok(Digest::of(&lay_out(&[self.signer.as_bytes(), &bytes])))
        } else {
            Err(SignatureError::Signature)
        }
    }
}

/// Returns what a signature of a request is made over.
fn covered(subject: &str, headers: &Headers, body: &[u8]) -> Vec<u8> {
    let digest = Digest::of(body);
    let mut parts = vec![VERSION.as_bytes(), subject.as_bytes()];
    parts.extend(COVERED.map(|name| headers.get(name).unwrap_or_default().as_bytes()));
    parts.push(digest.as_bytes());
    lay_out(&parts)
}

/// Returns the parts one after the other, each behind its length, so that nothing can be moved
/// from one to the next.
fn lay_out(parts: &[&[u8]]) -> Vec<u8> {
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
    fn what_was_signed_is_believed_and_known_again() {
        let signer = Signer::generate();
        let headers = signed(&signer);
        let known = check(&headers, &signer, SUBJECT, BODY).unwrap();
        assert_eq!(check(&headers, &signer, SUBJECT, BODY), Ok(known));
        let other = check(&signed(&signer), &signer, SUBJECT, BODY).unwrap();
        assert_ne!(known, other, "each request has an id and a time of its own");
    }

    #[test]
    fn every_part_that_is_altered_breaks_the_signature() {
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
        let stranger = Signer::generate();
        assert_eq!(
            check(&good, &stranger, SUBJECT, BODY),
            Err(SignatureError::Signature)
        );
    }

    #[test]
    fn what_can_not_be_a_claim_is_told_apart() {
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
            (TIMESTAMP, "soon", SignatureError::Unreadable(TIMESTAMP)),
            (CALLER, long.as_str(), SignatureError::TooLong(CALLER)),
        ] {
            assert_eq!(read(&good.clone().with(name, value).unwrap()), expected);
        }
    }

    #[test]
    fn nothing_can_be_moved_from_one_part_to_the_next() {
        assert_ne!(lay_out(&[b"ab", b"c"]), lay_out(&[b"a", b"bc"]));
        assert_ne!(lay_out(&[b"", b"a"]), lay_out(&[b"a", b""]));
    }

    #[test]
    fn a_seed_makes_the_same_signer_and_is_never_shown() {
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
    fn a_signature_that_is_no_text_of_ours_is_none() {
        let signer = Signer::generate();
        let key = PublicKey::parse(&signer.public_key()).unwrap();
        assert!(key.is_signature_valid(b"x", &signer.sign_bytes(b"x").unwrap()));
        for bad in ["", "!", "AAAA", &"A".repeat(86), &"A".repeat(10_000)] {
            assert!(!key.is_signature_valid(b"x", bad), "{bad}");
        }
    }
}
