//! Tests of rollouts in chunks: what is written, and what is read again.

use std::collections::BTreeSet;

use super::*;
use crate::decision::{TrustedSigners, sign, verify};
use ccm_core::model::rollout::{ROLLOUT, RolloutState};
use ccm_nats::request_signature::Signer;

/// The chunks and the head of a rollout, as the store has them.
#[derive(Default)]
struct Stored {
    chunks: BTreeMap<String, Vec<u8>>,
    head: Vec<u8>,
    layout: Layout,
}

impl Stored {
    /// Stores a rollout and returns the names of the written chunks.
    fn write(&mut self, rollout: &Rollout, unique: &str) -> Vec<String> {
        let writes = writes(rollout, &self.layout, unique).unwrap().unwrap();
        let written = writes.chunks.iter().map(|it| it.name.clone()).collect();
        for Chunk { name, bytes } in writes.chunks {
            let before = self.chunks.insert(name.clone(), bytes);
            assert!(before.is_none(), "{name} was overwritten");
        }
        for name in writes.replaced {
            self.chunks.remove(&name).unwrap();
        }
        (self.head, self.layout) = (writes.head, writes.layout);
        written
    }

    fn read(&self) -> Result<(Rollout, Layout), EncodingError> {
        self.read_after(None)
    }

    fn read_after(
        &self,
        before: Option<(&Rollout, &Layout)>,
    ) -> Result<(Rollout, Layout), EncodingError> {
        assemble(decode_head(&self.head)?.unwrap(), before, |name| {
            let missing = || EncodingError::Missing(name.into());
            let bytes = self.chunks.get(name).ok_or_else(missing)?;
            Ok(bytes.clone().into())
        })
    }
}

fn names(count: usize) -> Vec<NodeName> {
    let names = (0..count).map(|it| format!("node{it:06}.example.net"));
    names.map(|it| it.parse().unwrap()).collect()
}

fn rollout(count: usize) -> Rollout {
    let names = names(count);
    let (canary, others) = names.split_at(10);
    let mut rollout: Rollout = serde_json::from_value(serde_json::json!({
        "protocol": ROLLOUT,
        "id": "r1",
        "bundle": {"name": "app", "digest": "ab".repeat(32)},
        "created": "2027-01-15T08:00:00Z",
        "plan": {
            "waves": [{"name": "canary", "canary": true, "nodes": canary},
                      {"name": "wave 1", "nodes": others}],
            "left_out": [{"node": "old.example.net", "reason": "paused"}],
        },
        "state": {"name": "running"}
    }))
    .unwrap();
    let before: BTreeSet<NodeName> = others.iter().step_by(2).cloned().collect();
    rollout.previous_digests.insert("cd".repeat(32), before);
    rollout
}

#[test]
fn a_rollout_of_few_nodes_is_one_message() {
    let rollout = rollout(SHARD);
    assert!(writes(&rollout, &Layout::default(), "1").unwrap().is_none());
    let bytes = crate::rollout_encoding::encode(&rollout).unwrap();
    assert!(decode_head(&bytes).unwrap().is_none());
}

#[test]
fn a_large_rollout_is_read_as_it_was_stored() {
    let mut rollout = rollout(3000);
    let mut stored = Stored::default();
    stored.write(&rollout, "1");
    assert_eq!(stored.read().unwrap().0, rollout);
    for node in names(700) {
        rollout.previous.record(node.clone(), None);
        rollout.nodes.insert(node, Progress::Changed);
    }
    rollout.wave = 1;
    stored.write(&rollout, "2");
    let (read, layout) = stored.read().unwrap();
    assert_eq!(read, rollout);
    // Another controller goes on.
    stored.layout = layout;
    assert!(stored.write(&rollout, "3").is_empty());
}

#[test]
fn a_large_rollout_is_read_with_the_progress_of_an_earlier_state() {
    let mut rollout = rollout(3000);
    let mut stored = Stored::default();
    let change = |rollout: &mut Rollout, node: &NodeName| {
        rollout.previous.record(node.clone(), None);
        rollout.nodes.insert(node.clone(), Progress::Changed);
    };
    for node in names(700) {
        change(&mut rollout, &node);
    }
    stored.write(&rollout, "1");
    let (before, layout) = stored.read().unwrap();
    change(&mut rollout, &names(3000)[2999]);
    stored.write(&rollout, "2");
    // The shards of the first nodes are those of the earlier state.
    for name in layout.chunks().filter(|name| name.starts_with('p')) {
        stored.chunks.remove(name);
    }
    let (read, _) = stored.read_after(Some((&before, &layout))).unwrap();
    assert_eq!(read, rollout);
}

#[test]
fn only_changed_shards_are_written() {
    let mut rollout = rollout(3000);
    let mut stored = Stored::default();
    stored.write(&rollout, "1");
    let mut change = |position: usize, progress, unique: &str| {
        let node = names(3000).swap_remove(position);
        rollout.nodes.insert(node, progress);
        let written = stored.write(&rollout, unique);
        // From now on only changed nodes are looked at.
        rollout.nodes.settle();
        written
    };
    assert_eq!(change(0, Progress::Ok, "2"), ["p0-2"]);
    assert_eq!(change(10, Progress::Ok, "3"), ["p1-3"]);
    assert_eq!(change(10, Progress::failed("no"), "4"), ["p1-4"]);
    assert_eq!(change(2999, Progress::Ok, "5"), ["p12-5"]);
    rollout.state = RolloutState::Done;
    assert!(stored.write(&rollout, "6").is_empty());
}

#[test]
fn a_hundred_thousand_nodes_fit_into_messages() {
    let mut rollout = rollout(100_000);
    for node in names(100_000) {
        let progress = Progress::failed(&format!("{node} has no such package"));
        rollout.nodes.insert(node, progress);
    }
    let writes = writes(&rollout, &Layout::default(), "1").unwrap().unwrap();
    let largest = writes.chunks.iter().map(|it| it.bytes.len()).max();
    assert!(largest.unwrap() < 64 << 10, "{largest:?}");
    assert!(writes.head.len() < 64 << 10, "{}", writes.head.len());
}

#[test]
fn the_signature_covers_the_members() {
    let mut rollout = rollout(1000);
    sign(&mut rollout, &Signer::generate()).unwrap();
    let mut stored = Stored::default();
    stored.write(&rollout, "1");
    let trusted = TrustedSigners::default();
    let (read, _) = stored.read().unwrap();
    assert!(verify(&read, &trusted).unwrap().is_some());
    // Another list of members, consistently named.
    let mut forged = read.clone();
    forged.plan.waves[1].nodes.swap(0, 1);
    let mut other = Stored::default();
    other.write(&forged, "1");
    let (read, _) = other.read().unwrap();
    let error = verify(&read, &trusted).unwrap_err();
    assert_eq!(
        error.to_string(),
        "plan or limits differs from what was signed"
    );
}

#[test]
fn changed_members_differ_from_their_name() {
    let rollout = rollout(1000);
    let mut stored = Stored::default();
    let written = stored.write(&rollout, "1");
    let [first, second, ..] = written.as_slice() else {
        panic!("{written:?}");
    };
    let swapped = stored.chunks[second].clone();
    stored.chunks.insert(first.clone(), swapped);
    let error = stored.read().unwrap_err().to_string();
    assert_eq!(error, format!("chunk {first} differs from its digest"));
    stored.chunks.remove(first);
    let error = stored.read().unwrap_err().to_string();
    assert_eq!(error, format!("chunk {first} is missing"));
}

#[test]
fn progress_of_known_chunks_is_not_read_again() {
    let mut rollout = rollout(1000);
    let mut stored = Stored::default();
    rollout.nodes.insert(names(1).swap_remove(0), Progress::Ok);
    stored.write(&rollout, "1");
    let (before, layout) = stored.read().unwrap();
    rollout
        .nodes
        .insert(names(1000).swap_remove(999), Progress::Ok);
    stored.write(&rollout, "2");
    let head = decode_head(&stored.head).unwrap().unwrap();
    let mut asked = Vec::new();
    let (read, _) = assemble(head, Some((&before, &layout)), |name| {
        asked.push(name.to_owned());
        Ok(stored.chunks[name].clone().into())
    })
    .unwrap();
    assert_eq!(read.nodes, rollout.nodes);
    let progress: Vec<&String> = asked.iter().filter(|it| it.starts_with('p')).collect();
    assert_eq!(progress, ["p4-2"]);
}
