//! A package module for CFEngine: `cf-agent` says what to list, install and remove, and our own
//! package managers do it.
//!
//! [`module`] answers one command of the Package Module API, `request` reads what the agent
//! writes, [`wrapper`] makes the program that a policy can name. Nothing here knows how packages
//! are done: that is `resource::package::Batch`. The other direction, a module of CFEngine's as our
//! provider, is `resource::package::cfengine`.

pub mod module;
mod request;
#[cfg(test)]
#[path = "../../crates/ccm-core/src/resource/package/scripted_host.rs"]
mod scripted_host;
#[cfg(test)]
mod tests;
pub mod wrapper;

pub use module::{Command, answer};
pub use wrapper::{Wrapper, WrapperError};
