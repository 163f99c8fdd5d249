//! ccm: desired state for one host or a whole fleet.
//!
//! The map, from the ground up; arrows only ever point upwards in this list:
//! - [`model`]: messages, properties, states, events and values
//! - [`template`]: expressions and template engines over one value type

pub mod model;
pub mod template;
