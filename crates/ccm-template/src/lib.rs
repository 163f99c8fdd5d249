//! Evaluates text: expressions, data paths and whole templates, all over one [`Value`].
//!
//! Pure by construction. What reaches outside (files, key-value stores, registrations, facts that
//! must be gathered) is a closure that the caller puts into [`Env`].
//!
//! [`Value`]: ccm_value::Value

#![warn(unreachable_pub)]

mod base64;
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
mod text;
mod time;

pub use engines::Engine;
pub use env::Env;
pub use error::{CallError, TemplateError};
pub use pattern::short_reason;
