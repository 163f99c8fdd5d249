//! The subject of an entry, there and back. What the words mean is the model's.

use crate::{NatsError, Subject};
use ccm_core::model::registration::Entry;

/// What every subject of an entry begins with.
const PREFIX: &str = "choria.ccm.registration.v1";

/// Returns the subjects that the stream stores.
pub(super) fn all() -> String {
    format!("{PREFIX}.>")
}

/// Returns the one subject of an entry.
pub(super) fn of(entry: &Entry) -> Result<Subject, NatsError> {
    let Entry {
        cluster,
        protocol,
        service,
        address,
        ..
    } = entry;
    let (address, instance) = (word(address), entry.instance());
    let subject = format!("{PREFIX}.{cluster}.{protocol}.{service}.{address}.{instance}");
    let subject: Subject = subject.parse()?;
    if subject.is_wildcard() {
        Err(NatsError::Subject(subject.to_string()))
    } else {
        Ok(subject)
    }
}

/// Returns the subjects of all entries with this cluster, protocol, service and address; an empty
/// word or `*` stands for any.
pub(super) fn filter(words: [&str; 4]) -> Result<Subject, NatsError> {
    let [cluster, protocol, service, address] = words.map(|word| match word {
        "" => "*",
        word => word,
    });
    let address = word(address);
    format!("{PREFIX}.{cluster}.{protocol}.{service}.{address}.*").parse()
}

/// Returns what a subject tells of its entry: everything but port, priority and the rest.
pub(super) fn parse(subject: &str) -> Option<Entry> {
    let rest = subject.strip_prefix(PREFIX)?.strip_prefix('.')?;
    let mut words = rest.split('.');
    let mut next = || words.next().filter(|word| !word.is_empty());
    let (cluster, protocol, service) = (next()?, next()?, next()?);
    let (address, _instance) = (next()?, next()?);
    Some(Entry {
        cluster: cluster.into(),
        protocol: protocol.into(),
        service: service.into(),
        address: address.replace('_', "."),
        ..Entry::default()
    })
}

/// Whether an entry is where it belongs. Permissions are given by subject; an entry that claims to
/// be another would get around them.
pub(super) fn belongs(entry: &Entry, subject: &str) -> bool {
    parse(subject).is_some_and(|named| {
        named.cluster == entry.cluster
            && named.protocol == entry.protocol
            && named.service == entry.service
            && named.address == entry.address
    })
}

/// Returns an address as one word of a subject.
fn word(address: &str) -> String {
    address.replace('.', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::model::registration::Port;

    /// Returns a service whose instance and subject are known from upstream.
    fn entry() -> Entry {
        Entry {
            cluster: "prod".into(),
            service: "shop".into(),
            protocol: "grpc".into(),
            address: "10.4.0.7".into(),
            port: Port::Number(9090),
            priority: 10,
            ..Entry::default()
        }
    }

    #[test]
    fn the_subject_is_the_one_upstream_publishes_on() {
        assert_eq!(
            of(&entry()).unwrap().as_str(),
            "choria.ccm.registration.v1.prod.grpc.shop.10_4_0_7.d163224028c8732e"
        );
    }

    #[test]
    fn a_subject_tells_all_but_the_port() {
        let entry = entry();
        let subject = of(&entry).unwrap();
        let expected = Entry {
            port: Port::Unset,
            priority: 0,
            ..entry
        };
        assert_eq!(parse(subject.as_str()), Some(expected));
        assert_eq!(parse("choria.ccm.registration.v1.a.b.c.d"), None);
        assert_eq!(parse("choria.ccm.registration.v2.a.b.c.d.e"), None);
    }

    #[test]
    fn empty_words_and_stars_match_anything() {
        let text = |words| filter(words).unwrap().to_string();
        assert_eq!(
            text(["prod", "", "*", "10.4.0.7"]),
            "choria.ccm.registration.v1.prod.*.*.10_4_0_7.*"
        );
        assert_eq!(
            text(["", "", "", "2001:db8::1"]),
            "choria.ccm.registration.v1.*.*.*.2001:db8::1.*"
        );
        assert!(filter(["two words", "", "", ""]).is_err());
        assert!(filter([">", "", "", ""]).is_err());
    }

    #[test]
    fn an_entry_belongs_only_where_its_words_say() {
        let entry = entry();
        let subject = of(&entry).unwrap();
        assert!(belongs(&entry, subject.as_str()));
        for change in [
            |entry: &mut Entry| entry.cluster = "lab".into(),
            |entry: &mut Entry| entry.address = "10.4.0.8".into(),
        ] {
            let mut claimed = entry.clone();
            change(&mut claimed);
            assert!(!belongs(&claimed, subject.as_str()));
        }
    }

    #[test]
    fn a_name_that_is_a_wildcard_names_nothing() {
        let entry = Entry {
            service: "*".into(),
            ..entry()
        };
        assert!(of(&entry).is_err());
    }
}
