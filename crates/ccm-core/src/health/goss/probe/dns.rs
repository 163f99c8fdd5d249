//! Names: the addresses this machine finds for one, by whatever means it is set up to. Records
//! that are no addresses, and other servers than its own, are out of its reach.

use std::net::{IpAddr, ToSocketAddrs as _};

use super::super::document::Entry;
use super::{Attribute, Family, First, Look, LookError, Setting, World, unanswered, within};
use crate::model::Value;

pub(super) const FAMILY: Family = Family {
    key: "dns",
    name: "DNS",
    target: "resolve",
    settings: &[("server", Setting::Text), Setting::TIMEOUT],
    attributes: &[
        Attribute::new("resolvable").formerly("resolveable"),
        Attribute::new("addrs"),
    ],
    first: First::Gate,
    look,
};

fn look<'a>(entry: &'a Entry, world: &'a World<'a>) -> Result<Look<'a>, LookError> {
    let (wanted, name) = question(&entry.target())?;
    if entry
        .text("server")
        .is_some_and(|server| !server.is_empty())
    {
        return Err(LookError::DnsServer);
    }
    let limit = world.limit(entry, 500);
    // A name that is not found can't be told from one that nobody could be asked for.
    let found = within(limit, move || -> Vec<IpAddr> {
        let found = (name.as_str(), 0).to_socket_addrs().into_iter().flatten();
        found.map(|address| address.ip()).collect()
    });
    let found = found.ok_or(LookError::DnsTimedOut(limit))?;
    let mut addresses: Vec<String> = found
        .into_iter()
        .filter(|ip| wanted.fits(*ip))
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
        other => unanswered(other),
    }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Records {
    Any,
    V4,
    V6,
}

impl Records {
    fn fits(self, ip: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => ip.is_ipv4(),
            Self::V6 => ip.is_ipv6(),
        }
    }
}

/// Splits `AAAA:name` into the records that are wanted and the name.
fn question(target: &str) -> Result<(Records, String), LookError> {
    let is_type = |(kind, _): &(&str, &str)| {
        !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_uppercase())
    };
    let (records, name) = match target.split_once(':').filter(is_type) {
        None => (Records::Any, target),
        Some(("A", name)) => (Records::V4, name),
        Some(("AAAA", name)) => (Records::V6, name),
        Some((kind, _)) => return Err(LookError::DnsRecord(kind.to_owned())),
    };
    Ok((records, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_type_stands_in_front_of_the_name() {
        for (target, records, name) in [
            ("localhost", Records::Any, "localhost"),
            ("A:localhost", Records::V4, "localhost"),
            ("AAAA:localhost", Records::V6, "localhost"),
            ("::1", Records::Any, "::1"),
        ] {
            assert_eq!(question(target).unwrap(), (records, name.to_owned()));
        }
    }

    #[test]
    fn records_that_are_no_addresses_are_refused_by_name() {
        assert_eq!(
            question("MX:example.net").unwrap_err().to_string(),
            "dns record type MX is not supported, only A and AAAA"
        );
    }
}
