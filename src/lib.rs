//! ccm: configuration management for one node or a fleet.
//!
//! Entry points only; the libraries are in `crates/`:
//! - [`cfengine`]: package module for `cf-agent`
//! - [`choria`]: external RPC agent for the Choria server
//! - [`cli`]: command line

#![warn(unreachable_pub)]

pub mod cfengine;
pub mod choria;
pub mod cli;
