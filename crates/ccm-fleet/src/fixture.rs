//! Test fixtures: subjects and bucket entries.

use chrono::DateTime;
use serde_json::Value;

use ccm_nats::Subjects;
use ccm_nats::kv::Entry;

/// Returns the subjects of the collective `lab`.
pub(super) fn subjects() -> Subjects {
    Subjects::new("ccm.v1", "lab".parse().unwrap()).unwrap()
}

/// Returns a bucket entry with a key and a JSON value.
pub(super) fn entry(key: &str, value: Value) -> Entry {
    Entry {
        key: key.into(),
        value: value.to_string().into(),
        revision: 1,
        created: DateTime::UNIX_EPOCH,
    }
}
