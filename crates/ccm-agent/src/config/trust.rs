//! Configuration of trusted signers. Signatures are verified by the `trust` module of the agent.

use std::collections::HashSet;
use std::time::Duration;

use nkeys::KeyPair;

use super::keys::{Keys, duration, flag, keyword, non_empty, problem};
use ccm_core::model::policy::{Policy, quoted_text};
use ccm_nats::Verb;
use ccm_value::document::{DocumentError, Node};

/// Keywords of `sources`.
const SOURCES: [(&str, bool); 2] = [("required", true), ("off", false)];

/// Requirements for requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Trust {
    /// Refuse unsigned requests.
    pub required: bool,
    /// Largest difference between the clocks of signer and node.
    pub clock_skew: Duration,
    pub signers: Vec<Signer>,
    /// Require signatures of configured bundles and external data.
    pub sources: bool,
}

/// A trusted signer.
#[derive(Clone, Debug, PartialEq)]
pub struct Signer {
    /// Public nkey.
    pub key: String,
    pub name: String,
    /// Policy of the signer; without one everything is allowed.
    pub policy: Option<Policy>,
}

impl Trust {
    /// Reads the section. `has_remote_data` reports whether external data must be signed.
    pub(super) fn read(keys: &mut Keys<'_>, has_remote_data: bool) -> Self {
        let mut trust = Self {
            required: true,
            clock_skew: Duration::from_secs(60),
            signers: Vec::new(),
            sources: true,
        };
        keys.read("required", &mut trust.required, flag);
        trust.sources = trust.required;
        keys.read("sources", &mut trust.sources, |node| {
            keyword(node, &SOURCES)
        });
        keys.read("clock_skew", &mut trust.clock_skew, duration);
        let mut seen = HashSet::new();
        keys.sections("signers", |keys| {
            let mut signer = Signer {
                key: String::new(),
                name: String::new(),
                policy: None,
            };
            keys.read("key", &mut signer.key, public_key);
            keys.read("name", &mut signer.name, non_empty);
            keys.read("policy", &mut signer.policy, |node| policy(node).map(Some));
            keys.require("key");
            keys.require("name");
            if !signer.key.is_empty() && !seen.insert(signer.key.clone()) {
                keys.add_problem("another signer has the same key");
            }
            trust.signers.push(signer);
        });
        if trust.sources && !trust.required && trust.signers.is_empty() {
            keys.add_problem("no signer for bundles: list signers, or set sources: off");
        }
        let has_policy = |signer: &Signer| signer.policy.is_some();
        if has_remote_data
            && trust.sources
            && !trust.signers.is_empty()
            && trust.signers.iter().all(has_policy)
        {
            keys.add_problem(
                "no signer for external_data_url, which needs a signer without a policy: list one, \
                 or set sources: off",
            );
        }
        if trust.required && trust.signers.is_empty() {
            keys.add_problem("no signer for requests: list signers, or set required: false");
        }
        trust
    }
}

/// Reads a policy and checks its verbs.
fn policy(node: &Node) -> Result<Policy, DocumentError> {
    let policy = Policy::read(node)?;
    let mut unknown = policy
        .rules
        .iter()
        .filter_map(|rule| rule.unknown_verb(|verb| verb.parse::<Verb>().is_ok()));
    match unknown.next() {
        Some(message) => {
            let mark = quoted_text(node, &message).unwrap_or(node.mark);
            Err(DocumentError::new(mark, message))
        }
        None => Ok(policy),
    }
}

/// Reads a public key. A seed given by mistake is not shown in the error.
fn public_key(node: &Node) -> Result<String, DocumentError> {
    let key = non_empty(node)?;
    match KeyPair::from_public_key(&key) {
        Ok(_) => Ok(key),
        Err(_) if key.starts_with('S') => Err(problem(
            "this is a seed: keep it secret, and give its public key",
        )),
        Err(_) => Err(problem(
            "expected a public nkey, such as one that begins with U",
        )),
    }
}
