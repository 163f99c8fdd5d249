//! ccm: desired state for one host or a whole fleet.
//!
//! The map, from the ground up; arrows only ever point upwards in this list:
//! - [`model`]: messages, properties, states, events and values
//! - [`system`]: processes, files, archives, HTTP, accounts, locks and time, each behind a small seam
//! - [`nats`]: the bus: contexts, subjects, messages, buckets, streams and services
//! - [`template`]: expressions and template engines over one value type
//! - [`facts`]: what the node is, gathered by section when asked
//! - [`health`]: probes, nagios plugins and goss rules
//! - [`hiera`]: hierarchical data, resolved and validated
//! - [`resource`]: the types, each as inspect, plan and change
//! - [`manifest`]: documents into ordered resources
//! - [`engine`]: policy, sessions and the life of a resource
//! - [`run`]: the pipeline from a request to events and a summary, the same for every entry point
//! - [`agent`]: one node's daemon: when to act, what to answer, what must reach the bus
//! - [`fleet`]: which nodes, in which order, and when to stop
//! - [`cfengine`]: a package module for CFEngine's agent
//! - [`choria`]: an external agent for Choria's server
//! - [`cli`]: the command line

pub mod agent;
pub mod cfengine;
pub mod choria;
pub mod cli;
pub mod engine;
pub mod facts;
pub mod fleet;
pub mod health;
pub mod hiera;
pub mod manifest;
pub mod model;
pub mod nats;
pub mod resource;
pub mod run;
pub mod system;
pub mod template;
