//! Data model: messages, resource properties, states, events and stored records.
//!
//! Serializes and validates. No file access, clock, processes or network.

pub mod amount;
pub mod audit;
pub mod cloudevent;
pub mod decision;
pub mod diagnosis;
pub mod drift;
pub mod enrolment;
pub mod envelope;
pub mod event;
pub mod governor;
pub mod health;
pub mod id;
pub mod incarnation;
pub mod label;
pub mod node;
pub mod output;
pub mod policy;
pub mod registration;
pub mod request;
pub mod resource;
pub mod rollout;
pub mod run;
pub mod signature;
pub mod signer_update;
pub mod state;

pub use id::TypeName;
pub use resource::Resource;

// Values and documents are in the crate `ccm_value`; other crates import them from there.
pub(crate) use ccm_value::{Value, diagnostic, document, json, secret, text, value};
