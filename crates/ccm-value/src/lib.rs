//! Values, documents with positions, JSON and YAML, and secrets.
//!
//! No I/O: no files, clocks, processes or network.

#![warn(unreachable_pub)]

pub mod diagnostic;
pub mod document;
pub mod json;
pub mod quote;
pub mod secret;
pub mod text;
pub mod value;
pub mod yaml;

pub use value::Value;
