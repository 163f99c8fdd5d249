//! A signer with a policy can't lock out one without: neither by generations nor by requests.

use ccm_core::model::node::{ASSIGNMENT, Assignment, NodeName, NodeReport};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::request_signature::Signer;
use ccm_nats::{Headers, Verb};
use ccm_value::Value;
use serde_json::json;

use super::{NODE, answer_to, request_signed, setup};
use crate::support::agent::subjects;
use crate::support::poll::eventually;

#[tokio::test]
async fn no_generation_of_a_weak_signer_keeps_operations_from_assigning() {
    let (ops, weak) = (Signer::generate(), Signer::generate());
    let node: NodeName = NODE.parse().unwrap();
    let policy = "{verbs: [apply, nudge]}";
    let signers = [(&ops, "ops", None), (&weak, "weak", Some(policy))];
    let setup = setup(&signers).await;
    let key = subjects().key(&node.token());
    let desired = setup.client.bucket("CCM_DESIRED").await.unwrap();
    let reported = setup.client.bucket("CCM_REPORTED").await.unwrap();
    let assign = async |generation, by: &Signer| {
        let mut assignment = Assignment {
            protocol: ASSIGNMENT.into(),
            generation,
            incarnation: None,
            manifests: Vec::new(),
            data: Value::Null,
            noop: false,
            governor: None,
            rollout: None,
            assigned: SystemClock.now(),
            signature: None,
        };
        by.sign_assignment(&mut assignment, &node).unwrap();
        let text = serde_json::to_vec(&assignment).unwrap();
        desired.put(&key, text.into()).await.unwrap();
        request_signed(&setup.client, &ops, Verb::Nudge, Headers::new(), "").await;
    };
    let follows = async |generation| {
        eventually(
            &format!("generation {generation} is reported"),
            async || {
                let entry = reported.get(&key).await.unwrap()?;
                let report: NodeReport = serde_json::from_slice(&entry.value).unwrap();
                assert_ne!(report.generation, u64::MAX);
                (report.generation == generation).then_some(())
            },
        )
        .await;
    };
    assign(5, &ops).await;
    follows(5).await;
    // What a weak signer may: the next one.
    assign(6, &weak).await;
    follows(6).await;
    assign(u64::MAX, &weak).await;
    assign(7, &ops).await;
    follows(7).await;
    // As far as a weak signer may jump; operations need not count beyond it.
    assign(500_000, &weak).await;
    follows(500_000).await;
    assign(8, &ops).await;
    follows(8).await;
    // Neither the weak signer's nor an older one of operations is accepted again.
    assign(500_000, &weak).await;
    assign(7, &ops).await;
    assign(9, &ops).await;
    follows(9).await;
    setup.agent.stop().await;
}

#[tokio::test]
async fn a_request_that_the_policy_denies_takes_no_place_among_those_remembered() {
    let (ops, weak) = (Signer::generate(), Signer::generate());
    let signers = [
        (&ops, "ops", None),
        (&weak, "weak", Some("{verbs: [status], names: [nothing]}")),
    ];
    let setup = setup(&signers).await;
    answer_to(&setup.client, &ops, Verb::Ping, Headers::new(), &json!("")).await;
    let size = || {
        std::fs::metadata(setup.env.root().join("state/seen"))
            .unwrap()
            .len()
    };
    let before = size();
    for _ in 0..20 {
        let (code, answer) =
            answer_to(&setup.client, &weak, Verb::Ping, Headers::new(), &json!("")).await;
        assert_eq!(code, 403, "{answer}");
        assert!(answer.to_string().contains("denied by policy"), "{answer}");
    }
    assert_eq!(size(), before);
    let (code, _) = answer_to(&setup.client, &ops, Verb::Ping, Headers::new(), &json!("")).await;
    assert_eq!(code, 200);
    assert!(size() > before);
    setup.agent.stop().await;
}
