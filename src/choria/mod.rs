//! The Choria face: an external RPC agent that a Choria server starts once per request.
//!
//! ```text
//! environment, request file -> external -> ddl -> actions -> reply file
//!                                                    |
//!                                    run -> a process of its own -> store
//! ```
//!
//! The server sends no reply when the DDL's timeout has passed, so whatever may take long happens in
//! a process of its own and is asked about later. What a resource is and how it is changed is the
//! engine's; who may ask is decided by Choria's server, before we are started.
//!
//! Read next: [`external_protocol`] for the protocol, [`ddl`] for what can be asked, `run` for the process
//! that does it, `store` for what is remembered.

mod actions;
mod audit;
mod config;
pub mod ddl;
pub mod external_protocol;
mod install;
mod outputs;
mod reply;
mod ruby;
mod run;
mod run_store;

pub use external_protocol::{Call, ExternalError, serve};
pub use install::{Done, InstallError, Place, install};
pub use outputs::{ApplyOutput, EnsureOutput, FactsOutput, PingOutput, StatusOutput};
pub use reply::StatusCode;
pub use run::{DetachedError, carry_out};
