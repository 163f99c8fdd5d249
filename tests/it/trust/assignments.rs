//! Assignments in the bucket: only those of a trusted signer are followed.

use ccm_core::model::node::{ASSIGNMENT, Assignment, NodeName, NodeReport};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::request_signature::Signer;
use ccm_nats::{Headers, Verb};
use ccm_value::Value;

use super::{NODE, request_signed, setup};
use crate::support::agent::subjects;
use crate::support::poll::eventually;

#[tokio::test]
async fn only_a_signed_assignment_that_is_not_older_is_followed() {
    let (signer, thief) = (Signer::generate(), Signer::generate());
    let node: NodeName = NODE.parse().unwrap();
    let setup = setup(&[(&signer, "ops", None)]).await;
    let key = subjects().key(&node.token());
    let desired = setup.client.bucket("CCM_DESIRED").await.unwrap();
    let reported = setup.client.bucket("CCM_REPORTED").await.unwrap();
    let assign = async |generation, by: Option<&Signer>| {
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
        if let Some(signer) = by {
            signer.sign_assignment(&mut assignment, &node).unwrap();
        }
        let text = serde_json::to_vec(&assignment).unwrap();
        desired.put(&key, text.into()).await.unwrap();
        request_signed(&setup.client, &signer, Verb::Nudge, Headers::new(), "").await;
    };
    // Each refused one is followed by a good one, so that its turn is known to be over.
    for (generation, refused, by) in [
        (10, 90, None),
        (11, 91, Some(&thief)),
        (12, 3, Some(&signer)),
    ] {
        assign(refused, by).await;
        assign(generation, Some(&signer)).await;
        eventually("the signed assignment is reported", async || {
            let entry = reported.get(&key).await.unwrap()?;
            let report: NodeReport = serde_json::from_slice(&entry.value).unwrap();
            assert_ne!(report.generation, refused);
            (report.generation == generation).then_some(())
        })
        .await;
    }
    setup.agent.stop().await;
}
