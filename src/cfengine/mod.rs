//! CFEngine package module: lets `cf-agent` list, install and remove packages with our providers.
//!
//! [`module`] implements the commands of the Package Module API, `request` parses requests,
//! [`wrapper`] installs the script that a policy names. The package providers are in
//! `ccm_core::resource::package`; `resource::package::cfengine` is the opposite direction, a
//! provider that uses CFEngine's package modules.

pub mod module;
mod request;
#[cfg(test)]
#[path = "../../crates/ccm-core/src/resource/package/scripted_host.rs"]
mod scripted_host;
#[cfg(test)]
mod tests;
pub mod wrapper;

pub use module::{Command, respond};
pub use wrapper::{Wrapper, WrapperError};
