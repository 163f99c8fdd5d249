//! Actions on nodes and rollouts, the same as those of the command line: requests to nodes through
//! [`ScatterClient`], controls of rollouts through [`controls`].
//!
//! A rollout that is resumed, retried or rolled back here is also driven here, unless another
//! controller holds its lease. Authorization is in `auth`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::api::{ApiError, AppState};
use crate::controls::{self, ControlError};
use crate::executor::{Controller, LEASE, Role};
use crate::node_reply::{NodeReply, interpret};
use crate::rollout_store::{RolloutError, RolloutStore};
use crate::scatter::{NodeRequest, ScatterClient};
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
    connection: Connection,
    subjects: Subjects,
    /// Caller name for nodes and rollouts.
    caller: String,
    driven: Mutex<JoinSet<()>>,
    stop: watch::Sender<bool>,
}

impl Actions {
    pub(super) fn new(connection: Connection, subjects: Subjects, caller: String) -> Self {
        Self {
            connection,
            subjects,
            caller,
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

    /// Returns a client with a new request id.
    pub(super) fn client(&self) -> Result<ScatterClient, ApiError> {
        ScatterClient::new(
            self.connection.clone(),
            self.subjects.clone(),
            &self.caller,
            Arc::new(SystemClock),
        )
        .map_err(internal_error)
    }

    /// Sends a request to one node.
    async fn request(&self, node: &NodeName, request: &NodeRequest) -> Result<NodeReply, ApiError> {
        Ok(interpret(
            request.verb,
            self.client()?.request_one(request, node).await,
        ))
    }

    /// Applies a control to a rollout of this collective.
    async fn control<T>(
        &self,
        id: &Token,
        change: impl Fn(&mut Rollout) -> Result<T, ControlError>,
    ) -> Result<Json<Value>, ApiError> {
        let rollouts = RolloutStore::open(&self.connection, &self.subjects).await;
        let rollouts = rollouts.map_err(rollout_error)?;
        let (_, stored) = rollouts.control(id, change).await.map_err(rollout_error)?;
        let state = &stored.rollout.state;
        Ok(Json(
            json!({ "id": id, "state": state, "word": state.as_str() }),
        ))
    }

    /// Drives a rollout until it is at rest or the server shuts down.
    fn drive(&self, id: Token) -> Result<(), ApiError> {
        let holder = format!(
            "{} web {:08x}",
            self.caller,
            random().map_err(internal_error)? as u32
        );
        let controller = Controller::new(&self.connection, &self.subjects, holder, LEASE);
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
                let _result = controller.follow(&id, Role::Drive, stopped, |_| {}).await;
            });
        }
        Ok(())
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

fn internal_error(err: RandomError) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, err)
}

fn rollout_error(err: RolloutError) -> ApiError {
    let status = match &err {
        RolloutError::NotFound(_) | RolloutError::WrongKey { .. } => StatusCode::NOT_FOUND,
        RolloutError::Control(_) | RolloutError::Busy(_) => StatusCode::CONFLICT,
        RolloutError::Name(_) => StatusCode::BAD_REQUEST,
        _ => StatusCode::BAD_GATEWAY,
    };
    ApiError::new(status, err)
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
        "answer": reply.body,
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
    Path(node): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let node: NodeName = parse_name(&node)?;
    let request: PauseRequest = parse(&body)?;
    let request = pause_request(&request.reason, request.duration.as_deref())?;
    Ok(reply_document(app.actions.request(&node, &request).await?))
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
    Path(node): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let node: NodeName = parse_name(&node)?;
    Ok(reply_document(
        app.actions.request(&node, &resume_request()).await?,
    ))
}

/// Returns the request that resumes a node.
pub(super) fn resume_request() -> NodeRequest {
    plain_request(Verb::Resume, Bytes::new())
}

/// Ensures a resource on a node. The body is passed on as it is; the node parses it.
pub(super) async fn ensure(
    State(app): State<Arc<AppState>>,
    Path(node): Path<String>,
    options: Result<Query<EnsureOptions>, QueryRejection>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let node: NodeName = parse_name(&node)?;
    let Query(options) = options.map_err(ApiError::bad_query)?;
    Ok(reply_document(
        app.actions
            .request(&node, &ensure_request(body, options))
            .await?,
    ))
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
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let request: PauseRequest = parse(&body)?;
    let by = &app.actions.caller;
    let pause = |rollout: &mut Rollout| controls::pause(rollout, reason(&request.reason), by);
    app.actions.control(&parse_name(&id)?, pause).await
}

pub(super) async fn abort_rollout(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let by = &app.actions.caller;
    let abort = |rollout: &mut Rollout| controls::abort(rollout, by);
    app.actions.control(&parse_name(&id)?, abort).await
}

pub(super) async fn resume_rollout(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let now = SystemClock.now();
    control_and_drive(&app, &id, |rollout| controls::resume(rollout, now)).await
}

pub(super) async fn retry_rollout(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    control_and_drive(&app, &id, |rollout| controls::retry(rollout).map(drop)).await
}

pub(super) async fn rollback_rollout(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let (signer, now) = (app.actions.connection.signer(), SystemClock.now());
    control_and_drive(&app, &id, |rollout| {
        controls::rollback(rollout, signer, now)
    })
    .await
}

async fn control_and_drive(
    app: &AppState,
    id: &str,
    change: impl Fn(&mut Rollout) -> Result<(), ControlError>,
) -> Result<Json<Value>, ApiError> {
    let id: Token = parse_name(id)?;
    let response = app.actions.control(&id, change).await?;
    app.actions.drive(id)?;
    Ok(response)
}
