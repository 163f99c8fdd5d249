//! Feeds: the manifests an agent is configured with, and how news of them arrives.
//!
//! A path is read at each run. Bundles on servers and in object stores are followed by a task of
//! their own, which keeps a copy on disk and says when it is a new one. A bundle that was taken
//! away is left alone until it is back.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::cache::{Cache, Copy};
use super::config::ManifestSource;
use super::node::Node;
use super::sources::{SIZE_LIMIT, SourceError, TIME_LIMIT};
use super::work::What;
use crate::engine::Level;
use crate::model::secret::Secret;
use crate::nats::object::Change;
use crate::nats::{Connection, backoff};
use crate::system::files::{self, Attributes, Durability};
use crate::system::http::{self, Reply, Request, Validators};
use crate::system::{Digest, HttpError, SystemClock};

/// How often a server is asked for something newer.
const POLL: Duration = Duration::from_secs(30);

/// How often an object that a watch announced is tried for.
const MOST_TRIES: usize = 10;

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
pub struct Feed {
    source: ManifestSource,
    cache: Cache,
    /// Nobody has the bundle any more.
    is_gone: AtomicBool,
}

impl fmt::Display for Feed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(out)
    }
}

impl Feed {
    pub fn new(source: ManifestSource, cache: Cache) -> Self {
        Self {
            source,
            cache,
            is_gone: AtomicBool::new(false),
        }
    }

    /// Returns what to apply, once there is something.
    pub fn what(&self) -> Option<What> {
        if self.is_gone.load(Ordering::Relaxed) {
            return None;
        }
        match &self.source {
            ManifestSource::Path(path) => Some(What::Source(path.to_string_lossy().into_owned())),
            ManifestSource::Http(url) => self.copy(url.reveal()),
            ManifestSource::Object { .. } => self.copy(&self.to_string()),
        }
    }

    fn copy(&self, source: &str) -> Option<What> {
        let copy = self.cache.copy(source)?;
        Some(What::Copy {
            manifest: copy.manifest,
            shown: self.to_string(),
        })
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
                ManifestSource::Path(_) => std::future::pending().await,
                ManifestSource::Http(url) => self.poll(url, &node, &news).await,
                ManifestSource::Object { bucket, key } => {
                    self.watch(bucket.as_str(), key, &node, &connection, &news)
                        .await;
                }
            }
        };
        tokio::select! {
            () = follow => {}
            _ = stop.wait_for(|stopped| *stopped) => {}
        }
    }

    async fn poll(&self, url: &Secret, node: &Node, news: &News) {
        let mut failed = 0;
        loop {
            let (cache, asked) = (self.cache.clone(), url.clone());
            let fetched = tokio::task::spawn_blocking(move || fetch_http(&cache, asked.reveal()));
            match fetched.await.map_err(|err| err.to_string()) {
                Ok(Ok(is_new)) => {
                    failed = 0;
                    node.metrics.manifest_fetched(&self.to_string());
                    if is_new {
                        news.tell().await;
                    }
                    tokio::time::sleep(POLL).await;
                }
                Ok(Err(reason)) | Err(reason) => {
                    self.complain(node, &reason);
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
            Err(err) => return self.complain(node, &err.to_string()),
        };
        let mut was_seen = false;
        while let Some(change) = watch.next().await {
            match change {
                Change::Restart => was_seen = false,
                Change::Put(info) if info.name == key => {
                    was_seen = true;
                    self.is_gone.store(false, Ordering::Relaxed);
                    self.fetch(bucket, key, node, connection, news).await;
                }
                Change::Removed { name } if name == key => self.lose(node),
                Change::Current if !was_seen && self.what().is_some() => self.lose(node),
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
        let before = self.cache.copy(&self.to_string()).map(|copy| copy.digest);
        let mut failed = 0;
        loop {
            match fetch_object(&self.cache, connection, bucket, key).await {
                Ok(copy) => {
                    node.metrics.manifest_fetched(&self.to_string());
                    if before.as_ref() != Some(&copy.digest) {
                        news.tell().await;
                    }
                    return;
                }
                // Gone again; the watch will tell.
                Err(reason) if failed >= MOST_TRIES => return self.complain(node, &reason),
                Err(reason) => {
                    self.complain(node, &reason);
                    tokio::time::sleep(backoff::delay(failed)).await;
                    failed += 1;
                }
            }
        }
    }

    fn lose(&self, node: &Node) {
        if !self.is_gone.swap(true, Ordering::Relaxed) {
            let fields = [("manifest", self.to_string())];
            let text = "Manifest was removed, waiting for it to come back";
            node.say(Level::Warn, text, &fields);
        }
    }

    fn complain(&self, node: &Node, reason: &str) {
        let shown = self.to_string();
        node.metrics.manifest_fetch_failed(&shown);
        let fields = [("manifest", shown), ("error", reason.to_owned())];
        node.say(Level::Error, "Could not fetch a manifest", &fields);
    }
}

/// Asks a server for a bundle that is newer than the copy. Returns whether there was one.
fn fetch_http(cache: &Cache, url: &str) -> Result<bool, String> {
    let before = cache.copy(url);
    let download = cache.download().map_err(|err| err.to_string())?;
    let file = download.path().join("bundle");
    let mut request = Request::new(url, TIME_LIMIT, SIZE_LIMIT);
    if let Some(copy) = &before {
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
    )
    .map_err(|err| err.to_string())?;
    match reply {
        Some(Reply::Complete(received)) => {
            let copy = cache
                .keep(url, &file, &received.digest, received.validators)
                .map_err(|err| err.to_string())?;
            Ok(before.is_none_or(|before| before.digest != copy.digest))
        }
        Some(Reply::NotModified) | None => Ok(false),
    }
}

/// Why a download did not reach the disk.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error(transparent)]
    File(#[from] files::FileError),
}

/// Brings an object into the cache and returns its copy.
pub(super) async fn fetch_object(
    cache: &Cache,
    connection: &Connection,
    bucket: &str,
    name: &str,
) -> Result<Copy, String> {
    let store = connection
        .objects(bucket)
        .await
        .map_err(|err| err.to_string())?;
    let content = store
        .get(name, SIZE_LIMIT)
        .await
        .map_err(|err| err.to_string())?;
    let (cache, source) = (cache.clone(), format!("obj://{bucket}/{name}"));
    let keep = move || -> Result<Copy, SourceError> {
        let download = cache.download()?;
        let file = download.path().join("bundle");
        files::write_private(&file, &content, Durability::Cached)?;
        cache.keep(&source, &file, &Digest::of(&content), Validators::default())
    };
    match tokio::task::spawn_blocking(keep).await {
        Ok(kept) => kept.map_err(|err| err.to_string()),
        Err(err) => Err(err.to_string()),
    }
}
