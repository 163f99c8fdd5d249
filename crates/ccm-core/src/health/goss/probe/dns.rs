//! Type `dns`: addresses of a name, by the system resolver. Other record types and other servers
//! are not supported.

use std::net::{IpAddr, ToSocketAddrs as _};

use super::super::document::Entry;
use super::{
    Attribute, AttributeReader, FirstAttribute, InspectError, ProbeContext, ResourceType, Setting,
    not_implemented, run_with_timeout,
};
use crate::model::Value;

pub(super) const RESOURCE_TYPE: ResourceType = ResourceType {
    key: "dns",
    name: "DNS",
    target: "resolve",
    settings: &[("server", Setting::Text), Setting::TIMEOUT],
    attributes: &[
        Attribute::new("resolvable").formerly("resolveable"),
        Attribute::new("addrs"),
    ],
    first: FirstAttribute::Prerequisite,
    inspect,
};

fn inspect<'a>(
    entry: &'a Entry,
    context: &'a ProbeContext<'a>,
) -> Result<AttributeReader<'a>, InspectError> {
    let (wanted, name) = parse_target(&entry.target())?;
    if entry
        .text("server")
        .is_some_and(|server| !server.is_empty())
    {
        return Err(InspectError::DnsServer);
    }
    let limit = context.limit(entry, 500);
    // An unknown name and an unreachable server give the same result.
    let found = run_with_timeout(limit, move || -> Vec<IpAddr> {
        let found = (name.as_str(), 0).to_socket_addrs().into_iter().flatten();
        found.map(|address| address.ip()).collect()
    });
    let found = found.ok_or(InspectError::DnsTimedOut(limit))?;
    let mut addresses: Vec<String> = found
        .into_iter()
        .filter(|ip| wanted.matches(*ip))
        .map(|ip| ip.to_string())
        .collect();
    addresses.sort();
    addresses.dedup();
    Ok(Box::new(move |attribute| match attribute {
        "resolvable" => Ok((!addresses.is_empty()).into()),
        "addrs" => Ok(addresses
            .iter()
            .map(|ip| Value::from(ip.as_str()))
            .collect()),
        other => not_implemented(other),
    }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Records {
    Any,
    V4,
    V6,
}

impl Records {
    fn matches(self, ip: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => ip.is_ipv4(),
            Self::V6 => ip.is_ipv6(),
        }
    }
}

/// Splits `AAAA:name` into record type and name.
fn parse_target(target: &str) -> Result<(Records, String), InspectError> {
    let is_type = |(kind, _): &(&str, &str)| {
        !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_uppercase())
    };
    let (records, name) = match target.split_once(':').filter(is_type) {
        None => (Records::Any, target),
        Some(("A", name)) => (Records::V4, name),
        Some(("AAAA", name)) => (Records::V6, name),
        Some((kind, _)) => return Err(InspectError::DnsRecord(kind.to_owned())),
    };
    Ok((records, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_may_start_with_a_record_type() {
        for (target, records, name) in [
            ("localhost", Records::Any, "localhost"),
            ("A:localhost", Records::V4, "localhost"),
            ("AAAA:localhost", Records::V6, "localhost"),
            ("::1", Records::Any, "::1"),
        ] {
            assert_eq!(parse_target(target).unwrap(), (records, name.to_owned()));
        }
    }

    #[test]
    fn other_record_types_are_refused() {
        assert_eq!(
            parse_target("MX:example.net").unwrap_err().to_string(),
            "dns record type MX is not supported, only A and AAAA"
        );
    }
}
