//! What this node is called when nobody says: its fully qualified name, in lower case.
//!
//! The kernel knows the host name, often without its domain. The domain is where the resolver
//! would find it: beside the name in `/etc/hosts`, else the first domain that the resolver
//! searches. No server is asked, so that a node has the same name without a network.

use std::path::Path;

use crate::model::node::{BadName, NodeName};
use crate::system::files;

/// The longest system file that is read for a domain.
const MAX_FILE: u64 = 1 << 20;

/// This host has no name that a node may have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this host has no usable name: {0}, or set key \"identity\"")]
pub struct NoIdentity(#[source] BadName);

/// Returns what this node is called.
pub fn local_identity() -> Result<NodeName, NoIdentity> {
    let kernel = rustix::system::uname();
    // A file that can't be read knows no domain.
    let content = |path| files::read_to_string(Path::new(path), MAX_FILE).unwrap_or_default();
    let host = kernel.nodename().to_string_lossy();
    let name = qualified(&host, &content("/etc/hosts"), &content("/etc/resolv.conf"));
    name.parse().map_err(NoIdentity)
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

/// Returns the long form of a name from a line of hosts that has both.
fn full_name(host: &str, hosts: &str) -> Option<String> {
    hosts.lines().find_map(|line| {
        let line = line.split('#').next().unwrap_or_default().to_lowercase();
        let names: Vec<&str> = line.split_whitespace().skip(1).collect();
        if !names.contains(&host) {
            return None;
        }
        let is_long = |name: &&&str| {
            name.strip_prefix(host)
                .is_some_and(|rest| rest.starts_with('.'))
        };
        names
            .iter()
            .find(is_long)
            .map(|name| name.trim_end_matches('.').to_owned())
    })
}

/// Returns the domain that a resolver looks in first: the last line that says so counts.
fn domain(resolver: &str) -> Option<String> {
    let said = resolver.lines().rev().find_map(|line| {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("search" | "domain") => Some(words.next().unwrap_or_default()),
            _ => None,
        }
    })?;
    let domain = said.trim_matches('.').to_lowercase();
    (!domain.is_empty()).then_some(domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_domain_is_taken_in_lower_case() {
        assert_eq!(
            qualified("Web1.Example.NET.", "", "search other"),
            "web1.example.net"
        );
    }

    #[test]
    fn the_domain_beside_the_name_in_hosts_goes_first() {
        let hosts =
            "127.0.0.1 localhost\n# 10.0.0.1 web1.wrong web1\n127.0.1.1 web1.example.net web1\n";
        assert_eq!(qualified("web1", hosts, "search other"), "web1.example.net");
        let strangers = "10.0.0.2 web12.example.net web12\n10.0.0.1 web1 db.example.net\n";
        assert_eq!(qualified("web1", strangers, "search other"), "web1.other");
    }

    #[test]
    fn the_last_line_of_the_resolver_names_the_domain() {
        let resolver = "domain old.net\nnameserver 10.0.0.1\nsearch Example.net. more.net\n";
        assert_eq!(qualified("web1", "", resolver), "web1.example.net");
        assert_eq!(qualified("web1", "", "search ."), "web1");
    }

    #[test]
    fn this_host_has_a_name_or_says_what_to_set() {
        match local_identity() {
            Ok(name) => assert!(!name.as_str().is_empty()),
            Err(error) => assert!(
                error.to_string().contains("set key \"identity\""),
                "{error}"
            ),
        }
    }
}
