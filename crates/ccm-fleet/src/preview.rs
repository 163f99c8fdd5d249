//! Noop runs on nodes: previews of a bundle, and checks of a node's own assignment.
//!
//! Each node gets its own request, so that each has a result or an error. A node stores the result of
//! a check in its report; a preview leaves no trace there.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::iter;

use ccm_core::model::envelope::{CALLER, DEADLINE};
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::node::{BundleRef, NodeName, NodeReport};
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
    #[error("reply without a report of the node")]
    NoReport,
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
        source: format!("obj://{MANIFESTS}/{}", preview.bundle.object()),
        data: preview.data.clone(),
        ..noop_request()
    };
    let reply = send(connection, subjects, &preview.node, &apply, caller, timeout).await?;
    Ok(reply.and_then(read))
}

/// Makes nodes check their own assignments, and returns their new reports.
pub async fn check_all(
    connection: &Connection,
    subjects: &Subjects,
    nodes: Vec<NodeName>,
    caller: &str,
    timeout: Duration,
) -> Result<Vec<(NodeName, Result<NodeReport, PreviewError>)>, NatsError> {
    let request = &ApplyRequest {
        check: true,
        ..noop_request()
    };
    let pending = iter(nodes).map(|node| async move {
        let reply = send(connection, subjects, &node, request, caller, timeout).await?;
        let report = reply.and_then(|response| {
            let report = response.report.map(|report| *report);
            // A report must have the identity of its node.
            let report = report.filter(|report| report.identity == node);
            report.ok_or(PreviewError::NoReport)
        });
        Ok((node, report))
    });
    let results: Vec<_> = pending.buffered(MAX_CONCURRENT).collect().await;
    results.into_iter().collect()
}

/// Returns a request whose reply has the result of the noop run.
fn noop_request() -> ApplyRequest {
    ApplyRequest {
        protocol: APPLY_REQUEST.into(),
        noop: true,
        wait: true,
        ..ApplyRequest::default()
    }
}

async fn send(
    connection: &Connection,
    subjects: &Subjects,
    node: &NodeName,
    apply: &ApplyRequest,
    caller: &str,
    timeout: Duration,
) -> Result<Result<ApplyResponse, PreviewError>, NatsError> {
    let subject = subjects.node(&node.token(), Verb::Apply);
    let body = json::compact(apply).map_err(|err| NatsError::Failed {
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
        Ok(reply) => Ok(response(&reply.body)),
        Err(NatsError::NoResponders(_) | NatsError::NoReply { .. }) => {
            Ok(Err(PreviewError::NoReply))
        }
        Err(err) => Err(err),
    }
}

fn response(body: &[u8]) -> Result<ApplyResponse, PreviewError> {
    let response: ApplyResponse =
        serde_json::from_slice(body).map_err(|err| PreviewError::Unreadable(err.to_string()))?;
    match response.error {
        Some(error) => Err(PreviewError::Refused(error)),
        None => Ok(response),
    }
}

fn read(response: ApplyResponse) -> Result<Preview, PreviewError> {
    let run = response.run.ok_or(PreviewError::NoRun)?;
    Ok(Preview {
        run,
        events: response.events,
    })
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
            let error = response(body).and_then(read).unwrap_err().to_string();
            assert!(error.starts_with(reason), "{error}");
        }
    }
}
