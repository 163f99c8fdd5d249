//! Expressions, data paths and template engines, all over one [`Value`].
//!
//! No I/O: access to files, key-value stores, registrations and facts goes through closures that
//! the caller puts into [`Env`].
//!
//! [`Value`]: ccm_value::Value

#![warn(unreachable_pub)]

mod base64;
mod diagnostic;
pub mod engines;
pub mod env;
mod error;
pub mod expand;
pub mod expr;
pub mod functions;
pub mod go;
mod go_names;
pub mod jet;
mod jinja;
mod literal;
pub mod path;
pub mod pattern;
pub mod secrets;
mod text;
mod time;

pub use engines::Engine;
pub use env::Env;
pub use error::{CallError, TemplateError, UnknownValue};
