//! Replies of simulated nodes to requests.

use std::sync::Arc;

use super::super::facts;
use super::{Group, SharedNode};
use crate::handlers::{Reply, body_reply, code, error_reply};
use ccm_core::filter::{Matcher, NodeAttributes};
use ccm_core::model::envelope::{Envelope, IDENTITY};
use ccm_core::model::label::Labels;
use ccm_core::model::request::{EnsureResponse, parse_ensure};
use ccm_nats::connection::Message;
use ccm_nats::micro::{ERROR, ERROR_CODE};
use ccm_nats::{Headers, Subject, Verb};
use ccm_template::env::Facts;

impl Group {
    /// Handles a request to a node, unless it has no connection.
    pub(super) async fn receive(self: Arc<Self>, index: usize, message: Arc<Message>) {
        if self.nodes.get(index).is_none_or(SharedNode::is_away) {
            return;
        }
        let verb = message.subject.rsplit('.').next();
        let Some(verb) = verb.and_then(|it| it.parse::<Verb>().ok()) else {
            return;
        };
        if verb == Verb::Nudge {
            tokio::spawn(self.clone().follow(index));
        }
        if message.reply.is_none() {
            return;
        }
        if verb == Verb::Ensure {
            // Takes a while.
            tokio::spawn(async move { self.reply(index, verb, &message).await });
        } else {
            self.reply(index, verb, &message).await;
        }
    }

    async fn reply(&self, index: usize, verb: Verb, message: &Message) {
        let Some(node) = self.nodes.get(index) else {
            return;
        };
        let restarts = node.restarts();
        let reply = self.handle(node, verb, message).await;
        if node.is_away() || node.restarts() != restarts {
            return;
        }
        let headers = Headers::new()
            .with(IDENTITY, node.name.as_str())
            .unwrap_or_default();
        let (headers, body) = match reply {
            Reply::Ignored => return,
            Reply::Body(body) => (headers, body),
            Reply::Error { code, text, body } => {
                let code = code.to_string();
                let with_error = headers
                    .with(ERROR, &text)
                    .and_then(|it| it.with(ERROR_CODE, &code));
                (with_error.unwrap_or_default(), body)
            }
        };
        let to = message
            .reply
            .as_ref()
            .and_then(|it| it.parse::<Subject>().ok());
        if let Some(to) = to {
            // If this fails, the caller times out.
            let _ = self.connection.publish(&to, headers, body.into()).await;
        }
    }

    async fn handle(&self, node: &SharedNode, verb: Verb, message: &Message) -> Reply {
        let envelope = match Envelope::from_headers(|name| message.header(name)) {
            Ok(envelope) => envelope,
            Err(err) => return error_reply(verb, code::BAD_REQUEST, err.to_string()),
        };
        if !envelope.filter.is_empty() {
            let attributes = NodeAttributes {
                identity: &node.name,
                groups: &self.options.groups,
                facts: &Facts::Known(facts(node.number, self.options.nodes)),
                labels: &Labels::default(),
            };
            let matched = Matcher::new(&envelope.filter).and_then(|it| it.matches(&attributes));
            match matched {
                Ok(true) => {}
                Ok(false) => return Reply::Ignored,
                Err(err) => return error_reply(verb, code::BAD_REQUEST, err.to_string()),
            }
        }
        match verb {
            Verb::Ping | Verb::Nudge => body_reply(&self.status(node)),
            Verb::Facts => body_reply(&facts(node.number, self.options.nodes)),
            Verb::Ensure => {
                let text = String::from_utf8_lossy(&message.body);
                match parse_ensure(&text) {
                    Ok(resource) => {
                        let resource = Arc::new(resource);
                        let Some(event) = self.change(node, &resource, envelope.noop).await else {
                            return Reply::Ignored;
                        };
                        match self.publish_event(node, &event).await {
                            Ok(()) => body_reply(&EnsureResponse::new(Ok(event))),
                            Err(err) => error_reply(verb, code::INTERNAL, err.to_string()),
                        }
                    }
                    Err(err) => error_reply(verb, code::BAD_REQUEST, err.to_string()),
                }
            }
            Verb::Apply | Verb::Status | Verb::Pause | Verb::Resume | Verb::Cancel => {
                let text =
                    "simulated nodes with shared connections only reply to ping, facts and ensure";
                error_reply(verb, code::BAD_REQUEST, text.into())
            }
        }
    }
}
