//! Where: which nodes, in which order, and when to stop. What happens on a node is not known here.
//!
//! - [`selection`]: names, groups, facts and expressions into nodes, the absent ones named
//! - [`waves`]: nodes into waves; a value that can be shown before anything happens
//! - [`planner`]: the next step of a rollout, from what is stored and the time alone
//! - [`decision`]: what was signed of a rollout, made and checked
//! - [`controls`]: what people may do to a rollout: pause, resume, abort, retry, roll back
//! - [`rollout_encoding`]: a rollout as bytes that fit into one message
//! - [`bundle`]: a manifest and its files into bytes with one digest
//! - [`summarize`]: many equal results into one line
//! - [`node_reply`]: what a node's reply amounts to
//! - [`node_progress`]: what a node's report means to a rollout
//!
//! These are ordinary blocking code without a bus, so that every decision can be tested as a
//! function. The rest reaches the bus and decides nothing:
//! - [`inventory`]: who is there and who was, from the fleet's buckets
//! - [`scatter`]: many nodes asked, each heard once
//! - [`batches`]: a question taken through the chosen nodes, batch by batch
//! - [`bundle_store`] and [`rollout_store`]: where they are kept
//! - `assigning`: what nodes are told to be
//! - [`start`]: a request into a proposal, a proposal into a rollout
//! - [`executor`]: follows the judge, step by step
//! - [`preview`]: asks nodes what a bundle would change
//! - [`drift`]: what nodes are, beside what they should be
//! - [`web`]: all of it as a page, live

#![warn(unreachable_pub)]

mod assignments;
pub mod batches;
pub mod bundle;
pub mod bundle_store;
pub mod controls;
pub mod decision;
pub mod drift;
pub mod executor;
#[cfg(test)]
mod fixture;
pub mod inventory;
pub mod node_progress;
pub mod node_reply;
pub mod planner;
pub mod preview;
pub mod rollout_encoding;
pub mod rollout_store;
pub mod scatter;
pub mod selection;
pub mod start;
pub mod summarize;
pub mod waves;
pub mod web;
