//! External MCORPC agent, started by the Choria server once per request.
//!
//! ```text
//! environment, request file -> external_protocol -> ddl -> actions -> reply file
//!                                                             |
//!                                       run -> detached process -> run_store
//! ```
//!
//! The server drops replies after the DDL's timeout, so runs happen in a detached process and are
//! queried later. The server authorizes requests before it starts this program.
//!
//! See [`external_protocol`] for the protocol, [`ddl`] for the actions, `run` for detached runs and
//! `run_store` for their records.

mod actions;
mod audit;
mod config;
pub mod ddl;
pub mod external_protocol;
mod identity;
mod install;
mod outputs;
mod reply;
mod ruby;
mod run;
mod run_store;

pub use external_protocol::{Call, ExternalError, serve};
pub use install::{FileChange, InstallError, InstalledFile, install};
pub use outputs::{ApplyOutput, EnsureOutput, FactsOutput, PingOutput, StatusOutput};
pub use reply::StatusCode;
pub use run::{DetachedError, run_detached};
