//! Description and statistics of a service: the replies to PING, INFO and STATS.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Endpoint, Service};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_value::text::go_time;

/// Counters of one endpoint.
#[derive(Debug, Default)]
pub(super) struct Counters(Mutex<Counts>);

#[derive(Clone, Debug, Default)]
struct Counts {
    requests: u64,
    errors: u64,
    last_error: String,
    time: Duration,
}

impl Counters {
    fn add(&self, time: Duration, error: Option<String>) {
        let mut counts = self.0.lock();
        counts.requests += 1;
        counts.time += time;
        if let Some(error) = error {
            counts.errors += 1;
            counts.last_error = error;
        }
    }

    fn read(&self) -> Counts {
        self.0.lock().clone()
    }
}

/// Measures one request, and counts it when dropped.
#[derive(Debug)]
pub(super) struct RequestTimer {
    counters: Arc<Counters>,
    since: Instant,
    error: Option<String>,
}

impl RequestTimer {
    pub(super) fn new(counters: Arc<Counters>) -> Self {
        Self {
            counters,
            since: Instant::now(),
            error: None,
        }
    }

    /// Records the error of the request.
    pub(super) fn fail(&mut self, code: u16, text: &str) {
        self.error = Some(format!("{code}:{text}"));
    }
}

impl Drop for RequestTimer {
    fn drop(&mut self) {
        self.counters.add(self.since.elapsed(), self.error.take());
    }
}

/// A service, its endpoints and their counters.
pub(super) struct Description {
    service: Service,
    endpoints: Vec<(Endpoint, Arc<Counters>)>,
    started: DateTime<Utc>,
}

impl Description {
    pub(super) fn new(service: Service, endpoints: Vec<Endpoint>) -> Self {
        let endpoints = endpoints.into_iter();
        Self {
            service,
            endpoints: endpoints.map(|one| (one, Arc::default())).collect(),
            started: SystemClock.now(),
        }
    }

    /// Returns the counters of an endpoint.
    pub(super) fn counters(&self, index: usize) -> Arc<Counters> {
        let found = self.endpoints.get(index);
        found.map_or_else(Arc::default, |(_, counters)| Arc::clone(counters))
    }

    /// Reports whether a client published a message to this endpoint.
    pub(super) fn is_request_to(&self, index: usize, message: &async_nats::Message) -> bool {
        let found = self.endpoints.get(index);
        found.is_some_and(|(endpoint, _)| super::is_request(message, &endpoint.subject))
    }

    pub(super) fn ping(&self) -> String {
        self.head("ping").to_string()
    }

    pub(super) fn info(&self) -> String {
        let mut info = self.head("info");
        let endpoints = self.endpoints.iter().map(|(endpoint, _)| {
            json!({
                "name": endpoint.name,
                "subject": endpoint.subject.as_str(),
                "queue_group": "",
                "metadata": endpoint.metadata,
            })
        });
        let endpoints: Vec<Value> = endpoints.collect();
        extend(
            &mut info,
            json!({ "description": self.service.description, "endpoints": endpoints }),
        );
        info.to_string()
    }

    pub(super) fn stats(&self) -> String {
        let mut stats = self.head("stats");
        let endpoints = self.endpoints.iter().map(|(endpoint, counters)| {
            let counts = counters.read();
            let time = u64::try_from(counts.time.as_nanos()).unwrap_or(u64::MAX);
            json!({
                "name": endpoint.name,
                "subject": endpoint.subject.as_str(),
                "queue_group": "",
                "num_requests": counts.requests,
                "num_errors": counts.errors,
                "last_error": counts.last_error,
                "processing_time": time,
                "average_processing_time": time.checked_div(counts.requests).unwrap_or_default(),
            })
        });
        let endpoints: Vec<Value> = endpoints.collect();
        extend(
            &mut stats,
            json!({ "started": go_time(&self.started), "endpoints": endpoints }),
        );
        stats.to_string()
    }

    fn head(&self, kind: &str) -> Value {
        json!({
            "type": format!("io.nats.micro.v1.{kind}_response"),
            "name": self.service.name,
            "id": self.service.id,
            "version": self.service.version,
            "metadata": self.service.metadata,
        })
    }
}

fn extend(object: &mut Value, more: Value) {
    if let (Value::Object(object), Value::Object(more)) = (object, more) {
        object.extend(more);
    }
}
