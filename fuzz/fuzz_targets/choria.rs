//! Messages, tokens and keys of Choria's protocol, and action policies. Properties: what is decoded
//! survives encoding, nothing that is not signed is authentic, and no line after one that denies
//! everything allows something.

#![no_main]

use ccm_agent::action_policy_allows;
use ccm_fuzz::split_at_zero;
use ccm_nats::choria::message::{Reply, SecureReply, SecureRequest};
use ccm_nats::choria::{
    ChoriaKey, ClientClaims, Request, ServerClaims, TransportMessage, TrustChain,
};
use libfuzzer_sys::fuzz_target;

/// A public key whose seed is not in any input.
const ISSUER: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

fuzz_target!(|bytes: &[u8]| {
    let now = chrono::DateTime::from_timestamp(1_800_000_000, 0).expect("a time");
    let issuer: ChoriaKey = ISSUER.parse().expect("parse a key");
    let chain = TrustChain::new([("choria".to_owned(), issuer)]);
    if let Ok(transport) = TransportMessage::decode(bytes) {
        let encoded = transport.encode().expect("encode a transport message");
        assert_eq!(
            TransportMessage::decode(&encoded).ok().as_ref(),
            Some(&transport)
        );
        assert!(chain.authenticate(&transport, now).is_err());
        let _ = SecureReply::decode(transport.data());
    }
    // The inner documents directly, without the base64 of the outer ones.
    let (first, second) = split_at_zero(bytes);
    let inner = TransportMessage::new(first.to_vec(), "fuzz");
    assert!(chain.authenticate(&inner, now).is_err());
    let _ = SecureRequest::decode(first);
    let _ = SecureReply::decode(first);
    let _ = Reply::decode(first);
    if let Ok(request) = Request::decode(first) {
        let encoded = request.encode().expect("encode a request");
        assert_eq!(Request::decode(&encoded).ok().as_ref(), Some(&request));
        let _ = (request.filter(), request.time());
    }
    if let Ok(text) = std::str::from_utf8(second) {
        assert!(ClientClaims::verify(text, &issuer, now).is_err());
        assert!(ServerClaims::verify(text, &issuer, now).is_err());
        let _ = text.parse::<ChoriaKey>();
    }
    if let Ok(policy) = std::str::from_utf8(first) {
        let _ = action_policy_allows(policy);
        let denying = format!("deny\t*\t*\t*\t*\n{policy}");
        assert_ne!(action_policy_allows(&denying), Ok(true), "{denying}");
    }
});
