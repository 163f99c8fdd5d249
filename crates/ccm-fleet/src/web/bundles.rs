//! Bundles: stored versions with the number of nodes that they are assigned to, their files, and
//! differences between two versions, as `ccm fleet bundle` prints them.
//!
//! Read from the object store on request. Content is read by few requests at a time, since a bundle
//! may be large.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::api::{ApiError, ApiResult, AppState};
use crate::bundle_store::{BundleSelector, BundleStore, BundleStoreError, StoredBundle};
use ccm_core::model::node::{BundleRef, NodeName};
use ccm_nats::Connection;
use ccm_value::text::go_time;

/// Maximum number of requests that read the content of bundles at the same time.
const MAX_READERS: usize = 2;

/// Maximum number of nodes that a document names.
const MAX_NODES: usize = 500;

/// Reads bundles.
pub(super) struct BundleReader {
    connection: Connection,
    readers: Semaphore,
}

impl BundleReader {
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            connection,
            readers: Semaphore::new(MAX_READERS),
        }
    }

    async fn open(&self) -> Result<BundleStore, ApiError> {
        let opened = BundleStore::open(&self.connection).await;
        opened.map_err(bundle_error)
    }

    /// Waits until content may be read.
    async fn turn(&self) -> Result<SemaphorePermit<'_>, ApiError> {
        let turn = self.readers.acquire().await;
        turn.map_err(|err| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, err))
    }
}

pub(super) fn bundle_error(err: BundleStoreError) -> ApiError {
    let status = match &err {
        BundleStoreError::NotFound(_) => StatusCode::NOT_FOUND,
        BundleStoreError::Invalid(_) | BundleStoreError::Ambiguous(_) => StatusCode::BAD_REQUEST,
        _ => StatusCode::BAD_GATEWAY,
    };
    ApiError::new(status, err)
}

/// Returns the document of a version.
fn document(version: &StoredBundle, nodes: usize) -> Value {
    json!({
        "name": version.bundle.name,
        "digest": version.bundle.digest,
        "size": version.size,
        "stored": version.stored.as_ref().map(go_time),
        "nodes": nodes,
    })
}

/// Lists all versions, sorted by name, the newest of each first.
pub(super) async fn list(State(app): State<Arc<AppState>>) -> ApiResult {
    let bundles = app.bundles.open().await?;
    let versions = bundles.list().await.map_err(bundle_error)?;
    let live = app.shared.read();
    let assigned = live.assigned_bundles();
    let versions = versions.iter().map(|version| {
        let nodes = assigned.get(&version.bundle.object());
        document(version, nodes.copied().unwrap_or_default())
    });
    let versions: Vec<Value> = versions.collect();
    Ok(Json(json!({ "bundles": versions })))
}

/// Shows a version with its files, and the nodes that it is assigned to.
pub(super) async fn show(
    State(app): State<Arc<AppState>>,
    Path((name, digest)): Path<(String, String)>,
) -> ApiResult {
    let bundles = app.bundles.open().await?;
    let version = find(&bundles, &name, &digest).await?;
    let _turn = app.bundles.turn().await?;
    let contents = bundles.contents(&version.bundle).await;
    let contents = contents.map_err(bundle_error)?;
    let files = contents.iter();
    let files: Vec<Value> = files
        .map(|file| json!({ "name": file.name, "size": file.size }))
        .collect();
    let nodes = app.shared.read().nodes_with(&version.bundle);
    let named: Vec<&NodeName> = nodes.iter().take(MAX_NODES).collect();
    Ok(Json(json!({
        "bundle": document(&version, nodes.len()),
        "files": files,
        "nodes": named,
    })))
}

/// Query of a comparison.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DiffQuery {
    /// Digest of the version of the same bundle to compare with.
    against: String,
}

/// Compares a version with another one of the same name.
pub(super) async fn diff(
    State(app): State<Arc<AppState>>,
    Path((name, digest)): Path<(String, String)>,
    query: Result<Query<DiffQuery>, QueryRejection>,
) -> ApiResult {
    let Query(query) = query.map_err(ApiError::bad_query)?;
    let bundles = app.bundles.open().await?;
    let new: BundleRef = find(&bundles, &name, &digest).await?.bundle;
    let old = find(&bundles, &name, &query.against).await?.bundle;
    let _turn = app.bundles.turn().await?;
    let found = bundles.diff(&old, &new).await.map_err(bundle_error)?;
    Ok(Json(json!({
        "old": old,
        "new": new,
        "files": found.files,
        "omitted": found.omitted,
    })))
}

async fn find(bundles: &BundleStore, name: &str, digest: &str) -> Result<StoredBundle, ApiError> {
    let selector: BundleSelector = format!("{name}@{digest}").parse().map_err(bundle_error)?;
    bundles.find(&selector).await.map_err(bundle_error)
}
