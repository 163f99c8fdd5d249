//! Subscriptions to the subjects of a server, and permissions that the brokers deny.
//!
//! The agent works without them. A denied permission is a problem of the node, and the node does not
//! claim to serve the collective; a denied subscription is repeated after a reconnect or a while.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::{AGENTS, ChoriaServer, STOP_LIMIT};
use crate::node::Problem;
use ccm_core::engine::Level;
use ccm_core::model::node::Token;
use ccm_nats::connection::{Denial, Operation, Subscription};
use ccm_nats::subject::choria as subject;
use ccm_nats::{NatsError, Subject};

/// Time after which a denied subscription is tried again on the same connection.
const RETRY_INTERVAL: Duration = Duration::from_secs(600);

/// Denied permissions, with their collectives.
pub(super) type Denied = BTreeMap<String, (Token, Denial)>;

/// A subject of the server.
#[derive(Clone, Debug)]
struct Endpoint {
    collective: Token,
    subject: Subject,
}

impl ChoriaServer {
    /// Subscribes to all subjects and handles their messages until stopped.
    pub(super) async fn start_subscriptions(
        self: &Arc<Self>,
        tasks: &mut JoinSet<()>,
        stop: &watch::Sender<bool>,
    ) -> Result<(), NatsError> {
        tasks.spawn(self.clone().watch_replies(stop.subscribe()));
        let slots = Arc::new(Semaphore::new(super::MAX_CONCURRENT));
        for endpoint in self.endpoints()? {
            let subscription = self.subscribe(&endpoint).await?;
            let (server, slots) = (self.clone(), slots.clone());
            let stop = stop.subscribe();
            tasks.spawn(server.serve(endpoint, subscription, slots, stop));
        }
        Ok(())
    }

    fn endpoints(&self) -> Result<Vec<Endpoint>, NatsError> {
        let mut endpoints = Vec::new();
        for collective in &self.collectives {
            let mut add = |subject| {
                let collective = collective.clone();
                endpoints.push(Endpoint {
                    collective,
                    subject,
                });
            };
            for agent in AGENTS {
                add(subject::broadcast(collective, agent)?);
            }
            add(subject::directed(collective, &self.node.identity.name)?);
        }
        Ok(endpoints)
    }

    /// Subscribes; returns nothing if the brokers deny it.
    async fn subscribe(&self, endpoint: &Endpoint) -> Result<Option<Subscription>, NatsError> {
        match self.connection.subscribe(&endpoint.subject).await {
            Ok(subscription) => {
                self.set_denied(endpoint.subject.as_str(), None);
                Ok(Some(subscription))
            }
            Err(NatsError::Denied(denial)) => {
                let key = endpoint.subject.as_str();
                self.set_denied(key, Some((endpoint.collective.clone(), denial)));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Handles the messages of a subject until stopped, and subscribes again after a denial.
    async fn serve(
        self: Arc<Self>,
        endpoint: Endpoint,
        mut subscription: Option<Subscription>,
        slots: Arc<Semaphore>,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut handling = JoinSet::new();
        loop {
            let Some(current) = &mut subscription else {
                tokio::select! {
                    _ = stop.wait_for(|stopped| *stopped) => break,
                    () = self.reconnect_or_timeout() => {}
                }
                match self.subscribe(&endpoint).await {
                    Ok(repeated) => subscription = repeated,
                    Err(error) => {
                        let text = "Could not subscribe to requests of Choria's clients";
                        self.node
                            .log(Level::Warn, text, &[("error", error.to_string())]);
                    }
                }
                continue;
            };
            let message = tokio::select! {
                _ = stop.wait_for(|stopped| *stopped) => break,
                message = current.next() => message,
            };
            let Some(message) = message else {
                let Some(denial) = current.denial().cloned() else {
                    // The connection is closed.
                    break;
                };
                let key = endpoint.subject.as_str();
                self.set_denied(key, Some((endpoint.collective.clone(), denial)));
                subscription = None;
                continue;
            };
            let Ok(slot) = slots.clone().acquire_owned().await else {
                return;
            };
            while handling.try_join_next().is_some() {}
            let server = self.clone();
            handling.spawn(async move {
                server.receive(message).await;
                drop(slot);
            });
        }
        let all = async { while handling.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(STOP_LIMIT, all).await;
    }

    /// Waits until permissions may have changed.
    async fn reconnect_or_timeout(&self) {
        let mut state = self.connection.state();
        state.mark_unchanged();
        let reconnect = async {
            while state.changed().await.is_ok() {
                if state.borrow_and_update().is_up() {
                    return;
                }
            }
            std::future::pending().await
        };
        let _ = tokio::time::timeout(RETRY_INTERVAL, reconnect).await;
    }

    /// Records replies that the brokers deny, until the next connect.
    async fn watch_replies(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let mut denials = self.connection.denials();
        let mut state = self.connection.state();
        loop {
            tokio::select! {
                _ = stop.wait_for(|stopped| *stopped) => return,
                Ok(()) = state.changed() => {
                    if state.borrow_and_update().is_up() {
                        for collective in &self.collectives {
                            self.set_denied(&replies_of(collective), None);
                        }
                    }
                }
                denial = denials.next() => {
                    let is_reply = |collective: &&Token| {
                        subject::reply(&[(*collective).clone()], &denial.subject).is_some()
                    };
                    if denial.operation == Operation::Publish
                        && let Some(collective) = self.collectives.iter().find(is_reply)
                    {
                        let found = (collective.clone(), denial.clone());
                        self.set_denied(&replies_of(collective), Some(found));
                    }
                }
            }
        }
    }

    /// Records or clears a denied permission, and updates the status of the node.
    fn set_denied(&self, key: &str, found: Option<(Token, Denial)>) {
        let mut denied = self.denied.lock();
        match found {
            Some(found) => denied.insert(key.to_owned(), found),
            None => denied.remove(key),
        };
        let is_denied =
            |collective: &&Token| denied.values().any(|(denied, _)| denied == *collective);
        let served = self.collectives.iter().filter(|it| !is_denied(it));
        let served: Vec<Token> = served.cloned().collect();
        let reason = denied
            .values()
            .next()
            .map(|(_, denial)| format!("can't serve Choria's clients: {denial}"));
        drop(denied);
        self.node.set_choria_collectives(served);
        let is_new = self.node.set_problem(Problem::ChoriaServer, reason.clone());
        match reason {
            Some(reason) if is_new => {
                self.node
                    .log(Level::Error, "Unhealthy", &[("reason", reason)]);
            }
            None if is_new => {
                let text = "Requests of Choria's clients are permitted again";
                self.node.log(Level::Warn, text, &[]);
            }
            _ => {}
        }
    }
}

/// Returns the key of denied replies in a collective.
fn replies_of(collective: &Token) -> String {
    format!("{collective}.reply")
}
