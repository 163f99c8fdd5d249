//! Feeds: the manifests an agent is configured with, and how news of them arrives.
//!
//! A path is read at each run. Bundles on servers and in object stores are followed by a task of
//! their own, which keeps a copy on disk and says when it is a new one. A bundle that was taken
//! away is left alone until it is back. Where the agent's file says so, a bundle counts only with a
//! signature beside it; one without leaves the last good copy in place.

mod missing;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinError;

use super::bundle_cache::{BundleCache, Copy};
use super::node::Node;
use super::trust::{SourceKind, Requester, SIGNATURE_LIMIT, Sources, UnsignedSource, audit, check_digest};
use ccm_core::engine::Level;
use ccm_core::model::signature::{BundleSignature, signature_location};
use ccm_core::run::ManifestLocation;
use ccm_core::run::manifest_source::{ManifestSource, SIZE_LIMIT, SourceError, TIME_LIMIT};
use ccm_core::system::files::{self, Attributes, Durability};
use ccm_core::system::http::{self, Reply, Request, Validators};
use ccm_core::system::{Digest, HttpError, SystemClock};
use ccm_nats::object::Change;
use ccm_nats::{Connection, NatsError, Verb, backoff};
use ccm_value::secret::Secret;

/// How often a server is asked for something newer.
const POLL: Duration = Duration::from_secs(30);

/// How often an object that a watch announced is tried for.
const MOST_TRIES: usize = 10;

/// How long a bundle or its signature may be on its way when the other is there.
const OTHER_HALF: Duration = Duration::from_secs(1);

/// Says that one of several feeds has something new.
pub struct News {
    pub number: usize,
    pub fresh: mpsc::Sender<usize>,
}

impl News {
    async fn tell(&self) {
        // The schedule is gone only when everything ends.
        let _ = self.fresh.send(self.number).await;
    }
}

/// One configured manifest.
pub struct WatchedManifest {
    source: ManifestLocation,
    cache: BundleCache,
    /// Nobody has the bundle any more.
    is_gone: AtomicBool,
    /// Why the bundle was last refused, so that the audit hears of it once.
    refused: Mutex<Option<UnsignedSource>>,
}

impl fmt::Display for WatchedManifest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(out)
    }
}

impl WatchedManifest {
    pub fn new(source: ManifestLocation, cache: BundleCache) -> Self {
        Self {
            source,
            cache,
            is_gone: AtomicBool::new(false),
            refused: Mutex::default(),
        }
    }

    /// Returns what to apply and who stands for it, once there is something.
    pub fn what(&self, node: &Node) -> Option<(ManifestSource, Requester)> {
        if self.is_gone.load(Ordering::Relaxed) {
            return None;
        }
        match &self.source {
            ManifestLocation::Path(path) => {
                let path = path.to_string_lossy().into_owned();
                Some((ManifestSource::Source(path), Requester::default()))
            }
            ManifestLocation::Http(url) => self.copy(url.reveal(), node),
            ManifestLocation::Object { .. } => self.copy(&self.to_string(), node),
        }
    }

    /// Returns the copy of a source, if somebody stands for it where that is asked.
    fn copy(&self, source: &str, node: &Node) -> Option<(ManifestSource, Requester)> {
        let copy = self.cache.copy(source)?;
        let requester = match self.accept(&copy, node) {
            Ok(requester) => requester,
            Err(refusal) => {
                self.refuse(node, refusal);
                return None;
            }
        };
        let what = ManifestSource::Copy {
            manifest: copy.manifest,
            display_name: self.to_string(),
        };
        Some((what, requester))
    }

    /// Returns who stands for a copy.
    fn accept(&self, copy: &Copy, node: &Node) -> Result<Requester, UnsignedSource> {
        let Some(sources) = node.services.authorizer.sources() else {
            return Ok(Requester::default());
        };
        let signature = copy.signature.as_ref();
        if signature.is_some_and(|signature| signature.digest != copy.digest) {
            return Err(UnsignedSource::Digest);
        }
        sources.accept(signature, &self.source.place(), SourceKind::Bundle)
    }

    /// Follows the source until told to stop, and tells whenever there is a new copy.
    pub async fn follow(
        self: Arc<Self>,
        node: Arc<Node>,
        connection: Connection,
        news: News,
        mut stop: watch::Receiver<bool>,
    ) {
        let follow = async {
            match &self.source {
                ManifestLocation::Path(_) => std::future::pending().await,
                ManifestLocation::Http(url) => self.poll(url, &node, &news).await,
                ManifestLocation::Object { bucket, key } => {
                    let tell = |err: &NatsError| self.complain(&node, err);
                    tokio::join!(
                        self.watch(bucket.as_str(), key, &node, &connection, &news),
                        missing::look_for(&connection, bucket.as_str(), key, tell),
                    );
                }
            }
        };
        tokio::select! {
            () = follow => {}
            _ = stop.wait_for(|stopped| *stopped) => {}
        }
    }

    async fn poll(self: &Arc<Self>, url: &Secret, node: &Arc<Node>, news: &News) {
        let mut failed = 0;
        loop {
            let (feed, worker, asked) = (self.clone(), node.clone(), url.clone());
            let fetch = move || feed.fetch_http(asked.reveal(), &worker);
            match tokio::task::spawn_blocking(fetch).await {
                Ok(Ok(is_new)) => {
                    failed = 0;
                    self.received(node);
                    if is_new {
                        news.tell().await;
                    }
                    tokio::time::sleep(POLL).await;
                }
                Ok(Err(Problem::Refused(refusal))) => {
                    self.refuse(node, refusal);
                    tokio::time::sleep(POLL).await;
                }
                Ok(Err(problem)) => {
                    self.complain(node, &problem);
                    tokio::time::sleep(backoff::delay(failed)).await;
                    failed += 1;
                }
                Err(err) => {
                    self.complain(node, &err);
                    tokio::time::sleep(backoff::delay(failed)).await;
                    failed += 1;
                }
            }
        }
    }

    async fn watch(
        &self,
        bucket: &str,
        key: &str,
        node: &Node,
        connection: &Connection,
        news: &News,
    ) {
        let mut watch = match connection.watch_objects(bucket) {
            Ok(watch) => watch,
            Err(err) => return self.complain(node, &err),
        };
        let wants_signature = node.services.authorizer.sources().is_some();
        let signature = signature_location(key);
        let mut was_seen = false;
        while let Some(change) = watch.next().await {
            match change {
                Change::Restart => was_seen = false,
                Change::Denied(denial) => self.complain(node, &denial),
                Change::Put(info) if info.name == key => {
                    was_seen = true;
                    self.is_gone.store(false, Ordering::Relaxed);
                    self.fetch(bucket, key, node, connection, news).await;
                }
                // Whichever of the two comes last completes the pair.
                Change::Put(info) if wants_signature && was_seen && info.name == signature => {
                    self.fetch(bucket, key, node, connection, news).await;
                }
                Change::Removed { name } if name == key => self.lose(node),
                Change::Current if !was_seen && self.has_copy() => self.lose(node),
                _ => {}
            }
        }
    }

    /// Fetches the object until it is here; a watch says only once that it is new.
    async fn fetch(
        &self,
        bucket: &str,
        key: &str,
        node: &Node,
        connection: &Connection,
        news: &News,
    ) {
        let before = self.cache.copy(&self.to_string());
        let mut failed = 0;
        loop {
            match self.fetch_object(bucket, key, node, connection).await {
                Ok(copy) => {
                    self.received(node);
                    // One that was here and not believed is news, too.
                    let is_known = |before: &Copy| {
                        before.digest == copy.digest && before.signature == copy.signature
                    };
                    if !before.as_ref().is_some_and(is_known) {
                        news.tell().await;
                    }
                    return;
                }
                // Each of the two is put on its own, and neither is a reason to cry wolf.
                Err(Problem::Refused(UnsignedSource::Digest)) if failed == 0 => {
                    tokio::time::sleep(OTHER_HALF).await;
                    failed += 1;
                }
                Err(Problem::Refused(refusal)) if refusal.may_pass() => {
                    self.refuse(node, refusal);
                    tokio::time::sleep(POLL).await;
                }
                // Either of the two will be put again, and the watch will tell.
                Err(Problem::Refused(refusal)) => return self.refuse(node, refusal),
                // Gone again; the watch will tell.
                Err(problem) if failed >= MOST_TRIES => {
                    return self.complain(node, &problem);
                }
                Err(problem) => {
                    self.complain(node, &problem);
                    tokio::time::sleep(backoff::delay(failed)).await;
                    failed += 1;
                }
            }
        }
    }

    async fn fetch_object(
        &self,
        bucket: &str,
        key: &str,
        node: &Node,
        connection: &Connection,
    ) -> Result<Copy, Problem> {
        let source = self.to_string();
        let signature = match node.services.authorizer.sources() {
            None => None,
            Some(sources) => {
                let found = get_object(
                    connection,
                    bucket,
                    &signature_location(key),
                    SIGNATURE_LIMIT,
                )
                .await;
                let text = match found {
                    Err(NatsError::NoObject { .. }) => None,
                    found => Some(found?),
                };
                let before = self.cache.copy(&source);
                Some(self.verify(&sources, text.as_deref(), before.as_ref())?)
            }
        };
        let content = get_object(connection, bucket, key, SIZE_LIMIT).await?;
        check_digest(signature.as_ref(), &Digest::of(&content))?;
        let copy = keep(&self.cache, source, content, signature).await?;
        self.accept(&copy, node)?;
        Ok(copy)
    }

    /// Asks a server for a bundle that is newer than the copy. Returns whether there was one.
    fn fetch_http(&self, url: &str, node: &Node) -> Result<bool, Problem> {
        let before = self.cache.copy(url);
        let signature = match node.services.authorizer.sources() {
            None => None,
            Some(sources) => {
                let text = get_signature(url)?;
                Some(self.verify(&sources, text.as_deref(), before.as_ref())?)
            }
        };
        let download = self.cache.download()?;
        let file = download.path().join("bundle");
        let mut request = Request::new(url, TIME_LIMIT, SIZE_LIMIT);
        if let Some(copy) = &before
            && copy.signature == signature
        {
            request.known.clone_from(&copy.validators);
        }
        let mut reply = None;
        files::store_with(
            &file,
            &Attributes::default(),
            Durability::Cached,
            |mut file| {
                reply = Some(http::get(&request, &SystemClock, &mut file)?);
                Ok::<_, Problem>(())
            },
        )?;
        match reply {
            Some(Reply::Complete(received)) => {
                check_digest(signature.as_ref(), &received.digest)?;
                let (digest, validators) = (&received.digest, received.validators);
                let copy = self.cache.keep(url, &file, digest, validators, signature)?;
                self.accept(&copy, node)?;
                Ok(before.is_none_or(|before| {
                    before.digest != copy.digest || before.signature != copy.signature
                }))
            }
            Some(Reply::NotModified) | None => Ok(false),
        }
    }

    /// Returns the signature that a text is, if it stands for this source.
    fn verify(
        &self,
        sources: &Sources<'_>,
        text: Option<&[u8]>,
        before: Option<&Copy>,
    ) -> Result<BundleSignature, UnsignedSource> {
        let before = before.and_then(|copy| copy.signature.as_ref());
        sources.verify(text, &self.source.place(), SourceKind::Bundle, before)
    }

    fn has_copy(&self) -> bool {
        !self.is_gone.load(Ordering::Relaxed) && self.cache.copy(&self.source.place()).is_some()
    }

    fn received(&self, node: &Node) {
        *self.refused.lock() = None;
        node.services.metrics.manifest_fetched(&self.to_string());
    }

    /// Tells that a bundle is not applied, and why: in the log each time, in the audit once.
    fn refuse(&self, node: &Node, refusal: UnsignedSource) {
        let (shown, reason) = (self.to_string(), refusal.to_string());
        node.services.metrics.manifest_fetch_failed(&shown);
        let fields = [("manifest", shown.clone()), ("error", reason.clone())];
        node.log(Level::Error, "Not applying a manifest", &fields);
        let mut refused = self.refused.lock();
        if refused.replace(refusal.clone()) != Some(refusal) {
            drop(refused);
            let request = audit::Request {
                about: &shown,
                ..audit::Request::default()
            };
            node.services
                .audit
                .denied(node, Verb::Apply, &request, &reason);
        }
    }

    fn lose(&self, node: &Node) {
        if !self.is_gone.swap(true, Ordering::Relaxed) {
            let fields = [("manifest", self.to_string())];
            let text = "Manifest was removed, waiting for it to come back";
            node.log(Level::Warn, text, &fields);
        }
    }

    fn complain(&self, node: &Node, reason: &dyn fmt::Display) {
        let shown = self.to_string();
        node.services.metrics.manifest_fetch_failed(&shown);
        let fields = [("manifest", shown), ("error", reason.to_string())];
        node.log(Level::Error, "Could not fetch a manifest", &fields);
    }
}

/// Why there is no new copy of a bundle.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error(transparent)]
    Nats(#[from] NatsError),
    #[error(transparent)]
    File(#[from] files::FileError),
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The agent is ending.
    #[error(transparent)]
    Ended(#[from] JoinError),
    #[error(transparent)]
    Refused(#[from] UnsignedSource),
}

/// Asks a server for the signature of what it has at a URL; nothing if there is none.
pub(super) fn get_signature(url: &str) -> Result<Option<Vec<u8>>, HttpError> {
    let url = signature_location(url);
    let request = Request::new(&url, TIME_LIMIT, SIGNATURE_LIMIT);
    let mut text = Vec::new();
    match http::get(&request, &SystemClock, &mut text) {
        Ok(_) => Ok(Some(text)),
        Err(HttpError::Status {
            code: 404 | 410, ..
        }) => Ok(None),
        Err(err) => Err(err),
    }
}

/// Brings an object into the cache and returns its copy.
pub(super) async fn fetch_object(
    cache: &BundleCache,
    connection: &Connection,
    bucket: &str,
    name: &str,
) -> Result<Copy, Problem> {
    let content = get_object(connection, bucket, name, SIZE_LIMIT).await?;
    keep(cache, format!("obj://{bucket}/{name}"), content, None).await
}

async fn get_object(
    connection: &Connection,
    bucket: &str,
    name: &str,
    limit: u64,
) -> Result<Bytes, NatsError> {
    connection.objects(bucket).await?.get(name, limit).await
}

async fn keep(
    cache: &BundleCache,
    source: String,
    content: Bytes,
    signature: Option<BundleSignature>,
) -> Result<Copy, Problem> {
    let cache = cache.clone();
    let keep = move || -> Result<Copy, SourceError> {
        let download = cache.download()?;
        let file = download.path().join("bundle");
        files::write_private(&file, &content, Durability::Cached)?;
        let (digest, validators) = (Digest::of(&content), Validators::default());
        cache.keep(&source, &file, &digest, validators, signature)
    };
    Ok(tokio::task::spawn_blocking(keep).await??)
}
