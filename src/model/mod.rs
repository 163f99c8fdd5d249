//! What travels and what is stored: messages, properties, states, events, and the plain values
//! they hold. Serializes and validates; knows no file, clock, process or network.

pub mod document;
pub mod json;
pub mod value;

pub use value::Value;
