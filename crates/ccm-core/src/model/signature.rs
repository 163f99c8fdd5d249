//! Detached signatures of manifest bundles and data: a document stored next to the signed file.
//!
//! Signing and verification are in `ccm_nats::request_signature`; which signers a node trusts is
//! decided in `ccm_agent::trust`.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::text::{timestamp, url_scheme};

/// Protocol of a signature document.
pub const BUNDLE_SIGNATURE: &str = "io.choria.ccm.v1.bundle.signature";

/// Suffix of the signature's location.
const SIGNATURE_SUFFIX: &str = ".sig";

/// Signature of the bundle or the data of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleSignature {
    pub protocol: String,
    /// Location of the signed file as in the agent's configuration, without credentials. It also
    /// tells bundles from data: no agent reads both from the same location.
    pub source: String,
    /// SHA-256 digest of the bundle or the data document.
    pub digest: String,
    /// Time of signing. A node rejects a signature older than one it has accepted.
    #[serde(with = "timestamp")]
    pub signed: DateTime<Utc>,
    /// Public NKey of the signer.
    pub signer: String,
    /// Signature of [`BundleSignature::signable`], in unpadded URL-safe base64.
    pub signature: String,
}

impl BundleSignature {
    /// Returns the signed bytes: source, digest and time, in a canonical serialization.
    pub fn signable(&self) -> Result<Vec<u8>, serde_json::Error> {
        let version = "ccm.bundle.v1";
        let signed = self.signed.timestamp_micros();
        serde_json::to_vec(&(version, &self.source, &self.digest, signed))
    }
}

/// Returns the location of the signature of a file. In a URL the suffix is inserted before the query
/// and fragment; names of objects and keys have neither.
pub fn signature_location(location: &str) -> String {
    let is_url = url_scheme(location).is_some_and(|(scheme, rest)| {
        let is_http = ["http", "https"].map(|known| scheme.eq_ignore_ascii_case(known));
        is_http.contains(&true) && rest.starts_with("//")
    });
    match location.find(['?', '#']).filter(|_| is_url) {
        Some(at) => {
            let (path, rest) = location.split_at(at);
            format!("{path}{SIGNATURE_SUFFIX}{rest}")
        }
        None => format!("{location}{SIGNATURE_SUFFIX}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_stored_next_to_its_bundle() {
        for (location, found) in [
            ("site.tgz", "site.tgz.sig"),
            ("odd?name", "odd?name.sig"),
            ("obj://SITE/odd?name", "obj://SITE/odd?name.sig"),
            ("kv://DATA/site", "kv://DATA/site.sig"),
            ("https://h/site.tgz", "https://h/site.tgz.sig"),
            ("https://h/site.tgz?v=1#x", "https://h/site.tgz.sig?v=1#x"),
        ] {
            assert_eq!(signature_location(location), found);
        }
    }

    #[test]
    fn source_digest_and_time_are_signed() {
        let signature = BundleSignature {
            protocol: BUNDLE_SIGNATURE.into(),
            source: "obj://SITE/a".into(),
            digest: "00".repeat(32),
            signed: DateTime::UNIX_EPOCH,
            signer: "U".into(),
            signature: String::new(),
        };
        let changes: [fn(&mut BundleSignature); 3] = [
            |it| it.source = "obj://SITE/b".into(),
            |it| it.digest = "01".repeat(32),
            |it| it.signed += chrono::TimeDelta::microseconds(1),
        ];
        for change in changes {
            let mut changed = signature.clone();
            change(&mut changed);
            assert_ne!(changed.signable().unwrap(), signature.signable().unwrap());
        }
        let stored = serde_json::to_string(&signature).unwrap();
        let read: BundleSignature = serde_json::from_str(&stored).unwrap();
        assert_eq!(read.signable().unwrap(), signature.signable().unwrap());
    }
}
