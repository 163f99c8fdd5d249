//! Previews: noop runs of a bundle on nodes, to find out what it would change.
//!
//! Each node gets its own request, so that each has a result or an error.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::iter;

use ccm_core::model::envelope::{CALLER, DEADLINE};
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::node::{BundleRef, NodeName};
use ccm_core::model::run::{APPLY_REQUEST, ApplyRequest, ApplyResponse, RunSummary};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::streams::MANIFESTS;
use ccm_nats::{Connection, Headers, NatsError, Subjects, Verb};
use ccm_value::{Value, json};

/// Number of concurrent requests.
const MAX_CONCURRENT: usize = 64;

/// A preview of one bundle on one node.
#[derive(Clone, Debug)]
pub struct PreviewRequest {
    pub node: NodeName,
    pub bundle: BundleRef,
    pub data: Value,
}

/// Why a node has no preview.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreviewError {
    #[error("no reply")]
    NoReply,
    #[error("invalid reply: {0}")]
    Unreadable(String),
    #[error("reply without a run summary")]
    NoRun,
    #[error("{0}")]
    Refused(String),
}

/// The result of a noop run.
#[derive(Clone, Debug, PartialEq)]
pub struct Preview {
    pub run: RunSummary,
    /// Events of resources that would change or fail.
    pub events: Vec<TransactionEvent>,
}

/// A request and its result.
pub type PreviewReply = (PreviewRequest, Result<Preview, PreviewError>);

/// Sends preview requests concurrently, and returns the results in the order of the requests.
pub async fn request_all(
    connection: &Connection,
    subjects: &Subjects,
    requests: Vec<PreviewRequest>,
    caller: &str,
    timeout: Duration,
) -> Result<Vec<PreviewReply>, NatsError> {
    let pending = iter(requests).map(|request| async move {
        let result = request_one(connection, subjects, &request, caller, timeout).await?;
        Ok((request, result))
    });
    let results: Vec<_> = pending.buffered(MAX_CONCURRENT).collect().await;
    results.into_iter().collect()
}

async fn request_one(
    connection: &Connection,
    subjects: &Subjects,
    preview: &PreviewRequest,
    caller: &str,
    timeout: Duration,
) -> Result<Result<Preview, PreviewError>, NatsError> {
    let apply = ApplyRequest {
        protocol: APPLY_REQUEST.into(),
        source: format!("obj://{MANIFESTS}/{}", preview.bundle.object()),
        noop: true,
        data: preview.data.clone(),
        wait: true,
        ..ApplyRequest::default()
    };
    let subject = subjects.node(&preview.node.token(), Verb::Apply);
    let body = json::compact(&apply).map_err(|err| NatsError::Failed {
        action: "request",
        subject: subject.to_string(),
        source: err.into(),
    })?;
    let deadline = SystemClock.now() + timeout;
    let headers = Headers::new()
        .with(DEADLINE, &deadline.to_rfc3339())?
        .with(CALLER, caller)?;
    match connection
        .request(&subject, headers, body.into(), timeout)
        .await
    {
        Ok(reply) => Ok(read(&reply.body)),
        Err(NatsError::NoResponders(_) | NatsError::NoReply { .. }) => {
            Ok(Err(PreviewError::NoReply))
        }
        Err(err) => Err(err),
    }
}

fn read(body: &[u8]) -> Result<Preview, PreviewError> {
    let response: ApplyResponse =
        serde_json::from_slice(body).map_err(|err| PreviewError::Unreadable(err.to_string()))?;
    match (response.error, response.run) {
        (Some(error), _) => Err(PreviewError::Refused(error)),
        (None, Some(run)) => Ok(Preview {
            run,
            events: response.events,
        }),
        (None, None) => Err(PreviewError::NoRun),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_without_a_run_is_an_error() {
        for (body, reason) in [
            (&b"junk"[..], "invalid reply: "),
            (br#"{"protocol":"x","error":"busy"}"#, "busy"),
            (
                br#"{"protocol":"x","state":"accepted"}"#,
                "reply without a run summary",
            ),
        ] {
            let error = read(body).unwrap_err().to_string();
            assert!(error.starts_with(reason), "{error}");
        }
    }
}
