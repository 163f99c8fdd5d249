//! Parsers for the external data source and NATS servers in the configuration. Only the form is
//! checked. URLs may contain passwords, so no error shows one.

use super::keys::{list, non_empty, problem, text};
use ccm_core::hiera;
use ccm_value::document::{DocumentError, Node};
use ccm_value::secret::Secret;

/// Parses the source of external data.
pub(super) fn data(text: &str) -> Result<hiera::Source, DocumentError> {
    text.parse().map_err(|_| {
        problem("expected a path, or a URL with file://, kv://, obj://, http:// or https://")
    })
}

/// Reads servers, from a list or from one comma-separated text.
pub(super) fn servers(node: &Node) -> Result<Vec<Secret>, DocumentError> {
    if node.items().is_some() {
        return list(node, |item| server(&non_empty(item)?));
    }
    text(node)?.split(',').map(server).collect()
}

fn server(text: &str) -> Result<Secret, DocumentError> {
    let text = text.trim();
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    let is_known = scheme.is_none_or(|scheme| ["nats", "tls"].contains(&scheme));
    if text.is_empty() || !is_known || text.contains(char::is_whitespace) {
        return Err(problem(
            "expected servers such as nats://host:4222 or tls://host:4222",
        ));
    }
    Ok(Secret::new(text))
}
