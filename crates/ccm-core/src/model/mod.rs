//! What travels and what is stored: messages, properties, states, events, and the plain values
//! they hold. Serializes and validates; knows no file, clock, process or network.

pub mod amount;
pub mod audit;
pub mod cloudevent;
pub mod decision;
pub mod envelope;
pub mod event;
pub mod governor;
pub mod health;
pub mod id;
pub mod label;
pub mod node;
pub mod policy;
pub mod registration;
pub mod request;
pub mod resource;
pub mod rollout;
pub mod run;
pub mod signature;
pub mod state;

pub use id::TypeName;
pub use resource::Resource;

// The values that everything here holds; other crates name their owner.
pub(crate) use ccm_value::{Value, document, json, secret, text, value};
