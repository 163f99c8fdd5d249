//! Large rollouts in chunks: a small head, and the nodes of each wave in shards.
//!
//! A NATS server limits messages to 1 MiB by default, so a rollout with many nodes is several
//! messages. The *head* has everything but the nodes: the decided part with its signature, the state,
//! the lease, the counts, and the names of the chunks. A shard is a part of a wave. It has two chunks:
//! its *members*, which never change and are named after their digest, and its *progress*, with the
//! previous assignments of its nodes.
//!
//! A chunk is never overwritten. A changed shard is written under a new name before the head that
//! names it, and the head changes only by compare-and-set. So a reader of a head sees one state of
//! the whole rollout, and a controller that dies between two writes has changed nothing.
//!
//! Pure functions; the messages are read and written in [`super::rollout_store`]. Rollouts with few
//! nodes, and all of earlier versions, are one message: see [`super::rollout_encoding`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::rollout_encoding::{EncodingError, pack, unpack};
use ccm_core::model::node::NodeName;
use ccm_core::model::rollout::{
    ExcludedNode, Plan, PreviousAssignments, Progress, ProgressMap, Rollout, Tally, Wave,
};
use ccm_core::system::Digest;
use ccm_nats::Bytes;

/// Protocol of a head.
const HEAD: &str = "io.choria.ccm.v1.rollout.head";

/// Number of nodes per shard, and of those up to which a rollout is one message.
pub(super) const SHARD: usize = 256;

/// Number of excluded nodes per chunk.
const EXCLUDED: usize = 1024;

/// The stored form of a large rollout without its nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Head {
    protocol: String,
    /// Without nodes: the waves have their names only.
    pub(super) rollout: Rollout,
    pub(super) tally: Tally,
    pub(super) shards: Vec<ShardRef>,
    /// Names of the chunks with the nodes that are in no wave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) excluded: Vec<String>,
}

/// The chunks of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ShardRef {
    pub(super) wave: usize,
    pub(super) members: String,
    /// Not set while all nodes are pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) progress: Option<String>,
}

/// The nodes of a shard. Never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Members {
    nodes: Vec<NodeName>,
    /// Positions of nodes by the digest of their assignment at the start of the rollout.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    previous_digests: BTreeMap<String, Vec<usize>>,
}

/// The progress of the nodes of a shard.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ShardProgress {
    nodes: BTreeMap<NodeName, Progress>,
    previous: PreviousAssignments,
}

/// Where the nodes of a rollout are stored. Empty if it is one message.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    shards: Vec<Shard>,
    excluded: Vec<String>,
    /// The position of the shard of each node.
    shard_of: Arc<HashMap<NodeName, usize>>,
}

/// A stored shard.
#[derive(Clone, Debug)]
struct Shard {
    stored: ShardRef,
    /// Position of its first node in the wave.
    first: usize,
    len: usize,
    /// Fingerprint of its stored progress.
    fingerprint: u64,
}

/// A chunk that is to be written.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

impl Chunk {
    /// Reports whether no other writer uses the name. Otherwise it is that of the content, and another
    /// head may name the chunk.
    pub(super) fn is_unique(&self) -> bool {
        self.name.starts_with('p')
    }
}

/// The writes that store a rollout: the chunks first, then the head.
#[derive(Clone, Debug)]
pub(super) struct Writes {
    pub(super) chunks: Vec<Chunk>,
    pub(super) head: Vec<u8>,
    /// Where the nodes are once the head is written.
    pub(super) layout: Layout,
    /// Chunks that no head names from then on.
    pub(super) replaced: Vec<String>,
}

impl Layout {
    /// Notes in which shard each node is.
    fn index(&mut self, plan: &Plan) {
        let shards = self.shards.iter().enumerate();
        let nodes = shards.flat_map(|(number, shard)| {
            let nodes = shard.nodes(plan).iter().cloned();
            nodes.map(move |node| (node, number))
        });
        self.shard_of = Arc::new(nodes.collect());
    }

    /// Reports whether the rollout is one message.
    fn is_whole(&self) -> bool {
        self.shards.is_empty()
    }

    /// Returns the names of the chunks that the head names.
    pub(super) fn chunks(&self) -> impl Iterator<Item = &str> {
        let shards = self.shards.iter().map(|it| &it.stored);
        let named = shards.flat_map(|it| it.progress.iter().chain([&it.members]));
        named.chain(&self.excluded).map(String::as_str)
    }
}

impl Head {
    /// Returns the names of the chunks.
    pub(super) fn chunks(&self) -> impl Iterator<Item = &str> {
        let named = self
            .shards
            .iter()
            .flat_map(|it| it.progress.iter().chain([&it.members]));
        named.chain(&self.excluded).map(String::as_str)
    }
}

/// Returns the head in a message, or nothing if the message is not one of a rollout in chunks.
pub(super) fn decode_head(bytes: &[u8]) -> Result<Option<Head>, EncodingError> {
    #[derive(Deserialize)]
    struct AnyProtocol {
        protocol: String,
    }
    let json = unpack(bytes)?;
    match serde_json::from_slice(&json) {
        Ok(AnyProtocol { protocol }) if protocol == HEAD => {
            Ok(Some(serde_json::from_slice(&json)?))
        }
        _ => Ok(None),
    }
}

/// Returns the writes that store a rollout, given where its nodes are stored now. `unique` makes the
/// names of new chunks different from all others. Returns nothing if it is to be one message.
pub(super) fn writes(
    rollout: &Rollout,
    layout: &Layout,
    unique: &str,
) -> Result<Option<Writes>, EncodingError> {
    if layout.is_whole() && rollout.plan.size() <= SHARD {
        return Ok(None);
    }
    let mut writes = Writes {
        chunks: Vec::new(),
        head: Vec::new(),
        layout: layout.clone(),
        replaced: Vec::new(),
    };
    if layout.is_whole() {
        writes.divide(rollout)?;
        writes.layout.index(&rollout.plan);
    }
    // The shards that can differ from what is stored, if that is known.
    let changed: Option<BTreeSet<usize>> = rollout.nodes.changed().map(|nodes| {
        let numbers = nodes.iter().filter_map(|node| layout.shard_of.get(node));
        numbers.copied().collect()
    });
    let changed = changed.filter(|_| !layout.is_whole());
    for (number, shard) in writes.layout.shards.iter_mut().enumerate() {
        if changed.as_ref().is_some_and(|it| !it.contains(&number)) {
            continue;
        }
        let nodes = shard.nodes(&rollout.plan);
        let fingerprint = fingerprint(rollout, nodes);
        if fingerprint == shard.fingerprint {
            continue;
        }
        let name = format!("p{number}-{unique}");
        writes.chunks.push(Chunk {
            name: name.clone(),
            bytes: pack(&progress_of(rollout, nodes))?,
        });
        shard.fingerprint = fingerprint;
        writes.replaced.extend(shard.stored.progress.replace(name));
    }
    let head = Head {
        protocol: HEAD.into(),
        rollout: without_nodes(rollout),
        tally: rollout.tally(),
        shards: writes
            .layout
            .shards
            .iter()
            .map(|it| it.stored.clone())
            .collect(),
        excluded: writes.layout.excluded.clone(),
    };
    writes.head = pack(&head)?;
    Ok(Some(writes))
}

impl Writes {
    /// Divides the waves into shards.
    fn divide(&mut self, rollout: &Rollout) -> Result<(), EncodingError> {
        let mut digests: BTreeMap<&NodeName, &str> = BTreeMap::new();
        for (digest, nodes) in &rollout.previous_digests {
            digests.extend(nodes.iter().map(|node| (node, digest.as_str())));
        }
        for (wave, it) in rollout.plan.waves.iter().enumerate() {
            let mut first = 0;
            for nodes in it.nodes.chunks(SHARD) {
                let mut previous_digests: BTreeMap<String, Vec<usize>> = BTreeMap::new();
                for (at, node) in nodes.iter().enumerate() {
                    if let Some(digest) = digests.get(node) {
                        previous_digests
                            .entry((*digest).into())
                            .or_default()
                            .push(at);
                    }
                }
                let members = Members {
                    nodes: nodes.to_vec(),
                    previous_digests,
                };
                let members = self.add("m", &members)?;
                self.layout.shards.push(Shard {
                    stored: ShardRef {
                        wave,
                        members,
                        progress: None,
                    },
                    first,
                    len: nodes.len(),
                    fingerprint: pending_fingerprint(nodes.len()),
                });
                first += nodes.len();
            }
        }
        for nodes in rollout.plan.left_out.chunks(EXCLUDED) {
            let name = self.add("x", &nodes)?;
            self.layout.excluded.push(name);
        }
        Ok(())
    }

    /// Adds a chunk that is named after its content.
    fn add(&mut self, kind: &str, content: &impl Serialize) -> Result<String, EncodingError> {
        let json = serde_json::to_vec(content)?;
        let name = content_name(kind, &json);
        self.chunks.push(Chunk {
            name: name.clone(),
            bytes: pack(content)?,
        });
        Ok(name)
    }
}

impl Shard {
    fn nodes<'p>(&self, plan: &'p Plan) -> &'p [NodeName] {
        let wave = plan.waves.get(self.stored.wave);
        let nodes = wave.and_then(|it| it.nodes.get(self.first..self.first + self.len));
        nodes.unwrap_or_default()
    }
}

/// Returns the rollout of a head, and where its nodes are stored. `chunk` returns the content of a
/// chunk. `before` is an earlier state of the rollout, whose chunks need not be read again; previous
/// assignments that it lacks are not read.
pub(super) fn assemble(
    head: Head,
    before: Option<(&Rollout, &Layout)>,
    mut chunk: impl FnMut(&str) -> Result<Bytes, EncodingError>,
) -> Result<(Rollout, Layout), EncodingError> {
    let Head {
        mut rollout,
        shards,
        excluded,
        ..
    } = head;
    let mut layout = Layout {
        shards: Vec::with_capacity(shards.len()),
        excluded,
        shard_of: Arc::default(),
    };
    for name in &layout.excluded {
        let nodes: Vec<ExcludedNode> = named_content(name, "x", chunk(name)?)?;
        rollout.plan.left_out.extend(nodes);
    }
    for stored in shards {
        let members: Members = named_content(&stored.members, "m", chunk(&stored.members)?)?;
        for (digest, positions) in members.previous_digests {
            let nodes = positions.iter().filter_map(|at| members.nodes.get(*at));
            let all = rollout.previous_digests.entry(digest).or_default();
            all.extend(nodes.cloned());
        }
        let wave = rollout.plan.waves.get_mut(stored.wave);
        let wave = wave.ok_or(EncodingError::Wave(stored.wave))?;
        let (first, len) = (wave.nodes.len(), members.nodes.len());
        match &stored.progress {
            None => {}
            Some(name) if before.is_some_and(|(_, layout)| layout.has_progress(name)) => {
                if let Some((before, _)) = before {
                    let ShardProgress { nodes, previous } = progress_of(before, &members.nodes);
                    rollout.nodes.extend(nodes);
                    rollout.previous.extend(previous);
                }
            }
            Some(name) => {
                let ShardProgress { nodes, previous } =
                    serde_json::from_slice(&unpack(&chunk(name)?)?)?;
                rollout.nodes.extend(nodes);
                rollout.previous.extend(previous);
            }
        }
        wave.nodes.extend(members.nodes);
        layout.shards.push(Shard {
            stored,
            first,
            len,
            fingerprint: 0,
        });
    }
    for shard in &mut layout.shards {
        shard.fingerprint = fingerprint(&rollout, shard.nodes(&rollout.plan));
    }
    layout.index(&rollout.plan);
    Ok((rollout, layout))
}

impl Layout {
    /// Reports whether this chunk has the progress of a shard.
    pub(super) fn has_progress(&self, name: &str) -> bool {
        let mut shards = self.shards.iter();
        shards.any(|it| it.stored.progress.as_deref() == Some(name))
    }
}

fn without_nodes(rollout: &Rollout) -> Rollout {
    let waves = rollout.plan.waves.iter().map(|wave| Wave {
        name: wave.name.clone(),
        canary: wave.canary,
        nodes: Vec::new(),
    });
    Rollout {
        protocol: rollout.protocol.clone(),
        id: rollout.id.clone(),
        collective: rollout.collective.clone(),
        bundle: rollout.bundle.clone(),
        data: rollout.data.clone(),
        noop: rollout.noop,
        selection: rollout.selection.clone(),
        created: rollout.created,
        caller: rollout.caller.clone(),
        settings: rollout.settings.clone(),
        plan: Plan {
            waves: waves.collect(),
            left_out: Vec::new(),
        },
        state: rollout.state.clone(),
        wave: rollout.wave,
        nodes: ProgressMap::default(),
        previous: PreviousAssignments::default(),
        previous_digests: BTreeMap::new(),
        decision: rollout.decision.clone(),
        rollback: rollout.rollback.clone(),
        forgiven: rollout.forgiven,
        lease: rollout.lease.clone(),
        controls: rollout.controls.clone(),
    }
}

fn progress_of(rollout: &Rollout, nodes: &[NodeName]) -> ShardProgress {
    let progress = nodes.iter().filter_map(|node| {
        let progress = rollout.nodes.get(node)?;
        Some((node.clone(), progress.clone()))
    });
    ShardProgress {
        nodes: progress.collect(),
        previous: rollout.previous.of(nodes),
    }
}

/// Returns a number that differs if the progress of nodes does. The previous assignment of a node never
/// changes once it is recorded.
fn fingerprint(rollout: &Rollout, nodes: &[NodeName]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for node in nodes {
        let is_recorded = rollout.previous.get(node).is_some();
        (rollout.progress(node), is_recorded).hash(&mut hasher);
    }
    hasher.finish()
}

/// Returns the fingerprint of pending nodes.
fn pending_fingerprint(count: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    for _ in 0..count {
        (&Progress::Pending, false).hash(&mut hasher);
    }
    hasher.finish()
}

/// Returns the name of a chunk that never changes.
fn content_name(kind: &str, json: &[u8]) -> String {
    format!("{kind}{}", Digest::of(json))
}

/// Decodes a chunk that is named after its content.
fn named_content<T: for<'de> Deserialize<'de>>(
    name: &str,
    kind: &str,
    bytes: Bytes,
) -> Result<T, EncodingError> {
    let json = unpack(&bytes)?;
    if content_name(kind, &json) != name {
        return Err(EncodingError::Digest(name.into()));
    }
    Ok(serde_json::from_slice(&json)?)
}

#[cfg(test)]
mod tests;
