//! Forget: removes every record of a node that is retired.
//!
//! [`NodeRecords::find`] reads what there is, [`NodeRecords::remove`] removes it and stores an audit
//! event. Keys are purged, so that watchers notice it: the agent drops its assignment, and the page
//! its row. Events stay until they expire. Credentials are revoked in the trust directory, by the
//! caller, before the records are removed: a node that is still connected would write them again.

use std::fmt;
use std::net::IpAddr;

use chrono::{DateTime, Utc};

use crate::audit::{self, AuditRecord};
use crate::enrolment::{EnrolmentError, EnrolmentStore};
use ccm_core::model::audit::AuditDecision;
use ccm_core::model::enrolment::{EnrolledNode, PendingNode};
use ccm_core::model::node::NodeName;
use ccm_core::model::registration::Entry;
use ccm_nats::kv::Bucket;
use ccm_nats::streams::{DESIRED, FACTS, LABELS, NODES, REPORTED};
use ccm_nats::{Connection, NatsError, Subjects};

/// Verb of the audit event.
const FORGET: &str = "forget";

/// A type of records of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordType {
    Presence,
    Facts,
    Labels,
    Assignment,
    /// Last report, with the drift of the node.
    Report,
    Registrations,
    /// Requests to enroll that wait for a decision or were rejected.
    Requests,
    Enrolment,
}

impl fmt::Display for RecordType {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Presence => "presence",
            Self::Facts => "facts",
            Self::Labels => "labels",
            Self::Assignment => "assignment",
            Self::Report => "report",
            Self::Registrations => "registrations",
            Self::Requests => "enrolment requests",
            Self::Enrolment => "enrolment",
        })
    }
}

/// Buckets with one key per node. Presence comes first: a node without it is offline for everybody
/// who reads the others.
const BUCKETS: [(RecordType, &str); 5] = [
    (RecordType::Presence, NODES),
    (RecordType::Facts, FACTS),
    (RecordType::Assignment, DESIRED),
    (RecordType::Report, REPORTED),
    (RecordType::Labels, LABELS),
];

/// Where to look for records besides the buckets.
#[derive(Clone, Copy, Debug)]
pub struct Registry<'a> {
    /// Stream of registrations.
    pub stream: &'a str,
    /// Addresses of the node, besides those it was enrolled with.
    pub addresses: &'a [IpAddr],
}

/// The records of a node.
#[derive(Debug)]
pub struct NodeRecords {
    node: NodeName,
    connection: Connection,
    subjects: Subjects,
    /// Buckets that exist, and whether they have a record of the node.
    buckets: Vec<(RecordType, Bucket, bool)>,
    registrations: Vec<Entry>,
    stream: String,
    store: Option<EnrolmentStore>,
    requests: Vec<PendingNode>,
    enrolled: Option<EnrolledNode>,
}

impl NodeRecords {
    /// Reads the records of a node.
    pub async fn find(
        connection: &Connection,
        subjects: &Subjects,
        node: &NodeName,
        registry: Registry<'_>,
    ) -> Result<Self, EnrolmentError> {
        let mut buckets = Vec::new();
        for (record_type, name) in BUCKETS {
            let bucket = match connection.bucket(name).await {
                // A fleet of an older version.
                Err(err) if err.is_not_found() => continue,
                bucket => bucket?,
            };
            let key = subjects.key(&node.token());
            let has_record = bucket.get(&key).await?.is_some();
            buckets.push((record_type, bucket, has_record));
        }
        let store = match EnrolmentStore::open(connection, subjects).await {
            Err(err) if err.is_not_found() => None,
            store => Some(store?),
        };
        let (requests, enrolled) = match &store {
            None => (Vec::new(), None),
            Some(store) => {
                let enrolled = store.enrolled(node).await?.map(|stored| stored.value);
                (store.requests(Some(node)).await?, enrolled)
            }
        };
        let enrolled_at = enrolled.iter().flat_map(|it| &it.grants.addresses);
        let mut addresses: Vec<IpAddr> = enrolled_at.chain(registry.addresses).copied().collect();
        addresses.sort_unstable();
        addresses.dedup();
        let mut registrations = Vec::new();
        for address in addresses {
            registrations.extend(services_at(connection, registry.stream, address).await?);
        }
        Ok(Self {
            node: node.clone(),
            connection: connection.clone(),
            subjects: subjects.clone(),
            buckets,
            registrations,
            stream: registry.stream.to_owned(),
            store,
            requests,
            enrolled,
        })
    }

    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// Reports whether the node is online.
    pub fn is_online(&self) -> bool {
        self.count(RecordType::Presence) > 0
    }

    /// Reports whether there is no record at all.
    pub fn is_empty(&self) -> bool {
        self.counts().all(|(_, count)| count == 0)
    }

    /// Returns the key that the node is enrolled with.
    pub fn public_key(&self) -> Option<&str> {
        let enrolled = self.enrolled.as_ref();
        enrolled.map(|node| node.public_key.as_str())
    }

    /// Returns the number of records of each type.
    pub fn counts(&self) -> impl Iterator<Item = (RecordType, usize)> {
        let buckets = self.buckets.iter();
        buckets
            .map(|(record_type, _, has_record)| (*record_type, usize::from(*has_record)))
            .chain([
                (RecordType::Registrations, self.registrations.len()),
                (RecordType::Requests, self.requests.len()),
                (RecordType::Enrolment, usize::from(self.enrolled.is_some())),
            ])
    }

    fn count(&self, record_type: RecordType) -> usize {
        let mut counts = self.counts();
        counts
            .find(|(found, _)| *found == record_type)
            .map_or(0, |(_, count)| count)
    }

    /// Removes the records. The enrolment is kept unless its credentials are revoked: it has the key
    /// that must be revoked.
    pub async fn remove(
        &self,
        is_revoked: bool,
        by: &str,
        now: DateTime<Utc>,
    ) -> Result<(), EnrolmentError> {
        // Recorded first: nothing is removed without a record of who did it.
        self.audit(by, now).await?;
        let key = self.subjects.key(&self.node.token());
        for (_, bucket, _) in &self.buckets {
            // Also without a record: the key may have been written meanwhile.
            bucket.purge(&key).await?;
        }
        for entry in &self.registrations {
            self.connection.unregister(entry, &self.stream).await?;
        }
        if let Some(store) = &self.store {
            store.remove_requests(&self.requests).await?;
            if is_revoked {
                store.remove_enrolled(&self.node).await?;
            }
        }
        Ok(())
    }

    async fn audit(&self, by: &str, now: DateTime<Utc>) -> Result<(), NatsError> {
        let found = self.counts().filter(|(_, count)| *count > 0);
        let found: Vec<String> = found
            .map(|(record_type, _)| record_type.to_string())
            .collect();
        let record = AuditRecord {
            node: &self.node,
            verb: FORGET,
            subject: String::new(),
            decision: AuditDecision::Allowed,
            reason: "",
            decided_by: by,
            about: found.join(", "),
        };
        audit::publish(&self.connection, &self.subjects, record, now).await
    }
}

/// Reports whether a node has an assignment or is enrolled.
pub async fn is_assigned_or_enrolled(
    connection: &Connection,
    subjects: &Subjects,
    node: &NodeName,
) -> Result<bool, EnrolmentError> {
    let desired = connection.bucket(DESIRED).await?;
    if desired.get(&subjects.key(&node.token())).await?.is_some() {
        return Ok(true);
    }
    match EnrolmentStore::open(connection, subjects).await {
        // A fleet of an older version.
        Err(err) if err.is_not_found() => Ok(false),
        store => Ok(store?.enrolled(node).await?.is_some()),
    }
}

/// Returns the services that are registered at an address.
async fn services_at(
    connection: &Connection,
    stream: &str,
    address: IpAddr,
) -> Result<Vec<Entry>, NatsError> {
    let address = address.to_string();
    match connection
        .registrations(stream, ["", "", "", &address])
        .await
    {
        Err(NatsError::NoStream(_)) => Ok(Vec::new()),
        found => Ok(found?.entries),
    }
}
