//! Type `addr`: whether an address is reachable. For UDP this only means that there is a route.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};

use super::super::document::Entry;
use super::{
    Attribute, AttributeReader, FirstAttribute, InspectError, ProbeContext, ResourceType, Setting,
    not_implemented, run_with_timeout,
};

pub(super) const RESOURCE_TYPE: ResourceType = ResourceType {
    key: "addr",
    name: "Addr",
    target: "address",
    settings: &[("local-address", Setting::Text), Setting::TIMEOUT],
    attributes: &[Attribute::new("reachable")],
    first: FirstAttribute::Required,
    inspect,
};

fn inspect<'a>(
    entry: &'a Entry,
    context: &'a ProbeContext<'a>,
) -> Result<AttributeReader<'a>, InspectError> {
    let target = entry.target();
    let dial = Dial::parse(&target, entry.text("local-address").as_deref())?;
    let limit = context.limit(entry, 500);
    Ok(Box::new(move |attribute| match attribute {
        "reachable" => {
            let dial = dial.clone();
            // A DNS lookup has no timeout of its own.
            Ok((run_with_timeout(limit, move || dial.succeeds(limit)) == Some(true)).into())
        }
        other => not_implemented(other),
    }))
}

/// A network address to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Dial {
    is_tcp: bool,
    /// `Some(true)` for IPv6 only, `Some(false)` for IPv4 only.
    v6: Option<bool>,
    address: String,
    local: Option<IpAddr>,
}

impl Dial {
    fn parse(target: &str, local: Option<&str>) -> Result<Self, InspectError> {
        let (network, address) = target.split_once("://").unwrap_or(("tcp", target));
        let (is_tcp, v6) = match network {
            "tcp" => (true, None),
            "tcp4" => (true, Some(false)),
            "tcp6" => (true, Some(true)),
            "udp" => (false, None),
            "udp4" => (false, Some(false)),
            "udp6" => (false, Some(true)),
            other => {
                return Err(InspectError::Network {
                    network: other.to_owned(),
                    target: target.to_owned(),
                });
            }
        };
        if !address.contains(':') {
            return Err(InspectError::NoPort(target.to_owned()));
        }
        let local = local.filter(|text| !text.is_empty()).map(|text| {
            text.parse().map_err(|cause| InspectError::LocalAddress {
                text: text.to_owned(),
                cause,
            })
        });
        Ok(Self {
            is_tcp,
            v6,
            address: address.to_owned(),
            local: local.transpose()?,
        })
    }

    /// Whether a connection to any of the addresses succeeds, each within a limit.
    fn succeeds(&self, limit: Duration) -> bool {
        let addresses = self.address.to_socket_addrs().into_iter().flatten();
        let is_suitable = |address: &SocketAddr| {
            let is_v6 = address.is_ipv6();
            self.v6.is_none_or(|v6| v6 == is_v6)
                && self.local.is_none_or(|local| local.is_ipv6() == is_v6)
        };
        addresses.filter(is_suitable).any(|address| {
            if self.is_tcp {
                self.connect(address, limit).is_ok()
            } else {
                self.route(address).is_ok()
            }
        })
    }

    fn connect(&self, address: SocketAddr, limit: Duration) -> Result<(), Errno> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        if let Some(local) = self.local {
            bind(&socket, &SocketAddr::new(local, 0))?;
        }
        match connect(&socket, &address) {
            Err(Errno::INPROGRESS) => {}
            done => return done,
        }
        let limit = Timespec::try_from(limit).map_err(|_| Errno::INVAL)?;
        let mut ready = [PollFd::new(&socket, PollFlags::OUT)];
        match retry_on_intr(|| poll(&mut ready, Some(&limit)))? {
            0 => Err(Errno::TIMEDOUT),
            _ => sockopt::socket_error(&socket)?,
        }
    }

    fn route(&self, address: SocketAddr) -> io::Result<()> {
        let any: IpAddr = match address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        UdpSocket::bind((self.local.unwrap_or(any), 0))?.connect(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_network_is_tcp() {
        let dial = Dial::parse("udp6://[::1]:53", None).unwrap();
        assert_eq!((dial.is_tcp, dial.v6), (false, Some(true)));
        assert_eq!(dial.address, "[::1]:53");
        assert!(Dial::parse("localhost:80", Some("")).unwrap().is_tcp);
    }

    #[test]
    fn invalid_addresses_are_errors() {
        for (target, local, text) in [
            (
                "unix:///x",
                None,
                "unknown network \"unix\" in \"unix:///x\"",
            ),
            ("localhost", None, "missing port in address \"localhost\""),
            ("a:1", Some("eth0"), "invalid local-address \"eth0\""),
        ] {
            assert_eq!(Dial::parse(target, local).unwrap_err().to_string(), text);
        }
    }
}
