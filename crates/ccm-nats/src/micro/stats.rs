//! What a service says about itself, and what it counts.
//!
//! A [`Ticket`] accompanies each request and counts it when it is gone, whatever became of it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::{Endpoint, Service};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_value::text::go_time;

/// What was counted at one endpoint.
#[derive(Debug, Default)]
pub(super) struct Counters(Mutex<Counted>);

#[derive(Clone, Debug, Default)]
struct Counted {
    requests: u64,
    errors: u64,
    last_error: String,
    time: Duration,
}

impl Counters {
    fn add(&self, time: Duration, error: Option<String>) {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counted.requests += 1;
        counted.time += time;
        if let Some(error) = error {
            counted.errors += 1;
            counted.last_error = error;
        }
    }

    fn read(&self) -> Counted {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Counts one request when it is dropped.
#[derive(Debug)]
pub(super) struct Ticket {
    counters: Arc<Counters>,
    since: Instant,
    error: Option<String>,
}

impl Ticket {
    pub(super) fn new(counters: Arc<Counters>) -> Self {
        Self {
            counters,
            since: Instant::now(),
            error: None,
        }
    }

    /// Notes that the request failed.
    pub(super) fn fail(&mut self, code: u16, text: &str) {
        self.error = Some(format!("{code}:{text}"));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.counters.add(self.since.elapsed(), self.error.take());
    }
}

/// A service, its endpoints and their counters.
pub(super) struct Described {
    service: Service,
    endpoints: Vec<(Endpoint, Arc<Counters>)>,
    started: DateTime<Utc>,
}

impl Described {
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

    /// Whether a client sent a message to this endpoint.
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
            let counted = counters.read();
            let time = u64::try_from(counted.time.as_nanos()).unwrap_or(u64::MAX);
            json!({
                "name": endpoint.name,
                "subject": endpoint.subject.as_str(),
                "queue_group": "",
                "num_requests": counted.requests,
                "num_errors": counted.errors,
                "last_error": counted.last_error,
                "processing_time": time,
                "average_processing_time": time.checked_div(counted.requests).unwrap_or_default(),
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
