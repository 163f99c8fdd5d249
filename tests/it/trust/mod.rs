//! Nobody gets in who does not belong, and hostile input changes nothing.

mod assigned;
mod data;
mod forged;
mod hostile;
mod permissions;
mod policy;
mod pushed;
mod roles;
mod sign_with;
mod sources;

use std::path::Path;
use std::time::Duration;

use ccm::agent::config::{Config, Signer as Listed, Trust};
use ccm::model::document::parse;
use ccm::model::node::NodeName;
use ccm::model::policy::Policy;
use ccm::nats::trust::Signer;
use ccm::nats::{Connection, Headers, Reply, Verb};

use crate::support::agent::{config, eventually, subjects};

const NODE: &str = "web1.example.net";

/// Returns the configuration of a node that trusts one signer.
fn trusting(signer: &Signer, policy: Option<&str>, directory: &Path) -> Config {
    Config {
        trust: Some(Trust {
            required: true,
            sources: true,
            clock_skew: Duration::from_secs(60),
            signers: vec![Listed {
                key: signer.public_key(),
                name: "ops".into(),
                policy: policy.map(|text| Policy::read(&parse(text).unwrap()).unwrap()),
            }],
        }),
        ..config(NODE, directory)
    }
}

/// Asks the node with a signature over this very request. A node that has just started may not be
/// heard yet.
async fn ask_signed(
    client: &Connection,
    signer: &Signer,
    verb: Verb,
    headers: Headers,
    body: &str,
) -> Reply {
    let node: NodeName = NODE.parse().unwrap();
    let subject = subjects().node(&node.token(), verb);
    eventually("an answer", async || {
        let mut headers = headers.clone();
        signer
            .sign(&subject, &mut headers, body.as_bytes())
            .unwrap();
        let limit = Duration::from_secs(20);
        let asked = client.request(&subject, headers, body.to_owned().into(), limit);
        asked.await.ok()
    })
    .await
}
