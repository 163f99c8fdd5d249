//! When and from where: what keeps a node at its manifests without anyone typing.
//!
//! So far only [`sources`], where manifests come from; the command line uses it too.

pub mod cache;
pub mod desk;
pub mod facts;
pub mod pause;
pub mod sources;
