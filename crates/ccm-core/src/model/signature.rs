//! The signature of a source, a bundle or data: a small document beside it, by which a node that
//! knows signers tells whose it is. How it is made and checked is `nats::trust`; whom a node believes is `agent::trust`.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::text::{timestamp, url_scheme};

/// What such a document calls itself.
pub const BUNDLE_SIGNATURE: &str = "io.choria.ccm.v1.bundle.signature";

/// What the place of a signature adds to that of its bundle.
pub const SIGNATURE_SUFFIX: &str = ".sig";

/// Who stands for the bundle, or the data, of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleSignature {
    pub protocol: String,
    /// Where it is meant to be found, as an agent's file names it, without credentials. That tells
    /// a bundle from data, too: no agent looks for both in one place.
    pub source: String,
    /// The SHA-256 of the bundle or the document.
    pub digest: String,
    /// When it was signed: a node takes none that is older than one it has accepted.
    #[serde(with = "timestamp")]
    pub signed: DateTime<Utc>,
    /// A public key in the form NATS people know.
    pub signer: String,
    /// Over [`BundleSignature::signable`], in base64 for URLs, without padding.
    pub signature: String,
}

impl BundleSignature {
    /// Returns what the signature is made over: everything else that counts. A list has one form,
    /// so nothing else reads the same.
    pub fn signable(&self) -> Result<Vec<u8>, serde_json::Error> {
        let version = "ccm.bundle.v1";
        let signed = self.signed.timestamp_micros();
        serde_json::to_vec(&(version, &self.source, &self.digest, signed))
    }
}

/// Returns where the signature of what is at this place is. What follows the `?` of a URL stays
/// behind it; names of objects and keys have no such part.
pub fn signature_location(place: &str) -> String {
    let is_url = url_scheme(place).is_some_and(|(scheme, rest)| {
        let is_http = ["http", "https"].map(|known| scheme.eq_ignore_ascii_case(known));
        is_http.contains(&true) && rest.starts_with("//")
    });
    match place.find(['?', '#']).filter(|_| is_url) {
        Some(at) => {
            let (path, rest) = place.split_at(at);
            format!("{path}{SIGNATURE_SUFFIX}{rest}")
        }
        None => format!("{place}{SIGNATURE_SUFFIX}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_beside_its_bundle() {
        for (place, found) in [
            ("site.tgz", "site.tgz.sig"),
            ("odd?name", "odd?name.sig"),
            ("obj://SITE/odd?name", "obj://SITE/odd?name.sig"),
            ("kv://DATA/site", "kv://DATA/site.sig"),
            ("https://h/site.tgz", "https://h/site.tgz.sig"),
            ("https://h/site.tgz?v=1#x", "https://h/site.tgz.sig?v=1#x"),
        ] {
            assert_eq!(signature_location(place), found);
        }
    }

    #[test]
    fn everything_that_counts_is_signed() {
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
