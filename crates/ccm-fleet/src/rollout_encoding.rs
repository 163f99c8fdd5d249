//! Encoding of stored rollouts: JSON, compressed with gzip above a size limit.
//!
//! A rollout of few nodes is a single message, as were all of earlier versions; those with more nodes
//! are divided by `rollout_chunks`.

use std::borrow::Cow;
use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::Serialize;

use ccm_core::model::rollout::{ROLLOUT, Rollout, RolloutState};

/// Size of a rollout in JSON above which it is compressed.
const MAX_PLAIN: usize = 128 * 1024;

/// Size of a part of a rollout in JSON above which it is compressed.
const MAX_PLAIN_PART: usize = 4 * 1024;

/// Largest size of decompressed JSON.
const MAX_JSON: u64 = 256 << 20;

/// First bytes of gzip data.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Why a rollout can't be encoded or decoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodingError {
    #[error("compress rollout: {0}")]
    Compress(#[source] std::io::Error),
    #[error("decompress rollout: {0}")]
    Decompress(#[source] std::io::Error),
    #[error("invalid rollout: {0}")]
    Json(#[from] serde_json::Error),
    #[error("rollout is longer than {MAX_JSON} bytes")]
    TooLong,
    #[error("invalid rollout protocol {0:?}")]
    Protocol(String),
    #[error("a chunk belongs to wave {0}, which does not exist")]
    Wave(usize),
    #[error("chunk {0} is missing")]
    Missing(String),
    #[error("chunk {0} differs from its digest")]
    Digest(String),
}

/// Encodes a rollout as one message.
pub fn encode(rollout: &Rollout) -> Result<Vec<u8>, EncodingError> {
    compress(serde_json::to_vec(rollout)?, MAX_PLAIN)
}

/// Encodes a part of a rollout.
pub(super) fn pack(part: &impl Serialize) -> Result<Vec<u8>, EncodingError> {
    compress(serde_json::to_vec(part)?, MAX_PLAIN_PART)
}

fn compress(json: Vec<u8>, max_plain: usize) -> Result<Vec<u8>, EncodingError> {
    if json.len() <= max_plain {
        return Ok(json);
    }
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&json).map_err(EncodingError::Compress)?;
    gzip.finish().map_err(EncodingError::Compress)
}

/// Returns the JSON of a message, decompressed.
pub(super) fn unpack(bytes: &[u8]) -> Result<Cow<'_, [u8]>, EncodingError> {
    let json = if bytes.starts_with(&GZIP_MAGIC) {
        let mut json = Vec::new();
        let mut plain = GzDecoder::new(bytes).take(MAX_JSON + 1);
        plain
            .read_to_end(&mut json)
            .map_err(EncodingError::Decompress)?;
        Cow::Owned(json)
    } else {
        Cow::Borrowed(bytes)
    };
    if u64::try_from(json.len()).unwrap_or(u64::MAX) > MAX_JSON {
        return Err(EncodingError::TooLong);
    }
    Ok(json)
}

/// Decodes a rollout that is one message.
pub fn decode(bytes: &[u8]) -> Result<Rollout, EncodingError> {
    let mut rollout: Rollout = serde_json::from_slice(&unpack(bytes)?)?;
    // Earlier versions ended every rollout within its limits as done.
    if rollout.state == RolloutState::Done {
        rollout.state = rollout.end_state();
    }
    if rollout.protocol == ROLLOUT {
        Ok(rollout)
    } else {
        Err(EncodingError::Protocol(rollout.protocol))
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use ccm_core::model::node::{ASSIGNMENT, Assignment, NodeName};
    use ccm_core::model::rollout::Progress;

    fn rollout(count: u32) -> Rollout {
        let name = |number: u32| -> NodeName {
            let [a, b, c, d] = number.wrapping_mul(2_654_435_761).to_be_bytes();
            let text = format!("ip-{a}-{b}-{c}-{d}.eu-west-1.compute.internal");
            text.parse().unwrap()
        };
        let names: Vec<NodeName> = (0..count).map(name).collect();
        let mut rollout: Rollout = serde_json::from_value(serde_json::json!({
            "protocol": ROLLOUT,
            "id": "r1",
            "bundle": {"name": "app", "digest": "ab".repeat(32)},
            "created": "2027-01-15T08:00:00Z",
            "plan": {"waves": [{"name": "wave 1", "nodes": names}]},
            "state": {"name": "running"}
        }))
        .unwrap();
        for (generation, name) in (1..).zip(names) {
            let at = DateTime::UNIX_EPOCH;
            let progress = Progress::Assigned { generation, at };
            rollout.nodes.insert(name.clone(), progress);
            let before = Assignment {
                protocol: ASSIGNMENT.into(),
                generation,
                incarnation: None,
                manifests: vec![rollout.bundle.clone()],
                data: Default::default(),
                noop: false,
                governor: None,
                rollout: None,
                assigned: at,
                signature: None,
            };
            let digests = &mut rollout.previous_digests;
            digests
                .entry("ab".repeat(32))
                .or_default()
                .insert(name.clone());
            rollout.previous.record(name, Some(before));
        }
        rollout
    }

    #[test]
    fn a_small_rollout_is_stored_as_plain_json() {
        let rollout = rollout(10);
        let bytes = encode(&rollout).unwrap();
        assert!(bytes.starts_with(br#"{"protocol":"io.choria.ccm.v1.rollout""#));
        assert_eq!(decode(&bytes).unwrap(), rollout);
    }

    #[test]
    fn ten_thousand_nodes_fit_into_one_message() {
        let rollout = rollout(10_000);
        let bytes = encode(&rollout).unwrap();
        assert!(bytes.len() < 1 << 20, "{} bytes", bytes.len());
        assert_eq!(decode(&bytes).unwrap(), rollout);
    }

    #[test]
    fn a_done_rollout_of_an_earlier_version_shows_its_failures() {
        let mut rollout = rollout(2);
        let names: Vec<NodeName> = rollout.nodes.keys().cloned().collect();
        rollout.state = RolloutState::Done;
        rollout.nodes.insert(names[0].clone(), Progress::Ok);
        for (progress, state) in [
            (Progress::Changed, RolloutState::Done),
            (Progress::failed("no"), RolloutState::DoneWithFailures),
        ] {
            rollout.nodes.insert(names[1].clone(), progress);
            assert_eq!(decode(&encode(&rollout).unwrap()).unwrap().state, state);
        }
    }

    #[test]
    fn invalid_bytes_are_errors() {
        for (bytes, error) in [
            (&b"{}"[..], "invalid rollout: missing field"),
            (b"", "invalid rollout: EOF"),
            (&GZIP_MAGIC, "decompress rollout: "),
        ] {
            let found = decode(bytes).unwrap_err().to_string();
            assert!(found.starts_with(error), "{found}");
        }
        let mut other = rollout(1);
        other.protocol = "x".into();
        let found = decode(&encode(&other).unwrap()).unwrap_err().to_string();
        assert_eq!(found, "invalid rollout protocol \"x\"");
    }
}
