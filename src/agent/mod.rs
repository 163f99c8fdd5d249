//! When and from where: what keeps a node at its manifests without anyone typing.
//!
//! - [`config`]: what the agent's file says
//! - [`sources`]: where manifests come from; the command line uses it too
//! - [`log`]: lines for people, journals and machines
//! - [`metrics`] and [`monitor`]: what monitoring asks, and who answers
//! - [`notify`]: what the service manager wants to hear

pub mod config;
pub mod log;
pub mod metrics;
pub mod monitor;
pub mod notify;
pub mod sources;
