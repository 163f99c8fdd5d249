//! Configuration management of one node: from a request or a manifest to changes and events.
//!
//! No NATS and no HTTP server.
//!
//! Modules, lowest layer first; a module depends only on those above it in this list:
//! - [`model`]: messages, resource properties, states and events
//! - [`filter`]: matching of nodes against request filters
//! - [`system`]: processes, files, archives, HTTP, accounts, locks and time
//! - [`facts`]: facts of the node, gathered by section on demand
//! - [`health`]: health checks: nagios plugins and goss rules
//! - [`hiera`]: hierarchical data, resolved and validated
//! - [`secrets`]: encrypted values in data, opened with the key of a node
//! - [`resource`]: resource types, each as inspect, plan and change
//! - [`manifest`]: loading of manifests into ordered resources
//! - [`engine`]: applying of manifests: gates, refresh, retries, health checks, sessions
//! - [`run`]: pipeline from a request to events and a summary, shared by all entry points

#![warn(unreachable_pub)]

// Test files shared with other crates name this crate `ccm_core`.
#[cfg(test)]
extern crate self as ccm_core;

pub mod engine;
pub mod facts;
pub mod filter;
pub mod health;
pub mod hiera;
pub mod manifest;
pub mod model;
pub mod resource;
pub mod run;
pub mod secrets;
pub mod system;
