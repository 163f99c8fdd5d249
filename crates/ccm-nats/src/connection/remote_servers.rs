//! Which servers of a connection are not on this machine.
//!
//! The client chooses among the servers it was given and those that a cluster told it of, and may
//! take another at every reconnect. It keeps which of them it was ever connected to, so a message
//! that arrived from one of these can be told of later, too: also while it waited in a queue.

use std::net::IpAddr;

use async_nats::{Server, ServerAddr};

use super::{Connection, SEND_LIMIT, within};
use crate::NatsError;
use ccm_value::secret::redact_url;

impl Connection {
    /// Returns a server that is not on this machine and that this connection was made to since it
    /// began, as host and port. Answers once connected.
    pub async fn remote_server(&self) -> Result<Option<String>, NatsError> {
        let asked = within(SEND_LIMIT, self.client.server_pool()).await?;
        let servers = asked.map_err(|_| NatsError::Closed)?;
        let used = servers.iter().filter(|it: &&Server| it.did_connect);
        Ok(used.map(|it| &it.addr).find_map(remote))
    }

    /// Returns a server that is not on this machine and that this connection may be made to because
    /// it was configured, as host and port.
    pub fn configured_remote_server(&self) -> Option<&str> {
        self.configured_remote.as_deref()
    }
}

/// Returns the first of these URLs that is not on this machine, as host and port.
pub(super) fn first_remote<'a>(urls: impl IntoIterator<Item = &'a str>) -> Option<String> {
    urls.into_iter().find_map(|url| match url.parse() {
        Ok(address) => remote(&address),
        // The client refuses it, too.
        Err(_) => Some(redact_url(url).into_owned()),
    })
}

/// Returns host and port of a server, unless it is on this machine.
fn remote(address: &ServerAddr) -> Option<String> {
    let host = address.host();
    (!is_loopback(host)).then(|| format!("{host}:{}", address.port()))
}

/// Reports whether a host is this machine whatever a resolver says. Other names are not looked up:
/// the client would look them up again, and may be told something else.
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
    fn only_loopback_addresses_and_localhost_are_on_this_machine() {
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
