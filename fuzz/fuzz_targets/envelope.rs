//! Headers and bodies of requests. Properties: a filter round-trips, an unsigned request fails
//! verification, and a signed one passes it.

#![no_main]

use std::sync::LazyLock;

use ccm_core::filter::{NodeAttributes, matches};
use ccm_core::model::envelope::Envelope;
use ccm_core::model::label::Labels;
use ccm_core::model::node::NodeName;
use ccm_fuzz::split_at_zero;
use ccm_nats::Headers;
use ccm_nats::request_signature::{PublicKey, SignatureClaim, Signer};
use ccm_template::env::Facts;
use ccm_value::Value;
use libfuzzer_sys::fuzz_target;

const SUBJECT: &str = "ccm.v1.default.all.ensure";

static SIGNER: LazyLock<Signer> = LazyLock::new(Signer::generate);

fuzz_target!(|bytes: &[u8]| {
    let (head, body) = split_at_zero(bytes);
    let Ok(head) = std::str::from_utf8(head) else {
        return;
    };
    let mut headers = Headers::new();
    for (name, value) in head.lines().filter_map(|line| line.split_once(':')) {
        let _ = headers.set(name, value.trim());
    }
    if let Ok(envelope) = Envelope::from_headers(|name| headers.get(name)) {
        let json = serde_json::to_string(&envelope.filter).expect("serialize a filter");
        assert_eq!(
            serde_json::from_str(&json).ok(),
            Some(envelope.filter.clone())
        );
        let facts = Facts::Known([("a", Value::from(2_i64))].into_iter().collect());
        let identity: NodeName = "node.example.net".parse().expect("parse a node name");
        let node = NodeAttributes {
            identity: &identity,
            groups: &[],
            facts: &facts,
            labels: Labels::none(),
        };
        let _ = matches(&envelope.filter, &node);
    }
    let key = PublicKey::parse(&SIGNER.public_key()).expect("parse a public key");
    if let Ok(claim) = SignatureClaim::read(&headers) {
        assert!(claim.verify(&key, SUBJECT, body).is_err());
    }
    // Signing is slow, so only some inputs are signed.
    if !bytes.len().is_multiple_of(16) {
        return;
    }
    let subject = SUBJECT.parse().expect("parse a subject");
    if SIGNER.sign(&subject, &mut headers, body).is_ok()
        && let Ok(claim) = SignatureClaim::read(&headers)
    {
        assert!(claim.verify(&key, SUBJECT, body).is_ok());
    }
});
