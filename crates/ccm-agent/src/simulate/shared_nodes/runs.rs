//! Runs of simulated nodes: their assignment is followed, events and reports are published.

use std::sync::Arc;

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
    /// Returns the event of a resource after its simulated duration.
    pub(super) async fn change(
        &self,
        node: &SharedNode,
        resource: &Arc<Resource>,
        noop: bool,
    ) -> TransactionEvent {
        let mut event = node.executor.outcome_event(&SystemClock, resource, noop);
        event.duration = node.executor.duration_of(&event);
        tokio::time::sleep(event.duration).await;
        event
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
        self.publish(&subject, event.event_id.as_str(), body).await;
        Ok(())
    }

    /// Publishes an event until it is stored, as the spool of an agent does. It is stored once: it has an
    /// id.
    async fn publish(&self, subject: &Subject, id: &str, body: String) {
        let body = Bytes::from(body);
        while self
            .connection
            .publish_stored(subject, id, body.clone())
            .await
            .is_err()
        {
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
            let Ok(_run) = self.runs.acquire().await else {
                return;
            };
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
        let Some(entry) = self.desired.get(&key).await? else {
            return Ok(());
        };
        let assignment: Assignment = serde_json::from_slice(&entry.value)?;
        if node.memory.lock().generation == assignment.generation {
            return Ok(());
        }
        let mut events = Vec::with_capacity(assignment.manifests.len());
        for bundle in &assignment.manifests {
            let resource = self.resource(bundle)?;
            events.push(self.change(node, &resource, assignment.noop).await);
        }
        for event in &events {
            self.publish_event(node, event).await?;
        }
        let report = self.report(node, &assignment, &events);
        if let Some(run) = &report.run {
            let subject = self.subjects.run_event(&node.name.token(), run.outcome);
            self.publish(&subject, run.event_id.as_str(), json::compact(run)?)
                .await;
        }
        let report = Bytes::from(json::compact(&report)?);
        while self.reported.put(&key, report.clone()).await.is_err() {
            tokio::time::sleep(RETRY_DELAY).await;
        }
        node.memory.lock().generation = assignment.generation;
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
