//! ccm: desired state for one host or a whole fleet.
//!
//! The map, from the ground up; arrows only ever point upwards in this list:
//! - [`model`]: messages, properties, states, events and values
//! - [`system`]: processes, files, accounts, locks and time, each behind a small seam
//! - [`facts`]: what this node is, gathered by section
//! - [`template`]: expressions and template engines over one value type
//! - [`resource`]: the types, each as inspect, plan and change

pub mod facts;
pub mod model;
pub mod resource;
pub mod system;
pub mod template;
