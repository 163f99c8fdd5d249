//! When and from where: what keeps a node at its manifests without anyone typing.
//!
//! - [`sources`]: where manifests come from; the command line uses it too
//! - [`publisher`]: events from the spool to the stream
//! - [`spool`]: events on disk until the bus has them

pub mod publisher;
pub mod sources;
pub mod spool;
