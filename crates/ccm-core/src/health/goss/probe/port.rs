//! Type `port`: listening sockets in `/proc/net`. A dual-stack listener is only in the IPv6 table.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use super::super::document::Entry;
use super::{
    Attribute, AttributeReader, FirstAttribute, InspectError, ProbeContext, ResourceType,
    not_implemented,
};
use crate::model::Value;
use crate::system::files;

/// The largest table that is read, enough for hundreds of thousands of connections.
const MAX_TABLE: u64 = 64 * 1024 * 1024;

/// The state `TCP_LISTEN`.
const LISTEN: &str = "0A";

pub(super) const RESOURCE_TYPE: ResourceType = ResourceType {
    key: "port",
    name: "Port",
    target: "port",
    settings: &[],
    attributes: &[Attribute::new("listening"), Attribute::new("ip")],
    first: FirstAttribute::Prerequisite,
    inspect,
};

fn inspect<'a>(
    entry: &'a Entry,
    _: &'a ProbeContext<'a>,
) -> Result<AttributeReader<'a>, InspectError> {
    let target = entry.target();
    let (network, port) = target.split_once(':').unwrap_or(("tcp", &target));
    let port: u16 = port.parse().map_err(|cause| InspectError::Port {
        target: target.clone(),
        cause,
    })?;
    let is_tcp = match network {
        "tcp" | "tcp6" => true,
        "udp" | "udp6" => false,
        _ => return Err(InspectError::PortNetwork(target)),
    };
    let addresses = match files::read_to_string(&Path::new("/proc/net").join(network), MAX_TABLE) {
        Ok(table) => listeners(&table, port, is_tcp),
        // A kernel without IPv6 has no table for it.
        Err(error) if error.is_not_found() => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    Ok(Box::new(move |attribute| match attribute {
        "listening" => Ok((!addresses.is_empty()).into()),
        "ip" => Ok(addresses
            .iter()
            .map(|ip| Value::from(ip.to_string()))
            .collect()),
        other => not_implemented(other),
    }))
}

/// Returns the listening addresses. UDP sockets always listen.
fn listeners(table: &str, port: u16, is_tcp: bool) -> Vec<IpAddr> {
    let listener = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (ip, at) = fields.next()?.split_once(':')?;
        let state = fields.nth(1)?;
        let is_wanted = u16::from_str_radix(at, 16) == Ok(port) && (!is_tcp || state == LISTEN);
        is_wanted.then(|| address(ip))?
    };
    table.lines().skip(1).filter_map(listener).collect()
}

/// Parses an address: hexadecimal words of four bytes in native byte order.
fn address(digits: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let word = u32::from_str_radix(digits.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    match digits.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let mut bytes = [0; 16];
            for (byte, part) in bytes.iter_mut().zip(words.as_flattened()) {
                *byte = *part;
            }
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   1: 0100007F:0050 0100007F:9BA4 01 00000000:00000000 00:00000000 00000000     0        0 2
   2: 0100007F:0051 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 3
junk
";

    fn found(port: u16, is_tcp: bool) -> Vec<String> {
        let addresses = listeners(TABLE, port, is_tcp);
        addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_listeners_count_among_connections() {
        assert_eq!(found(80, true), ["0.0.0.0"]);
        assert_eq!(found(81, true), [""; 0]);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn udp_sockets_always_listen() {
        assert_eq!(found(81, false), ["127.0.0.1"]);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn addresses_are_read_word_by_word() {
        let shown = |digits| address(digits).map(|ip| ip.to_string());
        assert_eq!(shown("0100007F").unwrap(), "127.0.0.1");
        assert_eq!(shown("00000000000000000000000001000000").unwrap(), "::1");
        assert_eq!(
            shown("0000000000000000FFFF00000100007F").unwrap(),
            "127.0.0.1"
        );
        for invalid in ["", "0100007", "0100007é", "zzzzzzzz"] {
            assert_eq!(shown(invalid), None, "{invalid}");
        }
    }
}
