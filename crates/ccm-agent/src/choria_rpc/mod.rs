//! Choria's RPC agent `ccm`, as far as it does not depend on who serves it: the Choria server with
//! the external agent (`ccm choria agent`), or `ccm agent` itself (`choria_server`).
//!
//! [`ddl`] defines the actions, [`inputs`] parses their inputs, [`outputs`] builds their results,
//! [`reply`] has the status codes, and [`run_store`] the records of runs. Nothing here authorizes a
//! request or executes a run.

pub mod ddl;
pub mod inputs;
pub mod outputs;
pub mod reply;
pub mod run_store;
