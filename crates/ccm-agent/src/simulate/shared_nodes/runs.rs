//! Runs of simulated nodes: their assignment is followed, events and reports are published.

use std::sync::Arc;

use tokio::sync::{AcquireError, SemaphorePermit};

use super::{Group, RETRY_DELAY, SharedNode, SimulationError};
use crate::event_sink::outcome_token;
use ccm_core::model::drift::{Drift, ReportSource};
use ccm_core::model::event::{Summary, TransactionEvent};
use ccm_core::model::node::{Assignment, BundleRef, NodeReport, REPORT};
use ccm_core::model::request::parse_ensure;
use ccm_core::model::resource::Resource;
use ccm_core::model::run::{RUN_SUMMARY, RunSummary, Trigger};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::{Bytes, Subject};
use ccm_value::json;

impl Group {
    /// Returns the event of a resource after its simulated duration, or nothing if the node restarted
    /// meanwhile.
    pub(super) async fn change(
        &self,
        node: &SharedNode,
        resource: &Arc<Resource>,
        noop: bool,
    ) -> Option<TransactionEvent> {
        let restarts = node.restarts();
        let mut event = node.executor.outcome_event(&SystemClock, resource, noop);
        event.duration = node.executor.duration_of(&event);
        tokio::time::sleep(event.duration).await;
        (node.restarts() == restarts).then_some(event)
    }

    /// Waits until a node has a connection and may read or write.
    async fn permit(&self, node: &SharedNode) -> Result<SemaphorePermit<'_>, AcquireError> {
        loop {
            node.connected().await;
            let permit = self.writes.acquire().await?;
            if !node.is_away() {
                return Ok(permit);
            }
        }
    }

    pub(super) async fn publish_event(
        &self,
        node: &SharedNode,
        event: &TransactionEvent,
    ) -> Result<(), SimulationError> {
        let outcome = outcome_token(event);
        let token = node.name.token();
        let subject = self.subjects.event(&token, &event.type_name, outcome);
        let body = json::compact(event)?;
        self.publish(node, &subject, event.event_id.as_str(), body)
            .await
    }

    /// Publishes an event until it is stored, as the spool of an agent does, also after a restart. It is
    /// stored once: it has an id.
    async fn publish(
        &self,
        node: &SharedNode,
        subject: &Subject,
        id: &str,
        body: String,
    ) -> Result<(), SimulationError> {
        let body = Bytes::from(body);
        loop {
            let permit = self.permit(node).await?;
            let stored = self.connection.publish_stored(subject, id, body.clone());
            if stored.await.is_ok() {
                return Ok(());
            }
            drop(permit);
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Follows the assignment of a node: once at a time, and again if it changed meanwhile.
    pub(super) async fn follow(self: Arc<Self>, index: usize) {
        let Some(node) = self.nodes.get(index) else {
            return;
        };
        {
            let mut memory = node.memory.lock();
            if memory.is_running {
                memory.is_outdated = true;
                return;
            }
            memory.is_running = true;
        }
        loop {
            // A nudge follows if the controller gets no report.
            let _ = self.converge(node).await;
            let mut memory = node.memory.lock();
            if !std::mem::take(&mut memory.is_outdated) {
                memory.is_running = false;
                return;
            }
        }
    }

    async fn converge(&self, node: &SharedNode) -> Result<(), SimulationError> {
        let key = self.key(node);
        let (entry, restarts) = {
            let _permit = self.permit(node).await?;
            (self.desired.get(&key).await?, node.restarts())
        };
        let Some(entry) = entry else {
            return Ok(());
        };
        let assignment: Assignment = serde_json::from_slice(&entry.value)?;
        if node.memory.lock().generation == assignment.generation {
            return Ok(());
        }
        let mut events = Vec::with_capacity(assignment.manifests.len());
        for bundle in &assignment.manifests {
            let resource = self.resource(bundle)?;
            match self.change(node, &resource, assignment.noop).await {
                Some(event) => events.push(event),
                None => return Ok(()),
            }
        }
        for event in &events {
            self.publish_event(node, event).await?;
        }
        let report = self.report(node, &assignment, &events);
        if let Some(run) = &report.run {
            let subject = self.subjects.run_event(&node.name.token(), run.outcome);
            let body = json::compact(run)?;
            self.publish(node, &subject, run.event_id.as_str(), body)
                .await?;
        }
        let report = Bytes::from(json::compact(&report)?);
        loop {
            let permit = self.permit(node).await?;
            if self.reported.put(&key, report.clone()).await.is_ok() {
                break;
            }
            drop(permit);
            tokio::time::sleep(RETRY_DELAY).await;
        }
        let mut memory = node.memory.lock();
        if memory.restarts == restarts {
            memory.generation = assignment.generation;
        }
        Ok(())
    }

    /// Returns the resource that stands for a bundle.
    fn resource(&self, bundle: &BundleRef) -> Result<Arc<Resource>, SimulationError> {
        let object = bundle.object();
        let mut resources = self.resources.lock();
        if let Some(resource) = resources.get(&object) {
            return Ok(resource.clone());
        }
        let request = serde_json::json!({
            "protocol": "io.choria.ccm.v1.resource.ensure.request",
            "type": "exec",
            "properties": {"name": format!("/usr/bin/apply {object}")},
        });
        let resource = Arc::new(parse_ensure(&request.to_string())?);
        resources.insert(object, resource.clone());
        Ok(resource)
    }

    fn report(
        &self,
        node: &SharedNode,
        assignment: &Assignment,
        events: &[TransactionEvent],
    ) -> NodeReport {
        let now = SystemClock.now();
        let summary = Summary::of(None, events);
        let run = RunSummary {
            protocol: RUN_SUMMARY.into(),
            event_id: node.executor.next_id(now),
            run_id: node.executor.next_id(now),
            identity: node.name.clone(),
            collective: self.options.collective.clone(),
            source: "simulated".into(),
            trigger: Trigger::Assignment,
            outcome: RunSummary::outcome_of(&summary, assignment.noop, ""),
            noop: assignment.noop,
            health_check_only: false,
            generation: Some(assignment.generation),
            request_id: String::new(),
            caller: String::new(),
            error: String::new(),
            timestamp: now,
            summary,
        };
        let drift = events.iter();
        let drift = drift.filter_map(|event| Drift::from_event(event, assignment.noop, ""));
        NodeReport {
            protocol: REPORT.into(),
            identity: node.name.clone(),
            generation: assignment.generation,
            incarnation: assignment.incarnation.clone(),
            manifests: assignment.manifests.clone(),
            run: (!events.is_empty()).then_some(run),
            drift: drift.collect(),
            unchecked: Vec::new(),
            source: ReportSource::Run,
            error: String::new(),
            refusal: None,
            timestamp: now,
        }
    }
}
