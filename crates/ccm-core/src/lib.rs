//! One host: from a request or a manifest to changes and events. Knows no bus and serves no HTTP.
//!
//! From the ground up; arrows only ever point upwards in this list:
//! - [`model`]: messages, properties, states and events
//! - [`filter`]: whether a filter means a node
//! - [`system`]: processes, files, archives, HTTP, accounts, locks and time, each behind a small seam
//! - [`facts`]: what the node is, gathered by section when asked
//! - [`health`]: probes, nagios plugins and goss rules
//! - [`hiera`]: hierarchical data, resolved and validated
//! - [`resource`]: the types, each as inspect, plan and change
//! - [`manifest`]: documents into ordered resources
//! - [`engine`]: policy, sessions and the life of a resource
//! - [`run`]: the pipeline from a request to events and a summary, the same for every entry point

#![warn(unreachable_pub)]

// The name that files have for this crate which tests of another one include.
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
pub mod system;
