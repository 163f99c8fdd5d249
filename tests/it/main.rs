//! Everything that needs the whole program. One binary, one module per concern:
//! - `api`: requests piped in, responses field by field
//! - `apply`: manifests from file to summary, and what is wrong with bad ones
//! - `crash`: kill -9 in the middle, processes left behind
//! - `archive`, `exec`, `file`: every row of the types' tables, on the real machine
//! - `http`: the client against servers that behave, misbehave and lie
//! - `nested`: manifests that apply manifests
//! - `regression`: each upstream defect that we fixed, by its number in the compatibility notes
//! - `schema`: schemas, types and real documents agree
//! - `session`: several calls kept together
//! - `sources`: manifests from directories, bundles and servers
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
mod archive;
mod crash;
mod exec;
mod file;
mod http;
mod nested;
mod regression;
mod schema;
mod session;
mod sources;
mod support;
mod tidy;
