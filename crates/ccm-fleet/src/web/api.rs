//! JSON API: routes and handlers, which read the live state.
//!
//! [`read_routes`] and [`action_routes`] list the paths; `assets/openapi.json` describes them, and
//! a test compares the two. Actions are in `actions`, `bulk` and `rollout_form`, server-sent events
//! in `event_stream`, authorization in `auth`.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Json, Router, middleware};
use serde::Deserialize;
use serde_json::{Value, json};

use super::access::{AccessRole, Requester};
use super::actions::{self, Actions};
use super::audit::{Audit, AuditLine, AuditNote};
use super::auth::{Auth, authorize};
use super::bundles::BundleReader;
use super::history::HistoryReader;
use super::ingest::SharedState;
use super::live_state::NodeQuery;
use super::node_row::NodeState;
use super::{bulk, bundles, event_stream, history, metrics, rollout_form, static_files};
use ccm_core::model::node::{NodeName, Token};
use ccm_core::system::{Clock as _, SystemClock};

/// Default and maximum number of rows in a response.
const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 10_000;

/// Maximum size of a request body.
const MAX_BODY: usize = 1 << 20;

/// State of the web server, shared by all handlers.
pub(super) struct AppState {
    pub(super) shared: SharedState,
    pub(super) auth: Auth,
    pub(super) audit: Audit,
    pub(super) bundles: BundleReader,
    pub(super) history: HistoryReader,
    pub(super) actions: Actions,
}

/// An error response.
#[derive(Debug)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    reason: String,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, reason: impl ToString) -> Self {
        Self {
            status,
            reason: reason.to_string(),
        }
    }

    pub(super) fn reason(&self) -> &str {
        &self.reason
    }

    pub(super) fn not_found(what: &str, name: &str) -> Self {
        let name = ccm_value::text::quote(name);
        Self::new(StatusCode::NOT_FOUND, format!("no {what} {name}"))
    }

    pub(super) fn bad(reason: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, reason)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = Json(json!({ "error": self.reason }));
        match self.status {
            StatusCode::UNAUTHORIZED => {
                (self.status, [(header::WWW_AUTHENTICATE, "Bearer")], body).into_response()
            }
            status => (status, body).into_response(),
        }
    }
}

pub(super) type ApiResult = Result<Json<Value>, ApiError>;

/// A path and its handler.
type Route = (&'static str, MethodRouter<Arc<AppState>>);

/// Returns the routes that read.
fn read_routes() -> [Route; 16] {
    [
        ("/api/summary", get(summary)),
        ("/api/nodes", get(nodes)),
        ("/api/nodes/{name}", get(node)),
        ("/api/nodes/{name}/runs", get(history::runs)),
        ("/api/nodes/{name}/runs/{id}", get(history::run)),
        ("/api/history", get(history::fleet)),
        ("/api/bundles", get(bundles::list)),
        ("/api/bundles/{name}/{digest}", get(bundles::show)),
        ("/api/bundles/{name}/{digest}/diff", get(bundles::diff)),
        ("/api/rollouts", get(rollouts)),
        ("/api/rollouts/{id}", get(rollout)),
        ("/api/events", get(events)),
        ("/api/stream", get(stream)),
        ("/api/openapi.json", get(openapi)),
        ("/metrics", get(prometheus)),
        ("/healthz", get(health)),
    ]
}

/// A path, the role that it needs, and its handler.
type ActionRoute = (&'static str, AccessRole, MethodRouter<Arc<AppState>>);

/// Returns the routes of actions.
fn action_routes() -> [ActionRoute; 15] {
    use AccessRole::{Ask, RollOut};
    [
        ("/api/check", Ask, post(bulk::check)),
        ("/api/pause", Ask, post(bulk::pause)),
        ("/api/resume", Ask, post(bulk::resume)),
        ("/api/ensure", Ask, post(bulk::ensure)),
        ("/api/nodes/{name}/pause", Ask, post(actions::pause_node)),
        ("/api/nodes/{name}/resume", Ask, post(actions::resume_node)),
        ("/api/nodes/{name}/ensure", Ask, post(actions::ensure)),
        (
            "/api/nodes/{name}/labels",
            RollOut,
            post(actions::label_node),
        ),
        ("/api/rollouts/plan", RollOut, post(rollout_form::plan)),
        ("/api/rollouts", RollOut, post(rollout_form::start)),
        (
            "/api/rollouts/{id}/pause",
            RollOut,
            post(actions::pause_rollout),
        ),
        (
            "/api/rollouts/{id}/resume",
            RollOut,
            post(actions::resume_rollout),
        ),
        (
            "/api/rollouts/{id}/abort",
            RollOut,
            post(actions::abort_rollout),
        ),
        (
            "/api/rollouts/{id}/retry",
            RollOut,
            post(actions::retry_rollout),
        ),
        (
            "/api/rollouts/{id}/rollback",
            RollOut,
            post(actions::rollback_rollout),
        ),
    ]
}

/// Middleware of actions: requires a role, and audits the request.
async fn act(
    State(app): State<Arc<AppState>>,
    needed: AccessRole,
    requester: Requester,
    request: Request,
    next: Next,
) -> Response {
    let line = AuditLine::of(&request, app.actions.server());
    if let Err(error) = requester.require(needed) {
        app.audit.denied(&line, &error);
        return error.into_response();
    }
    let response = next.run(request).await;
    let note = response.extensions().get::<AuditNote>();
    app.audit.allowed(&line, response.status(), note);
    response
}

/// Returns the router: API, static files and authorization.
pub(super) fn router(app: Arc<AppState>) -> Router {
    let reads = read_routes()
        .into_iter()
        .fold(Router::new(), |router, (path, handler)| {
            router.route(path, handler)
        });
    let api = action_routes()
        .into_iter()
        .fold(reads, |router, (path, needed, handler)| {
            let guard = move |app, Extension(requester), request, next| {
                act(app, needed, requester, request, next)
            };
            let guard = middleware::from_fn_with_state(app.clone(), guard);
            router.route(path, handler.route_layer(guard))
        });
    let has_token = app.auth.access.get().needs_token();
    let assets = static_files::ASSETS.iter().fold(api, |router, asset| {
        let handler = async move || static_files::serve(asset, has_token);
        router.route(asset.path, get(handler))
    });
    assets
        .fallback(async || ApiError::new(StatusCode::NOT_FOUND, "no such path"))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(app.clone(), authorize))
        .with_state(app)
}

async fn summary(
    State(app): State<Arc<AppState>>,
    Extension(requester): Extension<Requester>,
) -> Json<Value> {
    let now = SystemClock.now();
    let live = app.shared.read();
    let rollouts = live.rollouts();
    let active = rollouts.iter().filter(|it| it.is_active()).count();
    Json(json!({
        "collective": app.actions.collective(),
        "version": env!("CARGO_PKG_VERSION"),
        "mark": event_stream::format_position(&live.cursor()),
        "now": now.timestamp(),
        "connected": app.actions.is_connected(),
        "nats_wait": live.nats_wait(),
        "complete": live.is_complete() && live.is_reading_events(),
        "token": requester.name,
        "role": requester.role,
        "actions": requester.role >= AccessRole::Ask,
        "totals": live.totals(),
        "rollouts": { "all": rollouts.len(), "active": active },
        "timeline": live.timeline().hour(now),
    }))
}

/// Query of the node list.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NodesQuery {
    q: String,
    /// Comma-separated states.
    state: String,
    after: Option<NodeName>,
    limit: Option<usize>,
}

async fn nodes(
    State(app): State<Arc<AppState>>,
    query: Result<Query<NodesQuery>, QueryRejection>,
) -> ApiResult {
    let Query(query) = query.map_err(ApiError::bad_query)?;
    let words = query.state.split(',').filter(|word| !word.is_empty());
    let states: Result<Vec<NodeState>, ApiError> = words.map(state).collect();
    let (page, mark) = {
        let live = app.shared.read();
        let page = live.page(&NodeQuery {
            text: &query.q,
            states: &states?,
            after: query.after.as_ref(),
            limit: limit(query.limit),
        });
        (page, event_stream::format_position(&live.cursor()))
    };
    let next = page.rows.last().filter(|_| page.has_more);
    Ok(Json(json!({
        "mark": mark,
        "matched": page.matched,
        "next": next.map(|row| &row.name),
        "nodes": page.rows,
    })))
}

fn state(word: &str) -> Result<NodeState, ApiError> {
    let found = NodeState::ALL.into_iter().find(|it| it.as_str() == word);
    found.ok_or_else(|| {
        let known = NodeState::ALL.map(NodeState::as_str).join(", ");
        let word = ccm_value::text::quote(word);
        ApiError::bad(format!("unknown state {word}: use {known}"))
    })
}

fn limit(wanted: Option<usize>) -> usize {
    wanted.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT)
}

impl ApiError {
    pub(super) fn bad_query(rejection: QueryRejection) -> Self {
        Self::bad(rejection.body_text())
    }
}

async fn node(State(app): State<Arc<AppState>>, Path(name): Path<String>) -> ApiResult {
    let parsed: NodeName = name.parse().map_err(ApiError::bad)?;
    let found = app.shared.read().node(&parsed);
    found
        .map(Json)
        .ok_or_else(|| ApiError::not_found("node", &name))
}

async fn rollouts(State(app): State<Arc<AppState>>) -> Json<Value> {
    let rollouts = app.shared.read().rollouts();
    let rows: Vec<Value> = rollouts.iter().map(|it| it.row()).collect();
    Json(json!({ "rollouts": rows }))
}

async fn rollout(State(app): State<Arc<AppState>>, Path(id): Path<String>) -> ApiResult {
    let parsed: Token = id.parse().map_err(ApiError::bad)?;
    let found = app.shared.read().rollout(&parsed);
    found
        .map(|row| Json(row.document()))
        .ok_or_else(|| ApiError::not_found("rollout", &id))
}

/// Query of the event list; without a parameter everything matches.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EventsQuery {
    node: Option<String>,
    #[serde(rename = "type")]
    type_name: Option<String>,
    outcome: Option<String>,
    q: String,
    limit: Option<usize>,
}

async fn events(
    State(app): State<Arc<AppState>>,
    query: Result<Query<EventsQuery>, QueryRejection>,
) -> ApiResult {
    let Query(query) = query.map_err(ApiError::bad_query)?;
    let is = |filter: &Option<String>, word: &str| filter.as_ref().is_none_or(|it| it == word);
    let text = query.q.to_lowercase();
    let (found, mark) = {
        let live = app.shared.read();
        let found = live.events(limit(query.limit), |event| {
            is(&query.node, event.node.as_str())
                && is(&query.type_name, &event.type_name)
                && is(&query.outcome, &event.outcome)
                && (text.is_empty()
                    || event.node.as_str().contains(&text)
                    || event.text.to_lowercase().contains(&text))
        });
        (found, event_stream::format_position(&live.cursor()))
    };
    Ok(Json(json!({ "mark": mark, "events": found })))
}

/// Query of the stream.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StreamQuery {
    after: Option<String>,
}

async fn stream(
    State(app): State<Arc<AppState>>,
    headers: HeaderMap,
    query: Result<Query<StreamQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(ApiError::bad_query)?;
    let seen = headers.get("last-event-id");
    let seen = seen.and_then(|value| value.to_str().ok().map(str::to_owned));
    let after = match seen.or(query.after) {
        None => None,
        Some(text) => Some(event_stream::parse_position(&text).ok_or_else(|| {
            let text = ccm_value::text::quote(&text);
            ApiError::bad(format!("invalid stream position {text}"))
        })?),
    };
    let access = app.auth.access.subscribe();
    Ok(event_stream::stream(app.shared.clone(), access, after).into_response())
}

async fn openapi() -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, "application/json")],
        static_files::OPENAPI,
    )
}

async fn prometheus(State(app): State<Arc<AppState>>) -> impl IntoResponse {
    let text = metrics::render(&app.shared.read(), app.actions.is_connected());
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text)
}

async fn health(State(app): State<Arc<AppState>>) -> ApiResult {
    let (is_complete, is_reading_events) = {
        let live = app.shared.read();
        (live.is_complete(), live.is_reading_events())
    };
    let unavailable = |reason| Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, reason));
    if !app.actions.is_connected() {
        unavailable("not connected to NATS")
    } else if !is_complete {
        unavailable("the fleet buckets are not read yet: create them with `ccm fleet init`")
    } else if !is_reading_events {
        unavailable("the event stream is not read: create it with `ccm fleet init`")
    } else {
        Ok(Json(json!({ "status": "ok" })))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_openapi_document_has_exactly_the_served_paths() {
        let document: Value = serde_json::from_str(static_files::OPENAPI).unwrap();
        let described: BTreeSet<(String, String)> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().unwrap().keys();
                methods.map(|method| (path.clone(), method.clone()))
            })
            .collect();
        let served =
            |method: &'static str| move |(path, _): Route| (path.to_owned(), method.to_owned());
        let reads = read_routes().into_iter().map(served("get"));
        let actions = action_routes().into_iter();
        let actions = actions.map(|(path, _, handler)| (path, handler));
        let served: BTreeSet<(String, String)> = reads.chain(actions.map(served("post"))).collect();
        assert_eq!(described, served);
    }

    #[test]
    fn every_parameter_in_a_path_is_described() {
        let document: Value = serde_json::from_str(static_files::OPENAPI).unwrap();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let is_described = operation["parameters"]
                    .as_array()
                    .is_some_and(|all| all.iter().any(|one| one["in"] == "path"));
                assert_eq!(path.contains('{'), is_described, "{method} {path}");
                assert!(operation["summary"].is_string(), "{method} {path}");
                assert!(operation["responses"].is_object(), "{method} {path}");
            }
        }
    }
}
