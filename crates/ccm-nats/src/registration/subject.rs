//! Subjects of registration entries: formatting and parsing.

use crate::{NatsError, Subject};
use ccm_core::model::registration::Entry;

/// Prefix of entry subjects.
const PREFIX: &str = "choria.ccm.registration.v1";

/// Returns the subjects of the stream.
pub(super) fn all() -> String {
    format!("{PREFIX}.>")
}

/// Returns the subject of an entry.
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

/// Returns the entry fields in a subject: cluster, protocol, service and address.
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

/// Reports whether an entry matches its subject. NATS permissions apply to subjects, so an entry
/// must not claim to be another.
pub(super) fn matches_subject(entry: &Entry, subject: &str) -> bool {
    parse(subject).is_some_and(|named| {
        named.cluster == entry.cluster
            && named.protocol == entry.protocol
            && named.service == entry.service
            && named.address == entry.address
    })
}

/// Returns an address as one subject token.
fn word(address: &str) -> String {
    address.replace('.', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::model::registration::Port;

    /// Returns an entry whose instance and subject are known from upstream.
    fn entry() -> Entry {
        let text = r#"{"cluster": "prod", "service": "shop", "protocol": "grpc",
                       "address": "10.4.0.7", "port": 9090, "priority": 10}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn subject_equals_upstreams() {
        assert_eq!(
            of(&entry()).unwrap().as_str(),
            "choria.ccm.registration.v1.prod.grpc.shop.10_4_0_7.d163224028c8732e"
        );
    }

    #[test]
    fn subject_contains_all_but_port_and_priority() {
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
    fn entry_matches_only_its_own_subject() {
        let entry = entry();
        let subject = of(&entry).unwrap();
        assert!(matches_subject(&entry, subject.as_str()));
        for change in [
            |entry: &mut Entry| entry.cluster = "lab".into(),
            |entry: &mut Entry| entry.address = "10.4.0.8".into(),
        ] {
            let mut claimed = entry.clone();
            change(&mut claimed);
            assert!(!matches_subject(&claimed, subject.as_str()));
        }
    }

    #[test]
    fn wildcards_in_names_are_rejected() {
        let entry = Entry {
            service: "*".into(),
            ..entry()
        };
        assert!(of(&entry).is_err());
    }
}
