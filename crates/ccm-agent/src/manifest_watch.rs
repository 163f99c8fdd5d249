//! Manifest watch: fetches the configured manifests and reports updates to the schedule.
//!
//! A path is read at each run. Bundles on HTTP servers are polled and those in object stores
//! watched by a task each, which keeps the newest in the bundle cache. A bundle that was removed
//! from its store is not applied until it is back. Where sources must be signed, a bundle without a
//! valid signature is refused and the last accepted one stays in place.

mod missing;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinError;

use super::bundle_cache::{BundleCache, CachedBundle};
use super::node::Node;
use super::trust::{
    Requester, SIGNATURE_LIMIT, SourceKind, Sources, UnsignedSource, audit, check_digest,
};
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

/// Poll interval for HTTP servers.
const POLL: Duration = Duration::from_secs(30);

/// Most attempts to fetch an announced object.
const MAX_ATTEMPTS: usize = 10;

/// Wait for the other file when a bundle and its signature do not match: they are uploaded one
/// after the other.
const PAIR_DELAY: Duration = Duration::from_secs(1);

/// Reports updates of one manifest to the schedule.
pub(crate) struct UpdateSender {
    pub(crate) index: usize,
    pub(crate) updates: mpsc::Sender<usize>,
}

impl UpdateSender {
    async fn send(&self) {
        // The receiver is gone only at shutdown.
        let _ = self.updates.send(self.index).await;
    }
}

/// A configured manifest and its source.
pub(crate) struct WatchedManifest {
    source: ManifestLocation,
    cache: BundleCache,
    /// The bundle was removed from its store.
    is_removed: AtomicBool,
    /// Notified when the cached bundle is found damaged.
    damaged: Notify,
    /// Last refusal of the bundle, so that it is audited once.
    refused: Mutex<Option<UnsignedSource>>,
}

impl fmt::Display for WatchedManifest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(out)
    }
}

impl WatchedManifest {
    pub(crate) fn new(source: ManifestLocation, cache: BundleCache) -> Self {
        Self {
            source,
            cache,
            is_removed: AtomicBool::new(false),
            damaged: Notify::new(),
            refused: Mutex::default(),
        }
    }

    /// Returns the manifest to apply and its requester, if one is available.
    pub(crate) async fn current(
        self: &Arc<Self>,
        node: &Arc<Node>,
    ) -> Option<(ManifestSource, Requester)> {
        let (manifest, node) = (self.clone(), node.clone());
        // Verifies the files of a cached bundle.
        let read = tokio::task::spawn_blocking(move || manifest.read(&node));
        read.await.ok().flatten()
    }

    fn read(&self, node: &Node) -> Option<(ManifestSource, Requester)> {
        if self.is_removed.load(Ordering::Relaxed) {
            return None;
        }
        match &self.source {
            ManifestLocation::Path(path) => {
                let path = path.to_string_lossy().into_owned();
                Some((ManifestSource::Source(path), Requester::default()))
            }
            ManifestLocation::Http(url) => self.cached(url.reveal(), node),
            ManifestLocation::Object { .. } => self.cached(&self.to_string(), node),
        }
    }

    /// Returns the cached bundle, if it is accepted.
    fn cached(&self, source: &str, node: &Node) -> Option<(ManifestSource, Requester)> {
        let Some(copy) = self.cache.find(source) else {
            if self.cache.is_damaged(source) {
                let fields = [("manifest", self.to_string())];
                let text = "The cached bundle is damaged; fetching it again";
                node.log(Level::Error, text, &fields);
                self.damaged.notify_one();
            }
            return None;
        };
        let requester = match self.accept(&copy, node) {
            Ok(requester) => requester,
            Err(refusal) => {
                self.refuse(node, refusal);
                return None;
            }
        };
        let manifest = ManifestSource::Copy {
            manifest: copy.manifest,
            display_name: self.to_string(),
        };
        Some((manifest, requester))
    }

    /// Returns the signer of a cached bundle as requester, or the reason to refuse it.
    fn accept(&self, copy: &CachedBundle, node: &Node) -> Result<Requester, UnsignedSource> {
        let Some(sources) = node.services.authorizer.sources() else {
            return Ok(Requester::default());
        };
        let signature = copy.signature.as_ref();
        if signature.is_some_and(|signature| signature.digest != copy.digest) {
            return Err(UnsignedSource::Digest);
        }
        sources.accept(signature, &self.source.normalized(), SourceKind::Bundle)
    }

    /// Fetches updates until stopped, and reports each.
    pub(crate) async fn follow(
        self: Arc<Self>,
        node: Arc<Node>,
        connection: Connection,
        updates: UpdateSender,
        mut stop: watch::Receiver<bool>,
    ) {
        let follow = async {
            match &self.source {
                ManifestLocation::Path(_) => std::future::pending().await,
                ManifestLocation::Http(url) => self.poll(url, &node, &updates).await,
                ManifestLocation::Object { bucket, key } => {
                    let report = |err: &NatsError| self.log_error(&node, err);
                    tokio::join!(
                        self.watch(bucket.as_str(), key, &node, &connection, &updates),
                        missing::report_missing(&connection, bucket.as_str(), key, report),
                    );
                }
            }
        };
        tokio::select! {
            () = follow => {}
            _ = stop.wait_for(|stopped| *stopped) => {}
        }
    }

    async fn poll(self: &Arc<Self>, url: &Secret, node: &Arc<Node>, updates: &UpdateSender) {
        let mut failed = 0;
        loop {
            let (manifest, owner, address) = (self.clone(), node.clone(), url.clone());
            let fetch = move || manifest.fetch_http(address.reveal(), &owner);
            match tokio::task::spawn_blocking(fetch).await {
                Ok(Ok(is_new)) => {
                    failed = 0;
                    self.received(node);
                    if is_new {
                        updates.send().await;
                    }
                    // A damaged bundle is fetched again without delay.
                    let _ = tokio::time::timeout(POLL, self.damaged.notified()).await;
                }
                Ok(Err(FetchError::Refused(refusal))) => {
                    self.refuse(node, refusal);
                    tokio::time::sleep(POLL).await;
                }
                Ok(Err(problem)) => {
                    self.log_error(node, &problem);
                    tokio::time::sleep(backoff::delay(failed)).await;
                    failed += 1;
                }
                Err(err) => {
                    self.log_error(node, &err);
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
        updates: &UpdateSender,
    ) {
        let mut watch = match connection.watch_objects(bucket) {
            Ok(watch) => watch,
            Err(err) => return self.log_error(node, &err),
        };
        let wants_signature = node.services.authorizer.sources().is_some();
        let signature = signature_location(key);
        let mut was_seen = false;
        loop {
            let change = tokio::select! {
                change = watch.next() => change,
                () = self.damaged.notified() => {
                    self.fetch(bucket, key, node, connection, updates).await;
                    continue;
                }
            };
            let Some(change) = change else { return };
            match change {
                Change::Restart => was_seen = false,
                Change::Denied(denial) => self.log_error(node, &denial),
                Change::Put(info) if info.name == key => {
                    was_seen = true;
                    self.is_removed.store(false, Ordering::Relaxed);
                    self.fetch(bucket, key, node, connection, updates).await;
                }
                // The later one of bundle and signature completes the pair.
                Change::Put(info) if wants_signature && was_seen && info.name == signature => {
                    self.fetch(bucket, key, node, connection, updates).await;
                }
                Change::Removed { name } if name == key => self.mark_removed(node),
                Change::Current if !was_seen && self.has_copy() => self.mark_removed(node),
                _ => {}
            }
        }
    }

    /// Fetches an object, with retries: a watch reports each update once.
    async fn fetch(
        &self,
        bucket: &str,
        key: &str,
        node: &Node,
        connection: &Connection,
        updates: &UpdateSender,
    ) {
        let before = self.cache.find(&self.to_string());
        let mut failed = 0;
        loop {
            match self.fetch_object(bucket, key, node, connection).await {
                Ok(copy) => {
                    self.received(node);
                    // A cached bundle that was refused so far is an update, too.
                    let is_known = |before: &CachedBundle| {
                        before.digest == copy.digest && before.signature == copy.signature
                    };
                    if !before.as_ref().is_some_and(is_known) {
                        updates.send().await;
                    }
                    return;
                }
                // Bundle and signature are uploaded separately, so one mismatch is expected.
                Err(FetchError::Refused(UnsignedSource::Digest)) if failed == 0 => {
                    tokio::time::sleep(PAIR_DELAY).await;
                    failed += 1;
                }
                Err(FetchError::Refused(refusal)) if refusal.is_temporary() => {
                    self.refuse(node, refusal);
                    tokio::time::sleep(POLL).await;
                }
                // The next upload of either is reported by the watch.
                Err(FetchError::Refused(refusal)) => return self.refuse(node, refusal),
                // The watch reports its next upload.
                Err(problem) if failed >= MAX_ATTEMPTS => {
                    return self.log_error(node, &problem);
                }
                Err(problem) => {
                    self.log_error(node, &problem);
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
    ) -> Result<CachedBundle, FetchError> {
        let source = self.to_string();
        let signature = match node.services.authorizer.sources() {
            None => None,
            Some(sources) => {
                let fetched = get_object(
                    connection,
                    bucket,
                    &signature_location(key),
                    SIGNATURE_LIMIT,
                )
                .await;
                let text = match fetched {
                    Err(NatsError::NoObject { .. }) => None,
                    fetched => Some(fetched?),
                };
                let before = self.cache.find(&source);
                Some(self.verify(&sources, text.as_deref(), before.as_ref())?)
            }
        };
        let content = get_object(connection, bucket, key, SIZE_LIMIT).await?;
        check_digest(signature.as_ref(), &Digest::of(&content))?;
        let copy = store(&self.cache, source, content, signature).await?;
        self.accept(&copy, node)?;
        Ok(copy)
    }

    /// Fetches a bundle that is newer than the cached one. Returns whether there was one.
    fn fetch_http(&self, url: &str, node: &Node) -> Result<bool, FetchError> {
        let before = self.cache.find(url);
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
                Ok::<_, FetchError>(())
            },
        )?;
        match reply {
            Some(Reply::Complete(received)) => {
                check_digest(signature.as_ref(), &received.digest)?;
                let (digest, validators) = (&received.digest, received.validators);
                let copy = self
                    .cache
                    .store(url, &file, digest, validators, signature)?;
                self.accept(&copy, node)?;
                Ok(before.is_none_or(|before| {
                    before.digest != copy.digest || before.signature != copy.signature
                }))
            }
            Some(Reply::NotModified) | None => Ok(false),
        }
    }

    /// Parses a signature and verifies it for this source.
    fn verify(
        &self,
        sources: &Sources<'_>,
        text: Option<&[u8]>,
        before: Option<&CachedBundle>,
    ) -> Result<BundleSignature, UnsignedSource> {
        let before = before.and_then(|copy| copy.signature.as_ref());
        sources.verify(text, &self.source.normalized(), SourceKind::Bundle, before)
    }

    fn has_copy(&self) -> bool {
        !self.is_removed.load(Ordering::Relaxed)
            && self.cache.find(&self.source.normalized()).is_some()
    }

    fn received(&self, node: &Node) {
        *self.refused.lock() = None;
        node.services.metrics.manifest_fetched(&self.to_string());
    }

    /// Logs a refused bundle, and audits each new refusal once.
    fn refuse(&self, node: &Node, refusal: UnsignedSource) {
        let (shown, reason) = (self.to_string(), refusal.to_string());
        node.services.metrics.manifest_fetch_failed(&shown);
        let fields = [("manifest", shown.clone()), ("error", reason.clone())];
        node.log(Level::Error, "Refused a manifest", &fields);
        let mut refused = self.refused.lock();
        if refused.replace(refusal.clone()) != Some(refusal) {
            drop(refused);
            let request = audit::AuditRequest {
                about: &shown,
                ..audit::AuditRequest::default()
            };
            node.services
                .audit
                .denied(node, Verb::Apply.as_str(), &request, &reason);
        }
    }

    fn mark_removed(&self, node: &Node) {
        if !self.is_removed.swap(true, Ordering::Relaxed) {
            let fields = [("manifest", self.to_string())];
            let text = "Manifest was removed from its bucket; it is applied again once it is back";
            node.log(Level::Warn, text, &fields);
        }
    }

    fn log_error(&self, node: &Node, reason: &dyn fmt::Display) {
        let shown = self.to_string();
        node.services.metrics.manifest_fetch_failed(&shown);
        let fields = [("manifest", shown), ("error", reason.to_string())];
        node.log(Level::Error, "Could not fetch a manifest", &fields);
    }
}

/// Why a bundle could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error(transparent)]
    Nats(#[from] NatsError),
    #[error(transparent)]
    File(#[from] files::FileError),
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The agent is shutting down.
    #[error(transparent)]
    Ended(#[from] JoinError),
    #[error(transparent)]
    Refused(#[from] UnsignedSource),
}

impl FetchError {
    /// Reports whether a retry may succeed.
    pub(super) fn is_temporary(&self) -> bool {
        matches!(self, Self::Nats(err) if err.is_temporary())
    }

    /// Reports whether the object does not exist: it may not have reached all replicas yet.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Nats(err) if err.is_not_found())
    }
}

/// Fetches the signature of a URL; `None` if there is none.
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

/// Fetches an object into the cache.
pub(super) async fn fetch_object(
    cache: &BundleCache,
    connection: &Connection,
    bucket: &str,
    name: &str,
) -> Result<CachedBundle, FetchError> {
    let content = get_object(connection, bucket, name, SIZE_LIMIT).await?;
    store(cache, format!("obj://{bucket}/{name}"), content, None).await
}

async fn get_object(
    connection: &Connection,
    bucket: &str,
    name: &str,
    limit: u64,
) -> Result<Bytes, NatsError> {
    connection.objects(bucket).await?.get(name, limit).await
}

async fn store(
    cache: &BundleCache,
    source: String,
    content: Bytes,
    signature: Option<BundleSignature>,
) -> Result<CachedBundle, FetchError> {
    let cache = cache.clone();
    let work = move || -> Result<CachedBundle, SourceError> {
        let download = cache.download()?;
        let file = download.path().join("bundle");
        files::write_private(&file, &content, Durability::Cached)?;
        let (digest, validators) = (Digest::of(&content), Validators::default());
        cache.store(&source, &file, &digest, validators, signature)
    };
    Ok(tokio::task::spawn_blocking(work).await??)
}
