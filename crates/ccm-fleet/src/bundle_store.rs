//! Bundles where they are kept: each under its name and digest, so that none ever changes.
//!
//! The same content is stored once. The newest of a name is what the name alone means; a digest
//! may be cut short as long as it is clear. What a bundle holds is made by [`super::bundle`].
//!
//! Agents that name a bundle in their own file want a signature beside it, where they have signers;
//! those that are assigned one don't. So a bundle may be stored with a signature, and once more in
//! a place whose name stays the same.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use chrono::{DateTime, Utc};
use flate2::read::GzDecoder;

use super::bundle::Packed;
use super::rollout_store::{RolloutError, list_everywhere};
use ccm_core::model::node::{Assignment, BadName, BundleRef, Token};
use ccm_core::model::rollout::Rollout;
use ccm_core::model::signature::beside;
use ccm_core::system::Digest;
use ccm_core::system::unpack::Limits;
use ccm_nats::object::{Info, Store};
use ccm_nats::request_signature::{KeyError, Signer};
use ccm_nats::streams::{DESIRED, MANIFESTS};
use ccm_nats::{Connection, NatsError};
use ccm_value::json;
use ccm_value::text::quote;

/// The shortest beginning of a digest that people may write.
const SHORTEST: usize = 4;

/// How much of a digest people need to see.
const SHOWN: usize = 12;

/// The largest bundle that is read.
const LARGEST: u64 = 256 << 20;

/// What went wrong with stored bundles.
#[derive(Debug, thiserror::Error)]
pub enum BundlesError {
    #[error("invalid bundle {}: expected NAME or NAME@DIGEST", quote(.0))]
    Wanted(String),
    #[error("bundle {0} does not exist")]
    NotFound(Wanted),
    #[error("bundle {0} could be several")]
    Ambiguous(Wanted),
    #[error("bundle {0} has another content than its digest says")]
    Damaged(String),
    #[error("bundle {bundle} can't be read: {cause}")]
    Unreadable {
        bundle: String,
        #[source]
        cause: io::Error,
    },
    #[error("{source_name} can't be signed: {cause}")]
    Unsigned {
        source_name: String,
        #[source]
        cause: KeyError,
    },
    #[error(transparent)]
    Rollout(#[from] RolloutError),
    #[error(transparent)]
    Nats(#[from] NatsError),
}

/// A bundle as people name it: `NAME`, or `NAME@DIGEST` with as much of the digest as is clear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub name: Token,
    pub digest: Option<String>,
}

impl FromStr for Wanted {
    type Err = BundlesError;

    fn from_str(text: &str) -> Result<Self, BundlesError> {
        let bad = || BundlesError::Wanted(text.into());
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (text, None),
        };
        let is_digest = |digest: &str| {
            let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
            (SHORTEST..=64).contains(&digest.len()) && digest.chars().all(is_hex)
        };
        if digest.is_some_and(|digest| !is_digest(digest)) {
            return Err(bad());
        }
        Ok(Self {
            name: name.parse().map_err(|_: BadName| bad())?,
            digest: digest.map(str::to_owned),
        })
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.digest {
            Some(digest) => write!(out, "{}@{digest}", self.name),
            None => write!(out, "{}", self.name),
        }
    }
}

/// Returns a bundle as people read it: its name and the beginning of its digest.
pub fn shown(bundle: &BundleRef) -> String {
    let digest: String = bundle.digest.as_str().chars().take(SHOWN).collect();
    format!("{}@{digest}", bundle.name)
}

/// One stored bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub bundle: BundleRef,
    pub size: u64,
    pub stored: Option<DateTime<Utc>>,
}

impl Version {
    /// Reads what a store says about an object; nothing if it is no bundle.
    fn of(info: &Info) -> Option<Self> {
        let (name, digest) = info.name.split_once('/')?;
        Some(Self {
            bundle: BundleRef {
                name: name.parse().ok()?,
                digest: digest.parse().ok()?,
            },
            size: info.size,
            stored: info.modified,
        })
    }
}

/// One file or directory in a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub name: String,
    pub size: u64,
}

/// The bundles of a fleet.
#[derive(Clone)]
pub struct Bundles {
    store: Store,
    connection: Connection,
}

impl Bundles {
    pub async fn open(connection: &Connection) -> Result<Self, BundlesError> {
        Ok(Self {
            store: connection.objects(MANIFESTS).await?,
            connection: connection.clone(),
        })
    }

    /// Stores a bundle. Returns what it is known by, and whether it was not there before.
    pub async fn push(
        &self,
        name: &Token,
        packed: &Packed,
    ) -> Result<(BundleRef, bool), BundlesError> {
        let bundle = BundleRef {
            name: name.clone(),
            digest: packed.digest.clone(),
        };
        let there = self.store.info(&bundle.object()).await?;
        let digest = there.and_then(|info| info.digest);
        if digest.as_deref() == Some(packed.digest.as_str()) {
            return Ok((bundle, false));
        }
        self.store.put(&bundle.object(), &packed.bytes).await?;
        Ok((bundle, true))
    }

    /// Stores who stands for a bundle beside its place, which need not hold it yet. Returns the
    /// source that agents name.
    pub async fn sign(
        &self,
        name: &Token,
        packed: &Packed,
        signer: &Signer,
        now: DateTime<Utc>,
    ) -> Result<String, BundlesError> {
        let bundle = BundleRef {
            name: name.clone(),
            digest: packed.digest.clone(),
        };
        sign(&self.store, &bundle.object(), packed, signer, now).await
    }

    /// Stores a bundle as an object of another bucket, in place of any of that name, with who
    /// stands for it if somebody does.
    pub async fn place(
        &self,
        bucket: &Token,
        key: &str,
        packed: &Packed,
        signer: Option<&Signer>,
        now: DateTime<Utc>,
    ) -> Result<(), BundlesError> {
        let store = self.connection.objects(bucket.as_str()).await?;
        if let Some(signer) = signer {
            sign(&store, key, packed, signer, now).await?;
        }
        store.put(key, &packed.bytes).await?;
        Ok(())
    }

    /// Returns all bundles: by name, the newest of each first.
    pub async fn list(&self) -> Result<Vec<Version>, BundlesError> {
        let objects = self.store.list().await?;
        let mut versions: Vec<Version> = objects.iter().filter_map(Version::of).collect();
        versions.sort_by(|a, b| {
            let names = a.bundle.name.cmp(&b.bundle.name);
            let times = || b.stored.cmp(&a.stored);
            let digests = || a.bundle.digest.cmp(&b.bundle.digest);
            names.then_with(times).then_with(digests)
        });
        Ok(versions)
    }

    /// Returns the bundle that is meant.
    pub async fn find(&self, wanted: &Wanted) -> Result<Version, BundlesError> {
        pick(self.list().await?, wanted)
    }

    /// Returns the files of a bundle, in the order they are packed.
    pub async fn contents(&self, bundle: &BundleRef) -> Result<Vec<Content>, BundlesError> {
        let bytes = self.store.get(&bundle.object(), LARGEST).await?;
        if Digest::of(&bytes).to_string() != bundle.digest.as_str() {
            return Err(BundlesError::Damaged(bundle.object()));
        }
        contents(&bytes).map_err(|cause| BundlesError::Unreadable {
            bundle: bundle.object(),
            cause,
        })
    }

    /// Returns who needs a bundle: nodes that are assigned it, rollouts that are not over.
    pub async fn users(&self, bundle: &BundleRef) -> Result<Users, BundlesError> {
        let desired = self.connection.bucket(DESIRED).await?;
        let mut users = Users::default();
        for entry in desired.entries(">").await? {
            // What can't be read may name it; nobody can follow it either.
            let Ok(assignment) = serde_json::from_slice::<Assignment>(&entry.value) else {
                continue;
            };
            if assignment.manifests.contains(bundle) {
                users.nodes.insert(entry.key);
            }
        }
        for stored in list_everywhere(&self.connection).await? {
            if is_needed(&stored.rollout, bundle) {
                users.rollouts.insert(stored.rollout.id);
            }
        }
        Ok(users)
    }

    /// Removes a bundle and who stood for it. Nodes that have a copy keep it.
    pub async fn remove(&self, bundle: &BundleRef) -> Result<(), BundlesError> {
        self.store.delete(&bundle.object()).await?;
        Ok(self.store.delete(&beside(&bundle.object())).await?)
    }
}

/// Stores a signature beside the place of a bundle, and returns that place as a source. The
/// signature goes before the bundle, so that nobody meets a new bundle without one.
async fn sign(
    store: &Store,
    key: &str,
    packed: &Packed,
    signer: &Signer,
    now: DateTime<Utc>,
) -> Result<String, BundlesError> {
    let source = format!("obj://{}/{key}", store.bucket());
    let unsigned = |cause| BundlesError::Unsigned {
        source_name: source.clone(),
        cause,
    };
    let signature = signer
        .sign_bundle(&source, &Digest::of(&packed.bytes), now)
        .map_err(unsigned)?;
    let text = json::pretty(&signature).map_err(|_| unsigned(KeyError::Unwritable))?;
    store.put(&beside(key), text.as_bytes()).await?;
    Ok(source)
}

/// Who needs a bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// The keys of the nodes: collective and token.
    pub nodes: BTreeSet<String>,
    pub rollouts: BTreeSet<Token>,
}

impl Users {
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.rollouts.is_empty()
    }
}

/// Reports whether a rollout may still hand a bundle out, on its way or on its way back.
fn is_needed(rollout: &Rollout, bundle: &BundleRef) -> bool {
    if rollout.state.is_at_rest() {
        return false;
    }
    let mut before = rollout.previous.nodes();
    rollout.bundle == *bundle
        || before.any(|node| {
            let previous = rollout.previous.get(node).flatten();
            previous.is_some_and(|assignment| assignment.manifests.contains(bundle))
        })
}

/// Picks what is meant from a list that has the newest of each name first.
fn pick(versions: Vec<Version>, wanted: &Wanted) -> Result<Version, BundlesError> {
    let prefix = wanted.digest.as_deref().unwrap_or_default();
    let mut matching = versions.into_iter().filter(|version| {
        let BundleRef { name, digest } = &version.bundle;
        *name == wanted.name && digest.as_str().starts_with(prefix)
    });
    let first = matching.next();
    let first = first.ok_or_else(|| BundlesError::NotFound(wanted.clone()))?;
    if wanted.digest.is_some() && matching.next().is_some() {
        Err(BundlesError::Ambiguous(wanted.clone()))
    } else {
        Ok(first)
    }
}

/// Lists what is in the bytes of a bundle, within the limits that a node sets.
fn contents(bytes: &[u8]) -> io::Result<Vec<Content>> {
    let limits = Limits::BUNDLE;
    let mut archive = tar::Archive::new(GzDecoder::new(bytes).take(limits.bytes));
    let mut found = Vec::new();
    for entry in archive.entries()? {
        let entry = entry?;
        if found.len() >= limits.entries {
            return Err(io::Error::other("it has too many entries"));
        }
        found.push(Content {
            name: entry.path()?.to_string_lossy().into_owned(),
            size: entry.size(),
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(name: &str, digest: &str, age: i64) -> Version {
        Version {
            bundle: BundleRef {
                name: name.parse().unwrap(),
                digest: digest.repeat(32).parse().unwrap(),
            },
            size: 1,
            stored: DateTime::from_timestamp(1_800_000_000 - age, 0),
        }
    }

    fn wanted(text: &str) -> Wanted {
        text.parse().unwrap()
    }

    #[test]
    fn a_bundle_is_named_with_as_much_of_its_digest_as_is_clear() {
        assert_eq!(wanted("app").digest, None);
        assert_eq!(wanted("app@ab12").digest.as_deref(), Some("ab12"));
        assert_eq!(wanted("app@ab12").to_string(), "app@ab12");
        for bad in [
            "", "@ab12", "app@", "app@abc", "app@ABCD", "a/b", "app@zzzz",
        ] {
            let error = bad.parse::<Wanted>().unwrap_err().to_string();
            assert!(error.starts_with("invalid bundle"), "{bad}: {error}");
        }
    }

    #[test]
    fn the_name_alone_means_the_newest() {
        let versions = || vec![version("app", "ab", 1), version("app", "ac", 9)];
        let found = pick(versions(), &wanted("app")).unwrap();
        assert_eq!(shown(&found.bundle), "app@abababababab");
        let found = pick(versions(), &wanted("app@acac")).unwrap();
        assert_eq!(shown(&found.bundle), "app@acacacacacac");
    }

    #[test]
    fn a_digest_that_fits_several_or_none_is_refused() {
        let mut twin = version("app", "ab", 1);
        twin.bundle.digest = format!("{}cd", "ab".repeat(31)).parse().unwrap();
        let versions = vec![version("app", "ab", 1), twin];
        let error = pick(versions.clone(), &wanted("app@abab")).unwrap_err();
        assert!(matches!(error, BundlesError::Ambiguous(_)), "{error}");
        let error = pick(versions, &wanted("web")).unwrap_err().to_string();
        assert_eq!(error, "bundle web does not exist");
    }

    #[test]
    fn objects_that_are_no_bundles_are_not_listed() {
        for name in ["app", "app/x", "a b/c", "app/abab/more"] {
            let info = Info {
                name: name.into(),
                size: 1,
                digest: None,
                modified: None,
            };
            assert_eq!(Version::of(&info), None, "{name}");
        }
    }

    #[test]
    fn bytes_that_are_no_archive_are_no_contents() {
        assert!(contents(b"junk").is_err());
    }
}
