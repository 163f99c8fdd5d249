//! Handlers that only read: `status`, `facts`, and the filter and body of every request.
//!
//! They work in blocking threads, beside any run. The state of a resource may be the digest of a large
//! file, so it has a limit of its own: facts, filters and bodies never wait for it.

use std::sync::Arc;

use serde::Deserialize;
use tokio::sync::Semaphore;

use super::{
    AuditDetails, HandlerError, Handlers, IncomingRequest, Reply, body_reply, code, error_reply,
    non_empty,
};
use ccm_core::engine::{StatusError, resource_from_request};
use ccm_core::filter;
use ccm_core::model::envelope::Envelope;
use ccm_core::model::label::Labels;
use ccm_core::model::policy::PolicyRequest;
use ccm_core::model::request::{RequestError, StatusResponse, parse_status};
use ccm_core::model::resource::Resource;
use ccm_nats::Verb;
use ccm_template::path;

/// Most facts, filters and bodies that are read at once.
const MAX_LIGHT: usize = 8;

/// Most states of resources that are read at once.
const MAX_INSPECTIONS: usize = 4;

/// Most status requests at work and waiting. The others are refused, so that they don't take all places
/// of the request server.
const MAX_STATUS_REQUESTS: usize = 256;

/// Longest body that is parsed without leaving the async thread.
const SMALL_BODY: usize = 64 * 1024;

/// Limits of blocking work. Clones share them.
#[derive(Clone)]
pub(super) struct Readers {
    light: Arc<Semaphore>,
    inspections: Arc<Semaphore>,
    status_requests: Arc<Semaphore>,
}

impl Default for Readers {
    fn default() -> Self {
        let limit = |permits| Arc::new(Semaphore::new(permits));
        Self {
            light: limit(MAX_LIGHT),
            inspections: limit(MAX_INSPECTIONS),
            status_requests: limit(MAX_STATUS_REQUESTS),
        }
    }
}

impl Handlers {
    pub(super) async fn state(&self, text: &str, incoming: &IncomingRequest) -> Reply {
        let request = match self.parse_body(text, parse_status).await {
            Ok(request) => request,
            Err(err) => return self.malformed(incoming, &err.to_string()),
        };
        let label = format!("{}#{}", request.type_name, request.name);
        let details = AuditDetails {
            label: &label,
            noop: true,
            run_id: None,
        };
        let resource = match resource_from_request(&request) {
            Ok(resource) => resource,
            Err(err @ StatusError::Module) => {
                return self.deny(incoming, &details, &err.to_string());
            }
            Err(err) => return self.malformed(incoming, &err.to_string()),
        };
        if let Err(denied) = incoming.requester.may(&status_policy_request(&resource)) {
            return self.deny(incoming, &details, &denied.to_string());
        }
        self.allow(incoming, &details);
        let Ok(_waiting) = self.readers.status_requests.try_acquire() else {
            let text = "busy: too many status requests are waiting already".to_owned();
            return error_reply(Verb::Status, code::BUSY, text);
        };
        let (node, requester) = (self.node.clone(), incoming.requester.clone());
        let inspected = run_blocking(&self.readers.inspections, move || {
            node.state_of(&resource, &requester)
        });
        match inspected.await {
            Ok(Ok(state)) => body_reply(&StatusResponse::new(Ok(state))),
            Ok(Err(err)) => error_reply(Verb::Status, code::BAD_REQUEST, err.to_string()),
            Err(err) => error_reply(Verb::Status, code::INTERNAL, err.to_string()),
        }
    }

    /// Replies with all facts, or with the result of a path query.
    pub(super) async fn facts(&self, text: &str) -> Reply {
        let node = self.node.clone();
        let wanted = match parse_facts_path(text) {
            Ok(wanted) => wanted,
            Err(err) => return error_reply(Verb::Facts, code::BAD_REQUEST, err.to_string()),
        };
        let found = run_blocking(&self.readers.light, move || {
            let facts = node.services.facts.current().all();
            match wanted.as_str() {
                "" => Ok(facts),
                wanted => path::find(&facts, wanted).ok_or_else(|| wanted.to_owned()),
            }
        });
        match found.await {
            Ok(Ok(facts)) => body_reply(&facts),
            Ok(Err(wanted)) => {
                let text = format!("no fact matches {wanted:?}");
                error_reply(Verb::Facts, code::NOT_FOUND, text)
            }
            Err(err) => error_reply(Verb::Facts, code::INTERNAL, err.to_string()),
        }
    }

    /// Reports whether the filter of the envelope matches this node.
    pub(super) async fn matches_filter(&self, envelope: &Envelope) -> Result<bool, HandlerError> {
        if envelope.filter.is_empty() {
            return Ok(true);
        }
        let filter = envelope.filter.clone();
        let node = self.node.clone();
        let matched = run_blocking(&self.readers.light, move || {
            let attributes = filter::NodeAttributes {
                identity: &node.identity.name,
                groups: &node.identity.groups,
                facts: &node.services.facts.current(),
                labels: &Labels::default(),
            };
            filter::matches(&filter, &attributes)
        });
        Ok(matched.await??)
    }

    /// Parses a body. A small one with aliases may expand to a large document, so those count as
    /// blocking reads.
    pub(super) async fn parse_body<T: Send + 'static>(
        &self,
        text: &str,
        parse: fn(&str) -> Result<T, RequestError>,
    ) -> Result<T, HandlerError> {
        if text.len() <= SMALL_BODY && !text.contains('*') {
            return Ok(parse(text)?);
        }
        let text = text.to_owned();
        let parsed = run_blocking(&self.readers.light, move || parse(&text));
        Ok(parsed.await??)
    }
}

/// Runs blocking work within a limit.
async fn run_blocking<T: Send + 'static>(
    limit: &Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, HandlerError> {
    let _permit = limit.acquire().await?;
    Ok(tokio::task::spawn_blocking(work).await?)
}

/// Returns the policy request for reading the state of a resource.
pub(crate) fn status_policy_request(resource: &Resource) -> PolicyRequest<'_> {
    PolicyRequest {
        verb: Verb::Status.as_str(),
        noop: true,
        type_name: Some(resource.type_name()),
        name: Some(resource.policy_name()),
        provider: non_empty(&resource.common.provider),
        command: None,
    }
}

/// Returns the path of a facts request: plain text, or `path` in a JSON document.
fn parse_facts_path(text: &str) -> Result<String, HandlerError> {
    #[derive(Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct FactsBody {
        #[serde(alias = "query")]
        path: String,
    }
    let text = text.trim();
    // A path may start with a brace, too.
    match serde_json::from_str::<serde_json::Map<_, _>>(text) {
        Ok(document) => Ok(serde_json::from_value::<FactsBody>(document.into())?.path),
        Err(_) => Ok(text.trim_matches('"').to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_path_is_plain_text_or_in_a_document() {
        for (body, path) in [
            ("", ""),
            ("{}", ""),
            (" host.info.os\n", "host.info.os"),
            ("\"host.info.os\"", "host.info.os"),
            (r#"{"path":"host.info.os"}"#, "host.info.os"),
            (r#"{"query":"host.info.os"}"#, "host.info.os"),
            ("{host.info.os,cpu}", "{host.info.os,cpu}"),
        ] {
            assert_eq!(parse_facts_path(body).unwrap(), path, "{body}");
        }
        let error = parse_facts_path(r#"{"paths":"x"}"#).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown field `paths`, expected `path` or `query`"
        );
    }
}
