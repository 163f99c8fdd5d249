//! Any bytes as each of the messages that nodes, controllers and files of state hold: what can be
//! read is the same after it was written and read again.

#![no_main]

use std::sync::LazyLock;

use ccm_core::model::audit::AuditEvent;
use ccm_core::model::decision::AssignmentSignature;
use ccm_core::model::envelope::Filter;
use ccm_core::model::event::{SessionStart, Summary, TransactionEvent};
use ccm_core::model::health::{HealthCheck, HealthResult};
use ccm_core::model::label::Labels;
use ccm_core::model::node::{Assignment, NodeName, NodeReport, NodeStatus, Pause};
use ccm_core::model::registration::Entry;
use ccm_core::model::rollout::{Plan, Progress, Settings};
use ccm_core::model::run::{ApplyRequest, ApplyResponse, RunSummary};
use ccm_fuzz::survives;
use ccm_nats::request_signature::{PublicKey, Signer};
use ccm_value::json;
use libfuzzer_sys::fuzz_target;

static SIGNER: LazyLock<Signer> = LazyLock::new(Signer::generate);

fuzz_target!(|bytes: &[u8]| {
    survives::<TransactionEvent>(bytes);
    survives::<SessionStart>(bytes);
    survives::<Summary>(bytes);
    survives::<RunSummary>(bytes);
    survives::<ApplyRequest>(bytes);
    survives::<ApplyResponse>(bytes);
    survives::<NodeStatus>(bytes);
    survives::<Assignment>(bytes);
    survives::<NodeReport>(bytes);
    survives::<Pause>(bytes);
    survives::<AuditEvent>(bytes);
    survives::<Entry>(bytes);
    survives::<HealthCheck>(bytes);
    survives::<HealthResult>(bytes);
    survives::<Filter>(bytes);
    survives::<Labels>(bytes);
    survives::<Settings>(bytes);
    survives::<Plan>(bytes);
    survives::<Progress>(bytes);
    stays_signed(bytes);
});

/// Checks that an assignment is still its signer's after it went over the bus.
fn stays_signed(bytes: &[u8]) {
    let Ok(mut assignment) = serde_json::from_slice::<Assignment>(bytes) else {
        return;
    };
    let node: NodeName = "node.example.net".parse().expect("a name");
    let key = PublicKey::parse(&SIGNER.public_key()).expect("a key");
    SIGNER
        .sign_assignment(&mut assignment, &node)
        .expect("an assignment can be signed");
    let sent = json::compact(&assignment).expect("an assignment can be sent");
    let heard: Assignment = serde_json::from_str(&sent).expect("it can be read");
    let signed = heard.signable(&node).expect("it can be checked");
    let Some(AssignmentSignature::Direct(signature)) = heard.signature else {
        panic!("it is signed directly: {sent}");
    };
    assert!(
        key.is_signature_valid(&signed, &signature.signature),
        "{sent}"
    );
}
