//! Values, documents with positions, JSON and YAML, and secrets: what every other crate holds.
//!
//! Pure: no file, clock, process or network.

#![warn(unreachable_pub)]

pub mod document;
pub mod json;
pub mod quote;
pub mod secret;
pub mod text;
pub mod value;
pub mod yaml;

pub use value::Value;
