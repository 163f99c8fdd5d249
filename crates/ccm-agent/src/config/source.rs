//! Places that the agent's file names besides manifests: data and servers. Checked by their form
//! alone; who fetches from them meets the rest. A URL may carry a password, so none is ever shown.

use super::keys::{filled, list, text, wrong};
use ccm_core::hiera;
use ccm_value::document::{DocumentError, Node};
use ccm_value::secret::Secret;

/// Returns the place that external data comes from.
pub(super) fn data(text: &str) -> Result<hiera::Source, DocumentError> {
    text.parse()
        .map_err(|_| wrong("expected a path, or a URL with file://, kv://, http:// or https://"))
}

/// Returns servers, from a list or from one text with commas.
pub(super) fn servers(node: &Node) -> Result<Vec<Secret>, DocumentError> {
    if node.items().is_some() {
        return list(node, |item| server(&filled(item)?));
    }
    text(node)?.split(',').map(server).collect()
}

fn server(text: &str) -> Result<Secret, DocumentError> {
    let text = text.trim();
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    let is_known = scheme.is_none_or(|scheme| ["nats", "tls"].contains(&scheme));
    if text.is_empty() || !is_known || text.contains(char::is_whitespace) {
        return Err(wrong(
            "expected servers such as nats://host:4222 or tls://host:4222",
        ));
    }
    Ok(Secret::new(text))
}
