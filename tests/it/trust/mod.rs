//! Authorization: requests of callers that are not trusted are refused, and malicious input changes
//! nothing.

mod assignments;
mod bundle_push;
mod data;
mod default_closed;
mod denials;
mod exec_rules;
mod forged_requests;
mod limits;
mod lockout;
mod message_flood;
mod page_token;
pub(crate) mod permissions;
mod policy;
mod refusals;
mod roles;
mod rollouts;
mod sensitive;
mod sign_with;
mod sources;
mod status_programs;
mod template_lookups;

use std::path::Path;
use std::time::Duration;

use ccm_agent::Agent;
use ccm_agent::config::{Config, Signer as Listed, Trust};
use ccm_core::model::node::NodeName;
use ccm_core::model::policy::Policy;
use ccm_nats::request_signature::Signer;
use ccm_nats::{Connection, Headers, Reply, Verb};
use ccm_value::document::parse;

use crate::support::TestEnv;
use crate::support::agent::{self, config, subjects};
use crate::support::setup::Setup;

const NODE: &str = "web1.example.net";

/// Returns the configuration of a node that trusts one signer.
fn trusting(signer: &Signer, policy: Option<&str>, directory: &Path) -> Config {
    trusting_all(&[(signer, "ops", policy)], directory)
}

/// Returns the configuration of a node that trusts these signers, each with a name and a policy.
fn trusting_all(signers: &[(&Signer, &str, Option<&str>)], directory: &Path) -> Config {
    let listed = signers.iter().map(|(signer, name, policy)| Listed {
        key: signer.public_key(),
        name: (*name).into(),
        policy: policy.map(|text| Policy::read(&parse(text).unwrap()).unwrap()),
    });
    Config {
        trust: Some(Trust {
            required: true,
            sources: true,
            clock_skew: Duration::from_secs(60),
            signers: listed.collect(),
        }),
        ..config(NODE, directory)
    }
}

/// Starts a node that trusts these signers.
async fn setup(signers: &[(&Signer, &str, Option<&str>)]) -> Setup<Agent> {
    let trust = |config: &mut Config, env: &TestEnv| *config = trusting_all(signers, env.root());
    Setup::inside_with(NODE, trust).await
}

/// Sends a signed request and returns the code and the JSON of the reply.
async fn answer_to(
    client: &Connection,
    signer: &Signer,
    verb: Verb,
    headers: Headers,
    body: &serde_json::Value,
) -> (u16, serde_json::Value) {
    let reply = request_signed(client, signer, verb, headers, &body.to_string()).await;
    let code = reply.service_error().map_or(200, |(code, _)| code);
    (code, serde_json::from_slice(&reply.body).unwrap())
}

/// Returns a request for one resource.
fn ensure_body(type_name: &str, properties: &serde_json::Value) -> serde_json::Value {
    serde_json::json!({
        "protocol": "io.choria.ccm.v1.resource.ensure.request",
        "type": type_name,
        "properties": properties,
    })
}

/// Sends a request with a signature over this very request, which is sent once: as
/// [`agent::request`] does.
async fn request_signed(
    client: &Connection,
    signer: &Signer,
    verb: Verb,
    headers: Headers,
    body: &str,
) -> Reply {
    let node: NodeName = NODE.parse().unwrap();
    let subject = subjects().node(&node.token(), verb);
    agent::send_when_there(client, &node, verb, body, || {
        let mut headers = headers.clone();
        signer
            .sign(&subject, &mut headers, body.as_bytes())
            .unwrap();
        headers
    })
    .await
}
