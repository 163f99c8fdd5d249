//! Samples of enrolment and of statements about signers, from a fleet with a trust directory.

use async_nats::{Client, ConnectOptions};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::samples::parse_bytes;
use crate::enroll::{Fleet, connect};
use crate::support::poll::LIMIT;
use crate::trust::permissions::client_with;

/// Returns the samples by name.
pub(super) fn records() -> Value {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(collect())
}

async fn collect() -> Value {
    let fleet = Fleet::start();
    let (client, _) = connect(&fleet, &fleet.context("controller-main")).await;
    let mut requests = client.subscribe("ccm.v1.default.enroll.*").await.unwrap();
    client.flush().await.unwrap();
    let token = fleet.token(&["--group", "web"]);
    fleet.enroll("web1", &token).ok();
    let request = tokio::time::timeout(LIMIT, requests.next()).await;
    let request = request.unwrap().unwrap();
    let (_, id) = request.subject.rsplit_once('.').unwrap();
    // The same request again, with the credentials of the token: only its owner can see the reply.
    let jwt = token.split(':').nth(1).unwrap().to_owned();
    let options = ConnectOptions::with_jwt(jwt, async |_| Ok(Vec::new()))
        .add_root_certificates(fleet.env.path("trust/tls/ca.pem"))
        .require_tls(true)
        .custom_inbox_prefix(format!("{}.{id}", ccm_nats::subject::ENROLMENT_INBOX));
    let (owner, _) = client_with(options, &fleet.url()).await;
    let headers = request.headers.clone().unwrap();
    let reply = owner
        .request_with_headers(request.subject.clone(), headers, request.payload.clone())
        .await
        .unwrap();
    let manual = fleet.token(&["--manual"]);
    let mut waiting = fleet.start_enroll("db1", "db1", &manual);
    let public_key = fleet.wait_for_request("db1");
    let rotate = ["fleet", "trust", "rotate", "signer"];
    fleet.ccm(&rotate).ok();
    fleet.ccm(&[&rotate[..], &["--retire"]].concat()).ok();
    let records = json!({
        "enrolment-request": parse_bytes(&request.payload),
        "enrolment-reply": parse_bytes(&reply.payload),
        "enrolment-token": stored(&client, "CCM_ENROLL", &format!("default.token.{id}")).await,
        "enrolment-pending":
            stored(&client, "CCM_ENROLL", &format!("default.request.db1.{public_key}")).await,
        "enrolled-node": stored(&client, "CCM_ENROLL", "default.node.web1").await,
        "signers": stored(&client, "CCM_TRUST", "default").await,
    });
    let _ = waiting.kill();
    let _ = waiting.wait();
    records
}

/// Returns the value of a key.
async fn stored(client: &Client, bucket: &str, key: &str) -> Value {
    let subject = format!("$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.{key}");
    let found = client.request(subject, "".into()).await.unwrap();
    parse_bytes(&found.payload)
}
