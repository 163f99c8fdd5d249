//! Fleet controller: node selection, requests to many nodes, bundles, rollouts, drift, and the web
//! page. What happens on a node is in the agent.
//!
//! Pure code without NATS, so that every decision can be tested as a function:
//! - [`selection`]: resolves names, groups, facts and expressions to nodes
//! - `waves`: the plan of a rollout, cutting nodes into waves
//! - [`planner`]: the next step of a rollout, from the stored object and the time
//! - [`decision`]: signing and verifying rollouts
//! - [`controls`]: pause, resume, abort, retry and rollback
//! - [`rollout_encoding`] and `rollout_chunks`: rollouts as bytes of one message or of several
//! - [`bundle`]: packs a manifest and its files
//! - `bundle_diff`: compares two bundles
//! - [`node_condition`]: the condition of a node in one word
//! - [`summarize`]: groups equal replies into lines
//! - [`node_reply`] and [`reply_body`]: interprets the reply of a node
//! - [`role_permissions`]: NATS permissions of agents, operators, controllers and monitors
//! - [`node_progress`]: the effect of a report on a rollout
//! - [`trust`]: keys, accounts and users of the fleet's NATS servers, in a directory
//!
//! Code that uses NATS:
//! - [`inventory`]: online and known nodes, from the fleet's buckets
//! - `records`: records of nodes in buckets, and why one can't be read
//! - [`scatter`]: one request to many nodes
//! - [`batches`]: requests batch by batch
//! - [`bundle_store`] and [`rollout_store`]: storage
//! - [`labels`]: labels of nodes
//! - [`run_history`]: runs of nodes and their events, from the event stream
//! - `assignments`: the desired state of nodes
//! - [`late_reports`]: reports that a rollout does not contain yet
//! - [`nats_waits`]: whether this process waits for NATS
//! - [`start`]: from a request to a stored rollout
//! - [`executor`]: drives a rollout as the planner decides
//! - [`preview`]: noop runs of a bundle on nodes
//! - [`drift`]: differences of nodes from their assignments
//! - [`doctor`]: what is wrong with the fleet, and what to do
//! - [`enrolment`]: enrolment of nodes, by token or by an operator
//! - [`backup`]: backup and restoration of streams and buckets
//! - [`forget`]: removal of every record of a node
//! - `audit`: audit events of decisions about nodes
//! - [`web`]: page, API and metrics

#![warn(unreachable_pub)]

mod assignments;
mod audit;
pub mod backup;
pub mod batches;
pub mod bundle;
mod bundle_diff;
pub mod bundle_store;
pub mod controls;
pub mod decision;
pub mod doctor;
pub mod drift;
pub mod enrolment;
pub mod executor;
#[cfg(test)]
mod fixture;
pub mod forget;
pub mod inventory;
pub mod labels;
pub mod late_reports;
pub mod nats_waits;
pub mod node_condition;
pub mod node_progress;
pub mod node_reply;
pub mod planner;
pub mod preview;
mod records;
pub mod reply_body;
pub mod role_permissions;
mod rollout_chunks;
pub mod rollout_encoding;
pub mod rollout_store;
pub mod run_history;
pub mod scatter;
pub mod selection;
pub mod start;
pub mod summarize;
pub mod trust;
mod waves;
pub mod web;
