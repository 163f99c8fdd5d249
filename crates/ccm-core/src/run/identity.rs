//! Default node name: the fully qualified host name, in lower case.
//!
//! The kernel's host name often lacks the domain. It is completed from `/etc/hosts`, else with the
//! first search domain of `/etc/resolv.conf`. DNS is not queried, so that the name is the same without
//! a network.

use std::path::Path;

use crate::model::node::{NameError, NodeName};
use crate::system::files;

/// The maximum size of `/etc/hosts` and `/etc/resolv.conf`.
const MAX_FILE: u64 = 1 << 20;

/// The host name is not a valid node name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this host has no usable name: {0}, or set key \"identity\"")]
pub struct IdentityError(#[source] NameError);

/// Returns the default name of this node.
pub fn local_identity() -> Result<NodeName, IdentityError> {
    let kernel = rustix::system::uname();
    // An unreadable file counts as empty.
    let content = |path| files::read_to_string(Path::new(path), MAX_FILE).unwrap_or_default();
    let host = kernel.nodename().to_string_lossy();
    let name = qualified(&host, &content("/etc/hosts"), &content("/etc/resolv.conf"));
    name.parse().map_err(IdentityError)
}

fn qualified(host: &str, hosts: &str, resolver: &str) -> String {
    let host = host.trim_end_matches('.').to_lowercase();
    if host.contains('.') {
        return host;
    }
    if let Some(name) = full_name(&host, hosts) {
        return name;
    }
    match domain(resolver) {
        Some(domain) => format!("{host}.{domain}"),
        None => host,
    }
}

/// Returns the qualified form of a name from a line of `/etc/hosts` that has both.
fn full_name(host: &str, hosts: &str) -> Option<String> {
    hosts.lines().find_map(|line| {
        let line = line.split('#').next().unwrap_or_default().to_lowercase();
        let names: Vec<&str> = line.split_whitespace().skip(1).collect();
        if !names.contains(&host) {
            return None;
        }
        let is_qualified = |name: &&&str| {
            name.strip_prefix(host)
                .is_some_and(|rest| rest.starts_with('.'))
        };
        names
            .iter()
            .find(is_qualified)
            .map(|name| name.trim_end_matches('.').to_owned())
    })
}

/// Returns the first search domain; the last `search` or `domain` line counts.
fn domain(resolver: &str) -> Option<String> {
    let first = resolver.lines().rev().find_map(|line| {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("search" | "domain") => Some(words.next().unwrap_or_default()),
            _ => None,
        }
    })?;
    let domain = first.trim_matches('.').to_lowercase();
    (!domain.is_empty()).then_some(domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qualified_name_is_converted_to_lower_case() {
        assert_eq!(
            qualified("Web1.Example.NET.", "", "search other"),
            "web1.example.net"
        );
    }

    #[test]
    fn etc_hosts_takes_precedence_over_the_search_domain() {
        let hosts =
            "127.0.0.1 localhost\n# 10.0.0.1 web1.wrong web1\n127.0.1.1 web1.example.net web1\n";
        assert_eq!(qualified("web1", hosts, "search other"), "web1.example.net");
        let unrelated = "10.0.0.2 web12.example.net web12\n10.0.0.1 web1 db.example.net\n";
        assert_eq!(qualified("web1", unrelated, "search other"), "web1.other");
    }

    #[test]
    fn the_last_search_line_gives_the_domain() {
        let resolver = "domain old.net\nnameserver 10.0.0.1\nsearch Example.net. more.net\n";
        assert_eq!(qualified("web1", "", resolver), "web1.example.net");
        assert_eq!(qualified("web1", "", "search ."), "web1");
    }

    #[test]
    fn the_error_names_the_key_to_set() {
        match local_identity() {
            Ok(name) => assert!(!name.as_str().is_empty()),
            Err(error) => assert!(
                error.to_string().contains("set key \"identity\""),
                "{error}"
            ),
        }
    }
}
