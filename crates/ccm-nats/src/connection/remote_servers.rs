//! Servers of a connection that are not on this machine.
//!
//! The client picks a server among the configured and the discovered ones, at every reconnect. It
//! records which servers it ever connected to, so the check also covers messages that were received
//! earlier and waited in a queue.

use std::net::IpAddr;

use async_nats::{Server, ServerAddr};

use super::{Connection, SEND_LIMIT, within};
use crate::{NatsError, Settings};
use ccm_value::secret::redact_url;

impl Connection {
    /// Returns host and port of a remote server that this connection ever used. Waits for the
    /// connect.
    pub async fn remote_server(&self) -> Result<Option<String>, NatsError> {
        let pool = within(SEND_LIMIT, self.client.server_pool()).await?;
        let servers = pool.map_err(|_| NatsError::Closed)?;
        let used = servers.iter().filter(|it: &&Server| it.did_connect);
        Ok(used.map(|it| &it.addr).find_map(remote))
    }

    /// Returns host and port of the first configured server that is not on this machine.
    pub fn configured_remote_server(&self) -> Option<&str> {
        self.configured_remote.as_deref()
    }
}

impl Settings {
    /// Returns host and port of the first server that is not on this machine.
    pub fn first_remote_server(&self) -> Option<String> {
        first_remote(self.servers.iter().map(|server| server.as_str()))
    }
}

/// Returns host and port of the first URL that is not on this machine.
fn first_remote<'a>(urls: impl IntoIterator<Item = &'a str>) -> Option<String> {
    urls.into_iter().find_map(|url| match url.parse() {
        Ok(address) => remote(&address),
        // The client rejects the URL, too.
        Err(_) => Some(redact_url(url).into_owned()),
    })
}

/// Returns host and port of a server that is not on this machine.
fn remote(address: &ServerAddr) -> Option<String> {
    let host = address.host();
    (!is_loopback(host)).then(|| format!("{host}:{}", address.port()))
}

/// Reports whether a host is a loopback address or `localhost`. Other names are not resolved: the
/// client resolves them again, possibly to another address.
fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.trim_end_matches('.').eq_ignore_ascii_case("localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_and_localhost_are_local() {
        for host in [
            "127.0.0.1",
            "127.8.9.1",
            "::1",
            "[::1]",
            "::ffff:127.0.0.1",
            "localhost",
            "LocalHost.",
        ] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "0.0.0.0",
            "::",
            "10.77.1.1",
            "128.0.0.1",
            "::2",
            "nats.example.net",
            "localhost.example.net",
            "127.0.0.1.example.net",
            "127.1",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
