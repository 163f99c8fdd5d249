//! Records of nodes in the fleet's buckets, as the live state gets them.

use crate::records::{BadRecord, check_identity, parse, parse_report};
use ccm_core::model::label::Labels;
use ccm_core::model::node::{Assignment, NodeName, NodeReport, NodeStatus, StoredFacts};
use ccm_nats::kv::Entry;

/// Maximum size of a record.
const MAX_RECORD: usize = 512 << 10;

/// A bucket record about a node.
#[derive(Debug)]
pub(super) enum Record {
    Presence(Box<NodeStatus>),
    Report(Box<NodeReport>),
    Assignment(Box<Assignment>),
    Labels(Labels),
    Facts(Box<StoredFacts>),
}

/// The bucket of a node record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Presence,
    Report,
    Assignment,
    Labels,
    Facts,
}

impl Source {
    pub(super) const COUNT: usize = 5;

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Presence => "presence",
            Self::Report => "report",
            Self::Assignment => "assignment",
            Self::Labels => "labels",
            Self::Facts => "facts",
        }
    }
}

impl Record {
    pub(super) fn source(&self) -> Source {
        match self {
            Self::Presence(_) => Source::Presence,
            Self::Report(_) => Source::Report,
            Self::Assignment(_) => Source::Assignment,
            Self::Labels(_) => Source::Labels,
            Self::Facts(_) => Source::Facts,
        }
    }
}

/// Parses a record, which must have the identity of its key.
pub(super) fn parse_record(
    source: Source,
    name: &NodeName,
    entry: &Entry,
) -> Result<Record, BadRecord> {
    if entry.value.len() > MAX_RECORD {
        return Err(BadRecord::TooLarge(MAX_RECORD));
    }
    Ok(match source {
        Source::Presence => {
            let status: Box<NodeStatus> = parse(entry)?;
            check_identity(&status.identity, name)?;
            Record::Presence(status)
        }
        Source::Report => Record::Report(Box::new(parse_report(entry, name)?)),
        Source::Assignment => Record::Assignment(parse(entry)?),
        Source::Labels => Record::Labels(parse(entry)?),
        Source::Facts => {
            let facts: Box<StoredFacts> = parse(entry)?;
            check_identity(&facts.identity, name)?;
            Record::Facts(facts)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::status;

    fn entry(value: Vec<u8>) -> Entry {
        Entry {
            key: "lab.web1".into(),
            value: value.into(),
            revision: 1,
            created: chrono::DateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_record_with_another_identity_is_unreadable() {
        let record = entry(serde_json::to_vec(&status("web1")).unwrap());
        let (own, other) = ("web1".parse().unwrap(), "web2".parse().unwrap());
        assert!(parse_record(Source::Presence, &own, &record).is_ok());
        assert!(parse_record(Source::Presence, &other, &record).is_err());
    }

    #[test]
    fn a_too_large_record_is_unreadable() {
        let record = entry(vec![b' '; MAX_RECORD + 1]);
        assert!(parse_record(Source::Labels, &"web1".parse().unwrap(), &record).is_err());
    }
}
