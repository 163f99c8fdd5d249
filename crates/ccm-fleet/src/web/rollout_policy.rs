//! Limits on the rollouts of the web server: which bundles, which nodes, how many of them.
//!
//! The server signs with its own key, which may permit more than the users of the page should do.
//! Limits are checked before anything is signed or continued; they are part of the file with the
//! tokens (`access`).

use serde::Deserialize;

use ccm_core::model::node::{NodeName, Token};
use ccm_core::model::rollout::{Plan, Settings};
use ccm_core::system::files::Glob;
use ccm_value::text::count_of;

/// Why a rollout is not permitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PolicyError {
    #[error("this server may not roll out bundle {bundle}: it may roll out {permitted}")]
    Bundle { bundle: Token, permitted: String },
    #[error("this server may not roll out to node {node}: it may roll out to {permitted}")]
    Node { node: NodeName, permitted: String },
    #[error("this server may roll out to {} at once, not {count}", count_of(*.max, "node"))]
    TooMany { count: usize, max: usize },
    #[error("this server requires a canary: set the number of canary nodes")]
    NoCanary,
    #[error(
        "this server requires a canary: {canary} canary nodes leave none of {count} nodes for later waves"
    )]
    OnlyCanary { canary: usize, count: usize },
}

/// What may be rolled out. Empty lists permit everything.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RolloutPolicy {
    /// Names of bundles.
    bundles: Vec<Pattern>,
    /// Names of nodes.
    nodes: Vec<Pattern>,
    /// Maximum number of nodes of a rollout.
    max_nodes: Option<usize>,
    /// Rollouts to several nodes need a canary.
    require_canary: bool,
}

/// A glob pattern with its text.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
struct Pattern {
    text: String,
    glob: Glob,
}

/// An invalid pattern.
#[derive(Debug, thiserror::Error)]
#[error("invalid pattern {}", ccm_value::text::quote(.0))]
struct InvalidPattern(String);

impl TryFrom<String> for Pattern {
    type Error = InvalidPattern;

    fn try_from(text: String) -> Result<Self, InvalidPattern> {
        match Glob::parse(&text) {
            Ok(glob) => Ok(Self { text, glob }),
            Err(_) => Err(InvalidPattern(text)),
        }
    }
}

impl RolloutPolicy {
    /// Checks a rollout before it starts.
    pub(super) fn check_start(
        &self,
        bundle: &Token,
        plan: &Plan,
        settings: &Settings,
    ) -> Result<(), PolicyError> {
        self.check_content(bundle, plan)?;
        let count = plan.waves.iter().map(|wave| wave.nodes.len()).sum();
        if let Some(max) = self.max_nodes.filter(|max| count > *max) {
            return Err(PolicyError::TooMany { count, max });
        }
        match settings.canary {
            _ if !self.require_canary || count <= 1 => Ok(()),
            0 => Err(PolicyError::NoCanary),
            canary if canary >= count => Err(PolicyError::OnlyCanary { canary, count }),
            _ => Ok(()),
        }
    }

    /// Checks a rollout before it is resumed, retried or rolled back.
    pub(super) fn check_content(&self, bundle: &Token, plan: &Plan) -> Result<(), PolicyError> {
        if !permits(&self.bundles, bundle.as_str()) {
            return Err(PolicyError::Bundle {
                bundle: bundle.clone(),
                permitted: listed(&self.bundles),
            });
        }
        let mut nodes = plan.waves.iter().flat_map(|wave| &wave.nodes);
        match nodes.find(|node| !permits(&self.nodes, node.as_str())) {
            None => Ok(()),
            Some(node) => Err(PolicyError::Node {
                node: node.clone(),
                permitted: listed(&self.nodes),
            }),
        }
    }
}

fn permits(patterns: &[Pattern], name: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.glob.matches(name))
}

fn listed(patterns: &[Pattern]) -> String {
    let texts: Vec<&str> = patterns.iter().map(|it| it.text.as_str()).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan(nodes: &[&str]) -> Plan {
        serde_json::from_value(json!({"waves": [{"name": "wave 1", "nodes": nodes}]})).unwrap()
    }

    fn refusal(policy: serde_json::Value, bundle: &str, nodes: &[&str]) -> String {
        let policy: RolloutPolicy = serde_json::from_value(policy).unwrap();
        let bundle = bundle.parse().unwrap();
        let checked = policy.check_start(&bundle, &plan(nodes), &Settings::default());
        checked.err().map_or_else(String::new, |it| it.to_string())
    }

    #[test]
    fn an_empty_policy_permits_everything() {
        assert_eq!(refusal(json!({}), "shop", &["a", "b"]), "");
    }

    #[test]
    fn a_rollout_outside_of_the_policy_is_refused_with_the_reason() {
        for (policy, reason) in [
            (
                json!({"bundles": ["web-*", "base"]}),
                "this server may not roll out bundle shop: it may roll out web-*, base",
            ),
            (
                json!({"nodes": ["web*"]}),
                "this server may not roll out to node db1: it may roll out to web*",
            ),
            (
                json!({"max_nodes": 1}),
                "this server may roll out to 1 node at once, not 2",
            ),
            (
                json!({"require_canary": true}),
                "this server requires a canary: set the number of canary nodes",
            ),
            (json!({"bundles": ["s*"], "nodes": ["web*", "db*"]}), ""),
        ] {
            assert_eq!(refusal(policy, "shop", &["web1", "db1"]), reason);
        }
        assert_eq!(refusal(json!({"require_canary": true}), "shop", &["a"]), "");
    }

    #[test]
    fn a_required_canary_leaves_nodes_for_later_waves() {
        let policy: RolloutPolicy =
            serde_json::from_value(json!({"require_canary": true})).unwrap();
        let check = |canary: usize| {
            let settings = Settings {
                canary,
                ..Settings::default()
            };
            policy.check_start(&"shop".parse().unwrap(), &plan(&["a", "b"]), &settings)
        };
        assert_eq!(check(1), Ok(()));
        for canary in [2, 3] {
            let refused = PolicyError::OnlyCanary { canary, count: 2 };
            assert_eq!(check(canary), Err(refused));
        }
    }

    #[test]
    fn an_invalid_pattern_is_refused() {
        let parsed: Result<RolloutPolicy, _> = serde_json::from_value(json!({"nodes": ["["]}));
        assert!(parsed.unwrap_err().to_string().contains("invalid pattern"));
    }
}
