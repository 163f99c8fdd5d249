//! Section `network`: interfaces, reachable addresses and default addresses.

use std::net::{IpAddr, UdpSocket};

use super::FactError;
use super::netlink::{self, Link};
use crate::model::Value;

/// Interface flags (`IFF_*`) in the order of the fact.
const FLAGS: [(u32, &str); 5] = [
    (0x1, "up"),
    (0x2, "broadcast"),
    (0x8, "loopback"),
    (0x10, "pointtopoint"),
    (0x1000, "multicast"),
];

/// Hardware types of tunnels, whose hardware address is an IP address.
const TUNNELS_IPV4: [u16; 3] = [768, 776, 778];
const TUNNELS_IPV6: [u16; 2] = [769, 823];

/// Returns the section. If the interfaces cannot be listed, it is empty and there is a warning.
pub(super) fn gather() -> (Value, Option<FactError>) {
    match netlink::links() {
        Ok(links) => {
            let v4 = source_address("0.0.0.0:0", "1.1.1.1:53");
            let v6 = source_address("[::]:0", "[2001:4860:4860::8888]:53");
            (build_section(&links, v4, v6), None)
        }
        Err(errno) => (
            build_section(&[], None, None),
            Some(FactError::Interfaces(errno.into())),
        ),
    }
}

/// Returns the section for one netlink datagram.
#[cfg(fuzzing)]
pub(super) fn of_datagram(datagram: &[u8]) -> Value {
    build_section(&netlink::links_of(datagram), None, None)
}

/// Returns the source address for packets to another address. Connecting a UDP socket selects a
/// route and sends nothing.
fn source_address(any: &str, other: &str) -> Option<IpAddr> {
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(other).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

fn build_section(links: &[Link], v4: Option<IpAddr>, v6: Option<IpAddr>) -> Value {
    let owner = |ip: Option<IpAddr>| {
        let ip = ip?;
        let owns = |link: &&Link| link.addresses.iter().any(|(own, _)| *own == ip);
        links.iter().find(owns).map(|link| link.index)
    };
    let (owner_v4, owner_v6) = (owner(v4), owner(v6));
    let (mut default_v4, mut default_v6) = (String::new(), String::new());
    let mut addresses = Vec::new();
    for link in links {
        for (ip, _) in &link.addresses {
            if !is_reachable(*ip) {
                continue;
            }
            let (owner, default) = match ip {
                IpAddr::V4(_) => (owner_v4, &mut default_v4),
                IpAddr::V6(_) => (owner_v6, &mut default_v6),
            };
            let is_default = owner == Some(link.index);
            if is_default {
                *default = ip.to_string();
            }
            let address = [
                ("interface", link.name.as_str().into()),
                ("address", ip.to_string().into()),
                ("ipv4", ip.is_ipv4().into()),
                ("default", is_default.into()),
            ];
            addresses.push(address.into_iter().collect());
        }
    }
    [
        ("interfaces", links.iter().map(interface).collect()),
        ("addresses", Value::from(addresses)),
        ("default_ipv4", default_v4.into()),
        ("default_ipv6", default_v6.into()),
    ]
    .into_iter()
    .collect()
}

/// Whether other nodes can reach an address.
fn is_reachable(ip: IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !is_link_local && !ip.is_loopback() && !ip.is_multicast() && !ip.is_unspecified()
}

fn interface(link: &Link) -> Value {
    let flags: Vec<Value> = FLAGS
        .iter()
        .filter(|(bit, _)| link.flags & bit != 0)
        .map(|(_, word)| (*word).into())
        .collect();
    let flags = if flags.is_empty() {
        Value::Null
    } else {
        flags.into()
    };
    let addresses = link.addresses.iter().map(|(ip, prefix)| -> Value {
        let address = format!("{ip}/{prefix}");
        [("addr", address.into())].into_iter().collect()
    });
    [
        ("index", i64::from(link.index).into()),
        ("mtu", i64::from(link.mtu).into()),
        ("name", link.name.as_str().into()),
        ("hardwareAddr", hardware_address(link).into()),
        ("flags", flags),
        ("addrs", addresses.collect()),
    ]
    .into_iter()
    .collect()
}

/// Returns the hardware address; empty if there is none.
fn hardware_address(link: &Link) -> String {
    let bytes = &link.hardware_address;
    let is_tunnel = match bytes.len() {
        4 => TUNNELS_IPV4.contains(&link.hardware_type),
        16 => TUNNELS_IPV6.contains(&link.hardware_type),
        _ => false,
    };
    if is_tunnel || bytes.iter().all(|byte| *byte == 0) {
        return String::new();
    }
    let parts: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    parts.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, addresses: &[(&str, u8)]) -> Link {
        Link {
            index,
            name: name.into(),
            mtu: 1500,
            flags: 0x1 | 0x2 | 0x1000 | 0x1_0000,
            hardware_type: 1,
            hardware_address: vec![2, 0xab, 0, 0, 0, 1],
            addresses: addresses
                .iter()
                .map(|(ip, prefix)| (ip.parse().unwrap(), *prefix))
                .collect(),
        }
    }

    #[test]
    fn an_interface_becomes_a_fact() {
        let facts = interface(&link(2, "eth0", &[("192.0.2.7", 24), ("fe80::1", 64)]));
        assert_eq!(
            facts.to_string(),
            "map[addrs:[map[addr:192.0.2.7/24] map[addr:fe80::1/64]] \
             flags:[up broadcast multicast] hardwareAddr:02:ab:00:00:00:01 index:2 mtu:1500 \
             name:eth0]"
        );
    }

    #[test]
    fn an_interface_without_flags_has_null_flags_and_no_addresses() {
        let mut down = link(2, "eth0", &[]);
        down.flags = 0;
        let facts = interface(&down);
        assert!(facts.get("flags").unwrap().is_null());
        assert_eq!(facts.get("addrs").unwrap().as_list(), Some(&[][..]));
    }

    #[test]
    fn loopbacks_and_tunnels_have_no_hardware_address() {
        let mut loopback = link(1, "lo", &[]);
        loopback.hardware_address = vec![0; 6];
        assert_eq!(hardware_address(&loopback), "");
        let mut tunnel = link(1, "gre0", &[]);
        tunnel.hardware_type = 778;
        tunnel.hardware_address = vec![192, 0, 2, 1];
        assert_eq!(hardware_address(&tunnel), "");
    }

    #[test]
    fn only_reachable_addresses_are_listed() {
        let links = [
            link(1, "lo", &[("127.0.0.1", 8), ("::1", 128)]),
            link(2, "eth0", &[("169.254.1.1", 16), ("fe80::1", 64)]),
            link(3, "eth1", &[("192.0.2.7", 24), ("2001:db8::7", 64)]),
        ];
        let facts = build_section(&links, None, None);
        assert_eq!(
            facts.get("addresses").unwrap().to_string(),
            "[map[address:192.0.2.7 default:false interface:eth1 ipv4:true] \
             map[address:2001:db8::7 default:false interface:eth1 ipv4:false]]"
        );
        assert_eq!(facts.get("default_ipv4"), Some(&"".into()));
    }

    #[test]
    fn the_default_address_is_the_last_of_the_default_interface() {
        let links = [
            link(2, "eth0", &[("192.0.2.7", 24), ("192.0.2.8", 24)]),
            link(3, "eth1", &[("198.51.100.7", 24), ("2001:db8::7", 64)]),
        ];
        let v4 = Some("192.0.2.7".parse().unwrap());
        let v6 = Some("2001:db8::7".parse().unwrap());
        let facts = build_section(&links, v4, v6);
        assert_eq!(facts.get("default_ipv4"), Some(&"192.0.2.8".into()));
        assert_eq!(facts.get("default_ipv6"), Some(&"2001:db8::7".into()));
        let defaults: Vec<_> = facts
            .get("addresses")
            .unwrap()
            .as_list()
            .unwrap()
            .iter()
            .map(|address| address.get("default").unwrap().clone())
            .collect();
        assert_eq!(defaults, [true, true, false, true].map(Value::from));
    }
}
