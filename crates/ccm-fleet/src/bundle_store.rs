//! Bundle store: bundles in the object store, by name and digest, immutable.
//!
//! Equal content is stored once. A name alone means its newest bundle; a digest may be abbreviated
//! as long as it is unambiguous. Bundles are packed by [`super::bundle`].
//!
//! Agents that name a bundle in their own configuration and have trusted signers need a signature
//! next to it; assigned bundles need none. So a bundle can be stored with a signature, and also as
//! an object with a fixed name.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use chrono::{DateTime, Utc};
use flate2::read::GzDecoder;
use tokio::task::spawn_blocking;

use super::bundle::Packed;
use super::bundle_diff::{BundleDiff, diff};
use super::records;
use super::rollout_store::{RolloutError, list_active};
use ccm_core::model::node::{Assignment, BundleRef, NameError, Token};
use ccm_core::model::rollout::Rollout;
use ccm_core::model::signature::signature_location;
use ccm_core::system::Digest;
use ccm_core::system::unpack::Limits;
use ccm_nats::object::{Info, Store};
use ccm_nats::request_signature::{KeyError, Signer};
use ccm_nats::streams::{DESIRED, MANIFESTS};
use ccm_nats::{Bytes, Connection, NatsError};
use ccm_value::json;
use ccm_value::text::quote;

/// Shortest abbreviation of a digest.
const MIN_DIGITS: usize = 4;

/// Number of digits of a digest that are shown.
const SHOWN_DIGITS: usize = 12;

/// Largest bundle that is read.
const MAX_BUNDLE_BYTES: u64 = 256 << 20;

/// Why an operation on stored bundles failed.
#[derive(Debug, thiserror::Error)]
pub enum BundleStoreError {
    #[error("invalid bundle {}: expected NAME or NAME@DIGEST", quote(.0))]
    Invalid(String),
    #[error("bundle {0} does not exist")]
    NotFound(BundleSelector),
    #[error("bundle {0} is ambiguous")]
    Ambiguous(BundleSelector),
    #[error("content of bundle {0} does not match its digest")]
    DigestMismatch(String),
    #[error("read bundle {bundle}: {cause}")]
    Unreadable {
        bundle: String,
        #[source]
        cause: io::Error,
    },
    #[error("sign {source_name}: {cause}")]
    Sign {
        source_name: String,
        #[source]
        cause: KeyError,
    },
    #[error(transparent)]
    Rollout(#[from] RolloutError),
    #[error(transparent)]
    Nats(#[from] NatsError),
}

/// A bundle named by a user: `NAME`, or `NAME@DIGEST` with an unambiguous abbreviation of the
/// digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleSelector {
    pub name: Token,
    pub digest: Option<String>,
}

impl FromStr for BundleSelector {
    type Err = BundleStoreError;

    fn from_str(text: &str) -> Result<Self, BundleStoreError> {
        let bad = || BundleStoreError::Invalid(text.into());
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (text, None),
        };
        let is_digest = |digest: &str| {
            let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
            (MIN_DIGITS..=64).contains(&digest.len()) && digest.chars().all(is_hex)
        };
        if digest.is_some_and(|digest| !is_digest(digest)) {
            return Err(bad());
        }
        Ok(Self {
            name: name.parse().map_err(|_: NameError| bad())?,
            digest: digest.map(str::to_owned),
        })
    }
}

impl fmt::Display for BundleSelector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.digest {
            Some(digest) => write!(out, "{}@{digest}", self.name),
            None => write!(out, "{}", self.name),
        }
    }
}

/// Returns the name of a bundle with the abbreviated digest.
pub fn short_name(bundle: &BundleRef) -> String {
    let digest: String = bundle.digest.as_str().chars().take(SHOWN_DIGITS).collect();
    format!("{}@{digest}", bundle.name)
}

/// One stored bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBundle {
    pub bundle: BundleRef,
    pub size: u64,
    pub stored: Option<DateTime<Utc>>,
}

impl StoredBundle {
    /// Reads the info of an object; none if it is no bundle.
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
pub struct BundleStore {
    store: Store,
    connection: Connection,
}

impl BundleStore {
    pub async fn open(connection: &Connection) -> Result<Self, BundleStoreError> {
        Ok(Self {
            store: connection.objects(MANIFESTS).await?,
            connection: connection.clone(),
        })
    }

    /// Stores a bundle. Returns its reference, and whether it is new.
    pub async fn push(
        &self,
        name: &Token,
        packed: &Packed,
    ) -> Result<(BundleRef, bool), BundleStoreError> {
        let bundle = BundleRef {
            name: name.clone(),
            digest: packed.digest.clone(),
        };
        let existing = self.store.info(&bundle.object()).await?;
        let digest = existing.and_then(|info| info.digest);
        if digest.as_deref() == Some(packed.digest.as_str()) {
            return Ok((bundle, false));
        }
        self.store.put(&bundle.object(), &packed.bytes).await?;
        Ok((bundle, true))
    }

    /// Stores the signature of a bundle, which may be stored later. Returns the source that agents
    /// name.
    pub async fn sign(
        &self,
        name: &Token,
        packed: &Packed,
        signer: &Signer,
        now: DateTime<Utc>,
    ) -> Result<String, BundleStoreError> {
        let bundle = BundleRef {
            name: name.clone(),
            digest: packed.digest.clone(),
        };
        sign(&self.store, &bundle.object(), packed, signer, now).await
    }

    /// Stores a bundle as an object of another bucket, replacing it, with a signature if there is a
    /// signer.
    pub async fn store_as(
        &self,
        bucket: &Token,
        key: &str,
        packed: &Packed,
        signer: Option<&Signer>,
        now: DateTime<Utc>,
    ) -> Result<(), BundleStoreError> {
        let store = self.connection.objects(bucket.as_str()).await?;
        if let Some(signer) = signer {
            sign(&store, key, packed, signer, now).await?;
        }
        store.put(key, &packed.bytes).await?;
        Ok(())
    }

    /// Returns all bundles, sorted by name, the newest of each first.
    pub async fn list(&self) -> Result<Vec<StoredBundle>, BundleStoreError> {
        let objects = self.store.list().await?;
        let mut versions: Vec<StoredBundle> = objects.iter().filter_map(StoredBundle::of).collect();
        versions.sort_by(|a, b| {
            let names = a.bundle.name.cmp(&b.bundle.name);
            let times = || b.stored.cmp(&a.stored);
            let digests = || a.bundle.digest.cmp(&b.bundle.digest);
            names.then_with(times).then_with(digests)
        });
        Ok(versions)
    }

    /// Finds a bundle.
    pub async fn find(&self, selector: &BundleSelector) -> Result<StoredBundle, BundleStoreError> {
        select(self.list().await?, selector)
    }

    /// Returns the files of a bundle, in archive order.
    pub async fn contents(&self, bundle: &BundleRef) -> Result<Vec<Content>, BundleStoreError> {
        let bytes = self.bytes(bundle).await?;
        contents(&bytes).map_err(|cause| BundleStoreError::Unreadable {
            bundle: bundle.object(),
            cause,
        })
    }

    /// Compares two bundles.
    pub async fn diff(
        &self,
        old: &BundleRef,
        new: &BundleRef,
    ) -> Result<BundleDiff, BundleStoreError> {
        let (before, after) = tokio::try_join!(self.bytes(old), self.bytes(new))?;
        let compared = spawn_blocking(move || diff(&before, &after)).await;
        let compared = compared.unwrap_or_else(|stopped| Err(stopped.into()));
        compared.map_err(|cause| BundleStoreError::Unreadable {
            bundle: format!("{} or {}", old.object(), new.object()),
            cause,
        })
    }

    /// Returns the bytes of a bundle after verifying its digest.
    async fn bytes(&self, bundle: &BundleRef) -> Result<Bytes, BundleStoreError> {
        let bytes = self.store.get(&bundle.object(), MAX_BUNDLE_BYTES).await?;
        if Digest::of(&bytes).to_string() != bundle.digest.as_str() {
            return Err(BundleStoreError::DigestMismatch(bundle.object()));
        }
        Ok(bytes)
    }

    /// Returns the users of a bundle: nodes that it is assigned to and active rollouts.
    pub async fn users(&self, bundle: &BundleRef) -> Result<BundleUsers, BundleStoreError> {
        let desired = self.connection.bucket(DESIRED).await?;
        let mut users = BundleUsers::default();
        for entry in desired.entries("*.*").await? {
            match records::parse::<Assignment>(&entry) {
                Ok(assignment) if !assignment.manifests.contains(bundle) => {}
                Ok(_) => drop(users.nodes.insert(entry.key)),
                Err(_) => drop(users.unreadable.insert(entry.key)),
            }
        }
        for stored in list_active(&self.connection).await? {
            if is_needed(&stored.rollout, bundle) {
                users.rollouts.insert(stored.rollout.id);
            }
        }
        Ok(users)
    }

    /// Removes a bundle and its signature. Nodes keep their copies.
    pub async fn remove(&self, bundle: &BundleRef) -> Result<(), BundleStoreError> {
        self.store.delete(&bundle.object()).await?;
        Ok(self
            .store
            .delete(&signature_location(&bundle.object()))
            .await?)
    }
}

/// Stores the signature of an object, and returns the source of the object. The signature is stored
/// before the bundle, so that a new bundle never is without one.
async fn sign(
    store: &Store,
    key: &str,
    packed: &Packed,
    signer: &Signer,
    now: DateTime<Utc>,
) -> Result<String, BundleStoreError> {
    let source = format!("obj://{}/{key}", store.bucket());
    let unsigned = |cause| BundleStoreError::Sign {
        source_name: source.clone(),
        cause,
    };
    let signature = signer
        .sign_bundle(&source, &Digest::of(&packed.bytes), now)
        .map_err(unsigned)?;
    let text = json::pretty(&signature).map_err(|_| unsigned(KeyError::Unserializable))?;
    store.put(&signature_location(key), text.as_bytes()).await?;
    Ok(source)
}

/// Users of a bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BundleUsers {
    /// Keys of the nodes: collective and token.
    pub nodes: BTreeSet<String>,
    pub rollouts: BTreeSet<Token>,
    /// Keys of the nodes whose assignments can't be read, and may name the bundle.
    pub unreadable: BTreeSet<String>,
}

impl BundleUsers {
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.rollouts.is_empty() && self.unreadable.is_empty()
    }
}

/// Reports whether an active rollout may still assign a bundle, or restore it by a rollback.
fn is_needed(rollout: &Rollout, bundle: &BundleRef) -> bool {
    if rollout.state.is_finished() {
        return false;
    }
    let mut previous_nodes = rollout.previous.nodes();
    rollout.bundle == *bundle
        || previous_nodes.any(|node| {
            let previous = rollout.previous.get(node).flatten();
            previous.is_some_and(|assignment| assignment.manifests.contains(bundle))
        })
}

/// Selects a bundle from a list with the newest of each name first.
fn select(
    versions: Vec<StoredBundle>,
    selector: &BundleSelector,
) -> Result<StoredBundle, BundleStoreError> {
    let prefix = selector.digest.as_deref().unwrap_or_default();
    let mut matching = versions.into_iter().filter(|version| {
        let BundleRef { name, digest } = &version.bundle;
        *name == selector.name && digest.as_str().starts_with(prefix)
    });
    let first = matching.next();
    let first = first.ok_or_else(|| BundleStoreError::NotFound(selector.clone()))?;
    if selector.digest.is_some() && matching.next().is_some() {
        Err(BundleStoreError::Ambiguous(selector.clone()))
    } else {
        Ok(first)
    }
}

/// Lists the files of an archive, within the limits of nodes.
fn contents(bytes: &[u8]) -> io::Result<Vec<Content>> {
    let limits = Limits::BUNDLE;
    let mut archive = tar::Archive::new(GzDecoder::new(bytes).take(limits.bytes));
    let mut found = Vec::new();
    for entry in archive.entries()? {
        let entry = entry?;
        if found.len() >= limits.entries {
            return Err(io::Error::other("too many entries"));
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

    fn version(name: &str, digest: &str, age: i64) -> StoredBundle {
        StoredBundle {
            bundle: BundleRef {
                name: name.parse().unwrap(),
                digest: digest.repeat(32).parse().unwrap(),
            },
            size: 1,
            stored: DateTime::from_timestamp(1_800_000_000 - age, 0),
        }
    }

    fn selector(text: &str) -> BundleSelector {
        text.parse().unwrap()
    }

    #[test]
    fn a_bundle_is_named_with_an_abbreviated_digest() {
        assert_eq!(selector("app").digest, None);
        assert_eq!(selector("app@ab12").digest.as_deref(), Some("ab12"));
        assert_eq!(selector("app@ab12").to_string(), "app@ab12");
        for bad in [
            "", "@ab12", "app@", "app@abc", "app@ABCD", "a/b", "app@zzzz",
        ] {
            let error = bad.parse::<BundleSelector>().unwrap_err().to_string();
            assert!(error.starts_with("invalid bundle"), "{bad}: {error}");
        }
    }

    #[test]
    fn the_name_alone_means_the_newest() {
        let versions = || vec![version("app", "ab", 1), version("app", "ac", 9)];
        let found = select(versions(), &selector("app")).unwrap();
        assert_eq!(short_name(&found.bundle), "app@abababababab");
        let found = select(versions(), &selector("app@acac")).unwrap();
        assert_eq!(short_name(&found.bundle), "app@acacacacacac");
    }

    #[test]
    fn an_ambiguous_or_unknown_digest_is_an_error() {
        let mut twin = version("app", "ab", 1);
        twin.bundle.digest = format!("{}cd", "ab".repeat(31)).parse().unwrap();
        let versions = vec![version("app", "ab", 1), twin];
        let error = select(versions.clone(), &selector("app@abab")).unwrap_err();
        assert!(matches!(error, BundleStoreError::Ambiguous(_)), "{error}");
        let error = select(versions, &selector("web")).unwrap_err().to_string();
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
            assert_eq!(StoredBundle::of(&info), None, "{name}");
        }
    }

    #[test]
    fn invalid_archives_are_errors() {
        assert!(contents(b"junk").is_err());
    }
}
