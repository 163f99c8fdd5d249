//! A rollout as the bytes that are stored: JSON that people can read, compressed once it is long.
//!
//! A rollout is one message, so that it changes as a whole or not at all; servers take messages of
//! a megabyte unless told otherwise. Ten thousand nodes fit. Where the bytes are kept is not known
//! here.

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use ccm_core::model::rollout::{ROLLOUT, Rollout};

/// What is longer is compressed.
const PLAIN: usize = 128 * 1024;

/// The longest JSON of a rollout; there is no fleet that needs it.
const LONGEST: u64 = 256 << 20;

/// How compressed bytes begin.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Why bytes are no rollout, or a rollout no bytes.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("could not write rollout: {0}")]
    Write(#[source] std::io::Error),
    #[error("could not read rollout: {0}")]
    Read(#[source] std::io::Error),
    #[error("invalid rollout: {0}")]
    Json(#[from] serde_json::Error),
    #[error("rollout is longer than {LONGEST} bytes")]
    TooLong,
    #[error("invalid protocol {0:?} of a rollout")]
    Protocol(String),
}

/// Returns the bytes to store.
pub fn encode(rollout: &Rollout) -> Result<Vec<u8>, WireError> {
    let json = serde_json::to_vec(rollout)?;
    if json.len() <= PLAIN {
        return Ok(json);
    }
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&json).map_err(WireError::Write)?;
    gzip.finish().map_err(WireError::Write)
}

/// Reads a rollout from the bytes that were stored.
pub fn decode(bytes: &[u8]) -> Result<Rollout, WireError> {
    let mut json = Vec::new();
    let json = if bytes.starts_with(&GZIP_MAGIC) {
        let mut plain = GzDecoder::new(bytes).take(LONGEST + 1);
        plain.read_to_end(&mut json).map_err(WireError::Read)?;
        json.as_slice()
    } else {
        bytes
    };
    if u64::try_from(json.len()).unwrap_or(u64::MAX) > LONGEST {
        return Err(WireError::TooLong);
    }
    let rollout: Rollout = serde_json::from_slice(json)?;
    if rollout.protocol == ROLLOUT {
        Ok(rollout)
    } else {
        Err(WireError::Protocol(rollout.protocol))
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
            rollout.previous.note(name, Some(before));
        }
        rollout
    }

    #[test]
    fn a_small_rollout_is_stored_as_people_can_read_it() {
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
    fn bytes_that_are_no_rollout_say_why() {
        for (bytes, error) in [
            (&b"{}"[..], "invalid rollout: missing field"),
            (b"", "invalid rollout: EOF"),
            (&GZIP_MAGIC, "could not read rollout: "),
        ] {
            let found = decode(bytes).unwrap_err().to_string();
            assert!(found.starts_with(error), "{found}");
        }
        let mut other = rollout(1);
        other.protocol = "x".into();
        let found = decode(&encode(&other).unwrap()).unwrap_err().to_string();
        assert_eq!(found, "invalid protocol \"x\" of a rollout");
    }
}
