//! Answers enrolment requests: verifies them, applies the rules, issues credentials and records who
//! decided.
//!
//! Any number of approvers may run; records are changed by compare-and-set.

use std::collections::HashMap;
use std::future::Future;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use parking_lot::Mutex;

use super::audit::{self, AuditRecord};
use super::rules::{self, Decision, Known, Request};
use super::{EnrolmentError, EnrolmentStore};
use crate::role_permissions::{Role, inbox_prefix};
use crate::trust::TrustDir;
use ccm_core::model::audit::AuditDecision;
use ccm_core::model::enrolment::{
    ENROLMENT_REPLY, ENROLMENT_REQUEST, EnrolledNode, EnrolmentReply, EnrolmentRequest,
    EnrolmentState, EnrolmentToken, Membership, NodeGrants, PendingNode, Rejection,
};
use ccm_core::model::node::{NodeName, Token};
use ccm_core::system::Clock;
use ccm_nats::connection::Message;
use ccm_nats::jwt::{self, Claims, Key, User, is_user_key};
use ccm_nats::request_signature::{PublicKey, SignatureClaim, Signer};
use ccm_nats::subject::ENROLMENT_INBOX;
use ccm_nats::{Connection, Headers, NatsError, Subject};

/// Maximum number of requests of all nodes that wait for a decision.
const MAX_PENDING: usize = 1000;

/// Maximum number of requests with the same node name.
const MAX_PENDING_OF_NODE: usize = 5;

/// Maximum size of a request.
const MAX_BODY: usize = 4096;

/// Maximum length of a stored version.
const MAX_VERSION: usize = 64;

/// Number of attempts when another approver changes a record at the same time.
const MAX_ATTEMPTS: usize = 10;

/// Maximum number of remembered refusals.
const MAX_REFUSALS: usize = 10_000;

/// What an approver did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub node: NodeName,
    pub public_key: String,
    pub state: EnrolmentState,
    pub reason: String,
    pub token: Token,
}

/// Issues credentials of nodes, with the signing key of agents.
#[derive(Debug)]
struct Issuer {
    key: Key,
    signer: Signer,
    trust: TrustDir,
}

impl Issuer {
    /// Reads the signing key of agents from a trust directory.
    fn open(directory: &Path) -> Result<Self, EnrolmentError> {
        let trust = TrustDir::open(directory)?;
        let key = trust.role_key(Role::Agent)?;
        let invalid = || EnrolmentError::Key(trust.path().to_owned());
        let seed = key.seed().map_err(EnrolmentError::Sign)?;
        let signer = Signer::from_seed(seed.reveal()).map_err(|_| invalid())?;
        Ok(Self { key, signer, trust })
    }

    fn issue(
        &self,
        node: &NodeName,
        public_key: &str,
        grants: &NodeGrants,
        now: DateTime<Utc>,
    ) -> Result<String, EnrolmentError> {
        let claims = Claims {
            name: node.to_string(),
            subject: public_key.into(),
            issued: now,
            expires: None,
            body: User {
                issuer_account: self.trust.fleet.account.clone(),
                tags: grants.tags(node),
            },
        };
        claims.sign(&self.key).map_err(EnrolmentError::Sign)
    }

    /// Reports whether credentials were signed with the current key.
    fn is_current(&self, jwt: &str) -> bool {
        let verified = jwt::verify::<User>(jwt);
        verified.is_ok_and(|verified| verified.issuer == self.key.public_key())
    }

    fn membership(&self, node: &EnrolledNode) -> Result<Membership, EnrolmentError> {
        let fleet = &self.trust.fleet;
        Ok(Membership {
            jwt: node.jwt.clone(),
            collective: fleet.collective.clone(),
            subject_prefix: fleet.prefix.clone(),
            inbox_prefix: inbox_prefix(Role::Agent, node.node.token().as_str()),
            groups: node.grants.groups.clone(),
            trust: self.trust.agent_trust()?,
        })
    }

    /// Returns the key that the name was issued to by hand, if it is another one.
    fn issued_key(
        &self,
        node: &NodeName,
        public_key: &str,
    ) -> Result<Option<String>, EnrolmentError> {
        let issued = self.trust.user(Role::Agent, node.as_str())?;
        let revoked = self.trust.revocations()?;
        Ok(issued
            .map(|user| user.public_key)
            .filter(|key| key != public_key && !revoked.contains_key(key)))
    }
}

/// An approval by an operator.
#[derive(Clone, Debug)]
pub struct Approval<'a> {
    pub request: &'a PendingNode,
    pub grants: NodeGrants,
    pub approved_by: &'a str,
}

/// Answers enrolment requests.
#[derive(Debug)]
pub struct Approver {
    connection: Connection,
    store: EnrolmentStore,
    /// The trust directory, read for each decision: keys may be rotated and signers added.
    directory: PathBuf,
    /// Last recorded refusal of each node and key: nodes repeat their requests.
    refusals: Mutex<HashMap<(NodeName, String), String>>,
}

impl Approver {
    /// Returns an approver with the signing key in a trust directory.
    pub fn new(
        connection: Connection,
        store: EnrolmentStore,
        directory: &Path,
    ) -> Result<Self, EnrolmentError> {
        // An approver without a key must not start.
        Issuer::open(directory)?;
        Ok(Self {
            connection,
            store,
            directory: directory.to_owned(),
            refusals: Mutex::default(),
        })
    }

    /// Answers requests until `stop` completes. `notify` receives decisions and errors.
    pub async fn serve(
        &self,
        clock: &dyn Clock,
        mut notify: impl FnMut(Result<Notice, EnrolmentError>),
        stop: impl Future<Output = ()>,
    ) -> Result<(), EnrolmentError> {
        let subject = self.store.subjects().enrolments();
        let mut requests = self.connection.subscribe(&subject).await?;
        let mut stop = std::pin::pin!(stop);
        loop {
            let message = tokio::select! {
                () = &mut stop => return Ok(()),
                message = requests.next() => message,
            };
            let Some(message) = message else {
                return Err(NatsError::Closed.into());
            };
            match self.answer(&message, clock.now()).await {
                Ok(Some(notice)) => notify(Ok(notice)),
                Ok(None) => {}
                Err(err) => notify(Err(err)),
            }
        }
    }

    /// Answers one request. Messages that are no signed request get no reply.
    async fn answer(
        &self,
        message: &Message,
        now: DateTime<Utc>,
    ) -> Result<Option<Notice>, EnrolmentError> {
        let Some((request, public_key, token, reply)) = self.verify(message) else {
            return Ok(None);
        };
        let issuer = Issuer::open(&self.directory)?;
        let mut attempts = 0;
        let (decision, enrolled) = loop {
            let decided = self.decide(&issuer, &request, &public_key, &token, now);
            match decided.await {
                Err(EnrolmentError::Nats(err)) if err.is_conflict() && attempts < MAX_ATTEMPTS => {
                    attempts += 1;
                }
                decided => break decided?,
            }
        };
        let (state, reason) = match &decision {
            Decision::Repeat | Decision::Approve => (EnrolmentState::Approved, ""),
            Decision::Wait => (EnrolmentState::Pending, ""),
            Decision::Rejected(reason) => (EnrolmentState::Rejected, reason.as_str()),
            Decision::Refuse(reason) => (EnrolmentState::Refused, reason.as_str()),
        };
        let membership = match (&enrolled, state) {
            (Some(node), EnrolmentState::Approved) => Some(issuer.membership(node)?),
            _ => None,
        };
        let body = EnrolmentReply {
            protocol: ENROLMENT_REPLY.into(),
            node: request.node.clone(),
            public_key: public_key.clone(),
            state,
            reason: reason.into(),
            membership,
        };
        let body = serde_json::to_vec(&body).map_err(|source| EnrolmentError::Record {
            key: reply.to_string(),
            source,
        })?;
        let connection = self.connection.clone().with_signer(Some(issuer.signer));
        connection
            .publish(&reply, Headers::new(), body.into())
            .await?;
        let notice = Notice {
            node: request.node,
            public_key,
            state,
            reason: reason.into(),
            token,
        };
        self.record(&decision, notice, now).await
    }

    /// Returns the content of a message, if it is a request that its key has signed.
    fn verify(&self, message: &Message) -> Option<(EnrolmentRequest, String, Token, Subject)> {
        let token = self.store.subjects().parse_enrolment(&message.subject)?;
        // Only inboxes of nodes that are not enrolled: a reply must not reach another subject.
        let reply = message.reply.as_deref()?;
        let inbox: Subject = format!("{ENROLMENT_INBOX}.{token}.>").parse().ok()?;
        let reply: Subject = inbox.matches(reply).then(|| reply.parse().ok())??;
        if message.body.len() > MAX_BODY || reply.is_wildcard() {
            return None;
        }
        let claim = SignatureClaim::read(&message.headers).ok()?;
        if !is_user_key(claim.signer) {
            return None;
        }
        let key = PublicKey::parse(claim.signer).ok()?;
        claim.verify(&key, &message.subject, &message.body).ok()?;
        let request: EnrolmentRequest = serde_json::from_slice(&message.body).ok()?;
        let public_key = claim.signer.to_owned();
        (request.protocol == ENROLMENT_REQUEST).then_some((request, public_key, token, reply))
    }

    /// Decides about a request and stores the decision.
    async fn decide(
        &self,
        issuer: &Issuer,
        request: &EnrolmentRequest,
        public_key: &str,
        token: &Token,
        now: DateTime<Utc>,
    ) -> Result<(Decision, Option<EnrolledNode>), EnrolmentError> {
        let node = &request.node;
        let stored_token = self.store.token(token).await?;
        let enrolled = self.store.enrolled(node).await?;
        let pending = self.store.pending(node, public_key).await?;
        let known = Known {
            token: stored_token.as_ref().map(|stored| &stored.value),
            enrolled: enrolled.as_ref().map(|stored| &stored.value),
            pending: pending.as_ref().map(|stored| &stored.value),
            is_online: self.store.is_online(node).await?,
            is_issued: issuer.issued_key(node, public_key)?.is_some(),
            is_revoked: issuer.trust.revocations()?.contains_key(public_key),
        };
        let decision = rules::decide(Request { node, public_key }, known, now);
        let revision = enrolled.as_ref().map(|stored| stored.revision());
        match (&decision, enrolled, stored_token) {
            (Decision::Approve, _, Some(stored)) => {
                // Counted first: a crash may waste a use, but never grants one too many.
                let counted = EnrolmentToken {
                    approved: stored.value.approved.saturating_add(1),
                    ..stored.value.clone()
                };
                self.store
                    .put_token(&counted, Some(stored.revision()))
                    .await?;
                let made = EnrolledNode {
                    node: node.clone(),
                    public_key: public_key.into(),
                    approved_by: format!("token {token}"),
                    approved: now,
                    jwt: issuer.issue(node, public_key, &counted.grants, now)?,
                    grants: counted.grants,
                    revoked: None,
                };
                self.store.put_enrolled(&made, revision).await?;
                Ok((decision, Some(made)))
            }
            (Decision::Repeat, Some(stored), _) if !issuer.is_current(&stored.value.jwt) => {
                let mut renewed = stored.value;
                renewed.jwt = issuer.issue(node, public_key, &renewed.grants, now)?;
                self.store.put_enrolled(&renewed, revision).await?;
                Ok((decision, Some(renewed)))
            }
            (Decision::Wait, enrolled, _) if pending.is_none() => {
                if let Some(reason) = self.full(node).await? {
                    return Ok((Decision::Refuse(reason), None));
                }
                let made = PendingNode {
                    node: node.clone(),
                    public_key: public_key.into(),
                    token: token.clone(),
                    version: request.version.chars().take(MAX_VERSION).collect(),
                    requested: now,
                    rejected: None,
                };
                self.store.put_pending(&made, None).await?;
                Ok((decision, enrolled.map(|stored| stored.value)))
            }
            (_, enrolled, _) => Ok((decision, enrolled.map(|stored| stored.value))),
        }
    }

    /// Returns why no further request can be stored, if none can.
    async fn full(&self, node: &NodeName) -> Result<Option<String>, EnrolmentError> {
        if self.store.requests(Some(node)).await?.len() >= MAX_PENDING_OF_NODE {
            return Ok(Some("too many requests with this node name".into()));
        }
        if self.store.requests(None).await?.len() >= MAX_PENDING {
            return Ok(Some("too many requests wait for a decision".into()));
        }
        Ok(None)
    }

    /// Records a decision in the audit, and returns it if it is new.
    async fn record(
        &self,
        decision: &Decision,
        notice: Notice,
        now: DateTime<Utc>,
    ) -> Result<Option<Notice>, EnrolmentError> {
        let audited = match decision {
            Decision::Approve => AuditDecision::Allowed,
            Decision::Refuse(reason) => {
                if self.is_repeated(&notice, reason) {
                    return Ok(None);
                }
                AuditDecision::Denied
            }
            _ => return Ok(None),
        };
        let record = AuditRecord {
            node: &notice.node,
            public_key: &notice.public_key,
            token: &notice.token,
            decision: audited,
            reason: &notice.reason,
            decided_by: &format!("token {}", notice.token),
        };
        audit::publish(&self.connection, self.store.subjects(), &record, now).await?;
        Ok(Some(notice))
    }

    /// Reports whether the same refusal was recorded before, and remembers it.
    fn is_repeated(&self, notice: &Notice, reason: &str) -> bool {
        let mut refusals = self.refusals.lock();
        if refusals.len() >= MAX_REFUSALS {
            refusals.clear();
        }
        let key = (notice.node.clone(), notice.public_key.clone());
        let before = refusals.insert(key, reason.to_owned());
        before.as_deref() == Some(reason)
    }

    /// Returns the only request of a node, or the one whose key begins with a text.
    pub async fn request(
        &self,
        node: &NodeName,
        key: Option<&str>,
    ) -> Result<PendingNode, EnrolmentError> {
        let mut requests = self.store.requests(Some(node)).await?;
        match key {
            Some(key) => requests.retain(|request| request.public_key.starts_with(key)),
            // A rejected request is approved only if it is the only one.
            None if requests.iter().any(|request| request.rejected.is_none()) => {
                requests.retain(|request| request.rejected.is_none());
            }
            None => {}
        }
        let count = requests.len();
        match (requests.pop(), count) {
            (None, _) => Err(EnrolmentError::NoRequest(node.clone())),
            (Some(request), 1) => Ok(request),
            _ => Err(EnrolmentError::Ambiguous {
                node: node.clone(),
                count,
            }),
        }
    }

    /// Returns the other key that the name of a request belongs to, if there is one.
    pub async fn taken_by(&self, request: &PendingNode) -> Result<Option<String>, EnrolmentError> {
        let enrolled = self.store.enrolled(&request.node).await?;
        let enrolled = enrolled.map(|stored| stored.value);
        let enrolled = enrolled.filter(|node| node.revoked.is_none());
        match enrolled.filter(|node| node.public_key != request.public_key) {
            Some(node) => Ok(Some(node.public_key)),
            None => {
                let issuer = Issuer::open(&self.directory)?;
                issuer.issued_key(&request.node, &request.public_key)
            }
        }
    }

    /// Approves a request. The caller has revoked the key that [`Approver::taken_by`] returned.
    pub async fn approve(
        &self,
        approval: &Approval<'_>,
        now: DateTime<Utc>,
    ) -> Result<(), EnrolmentError> {
        let PendingNode {
            node,
            public_key,
            token,
            ..
        } = approval.request;
        let issuer = Issuer::open(&self.directory)?;
        let enrolled = self.store.enrolled(node).await?;
        if let Some(stored) = &enrolled
            && stored.value.public_key == *public_key
            && stored.value.revoked.is_some()
        {
            return Err(EnrolmentError::Revoked(node.clone()));
        }
        let made = EnrolledNode {
            node: node.clone(),
            public_key: public_key.clone(),
            approved_by: approval.approved_by.into(),
            approved: now,
            jwt: issuer.issue(node, public_key, &approval.grants, now)?,
            grants: approval.grants.clone(),
            revoked: None,
        };
        let revision = enrolled.map(|stored| stored.revision());
        self.store.put_enrolled(&made, revision).await?;
        self.store.remove_pending(node, public_key).await?;
        let record = AuditRecord {
            node,
            public_key,
            token,
            decision: AuditDecision::Allowed,
            reason: "",
            decided_by: approval.approved_by,
        };
        audit::publish(&self.connection, self.store.subjects(), &record, now).await
    }

    /// Rejects a request.
    pub async fn reject(
        &self,
        request: &PendingNode,
        reason: &str,
        rejected_by: &str,
        now: DateTime<Utc>,
    ) -> Result<(), EnrolmentError> {
        let (node, public_key) = (&request.node, &request.public_key);
        let stored = self.store.pending(node, public_key).await?;
        let revision = stored.map(|stored| stored.revision());
        let rejected = PendingNode {
            rejected: Some(Rejection {
                time: now,
                by: rejected_by.into(),
                reason: reason.into(),
            }),
            ..request.clone()
        };
        self.store.put_pending(&rejected, revision).await?;
        let record = AuditRecord {
            node,
            public_key,
            token: &request.token,
            decision: AuditDecision::Denied,
            reason,
            decided_by: rejected_by,
        };
        audit::publish(&self.connection, self.store.subjects(), &record, now).await
    }

    pub fn store(&self) -> &EnrolmentStore {
        &self.store
    }
}
