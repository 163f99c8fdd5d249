//! Whose requests a node obeys. Only read here; who checks signatures asks for it.

use std::collections::HashSet;
use std::time::Duration;

use nkeys::KeyPair;

use super::keys::{Keys, duration, filled, flag, word, wrong};
use ccm_core::model::policy::Policy;
use ccm_nats::Verb;
use ccm_value::document::{DocumentError, Node};

/// The words for whether sources must be signed.
const SOURCES: [(&str, bool); 2] = [("required", true), ("off", false)];

/// What a request must bring along.
#[derive(Clone, Debug, PartialEq)]
pub struct Trust {
    /// Whether requests without a signature are refused.
    pub required: bool,
    /// How far the signer's clock may be from ours.
    pub clock_skew: Duration,
    pub signers: Vec<Signer>,
    /// Whether bundles and data that the agent's own file names must be signed, too.
    pub sources: bool,
}

/// One whose signature counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Signer {
    /// A public key in the form NATS people know.
    pub key: String,
    pub name: String,
    /// What the signer may do; everything, if that is not said.
    pub policy: Option<Policy>,
}

impl Trust {
    /// Reads the section. `has_far_data` says that there will be data to sign.
    pub(super) fn read(keys: &mut Keys<'_>, has_far_data: bool) -> Self {
        let mut trust = Self {
            required: true,
            clock_skew: Duration::from_secs(60),
            signers: Vec::new(),
            sources: true,
        };
        keys.read("required", &mut trust.required, flag);
        trust.sources = trust.required;
        keys.read("sources", &mut trust.sources, |node| word(node, &SOURCES));
        keys.read("clock_skew", &mut trust.clock_skew, duration);
        let mut seen = HashSet::new();
        keys.sections("signers", |keys| {
            let mut signer = Signer {
                key: String::new(),
                name: String::new(),
                policy: None,
            };
            keys.read("key", &mut signer.key, public_key);
            keys.read("name", &mut signer.name, filled);
            keys.read("policy", &mut signer.policy, |node| policy(node).map(Some));
            keys.require("key");
            keys.require("name");
            if !signer.key.is_empty() && !seen.insert(signer.key.clone()) {
                keys.complain("another signer has the same key");
            }
            trust.signers.push(signer);
        });
        if trust.sources && !trust.required && trust.signers.is_empty() {
            keys.complain("nobody could sign a bundle: list signers, or set sources: off");
        }
        let is_bound = |signer: &Signer| signer.policy.is_some();
        if has_far_data
            && trust.sources
            && !trust.signers.is_empty()
            && trust.signers.iter().all(is_bound)
        {
            keys.complain(
                "nobody could sign external_data_url, which takes a signer without a policy: list \
                 one, or set sources: off",
            );
        }
        if trust.required && trust.signers.is_empty() {
            keys.complain("nobody could sign a request: list signers, or set required: false");
        }
        trust
    }
}

/// Returns a policy whose verbs exist.
fn policy(node: &Node) -> Result<Policy, DocumentError> {
    let policy = Policy::read(node)?;
    let mut unknown = policy
        .rules
        .iter()
        .filter_map(|rule| rule.unknown_verb(|verb| verb.parse::<Verb>().is_ok()));
    match unknown.next() {
        Some(message) => Err(wrong(message)),
        None => Ok(policy),
    }
}

/// Returns a public key. A seed in its place is not shown: it is the secret itself.
fn public_key(node: &Node) -> Result<String, DocumentError> {
    let key = filled(node)?;
    match KeyPair::from_public_key(&key) {
        Ok(_) => Ok(key),
        Err(_) if key.starts_with('S') => Err(wrong(
            "this is a seed: keep it secret, and give its public key",
        )),
        Err(_) => Err(wrong(
            "expected a public nkey, such as one that begins with U",
        )),
    }
}
