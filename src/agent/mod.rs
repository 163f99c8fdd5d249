//! When and from where: what keeps a node at its manifests without anyone typing.
//!
//! - [`config`]: what the agent's file says
//! - [`metrics`]: what monitoring asks
//! - [`sources`]: where manifests come from; the command line uses it too

pub mod config;
pub mod metrics;
pub mod sources;
