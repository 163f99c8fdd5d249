//! The JSON API: which path answers what. Reads the live state and decides nothing.
//!
//! [`reads`] and [`acts`] are the lists of paths; `assets/openapi.json` describes them and a test
//! compares the two. Acting is in `act`, news in `stream`, who may ask in `guard`.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router, middleware};
use serde::Deserialize;
use serde_json::{Value, json};

use super::actions::{self, Actions};
use super::auth::{Guard, guard};
use super::ingest::Shared;
use super::live_state::Wish;
use super::node_row::NodeState;
use super::{assets_handler, bulk, event_stream, metrics};
use ccm_core::model::node::{NodeName, Token};
use ccm_core::system::{Clock as _, SystemClock};

/// How many lines one answer holds, unless told, and at most.
const USUAL: usize = 100;
const MOST: usize = 10_000;

/// The largest request that is read.
const MAX_BODY: usize = 1 << 20;

/// Everything that an answer is made from.
pub(super) struct Web {
    pub(super) shared: Shared,
    pub(super) guard: Guard,
    pub(super) actions: Actions,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: StatusCode,
    reason: String,
}

impl Failure {
    pub(super) fn new(status: StatusCode, reason: impl ToString) -> Self {
        Self {
            status,
            reason: reason.to_string(),
        }
    }

    fn not_found(what: &str, name: &str) -> Self {
        let name = ccm_value::text::quote(name);
        Self::new(StatusCode::NOT_FOUND, format!("no {what} {name}"))
    }

    pub(super) fn bad(reason: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, reason)
    }
}

impl IntoResponse for Failure {
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

type Answer = Result<Json<Value>, Failure>;

/// A path with what it answers.
type Route = (&'static str, MethodRouter<Arc<Web>>);

/// Returns every path that can be read.
fn reads() -> [Route; 10] {
    [
        ("/api/summary", get(summary)),
        ("/api/nodes", get(nodes)),
        ("/api/nodes/{name}", get(node)),
        ("/api/rollouts", get(rollouts)),
        ("/api/rollouts/{id}", get(rollout)),
        ("/api/events", get(events)),
        ("/api/stream", get(news)),
        ("/api/openapi.json", get(openapi)),
        ("/metrics", get(prometheus)),
        ("/healthz", get(health)),
    ]
}

/// Returns every path that acts.
fn acts() -> [Route; 11] {
    [
        ("/api/pause", post(bulk::pause)),
        ("/api/resume", post(bulk::resume)),
        ("/api/ensure", post(bulk::ensure)),
        ("/api/nodes/{name}/pause", post(actions::pause_node)),
        ("/api/nodes/{name}/resume", post(actions::resume_node)),
        ("/api/nodes/{name}/ensure", post(actions::ensure)),
        ("/api/rollouts/{id}/pause", post(actions::pause_rollout)),
        ("/api/rollouts/{id}/resume", post(actions::resume_rollout)),
        ("/api/rollouts/{id}/abort", post(actions::abort_rollout)),
        ("/api/rollouts/{id}/retry", post(actions::retry_rollout)),
        (
            "/api/rollouts/{id}/rollback",
            post(actions::rollback_rollout),
        ),
    ]
}

/// Returns the whole server: API, page and guard.
pub(super) fn router(web: Arc<Web>) -> Router {
    let routes = reads().into_iter().chain(acts());
    let api = routes.fold(Router::new(), |router, (path, answer)| {
        router.route(path, answer)
    });
    let has_token = web.guard.token.is_some();
    let assets = assets_handler::ASSETS.iter().fold(api, |router, asset| {
        let answer = async move || assets_handler::answer(asset, has_token);
        router.route(asset.path, get(answer))
    });
    assets
        .fallback(async || Failure::new(StatusCode::NOT_FOUND, "there is no such page"))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(web.clone(), guard))
        .with_state(web)
}

async fn summary(State(web): State<Arc<Web>>) -> Json<Value> {
    let now = SystemClock.now();
    let live = web.shared.read();
    let rollouts = live.rollouts();
    let active = rollouts.iter().filter(|it| it.is_active()).count();
    Json(json!({
        "collective": web.actions.collective(),
        "version": env!("CARGO_PKG_VERSION"),
        "mark": event_stream::mark(&live.cursor()),
        "now": now.timestamp(),
        "connected": web.actions.is_connected(),
        "complete": live.is_complete() && live.hears_events(),
        "actions": web.guard.allow_actions,
        "totals": live.totals(),
        "rollouts": { "all": rollouts.len(), "active": active },
        "timeline": live.timeline().hour(now),
    }))
}

/// Which nodes are wanted.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NodesQuery {
    q: String,
    /// States, joined by commas.
    state: String,
    after: Option<NodeName>,
    limit: Option<usize>,
}

async fn nodes(
    State(web): State<Arc<Web>>,
    query: Result<Query<NodesQuery>, QueryRejection>,
) -> Answer {
    let Query(query) = query.map_err(Failure::bad_query)?;
    let words = query.state.split(',').filter(|word| !word.is_empty());
    let states: Result<Vec<NodeState>, Failure> = words.map(state).collect();
    let (page, mark) = {
        let live = web.shared.read();
        let page = live.page(&Wish {
            text: &query.q,
            states: &states?,
            after: query.after.as_ref(),
            limit: limit(query.limit),
        });
        (page, event_stream::mark(&live.cursor()))
    };
    let next = page.rows.last().filter(|_| page.has_more);
    Ok(Json(json!({
        "mark": mark,
        "matched": page.matched,
        "next": next.map(|row| &row.name),
        "nodes": page.rows,
    })))
}

fn state(word: &str) -> Result<NodeState, Failure> {
    let found = NodeState::ALL.into_iter().find(|it| it.as_str() == word);
    found.ok_or_else(|| {
        let known = NodeState::ALL.map(NodeState::as_str).join(", ");
        let word = ccm_value::text::quote(word);
        Failure::bad(format!("unknown state {word}: use {known}"))
    })
}

fn limit(wanted: Option<usize>) -> usize {
    wanted.unwrap_or(USUAL).min(MOST)
}

impl Failure {
    pub(super) fn bad_query(rejection: QueryRejection) -> Self {
        Self::bad(rejection.body_text())
    }
}

async fn node(State(web): State<Arc<Web>>, Path(name): Path<String>) -> Answer {
    let parsed: NodeName = name.parse().map_err(Failure::bad)?;
    let found = web.shared.read().node(&parsed);
    found
        .map(Json)
        .ok_or_else(|| Failure::not_found("node", &name))
}

async fn rollouts(State(web): State<Arc<Web>>) -> Json<Value> {
    let rollouts = web.shared.read().rollouts();
    let rows: Vec<Value> = rollouts.iter().map(|it| it.row()).collect();
    Json(json!({ "rollouts": rows }))
}

async fn rollout(State(web): State<Arc<Web>>, Path(id): Path<String>) -> Answer {
    let parsed: Token = id.parse().map_err(Failure::bad)?;
    let found = web.shared.read().rollout(&parsed);
    found
        .map(|shown| Json(shown.document()))
        .ok_or_else(|| Failure::not_found("rollout", &id))
}

/// Which events are wanted; what is not given may be anything.
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
    State(web): State<Arc<Web>>,
    query: Result<Query<EventsQuery>, QueryRejection>,
) -> Answer {
    let Query(query) = query.map_err(Failure::bad_query)?;
    let is = |wish: &Option<String>, word: &str| wish.as_ref().is_none_or(|wish| wish == word);
    let text = query.q.to_lowercase();
    let (found, mark) = {
        let live = web.shared.read();
        let found = live.events(limit(query.limit), |event| {
            is(&query.node, event.node.as_str())
                && is(&query.type_name, &event.type_name)
                && is(&query.outcome, &event.outcome)
                && (text.is_empty()
                    || event.node.as_str().contains(&text)
                    || event.text.to_lowercase().contains(&text))
        });
        (found, event_stream::mark(&live.cursor()))
    };
    Ok(Json(json!({ "mark": mark, "events": found })))
}

/// Where to begin to tell.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StreamQuery {
    after: Option<String>,
}

async fn news(
    State(web): State<Arc<Web>>,
    headers: HeaderMap,
    query: Result<Query<StreamQuery>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(query) = query.map_err(Failure::bad_query)?;
    let seen = headers.get("last-event-id");
    let seen = seen.and_then(|value| value.to_str().ok().map(str::to_owned));
    let after = match seen.or(query.after) {
        None => None,
        Some(text) => Some(event_stream::read_mark(&text).ok_or_else(|| {
            let text = ccm_value::text::quote(&text);
            Failure::bad(format!("{text} is no place in the stream"))
        })?),
    };
    Ok(event_stream::tell(web.shared.clone(), after).into_response())
}

async fn openapi() -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, "application/json")],
        assets_handler::OPENAPI,
    )
}

async fn prometheus(State(web): State<Arc<Web>>) -> impl IntoResponse {
    let text = metrics::print(&web.shared.read(), web.actions.is_connected());
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text)
}

async fn health(State(web): State<Arc<Web>>) -> Answer {
    let (is_complete, hears_events) = {
        let live = web.shared.read();
        (live.is_complete(), live.hears_events())
    };
    let unwell = |reason| Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, reason));
    if !web.actions.is_connected() {
        unwell("the NATS servers can't be reached")
    } else if !is_complete {
        unwell("the fleet's buckets are not read yet; `ccm fleet init` makes them")
    } else if !hears_events {
        unwell("the stream of events is not read; `ccm fleet init` makes it")
    } else {
        Ok(Json(json!({ "status": "ok" })))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_document_of_the_api_names_every_path_and_no_other() {
        let document: Value = serde_json::from_str(assets_handler::OPENAPI).unwrap();
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
        let reads = reads().into_iter().map(served("get"));
        let served: BTreeSet<(String, String)> = reads
            .chain(acts().into_iter().map(served("post")))
            .collect();
        assert_eq!(described, served);
    }

    #[test]
    fn every_parameter_in_a_path_is_described() {
        let document: Value = serde_json::from_str(assets_handler::OPENAPI).unwrap();
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
