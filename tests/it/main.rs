//! Everything that needs the whole program. One binary, one module per concern:
//! - `api`: requests piped in, responses field by field
//! - `apply`: manifests from file to summary, and what is wrong with bad ones
//! - `crash`: kill -9 in the middle, processes left behind
//! - `data`: facts, hierarchies, variables
//! - `exec`, `file`: every row of the types' tables, on the real machine
//! - `health`: goss rules of every type and matcher, and checks from manifest to event
//! - `nested`: manifests that apply manifests
//! - `regression`: each upstream defect that we fixed, by its number in the compatibility notes
//! - `schema`: schemas, types and real documents agree
//! - `session`: several calls kept together
//! - `tidy`: rules about the source itself

#![expect(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests arrange the world by hand and stop at the first surprise"
)]

mod api;
mod apply;
mod crash;
mod data;
mod exec;
mod file;
mod health;
mod nested;
mod regression;
mod schema;
mod session;
mod support;
mod tidy;
