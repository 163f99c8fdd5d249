//! ccm: desired state for one host or a whole fleet.
//!
//! Entry points only; the libraries are in `crates/`. The modules:
//! - [`cfengine`]: a package module for CFEngine's agent
//! - [`choria`]: an external agent for Choria's server
//! - [`cli`]: the command line

#![warn(unreachable_pub)]

pub mod cfengine;
pub mod choria;
pub mod cli;
