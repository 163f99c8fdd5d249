//! Every way to forge a request, against a real agent on a real server.

use ccm_core::model::envelope::{
    CALLER, DEADLINE, FILTER, NOOP, REQUEST_ID, SIGNATURE, SIGNER, TIMESTAMP,
};
use ccm_core::model::node::NodeName;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::request_signature::Signer;
use ccm_nats::{Headers, Subject, Verb};
use chrono::TimeDelta;
use serde_json::Value;
use tokio::time::Duration;

use super::{NODE, request_signed, setup, trusting};
use crate::support::agent::{self, file_request, start, subjects};
use crate::support::poll::eventually;

fn subject(verb: Verb) -> Subject {
    let node: NodeName = NODE.parse().unwrap();
    subjects().node(&node.token(), verb)
}

fn signed_for(signer: &Signer, subject: &Subject, body: &str, seconds: i64) -> Headers {
    let mut headers = Headers::new().with(CALLER, "ann").unwrap();
    let time = SystemClock.now() + TimeDelta::seconds(seconds);
    signer
        .sign_at(time, subject, &mut headers, body.as_bytes())
        .unwrap();
    headers
}

#[tokio::test]
async fn no_forged_request_is_obeyed_and_each_is_answered_counted_and_audited() {
    let (signer, stranger) = (Signer::generate(), Signer::generate());
    let setup = setup(&[(&signer, "ops", None)]).await;
    let file = setup.env.root().join("motd");
    let body = file_request(&file, "hi\n");
    let ensure = subject(Verb::Ensure);
    let good = || signed_for(&signer, &ensure, &body, 0);
    let with = |name: &str, value: &str| good().with(name, value).unwrap();
    let elsewhere = |text: &str| signed_for(&signer, &text.parse().unwrap(), &body, 0);
    let unfit = "denied: signature does not match the request";
    let unknown = "denied: signer is not trusted here";
    let table: Vec<(&str, Headers, &str)> = vec![
        ("unsigned", Headers::new(), "denied: request is not signed"),
        (
            "unknown signer",
            signed_for(&stranger, &ensure, &body, 0),
            unknown,
        ),
        (
            "another's name",
            with(SIGNER, &stranger.public_key()),
            unknown,
        ),
        (
            "a stranger under a good name",
            signed_for(&stranger, &ensure, &body, 0)
                .with(SIGNER, &signer.public_key())
                .unwrap(),
            unfit,
        ),
        (
            "expired",
            signed_for(&signer, &ensure, &body, -120),
            "denied: signature is too old",
        ),
        (
            "future",
            signed_for(&signer, &ensure, &body, 120),
            "denied: signature is from the future",
        ),
        ("another body", signed_for(&signer, &ensure, "{}", 0), unfit),
        (
            "another verb",
            signed_for(&signer, &subject(Verb::Apply), &body, 0),
            unfit,
        ),
        (
            "another node",
            elsewhere("ccm.v1.default.node.web2.ensure"),
            unfit,
        ),
        (
            "another collective",
            elsewhere("ccm.v1.prod.node.web1_example_net.ensure"),
            unfit,
        ),
        ("everyone", elsewhere("ccm.v1.default.all.ensure"), unfit),
        ("altered id", with(REQUEST_ID, "other"), unfit),
        ("altered caller", with(CALLER, "root"), unfit),
        ("altered noop", with(NOOP, "true"), unfit),
        ("altered filter", with(FILTER, "{}"), unfit),
        (
            "altered deadline",
            with(DEADLINE, "2099-01-01T00:00:00Z"),
            unfit,
        ),
        (
            "altered time",
            with(TIMESTAMP, &SystemClock.now().to_rfc3339()),
            unfit,
        ),
        (
            "no time",
            with(TIMESTAMP, ""),
            "denied: header Ccm-Timestamp is missing",
        ),
        (
            "no signature",
            with(SIGNATURE, ""),
            "denied: header Ccm-Signature is missing",
        ),
        ("no signature at all", with(SIGNATURE, "AAAA"), unfit),
        (
            "no id",
            with(REQUEST_ID, ""),
            "denied: header Ccm-Request-Id is missing",
        ),
    ];
    let limit = Duration::from_secs(20);
    let count = table.len();
    for (what, headers, reason) in table {
        let sent = setup
            .client
            .request(&ensure, headers, body.clone().into(), limit);
        let reply = sent.await.unwrap();
        assert_eq!(reply.service_error(), Some((403, reason)), "{what}");
        let answer: Value = serde_json::from_slice(&reply.body).unwrap();
        // A remedy may follow on a line of its own.
        let error = answer["error"].as_str().unwrap();
        assert_eq!(error.lines().next(), Some(reason), "{what}");
        assert_eq!(
            answer["protocol"],
            "io.choria.ccm.v1.resource.ensure.response"
        );
        assert!(!file.exists(), "{what}");
    }
    let metrics = setup.agent.metrics().print();
    let counted = format!("outcome=\"denied\"}} {count}");
    let is_counted = |line: &str| line.contains("verb=\"ensure\"") && line.ends_with(&counted);
    assert!(metrics.lines().any(is_counted), "{metrics}");

    let headers = good();
    let first = setup
        .client
        .request(&ensure, headers.clone(), body.clone().into(), limit);
    let first: Value = serde_json::from_slice(&first.await.unwrap().body).unwrap();
    assert_eq!(first["state"]["changed"], true, "{first}");
    let again = setup
        .client
        .request(&ensure, headers.clone(), body.clone().into(), limit);
    let replayed = Some((403, "denied: request was seen before"));
    assert_eq!(again.await.unwrap().service_error(), replayed);

    setup.agent.stop().await;
    let running = start(&trusting(&signer, None, setup.env.root()), &setup.server).await;
    agent::request_json(&setup.client, NODE, Verb::Ping, "").await;
    let again = setup
        .client
        .request(&ensure, headers, body.clone().into(), limit);
    assert_eq!(
        again.await.unwrap().service_error(),
        replayed,
        "after a restart"
    );

    let events = eventually("an audit of all", async || {
        let events = agent::stored_events(&setup.server).await;
        let allowed = events
            .iter()
            .any(|(subject, _)| subject.ends_with("audit.allowed"));
        let denied = events
            .iter()
            .filter(|(subject, _)| subject.ends_with("audit.denied"));
        let denied = denied.map(|(_, event)| 1 + event["unrecorded"].as_u64().unwrap_or(0));
        let all = allowed && denied.sum::<u64>() >= count as u64;
        all.then_some(events)
    })
    .await;
    let allowed = events
        .iter()
        .find(|(subject, _)| subject.ends_with("audit.allowed"));
    let (subject, event) = allowed.unwrap();
    assert_eq!(
        subject,
        "ccm.v1.default.event.web1_example_net.audit.allowed"
    );
    assert_eq!(event["signer"], "ops");
    assert_eq!(event["caller"], "ann");
    assert_eq!(event["about"], format!("file#{}", file.display()));
    assert!(event["run_id"].is_string(), "{event}");
    running.stop().await;
}

#[tokio::test]
async fn a_signed_broadcast_reaches_all_and_an_unsigned_one_is_denied_before_its_filter_is_read() {
    let signer = Signer::generate();
    let setup = setup(&[(&signer, "ops", None)]).await;
    let pong = request_signed(&setup.client, &signer, Verb::Ping, Headers::new(), "").await;
    assert_eq!(pong.service_error(), None);
    let all = subjects().all(Verb::Ping);
    let mut headers = Headers::new();
    signer.sign(&all, &mut headers, b"").unwrap();
    let limit = Duration::from_secs(20);
    let reply = setup.client.request(&all, headers, "".into(), limit).await;
    assert_eq!(reply.unwrap().service_error(), None);
    let filter = Headers::new()
        .with(FILTER, r#"{"identity":["nobody"]}"#)
        .unwrap();
    let reply = setup
        .client
        .request(&all, filter, "".into(), limit)
        .await
        .unwrap();
    let denied = Some((403, "denied: request is not signed"));
    assert_eq!(reply.service_error(), denied);
    setup.agent.stop().await;
}
