//! External MCORPC agent, started by the Choria server once per request.
//!
//! ```text
//! environment, request file -> external_protocol -> inputs -> actions -> reply file
//!                                                             |
//!                                       run -> detached process -> run_store
//! ```
//!
//! The server drops replies after the DDL's timeout, so runs happen in a detached process and are
//! queried later. The server authorizes requests before it starts this program.
//!
//! See [`external_protocol`] for the protocol, `run` for detached runs, and `ccm_agent::choria_rpc`
//! for what the Choria server in `ccm agent` has in common with it: the DDL, inputs, outputs, status
//! codes and run records.

mod actions;
mod audit;
mod config;
pub mod external_protocol;
mod identity;
mod install;
mod ruby;
mod run;

pub use external_protocol::{Call, ExternalError, serve};
pub use install::{FileChange, InstallError, InstalledFile, install};
pub use run::{DetachedError, run_detached};
