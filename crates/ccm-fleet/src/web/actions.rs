//! What people may do from the page. Each deed is one that the command line has, too: nodes are
//! asked through [`Gatherer`], rollouts are steered by [`controls`] and stored only by comparing.
//!
//! Whoever sets a rollout going also drives it, unless somebody does. Who may act is decided by
//! `guard`, before anything here is reached.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::api::{Failure, Web};
use crate::controls::{self, SteerError};
use crate::executor::{Controller, LEASE, Role};
use crate::node_reply::{Told, understand};
use crate::rollout_store::{RolloutError, Rollouts};
use crate::scatter::{Ask, Gatherer};
use ccm_core::model::node::{NodeName, Token};
use ccm_core::model::rollout::Rollout;
use ccm_core::system::{Clock as _, RandomError, SystemClock, random};
use ccm_nats::{Connection, Subjects, Verb};
use ccm_value::text::{go_duration, parse_wait};

/// How long a node may take to answer what costs it nothing, and what is work.
pub(super) const SOON: Duration = Duration::from_secs(10);
pub(super) const WORK: Duration = Duration::from_secs(120);

/// How long rollouts that are driven may hold up the end.
const GRACE: Duration = Duration::from_secs(3);

/// How many rollouts are driven at once.
const MOST_DRIVEN: usize = 32;

/// What acts on the fleet.
pub(super) struct Actions {
    connection: Connection,
    subjects: Subjects,
    /// Who acts, as nodes and rollouts are told.
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

    /// Returns what asks nodes in the name of whoever started us.
    pub(super) fn gatherer(&self) -> Result<Gatherer, Failure> {
        Gatherer::new(
            self.connection.clone(),
            self.subjects.clone(),
            &self.caller,
            Arc::new(SystemClock),
        )
        .map_err(failed)
    }

    /// Asks one node.
    async fn ask(&self, node: &NodeName, ask: &Ask) -> Result<Told, Failure> {
        Ok(understand(
            ask.verb,
            self.gatherer()?.ask_one(ask, node).await,
        ))
    }

    /// Changes a rollout of this collective.
    async fn steer<T>(
        &self,
        id: &Token,
        change: impl Fn(&mut Rollout) -> Result<T, SteerError>,
    ) -> Result<Json<Value>, Failure> {
        let rollouts = Rollouts::open(&self.connection, &self.subjects).await;
        let rollouts = rollouts.map_err(refused)?;
        let (_, stored) = rollouts.steer(id, change).await.map_err(refused)?;
        let state = &stored.rollout.state;
        Ok(Json(
            json!({ "id": id, "state": state, "word": state.as_str() }),
        ))
    }

    /// Drives a rollout that was set going, until it rests or we end.
    fn drive(&self, id: Token) -> Result<(), Failure> {
        let holder = format!(
            "{} web {:08x}",
            self.caller,
            random().map_err(failed)? as u32
        );
        let controller = Controller::new(&self.connection, &self.subjects, holder, LEASE);
        let mut stop = self.stop.subscribe();
        let stopped = async move {
            // A sender that is gone is an end, too.
            let _either_way = stop.wait_for(|is_over| *is_over).await;
        };
        let mut driven = self.driven.lock().unwrap_or_else(PoisonError::into_inner);
        while driven.try_join_next().is_some() {}
        if driven.len() < MOST_DRIVEN {
            driven.spawn(async move {
                // What becomes of it is stored in the rollout, for everybody.
                let _stored = controller.follow(&id, Role::Drive, stopped, |_| {}).await;
            });
        }
        Ok(())
    }

    /// Lets go of what is driven; others may go on with it.
    pub(super) fn end(&self) -> impl Future<Output = ()> + use<> {
        self.stop.send_replace(true);
        let mut driven = self.driven.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = std::mem::take(&mut *driven);
        async move {
            let leaving = async { while left.join_next().await.is_some() {} };
            let _in_time = timeout(GRACE, leaving).await;
        }
    }
}

/// Tells mistakes from failures.
fn failed(err: RandomError) -> Failure {
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, err)
}

fn refused(err: RolloutError) -> Failure {
    let status = match &err {
        RolloutError::NotFound(_) | RolloutError::Misplaced { .. } => StatusCode::NOT_FOUND,
        RolloutError::Steer(_) | RolloutError::Busy(_) => StatusCode::CONFLICT,
        RolloutError::Name(_) => StatusCode::BAD_REQUEST,
        _ => StatusCode::BAD_GATEWAY,
    };
    Failure::new(status, err)
}

/// Reads a request; none means all that is usual.
fn parse<T: DeserializeOwned + Default>(body: &Bytes) -> Result<T, Failure> {
    match body.is_empty() {
        true => Ok(T::default()),
        false => serde_json::from_slice(body).map_err(Failure::bad),
    }
}

fn name<T: std::str::FromStr<Err: ToString>>(text: &str) -> Result<T, Failure> {
    text.parse().map_err(|err: T::Err| Failure::bad(err))
}

/// Tells what a node said.
fn said(told: Told) -> Json<Value> {
    Json(json!({
        "node": told.node,
        "outcome": told.outcome,
        "text": told.text,
        "answer": told.body,
    }))
}

/// Why somebody is paused, and for how long.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PauseRequest {
    reason: String,
    #[serde(rename = "for")]
    lasting: Option<String>,
}

/// How a resource is asked for.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Manner {
    /// Nodes only say what they would do.
    noop: bool,
    /// They also say what changes in files, or would.
    diff: bool,
}

pub(super) async fn pause_node(
    State(web): State<Arc<Web>>,
    Path(node): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Failure> {
    let node: NodeName = name(&node)?;
    let wish: PauseRequest = parse(&body)?;
    let ask = to_pause(&wish.reason, wish.lasting.as_deref())?;
    Ok(said(web.actions.ask(&node, &ask).await?))
}

/// Returns the question that pauses a node.
pub(super) fn to_pause(why: &str, lasting: Option<&str>) -> Result<Ask, Failure> {
    let mut request = json!({ "reason": reason(why) });
    if let (Some(text), Some(entries)) = (lasting, request.as_object_mut()) {
        let lasting = parse_wait(text).map_err(Failure::bad)?;
        entries.insert("for".into(), go_duration(lasting).into());
    }
    Ok(question(Verb::Pause, request.to_string().into()))
}

fn reason(given: &str) -> &str {
    match given.trim() {
        "" => "paused from the fleet page",
        reason => reason,
    }
}

pub(super) async fn resume_node(
    State(web): State<Arc<Web>>,
    Path(node): Path<String>,
) -> Result<Json<Value>, Failure> {
    let node: NodeName = name(&node)?;
    Ok(said(web.actions.ask(&node, &to_resume()).await?))
}

/// Returns the question that lets a node go on.
pub(super) fn to_resume() -> Ask {
    question(Verb::Resume, Bytes::new())
}

/// Asks a node for a resource. The request is the one of the bus; the node reads it.
pub(super) async fn ensure(
    State(web): State<Arc<Web>>,
    Path(node): Path<String>,
    manner: Result<Query<Manner>, QueryRejection>,
    body: Bytes,
) -> Result<Json<Value>, Failure> {
    let node: NodeName = name(&node)?;
    let Query(manner) = manner.map_err(Failure::bad_query)?;
    Ok(said(
        web.actions.ask(&node, &to_ensure(body, manner)).await?,
    ))
}

/// Returns the question for a resource, in the words of the bus.
pub(super) fn to_ensure(body: Bytes, manner: Manner) -> Ask {
    Ask {
        noop: manner.noop,
        diff: manner.diff,
        limit: WORK,
        binding: true,
        ..question(Verb::Ensure, body)
    }
}

fn question(verb: Verb, body: Bytes) -> Ask {
    Ask {
        verb,
        body,
        noop: false,
        diff: false,
        limit: SOON,
        binding: false,
    }
}

pub(super) async fn pause_rollout(
    State(web): State<Arc<Web>>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Failure> {
    let wish: PauseRequest = parse(&body)?;
    let by = &web.actions.caller;
    let pause = |rollout: &mut Rollout| controls::pause(rollout, reason(&wish.reason), by);
    web.actions.steer(&name(&id)?, pause).await
}

pub(super) async fn abort_rollout(
    State(web): State<Arc<Web>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Failure> {
    let by = &web.actions.caller;
    let abort = |rollout: &mut Rollout| controls::abort(rollout, by);
    web.actions.steer(&name(&id)?, abort).await
}

pub(super) async fn resume_rollout(
    State(web): State<Arc<Web>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Failure> {
    let now = SystemClock.now();
    go_on(&web, &id, |rollout| controls::resume(rollout, now)).await
}

pub(super) async fn retry_rollout(
    State(web): State<Arc<Web>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Failure> {
    go_on(&web, &id, |rollout| controls::retry(rollout).map(drop)).await
}

pub(super) async fn rollback_rollout(
    State(web): State<Arc<Web>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Failure> {
    let (signer, now) = (web.actions.connection.signer(), SystemClock.now());
    go_on(&web, &id, |rollout| {
        controls::rollback(rollout, signer, now)
    })
    .await
}

async fn go_on(
    web: &Web,
    id: &str,
    change: impl Fn(&mut Rollout) -> Result<(), SteerError>,
) -> Result<Json<Value>, Failure> {
    let id: Token = name(id)?;
    let answer = web.actions.steer(&id, change).await?;
    web.actions.drive(id)?;
    Ok(answer)
}
