//! Actions on nodes and rollouts, the same as those of the command line: requests to nodes through
//! [`ScatterClient`], controls of rollouts through [`controls`], labels through [`labels`].
//!
//! A rollout that is started, resumed, retried or rolled back here is also driven here, unless
//! another controller holds its lease. Authorization is in `auth`, the start of rollouts in
//! `rollout_form`.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::access::Requester;
use super::api::{ApiError, ApiResult, AppState};
use super::audit::AuditNote;
use crate::controls::{self, ControlError};
use crate::executor::{Controller, LEASE, Role};
use crate::labels::{self, LabelChange, LabelsError};
use crate::nats_waits::NatsWaits;
use crate::node_reply::{NodeReply, interpret};
use crate::rollout_store::{RolloutError, RolloutStore, StoredRollout};
use crate::scatter::{NodeRequest, ScatterClient};
use ccm_core::model::label::LabelName;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::model::rollout::Rollout;
use ccm_core::system::{Clock as _, RandomError, SystemClock, random};
use ccm_nats::{Connection, Subjects, Verb};
use ccm_value::text::{go_duration, parse_wait};

/// Timeouts of requests that nodes answer immediately, and of those that start a run.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
pub(super) const RUN_TIMEOUT: Duration = Duration::from_secs(120);

/// Grace period for driven rollouts at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(3);

/// Maximum number of rollouts driven at once.
const MAX_DRIVEN: usize = 32;

/// Executes actions.
pub(super) struct Actions {
    pub(super) connection: Connection,
    pub(super) subjects: Subjects,
    /// Name of the server's user, part of the caller for nodes and rollouts.
    server: String,
    waits: NatsWaits,
    driven: Mutex<JoinSet<()>>,
    stop: watch::Sender<bool>,
}

impl Actions {
    pub(super) fn new(
        connection: Connection,
        subjects: Subjects,
        server: String,
        waits: NatsWaits,
    ) -> Self {
        Self {
            connection,
            subjects,
            server,
            waits,
            driven: Mutex::default(),
            stop: watch::Sender::new(false),
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_up()
    }

    pub(super) fn collective(&self) -> &Token {
        self.subjects.collective()
    }

    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Returns the caller name of a requester for nodes and rollouts.
    pub(super) fn caller(&self, requester: &Requester) -> String {
        requester.caller(&self.server)
    }

    /// Returns a client with a new request id.
    pub(super) fn client(&self, requester: &Requester) -> Result<ScatterClient, ApiError> {
        ScatterClient::new(
            self.connection.clone(),
            self.subjects.clone(),
            &self.caller(requester),
            Arc::new(SystemClock),
        )
        .map_err(internal_error)
    }

    /// Sends a request to one node.
    async fn request(
        &self,
        requester: &Requester,
        node: &NodeName,
        request: &NodeRequest,
    ) -> ApiResult {
        let client = self.client(requester)?;
        let reply = client.request_one(request, node).await;
        Ok(reply_document(interpret(request.verb, reply)))
    }

    /// Applies a control to a rollout of this collective.
    async fn control<T>(
        &self,
        id: &Token,
        verb: &str,
        by: &str,
        change: impl Fn(&mut Rollout) -> Result<T, ControlError>,
    ) -> Result<StoredRollout, ApiError> {
        let rollouts = self.rollouts().await?;
        let controlled = rollouts.control(id, verb, by, change).await;
        let (_, stored) = controlled.map_err(rollout_error)?;
        Ok(stored)
    }

    async fn rollouts(&self) -> Result<RolloutStore, ApiError> {
        let rollouts = RolloutStore::open(&self.connection, &self.subjects).await;
        rollouts.map_err(rollout_error)
    }

    /// Returns a controller with a name of its own.
    pub(super) fn controller(&self) -> Result<Controller, ApiError> {
        let number = random().map_err(internal_error)? as u32;
        let holder = format!("{} web {number:08x}", self.server);
        let controller = Controller::new(&self.connection, &self.subjects, holder, LEASE);
        Ok(controller.with_waits(self.waits.clone()))
    }

    /// Reports whether another rollout can be driven.
    pub(super) fn has_room(&self) -> bool {
        let mut driven = self.driven.lock();
        while driven.try_join_next().is_some() {}
        driven.len() < MAX_DRIVEN
    }

    /// Drives a rollout until it is at rest or the server shuts down.
    pub(super) fn drive(&self, controller: Controller, stored: StoredRollout) {
        let mut stop = self.stop.subscribe();
        let stopped = async move {
            // A dropped sender also means shutdown.
            let _shutdown = stop.wait_for(|is_over| *is_over).await;
        };
        let mut driven = self.driven.lock();
        while driven.try_join_next().is_some() {}
        if driven.len() < MAX_DRIVEN {
            driven.spawn(async move {
                // The result is stored in the rollout.
                let _result = controller
                    .follow(stored.into(), Role::Drive, stopped, |_| {})
                    .await;
            });
        }
    }

    /// Stops driving rollouts; other controllers may continue.
    pub(super) fn shut_down(&self) -> impl Future<Output = ()> + use<> {
        self.stop.send_replace(true);
        let mut driven = self.driven.lock();
        let mut tasks = std::mem::take(&mut *driven);
        async move {
            let stopped = async { while tasks.join_next().await.is_some() {} };
            let _in_time = timeout(SHUTDOWN_GRACE, stopped).await;
        }
    }
}

pub(super) fn internal_error(err: RandomError) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, err)
}

pub(super) fn rollout_error(err: RolloutError) -> ApiError {
    let status = match &err {
        RolloutError::NotFound(_) | RolloutError::WrongKey { .. } => StatusCode::NOT_FOUND,
        RolloutError::Control(_) | RolloutError::Busy(_) | RolloutError::Overlap { .. } => {
            StatusCode::CONFLICT
        }
        RolloutError::Name(_) => StatusCode::BAD_REQUEST,
        _ => StatusCode::BAD_GATEWAY,
    };
    ApiError::new(status, err)
}

/// Returns the API document of the state of a rollout.
fn state_document(stored: &StoredRollout) -> Json<Value> {
    let (id, state) = (&stored.rollout.id, &stored.rollout.state);
    Json(json!({ "id": id, "state": state, "word": state.as_str() }))
}

/// Parses a request body; an empty one means defaults.
fn parse<T: DeserializeOwned + Default>(body: &Bytes) -> Result<T, ApiError> {
    match body.is_empty() {
        true => Ok(T::default()),
        false => serde_json::from_slice(body).map_err(ApiError::bad),
    }
}

fn parse_name<T: std::str::FromStr<Err: ToString>>(text: &str) -> Result<T, ApiError> {
    text.parse().map_err(|err: T::Err| ApiError::bad(err))
}

/// Returns the API document of a reply.
fn reply_document(reply: NodeReply) -> Json<Value> {
    Json(json!({
        "node": reply.node,
        "outcome": reply.outcome,
        "text": reply.text,
        "reply": reply.body,
    }))
}

/// Body of a pause request.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PauseRequest {
    reason: String,
    #[serde(rename = "for")]
    duration: Option<String>,
}

/// Query of an ensure request.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct EnsureOptions {
    /// Noop: nodes only report what they would change.
    noop: bool,
    /// Includes content diffs of files in the reply.
    diff: bool,
}

pub(super) async fn pause_node(
    State(app): State<Arc<AppState>>,
    Extension(requester): Extension<Requester>,
    Path(node): Path<String>,
    body: Bytes,
) -> ApiResult {
    let request: PauseRequest = parse(&body)?;
    let request = pause_request(&request.reason, request.duration.as_deref())?;
    let node = parse_name(&node)?;
    app.actions.request(&requester, &node, &request).await
}

/// Returns the request that pauses a node.
pub(super) fn pause_request(why: &str, duration: Option<&str>) -> Result<NodeRequest, ApiError> {
    let mut request = json!({ "reason": reason(why) });
    if let (Some(text), Some(entries)) = (duration, request.as_object_mut()) {
        let duration = parse_wait(text).map_err(ApiError::bad)?;
        entries.insert("for".into(), go_duration(duration).into());
    }
    Ok(plain_request(Verb::Pause, request.to_string().into()))
}

fn reason(given: &str) -> &str {
    match given.trim() {
        "" => "paused from the fleet page",
        reason => reason,
    }
}

pub(super) async fn resume_node(
    State(app): State<Arc<AppState>>,
    Extension(requester): Extension<Requester>,
    Path(node): Path<String>,
) -> ApiResult {
    let node = parse_name(&node)?;
    app.actions
        .request(&requester, &node, &resume_request())
        .await
}

/// Returns the request that resumes a node.
pub(super) fn resume_request() -> NodeRequest {
    plain_request(Verb::Resume, Bytes::new())
}

/// Ensures a resource on a node. The body is passed on as it is; the node parses it.
pub(super) async fn ensure(
    State(app): State<Arc<AppState>>,
    Extension(requester): Extension<Requester>,
    Path(node): Path<String>,
    options: Result<Query<EnsureOptions>, QueryRejection>,
    body: Bytes,
) -> ApiResult {
    let Query(options) = options.map_err(ApiError::bad_query)?;
    let node = parse_name(&node)?;
    let request = ensure_request(body, options);
    app.actions.request(&requester, &node, &request).await
}

/// Body of a request that changes labels.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LabelRequest {
    set: BTreeMap<LabelName, String>,
    remove: Vec<LabelName>,
}

/// Sets and removes labels of a node, which may not exist yet.
pub(super) async fn label_node(
    State(app): State<Arc<AppState>>,
    Path(node): Path<String>,
    body: Bytes,
) -> Result<impl IntoResponse, ApiError> {
    let node: NodeName = parse_name(&node)?;
    let request: LabelRequest = parse(&body)?;
    let set = request.set.into_iter();
    let set = set.map(|(name, value)| LabelChange::set(name, value));
    let remove = request.remove.into_iter().map(LabelChange::Remove).map(Ok);
    let changes: Result<Vec<LabelChange>, _> = set.chain(remove).collect();
    let changes = changes.map_err(ApiError::bad)?;
    let note: Vec<String> = changes.iter().map(ToString::to_string).collect();
    let Actions {
        connection,
        subjects,
        ..
    } = &app.actions;
    let labels = labels::update(connection, subjects, &node, &changes).await;
    let labels = labels.map_err(|err| match &err {
        LabelsError::Nats(_) => ApiError::new(StatusCode::BAD_GATEWAY, err),
        LabelsError::Unreadable { .. } | LabelsError::Busy(_) => {
            ApiError::new(StatusCode::CONFLICT, err)
        }
    })?;
    let document = Json(json!({ "node": node, "labels": labels }));
    Ok((Extension(AuditNote(note.join(" "))), document))
}

/// Returns the request that ensures a resource.
pub(super) fn ensure_request(body: Bytes, options: EnsureOptions) -> NodeRequest {
    NodeRequest {
        noop: options.noop,
        diff: options.diff,
        timeout: RUN_TIMEOUT,
        sends_deadline: true,
        ..plain_request(Verb::Ensure, body)
    }
}

fn plain_request(verb: Verb, body: Bytes) -> NodeRequest {
    NodeRequest {
        verb,
        body,
        noop: false,
        diff: false,
        timeout: REPLY_TIMEOUT,
        sends_deadline: false,
    }
}

pub(super) async fn pause_rollout(
    State(app): State<Arc<AppState>>,
    Extension(requester): Extension<Requester>,
    Path(id): Path<String>,
    body: Bytes,
) -> ApiResult {
    let request: PauseRequest = parse(&body)?;
    let by = app.actions.caller(&requester);
    let pause = |rollout: &mut Rollout| controls::pause(rollout, reason(&request.reason), &by);
    let id = parse_name(&id)?;
    let stored = app.actions.control(&id, "pause", &by, pause).await?;
    Ok(state_document(&stored))
}

pub(super) async fn abort_rollout(
    State(app): State<Arc<AppState>>,
    Extension(requester): Extension<Requester>,
    Path(id): Path<String>,
) -> ApiResult {
    let by = app.actions.caller(&requester);
    let abort = |rollout: &mut Rollout| controls::abort(rollout, &by);
    let id = parse_name(&id)?;
    let stored = app.actions.control(&id, "abort", &by, abort).await?;
    Ok(state_document(&stored))
}

pub(super) async fn resume_rollout(
    State(app): State<Arc<AppState>>,
    Extension(requester): Extension<Requester>,
    Path(id): Path<String>,
) -> ApiResult {
    let now = SystemClock.now();
    let resume = |rollout: &mut Rollout| controls::resume(rollout, now);
    continue_rollout(&app, &requester, &id, "resume", resume).await
}

pub(super) async fn retry_rollout(
    State(app): State<Arc<AppState>>,
    Extension(requester): Extension<Requester>,
    Path(id): Path<String>,
) -> ApiResult {
    let retry = |rollout: &mut Rollout| controls::retry(rollout).map(drop);
    continue_rollout(&app, &requester, &id, "retry", retry).await
}

pub(super) async fn rollback_rollout(
    State(app): State<Arc<AppState>>,
    Extension(requester): Extension<Requester>,
    Path(id): Path<String>,
) -> ApiResult {
    let (signer, now) = (app.actions.connection.signer(), SystemClock.now());
    let rollback = |rollout: &mut Rollout| controls::rollback(rollout, signer, now);
    continue_rollout(&app, &requester, &id, "rollback", rollback).await
}

/// Applies a control that continues a rollout, and drives it.
async fn continue_rollout(
    app: &AppState,
    requester: &Requester,
    id: &str,
    verb: &str,
    change: impl Fn(&mut Rollout) -> Result<(), ControlError>,
) -> ApiResult {
    let id: Token = parse_name(id)?;
    let stored = app.actions.rollouts().await?.get(&id).await;
    let rollout = stored.map_err(rollout_error)?.rollout;
    let access = app.auth.access.get();
    access
        .rollouts
        .check_content(&rollout.bundle.name, &rollout.plan)
        .map_err(|err| ApiError::new(StatusCode::FORBIDDEN, err))?;
    let by = app.actions.caller(requester);
    let stored = app.actions.control(&id, verb, &by, change).await?;
    let response = state_document(&stored);
    app.actions.drive(app.actions.controller()?, stored);
    Ok(response)
}
