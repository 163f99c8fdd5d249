//! Messages and stored records. Properties: what is deserialized round-trips, and the signature of an
//! assignment stays valid on the wire.

#![no_main]

use std::sync::LazyLock;

use ccm_core::model::audit::AuditEvent;
use ccm_core::model::decision::AssignmentSignature;
use ccm_core::model::enrolment::{
    EnrolledNode, EnrolmentReply, EnrolmentRequest, EnrolmentToken, PendingNode,
};
use ccm_core::model::envelope::Filter;
use ccm_core::model::event::{SessionStart, Summary, TransactionEvent};
use ccm_core::model::health::{HealthCheck, HealthResult};
use ccm_core::model::label::Labels;
use ccm_core::model::node::{Assignment, NodeName, NodeReport, NodeStatus, Pause};
use ccm_core::model::registration::Entry;
use ccm_core::model::rollout::{Plan, Progress, Settings};
use ccm_core::model::run::{ApplyRequest, ApplyResponse, RunSummary};
use ccm_fuzz::json_round_trip;
use ccm_nats::enrolment_token::TokenContent;
use ccm_nats::jwt::{Account, User, verify};
use ccm_nats::request_signature::{PublicKey, Signer};
use ccm_value::json;
use ccm_value::secret::Secret;
use libfuzzer_sys::fuzz_target;

static SIGNER: LazyLock<Signer> = LazyLock::new(Signer::generate);

fuzz_target!(|bytes: &[u8]| {
    json_round_trip::<TransactionEvent>(bytes);
    json_round_trip::<SessionStart>(bytes);
    json_round_trip::<Summary>(bytes);
    json_round_trip::<RunSummary>(bytes);
    json_round_trip::<ApplyRequest>(bytes);
    json_round_trip::<ApplyResponse>(bytes);
    json_round_trip::<NodeStatus>(bytes);
    json_round_trip::<Assignment>(bytes);
    json_round_trip::<NodeReport>(bytes);
    json_round_trip::<Pause>(bytes);
    json_round_trip::<AuditEvent>(bytes);
    json_round_trip::<Entry>(bytes);
    json_round_trip::<HealthCheck>(bytes);
    json_round_trip::<HealthResult>(bytes);
    json_round_trip::<Filter>(bytes);
    json_round_trip::<Labels>(bytes);
    json_round_trip::<Settings>(bytes);
    json_round_trip::<Plan>(bytes);
    json_round_trip::<Progress>(bytes);
    json_round_trip::<EnrolmentRequest>(bytes);
    json_round_trip::<EnrolmentReply>(bytes);
    json_round_trip::<EnrolmentToken>(bytes);
    json_round_trip::<EnrolledNode>(bytes);
    json_round_trip::<PendingNode>(bytes);
    jwt_is_rejected_or_verified(bytes);
    signature_round_trip(bytes);
});

/// Decodes JWTs and enrolment tokens.
fn jwt_is_rejected_or_verified(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let _ = verify::<User>(text);
    let _ = verify::<Account>(text);
    if let Ok(content) = TokenContent::parse(&Secret::new(text)) {
        let encoded = content.encode().expect("encode a parsed token");
        let again = TokenContent::parse(&encoded).expect("parse an encoded token");
        assert_eq!(again, content);
    }
}

/// Checks that the signature of an assignment is valid after serialization and deserialization.
fn signature_round_trip(bytes: &[u8]) {
    let Ok(mut assignment) = serde_json::from_slice::<Assignment>(bytes) else {
        return;
    };
    let node: NodeName = "node.example.net".parse().expect("parse a node name");
    let key = PublicKey::parse(&SIGNER.public_key()).expect("parse a public key");
    SIGNER
        .sign_assignment(&mut assignment, &node)
        .expect("sign an assignment");
    let sent = json::compact(&assignment).expect("serialize an assignment");
    let received: Assignment = serde_json::from_str(&sent).expect("deserialize an assignment");
    let signed = received
        .signable(&node)
        .expect("serialize the signed bytes");
    let Some(AssignmentSignature::Direct(signature)) = received.signature else {
        panic!("not a direct signature: {sent}");
    };
    assert!(
        key.is_signature_valid(&signed, &signature.signature),
        "{sent}"
    );
}
