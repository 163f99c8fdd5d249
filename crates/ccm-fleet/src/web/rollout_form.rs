//! Start of rollouts: the plan of a form, and its start, as `ccm fleet rollout plan` and `start`.
//!
//! Both resolve the form with [`crate::start::propose`]. A start names the digest of the plan that was
//! shown, so that nothing starts that nobody has seen. The rollout is signed with the key of the
//! server, if it has one, and must be within the limits of `rollout_policy`.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::{Deserialize, Deserializer};
use serde_json::{Value as Document, json};

use super::access::Requester;
use super::actions::{internal_error, rollout_error};
use super::api::{ApiError, ApiResult, AppState};
use super::audit::AuditNote;
use super::bundles::bundle_error;
use crate::bundle_store::short_name;
use crate::decision::TrustedSigners;
use crate::rollout_store::RolloutError;
use crate::selection::{Selection, parse_name_or_pattern};
use crate::start::{Proposal, Request, StartError, parse_deadline, propose};
use ccm_core::filter::parse_fact;
use ccm_core::model::amount::{Amount, Percent};
use ccm_core::model::governor::{GovernorClaim, GovernorName, GovernorTimeout};
use ccm_core::model::rollout::{Budget, Settings};
use ccm_core::system::{Clock as _, Digest, SystemClock};
use ccm_value::text::{count_of, parse_wait};
use ccm_value::{Value, document};

/// The parameters of a rollout, as a form has them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RolloutForm {
    /// `NAME` or `NAME@DIGEST`.
    bundle: String,
    #[serde(default)]
    selection: SelectionForm,
    #[serde(default)]
    settings: SettingsForm,
    /// Merged over the data of the manifest: a map, or its text in JSON or YAML.
    #[serde(default)]
    data: Value,
    #[serde(default)]
    noop: bool,
    /// Digest of the plan that was shown; only to start.
    #[serde(default)]
    plan: Option<String>,
}

/// Conditions that nodes must meet.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SelectionForm {
    /// Selects all nodes, without conditions.
    all: bool,
    nodes: Vec<String>,
    groups: Vec<String>,
    /// As `host.info.platform=debian`.
    facts: Vec<String>,
    select: Option<String>,
    sample: Option<Amount>,
    seed: u64,
    limit: Option<usize>,
}

/// Waves and limits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SettingsForm {
    canary: usize,
    waves: Vec<Amount>,
    order_by: Option<String>,
    #[serde(deserialize_with = "duration")]
    bake: Duration,
    health_gate: bool,
    max_failures: Option<usize>,
    max_failures_percent: Option<Percent>,
    min_sample: usize,
    max_unreachable: Option<Amount>,
    parallel: Option<NonZeroUsize>,
    #[serde(deserialize_with = "duration")]
    node_timeout: Duration,
    /// A time, or a duration from now on.
    deadline: Option<String>,
    governor: Option<GovernorName>,
    governor_timeout: Option<GovernorTimeout>,
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    parse_wait(&text).map_err(serde::de::Error::custom)
}

impl Default for SettingsForm {
    fn default() -> Self {
        let Settings {
            bake, node_timeout, ..
        } = Settings::default();
        Self {
            canary: 0,
            waves: Vec::new(),
            order_by: None,
            bake,
            health_gate: false,
            max_failures: None,
            max_failures_percent: None,
            min_sample: Budget::default().min_sample,
            max_unreachable: None,
            parallel: None,
            node_timeout,
            deadline: None,
            governor: None,
            governor_timeout: None,
        }
    }
}

impl SelectionForm {
    /// Returns the selection. All nodes must be selected explicitly.
    fn selection(self) -> Result<Selection, ApiError> {
        for name in &self.nodes {
            parse_name_or_pattern(name).map_err(ApiError::bad)?;
        }
        let facts: Result<Vec<_>, _> = self.facts.iter().map(|text| parse_fact(text)).collect();
        let selection = Selection {
            nodes: self.nodes,
            groups: self.groups,
            facts: facts.map_err(ApiError::bad)?,
            select: self.select,
            sample: self.sample,
            seed: self.seed,
            limit: self.limit,
        };
        match (selection.is_everything(), self.all) {
            (true, false) => Err(ApiError::bad(
                "no nodes selected: give a condition, or select all nodes",
            )),
            (false, true) if !selection.is_subset() => Err(ApiError::bad(
                "all nodes are selected and there are conditions: remove one of them",
            )),
            _ => Ok(selection),
        }
    }
}

impl SettingsForm {
    fn settings(self) -> Result<Settings, ApiError> {
        if self.node_timeout.is_zero() {
            return Err(ApiError::bad("the node timeout must be more than 0s"));
        }
        if self.governor.is_none() && self.governor_timeout.is_some() {
            return Err(ApiError::bad("a governor timeout needs a governor"));
        }
        let timeout = self.governor_timeout.unwrap_or_default();
        let deadline = self.deadline.as_deref();
        let deadline = deadline.map(|text| parse_deadline(text, SystemClock.now()));
        let deadline = deadline.transpose();
        Ok(Settings {
            canary: self.canary,
            waves: self.waves,
            order_by: self.order_by,
            bake: self.bake,
            health_gate: self.health_gate,
            budget: Budget {
                max_failures: self.max_failures,
                max_failures_percent: self.max_failures_percent,
                min_sample: self.min_sample,
                max_unreachable: self.max_unreachable,
            },
            parallel: self.parallel.map(NonZeroUsize::get),
            node_timeout: self.node_timeout,
            governor: self.governor.map(|name| GovernorClaim { name, timeout }),
            deadline: deadline.map_err(|err| ApiError::bad(format!("deadline: {err}")))?,
        })
    }
}

/// Returns the data of a form, which may be the text of a document.
fn data(given: Value) -> Result<Value, ApiError> {
    let data = match given {
        Value::Str(text) if text.trim().is_empty() => return Ok(Value::Null),
        Value::Str(text) => {
            let parsed = document::parse(&text);
            let parsed = parsed.map_err(|err| ApiError::bad(format!("data: {err}")))?;
            parsed.to_value()
        }
        data => data,
    };
    match data {
        Value::Null | Value::Map(_) => Ok(data),
        _ => Err(ApiError::bad("data: expected a map of names and values")),
    }
}

fn start_error(err: StartError) -> ApiError {
    let status = match err {
        StartError::BundleStore(err) => return bundle_error(err),
        StartError::Rollout(err) => return rollout_error(err),
        StartError::Random(err) => return internal_error(err),
        StartError::Nats(_) => StatusCode::BAD_GATEWAY,
        StartError::SignatureRequired { .. } | StartError::Signing(_) => StatusCode::FORBIDDEN,
        _ => StatusCode::BAD_REQUEST,
    };
    ApiError::new(status, err)
}

/// A proposal with its digest.
struct Planned {
    proposal: Proposal,
    digest: String,
}

impl Planned {
    async fn of(app: &AppState, form: RolloutForm) -> Result<Self, ApiError> {
        let request = Request {
            bundle: form.bundle.parse().map_err(bundle_error)?,
            selection: form.selection.selection()?,
            settings: form.settings.settings()?,
            data: data(form.data)?,
            noop: form.noop,
        };
        let proposed = propose(&app.actions.connection, &app.actions.subjects, request).await;
        let proposal = proposed.map_err(start_error)?;
        let digest = digest(&proposal);
        Ok(Self { proposal, digest })
    }

    /// Refuses a rollout that this server may not start or can't sign.
    fn check(&self, app: &AppState) -> Result<(), ApiError> {
        let refused = |reason: String| ApiError::new(StatusCode::FORBIDDEN, reason);
        let proposal = &self.proposal;
        let access = app.auth.access.get();
        access
            .rollouts
            .check_start(&proposal.bundle.name, &proposal.plan, &proposal.settings)
            .map_err(|err| refused(err.to_string()))?;
        let strict = &proposal.signature_required;
        match (app.actions.connection.signer(), strict.first()) {
            (None, Some(first)) => {
                let error = StartError::SignatureRequired {
                    count: strict.len(),
                    first: first.clone(),
                };
                Err(refused(format!(
                    "{error}: start the server with --sign-with"
                )))
            }
            _ => Ok(()),
        }
    }

    fn document(&self, app: &AppState) -> Document {
        let proposal = &self.proposal;
        let undecided = proposal.undecided.iter();
        let undecided: Vec<Document> = undecided
            .map(|(node, reason)| json!({ "node": node, "reason": reason.to_string() }))
            .collect();
        let refusal = self.check(app).err();
        json!({
            "digest": self.digest,
            "bundle": proposal.bundle,
            "selection": proposal.selection,
            "settings": proposal.settings,
            "noop": proposal.noop,
            "data": proposal.data,
            "plan": proposal.plan,
            "offline": proposal.offline,
            "undecided": undecided,
            "unreadable": proposal.unreadable.len(),
            "signed": app.actions.connection.signer().is_some(),
            "refusal": refusal.as_ref().map(ApiError::reason),
        })
    }
}

/// Returns the digest of what a proposal would start.
fn digest(proposal: &Proposal) -> String {
    let content = json!([
        proposal.bundle,
        proposal.data,
        proposal.noop,
        proposal.settings,
        proposal.selection,
        proposal.plan,
    ]);
    Digest::of(content.to_string().as_bytes()).to_string()
}

fn parse(body: &Bytes) -> Result<RolloutForm, ApiError> {
    serde_json::from_slice(body).map_err(ApiError::bad)
}

/// Shows the plan of a form, and whether this server would start it.
pub(super) async fn plan(State(app): State<Arc<AppState>>, body: Bytes) -> ApiResult {
    let planned = Planned::of(&app, parse(&body)?).await?;
    Ok(Json(planned.document(&app)))
}

/// Starts the rollout whose plan was shown, and drives it.
pub(super) async fn start(
    State(app): State<Arc<AppState>>,
    Extension(requester): Extension<Requester>,
    body: Bytes,
) -> Result<impl IntoResponse, ApiError> {
    let mut form = parse(&body)?;
    let shown = form.plan.take();
    let shown = shown.ok_or_else(|| ApiError::bad("no plan in the request: show it first"))?;
    let planned = Planned::of(&app, form).await?;
    planned.check(&app)?;
    if planned.digest != shown {
        let reason = "the plan has changed since it was shown: show it again";
        return Err(ApiError::new(StatusCode::CONFLICT, reason));
    }
    let actions = &app.actions;
    if !actions.has_room() {
        let reason = "this server drives as many rollouts as it can: try again later";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, reason));
    }
    let signer = actions.connection.signer();
    let controller = actions.controller()?;
    // The stored rollout must carry our own signature.
    let controller = match signer {
        Some(signer) => {
            controller.with_trusted_signers(TrustedSigners::new([signer.public_key()], true))
        }
        None => controller,
    };
    let caller = actions.caller(&requester);
    let lease = Some(controller.lease());
    let (connection, subjects) = (&actions.connection, &actions.subjects);
    // The page shows on its own that NATS does not reply.
    let waiting = |_: &RolloutError| {};
    let started = planned
        .proposal
        .start(connection, subjects, signer, caller, lease, waiting);
    let stored = started.await.map_err(start_error)?;
    let rollout = stored.rollout.clone();
    app.shared.write(|live| live.add_started(stored.clone()));
    actions.drive(controller, stored);
    let nodes = rollout.plan.waves.iter().map(|wave| wave.nodes.len()).sum();
    let note = format!(
        "rollout {} of {} to {}",
        rollout.id,
        short_name(&rollout.bundle),
        count_of(nodes, "node")
    );
    let document = Json(json!({ "id": rollout.id, "word": rollout.state.as_str() }));
    Ok((Extension(AuditNote(note)), document))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(document: Document) -> Result<RolloutForm, ApiError> {
        parse(&document.to_string().into())
    }

    #[test]
    fn a_form_has_the_defaults_of_the_command_line() {
        let form = form(json!({"bundle": "app"})).unwrap();
        assert_eq!(form.settings.settings().unwrap(), Settings::default());
    }

    #[test]
    fn amounts_and_durations_are_texts() {
        let form = form(json!({"bundle": "app", "settings": {
            "canary": 1, "waves": ["10%", "50%"], "bake": "30s", "max_failures": 2,
            "max_unreachable": "5%", "node_timeout": "2m", "parallel": 4
        }}))
        .unwrap();
        let settings = form.settings.settings().unwrap();
        assert_eq!(settings.bake, Duration::from_secs(30));
        assert_eq!(settings.budget.max_failures, Some(2));
        assert_eq!((settings.waves.len(), settings.parallel), (2, Some(4)));
    }

    #[test]
    fn a_form_can_have_a_deadline_and_a_governor() {
        let form = form(json!({"bundle": "app", "settings": {
            "deadline": "2099-01-15T08:00:00Z", "governor": "deploys", "governor_timeout": "2m"
        }}));
        let settings = form.unwrap().settings.settings().unwrap();
        let deadline = settings.deadline.map(|time| time.to_rfc3339());
        assert_eq!(deadline.as_deref(), Some("2099-01-15T08:00:00+00:00"));
        let claim = settings.governor.unwrap();
        assert_eq!(claim.name.as_str(), "deploys");
        assert_eq!(claim.timeout.duration(), Duration::from_secs(120));
    }

    #[test]
    fn data_is_a_map_or_the_text_of_one() {
        let map = data(json_value(&json!({"port": 8080}))).unwrap();
        for text in ["port: 8080\n", "{\"port\": 8080}"] {
            assert_eq!(data(text.into()).unwrap(), map, "{text}");
        }
        assert_eq!(data(" \n".into()).unwrap(), Value::Null);
        for text in ["just text", "[1, 2]", "a: [1"] {
            let refused = data(text.into()).unwrap_err();
            assert!(refused.reason().to_string().starts_with("data: "), "{text}");
        }
    }

    fn json_value(document: &Document) -> Value {
        serde_json::from_value(document.clone()).unwrap()
    }

    #[test]
    fn all_nodes_must_be_selected_explicitly() {
        for (selection, is_fine) in [
            (json!({}), false),
            (json!({"seed": 7}), false),
            (json!({"all": true}), true),
            (json!({"all": true, "limit": 2}), true),
            (json!({"all": true, "nodes": ["web1"]}), false),
            (json!({"groups": ["web"]}), true),
            (json!({"facts": ["os"]}), false),
            (json!({"nodes": ["Web_1"]}), false),
            (json!({"nodes": ["/^web/"]}), true),
        ] {
            let parsed = form(json!({"bundle": "app", "selection": selection})).unwrap();
            assert_eq!(parsed.selection.selection().is_ok(), is_fine, "{selection}");
        }
    }

    #[test]
    fn an_invalid_form_is_refused() {
        for settings in [
            json!({"parallel": 0}),
            json!({"waves": ["some"]}),
            json!({"bake": "soon"}),
            json!({"governor": "two words"}),
            json!({"colour": "red"}),
        ] {
            let refused = form(json!({"bundle": "app", "settings": settings}));
            assert_eq!(refused.unwrap_err().status, StatusCode::BAD_REQUEST);
        }
        for settings in [
            json!({"deadline": "soon"}),
            json!({"governor_timeout": "5m"}),
        ] {
            let form = form(json!({"bundle": "app", "settings": settings})).unwrap();
            let refused = form.settings.settings();
            assert_eq!(refused.unwrap_err().status, StatusCode::BAD_REQUEST);
        }
    }
}
