//! Requests: from a received message to the reply, with authentication, authorization and audit.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::action_policy::{self, PolicyError};
use super::{AGENTS, ChoriaServer, NO_REPLY, count};
use crate::choria_rpc::reply::{ActionReply, Failure, Reply as RpcReply};
use crate::trust::audit::AuditRequest;
use crate::trust::replay_cache::{Now, SignerQuota};
use crate::trust::{Denied, Requester};
use ccm_core::engine::Level;
use ccm_core::filter::{FilterError, Matcher, NodeAttributes};
use ccm_core::model::label::Labels;
use ccm_core::model::node::Refusal;
use ccm_core::model::policy::PolicyRequest;
use ccm_core::model::run::RunId;
use ccm_nats::choria::message::Reply;
use ccm_nats::choria::{AuthenticRequest, MessageError, SecurityError, TransportMessage};
use ccm_nats::connection::Message;
use ccm_nats::subject::choria as subject;
use ccm_nats::{Headers, NatsError};

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    Security(#[from] SecurityError),
    #[error("the request was sent to a subject of another agent or collective")]
    Subject,
    #[error("invalid filter: {0}")]
    Filter(#[from] FilterError),
    #[error(transparent)]
    Trust(#[from] Denied),
    #[error("signer {0} is not trusted here")]
    UnknownSigner(String),
    #[error("the token of the caller does not allow this action")]
    Token,
    #[error("the action policy does not allow this action")]
    ActionPolicy,
    #[error("action policy: {0}")]
    InvalidPolicy(#[from] PolicyError),
    #[error("neither the token of the caller nor an action policy allows this action")]
    NoPolicy,
    #[error("malformed request")]
    Malformed,
}

/// Text of a request to an RPC agent.
#[derive(Debug, Deserialize)]
struct RpcRequest {
    agent: String,
    action: String,
    #[serde(default)]
    data: Value,
}

/// Request that is being handled.
pub(super) struct Incoming {
    pub(super) authentic: AuthenticRequest,
    pub(super) requester: Requester,
    /// Subject it was sent to.
    subject: String,
    pub(super) action: String,
}

/// What is audited about a request beside its origin.
#[derive(Default)]
pub(super) struct AuditDetails<'a> {
    pub(super) label: &'a str,
    pub(super) noop: bool,
    pub(super) run_id: Option<RunId>,
}

impl AuditDetails<'_> {
    pub(super) fn read_only() -> Self {
        Self {
            noop: true,
            ..Self::default()
        }
    }
}

impl ChoriaServer {
    /// Handles a message and sends the reply.
    pub(super) async fn receive(self: Arc<Self>, message: Message) {
        count(&self.stats.total);
        let transport = match TransportMessage::decode(&message.body) {
            Ok(transport) => transport,
            Err(error) => {
                count(&self.stats.invalid);
                return self.refuse_unknown(&message.subject, "", &error.into());
            }
        };
        let now = self.node.services.clock.now();
        let authentic = match self.chain.authenticate(&transport, now) {
            Ok(authentic) => authentic,
            Err(error) => {
                count(match error {
                    SecurityError::Expired | SecurityError::Future => &self.stats.expired,
                    _ => &self.stats.invalid,
                });
                return self.refuse_unknown(&message.subject, transport.sender(), &error.into());
            }
        };
        count(&self.stats.valid);
        match self.is_for_this_node(&message.subject, &authentic).await {
            Ok(true) => count(&self.stats.passed),
            Ok(false) => return count(&self.stats.filtered),
            Err(refused) => return self.refuse(&message.subject, &authentic, "", &refused),
        }
        let Some(text) = self
            .clone()
            .handle(message.subject, authentic.clone())
            .await
        else {
            return;
        };
        if let Err(error) = self.send(&transport, &authentic, text).await {
            let fields = [
                ("request", authentic.request.id.clone()),
                ("error", error.to_string()),
            ];
            self.node.log(
                Level::Warn,
                "Could not send a reply to a Choria client",
                &fields,
            );
        }
    }

    /// Checks that a request was sent to a subject of its collective and agent, and its filter.
    async fn is_for_this_node(
        &self,
        sent_to: &str,
        authentic: &AuthenticRequest,
    ) -> Result<bool, Refused> {
        let request = &authentic.request;
        let is_addressed = self.collectives.iter().any(|collective| {
            let subjects = [
                subject::broadcast(collective, &request.agent),
                subject::directed(collective, &self.node.identity.name),
            ];
            let mut subjects = subjects.iter().flatten();
            collective.as_str() == request.collective && subjects.any(|it| it.as_str() == sent_to)
        });
        if !is_addressed || !AGENTS.contains(&request.agent.as_str()) {
            return Err(Refused::Subject);
        }
        let filter = request.filter();
        if filter.is_empty() {
            return Ok(true);
        }
        let node = self.node.clone();
        let matching = tokio::task::spawn_blocking(move || {
            Matcher::with_agents(&filter, AGENTS)?.matches(&NodeAttributes {
                identity: &node.identity.name,
                groups: &node.identity.groups,
                facts: &node.services.facts.current(),
                labels: &Labels::default(),
            })
        });
        // A panicking filter matches nothing.
        Ok(matching.await.unwrap_or(Ok(false))?)
    }

    /// Handles an authentic request for this node, and returns the text of the reply.
    async fn handle(
        self: Arc<Self>,
        subject: String,
        authentic: AuthenticRequest,
    ) -> Option<Vec<u8>> {
        if let Err(denied) = self.record(&authentic) {
            self.refuse(&subject, &authentic, "", &denied.into());
            return None;
        }
        let agent = authentic.request.agent.clone();
        let rpc = match agent.as_str() {
            "discovery" => None,
            agent => match serde_json::from_slice::<RpcRequest>(authentic.request.message()) {
                Ok(rpc) if rpc.agent == agent => Some(rpc),
                _ => {
                    self.refuse(&subject, &authentic, "", &Refused::Malformed);
                    let failure =
                        Failure::invalid("the request is not an RPC request of this agent");
                    return rpc_reply("", Err(failure));
                }
            },
        };
        let action = rpc
            .as_ref()
            .map_or("ping", |rpc| rpc.action.as_str())
            .to_owned();
        let server = self.clone();
        let work = tokio::task::spawn_blocking(move || {
            let requester = match server.authorize(&authentic, &action) {
                Ok(requester) => requester,
                Err(refused) => {
                    server.refuse(&subject, &authentic, &action, &refused);
                    let text = "You are not authorized to call this agent or action";
                    // Clients of the discovery agent expect no other text than "pong".
                    return match rpc {
                        Some(_) => rpc_reply(&action, Err(Failure::aborted(text))),
                        None => None,
                    };
                }
            };
            let incoming = Incoming {
                authentic,
                requester,
                subject,
                action,
            };
            match rpc {
                None => {
                    server.allow(&incoming, &AuditDetails::default());
                    Some(b"pong".to_vec())
                }
                Some(rpc) => rpc_reply(&incoming.action, server.execute(&incoming, &rpc.data)),
            }
        });
        work.await.unwrap_or_default()
    }

    /// Executes an authorized action.
    fn execute(&self, incoming: &Incoming, data: &Value) -> Result<ActionReply, Failure> {
        match incoming.authentic.request.agent.as_str() {
            "rpcutil" => self.rpcutil(incoming, data),
            _ => self.ccm(incoming, data),
        }
    }

    /// Records a request, so that it is accepted once.
    fn record(&self, authentic: &AuthenticRequest) -> Result<(), Denied> {
        let quota = SignerQuota::new(&authentic.signer.to_hex(), false);
        self.replay_cache.lock().add(
            Now::of(&*self.node.services.clock),
            authentic.request.time(),
            // One more second, because times are stored in whole seconds.
            authentic.expiry + chrono::TimeDelta::seconds(1),
            *authentic.digest.as_bytes(),
            quota,
        )
    }

    /// Checks the token's policy, the action policy and the `trust` section.
    fn authorize(&self, authentic: &AuthenticRequest, action: &str) -> Result<Requester, Refused> {
        let request = &authentic.request;
        let nkey = authentic.signer.to_user_nkey();
        let requester = self.node.services.authorizer.requester_of(&nkey);
        let requester = requester.map_err(|denied| match denied {
            Denied::Unknown => Refused::UnknownSigner(nkey),
            denied => denied.into(),
        })?;
        // Whether a run is noop is checked with its inputs.
        requester.may(&PolicyRequest {
            verb: verb_of(&request.agent, action),
            noop: true,
            ..PolicyRequest::default()
        })?;
        if request.agent == "discovery" {
            return Ok(requester);
        }
        let by_token = authentic.claims.allows(&request.agent, action);
        if by_token == Some(false) {
            return Err(Refused::Token);
        }
        let attributes = NodeAttributes {
            identity: &self.node.identity.name,
            groups: &self.node.identity.groups,
            facts: &self.node.services.facts.current(),
            labels: &Labels::default(),
        };
        let policy_request = action_policy::PolicyRequest {
            agent: &request.agent,
            action,
            caller: &request.caller,
        };
        match action_policy::decide(&self.policies, policy_request, &attributes)? {
            Some(false) => Err(Refused::ActionPolicy),
            None if by_token.is_none() => Err(Refused::NoPolicy),
            Some(true) | None => Ok(requester),
        }
    }

    /// Sends the reply to a request, signed.
    async fn send(
        &self,
        transport: &TransportMessage,
        authentic: &AuthenticRequest,
        text: Vec<u8>,
    ) -> Result<(), SendError> {
        let to = transport.reply_to();
        if to == NO_REPLY || to.is_empty() {
            return Ok(());
        }
        let subject = subject::reply(&self.collectives, to).ok_or(SendError::Subject)?;
        let identity = self.node.identity.name.as_str();
        let now = self.node.services.clock.now();
        let reply = Reply::new(&authentic.request, identity, now, text);
        let reply = transport
            .reply(self.key.reply(&reply)?, identity)
            .encode()?;
        self.connection
            .publish(&subject, Headers::new(), reply.into())
            .await?;
        count(&self.stats.replies);
        Ok(())
    }

    /// Refuses a request that is not authentic: nobody is named, and nobody gets a reply.
    fn refuse_unknown(&self, subject: &str, sender: &str, refused: &Refused) {
        let request = AuditRequest {
            subject,
            caller: sender,
            ..AuditRequest::default()
        };
        self.audit_denied("choria", &request, sender, refused);
    }

    fn refuse(&self, subject: &str, authentic: &AuthenticRequest, action: &str, refused: &Refused) {
        let about = &authentic.request;
        let request = AuditRequest {
            subject,
            caller: &about.caller,
            request_id: &about.id,
            signer: &authentic.signer_name,
            ..AuditRequest::default()
        };
        let verb = audit_verb(&about.agent, action);
        self.audit_denied(&verb, &request, &about.caller, refused);
    }

    fn audit_denied(&self, verb: &str, request: &AuditRequest<'_>, who: &str, refused: &Refused) {
        let services = &self.node.services;
        let reason = refused.to_string();
        services.audit.denied(&self.node, verb, request, &reason);
        services.metrics.requested("choria", "denied");
        services.refusals.add(Refusal {
            time: services.clock.now(),
            what: verb.into(),
            generation: None,
            incarnation: None,
            who: who.chars().filter(|c| !c.is_control()).take(256).collect(),
            reason,
        });
    }

    pub(super) fn allow(&self, incoming: &Incoming, details: &AuditDetails<'_>) {
        let verb = audit_verb(&incoming.authentic.request.agent, &incoming.action);
        let services = &self.node.services;
        let request = incoming.audit_request(details);
        services.audit.allowed(&self.node, &verb, &request);
        services.metrics.requested("choria", "ok");
    }

    /// Refuses an authorized request because of its inputs, and returns the failure for its reply.
    pub(super) fn deny(
        &self,
        incoming: &Incoming,
        details: &AuditDetails<'_>,
        reason: &str,
        failure: Failure,
    ) -> Failure {
        let verb = audit_verb(&incoming.authentic.request.agent, &incoming.action);
        let request = incoming.audit_request(details);
        let services = &self.node.services;
        services.audit.denied(&self.node, &verb, &request, reason);
        services.metrics.requested("choria", "refused");
        failure
    }
}

impl Incoming {
    fn audit_request<'a>(&'a self, details: &AuditDetails<'a>) -> AuditRequest<'a> {
        let request = &self.authentic.request;
        AuditRequest {
            subject: &self.subject,
            caller: &request.caller,
            request_id: &request.id,
            signer: match &*self.requester.name {
                "" => &self.authentic.signer_name,
                name => name,
            },
            about: details.label,
            noop: details.noop,
            run_id: details.run_id.clone(),
        }
    }
}

/// Why a reply could not be sent.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("the request names a reply subject that is not one of a client")]
    Subject,
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error(transparent)]
    Nats(#[from] NatsError),
}

impl From<MessageError> for Refused {
    fn from(error: MessageError) -> Self {
        Self::Security(error.into())
    }
}

/// Returns the verb of a request in audit records.
fn audit_verb(agent: &str, action: &str) -> String {
    match action {
        "" => format!("choria.{agent}"),
        action => format!("choria.{agent}.{action}"),
    }
}

/// Returns the verb of the `trust` section for an action.
fn verb_of(agent: &str, action: &str) -> &'static str {
    match (agent, action) {
        ("ccm", "apply") => "apply",
        ("ccm", "ensure") => "ensure",
        ("ccm", "status") => "status",
        ("ccm", "facts") | ("rpcutil", "inventory" | "get_fact" | "get_facts") => "facts",
        _ => "ping",
    }
}

/// Returns the text of an RPC reply.
fn rpc_reply(action: &str, result: Result<ActionReply, Failure>) -> Option<Vec<u8>> {
    #[derive(Serialize)]
    struct Document<'a> {
        action: &'a str,
        #[serde(flatten)]
        reply: RpcReply,
    }
    let (_, reply) = RpcReply::from(result).encode().ok()?;
    serde_json::to_vec(&Document { action, reply }).ok()
}
