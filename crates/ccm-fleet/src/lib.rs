//! Where: which nodes, in which order, and when to stop. What happens on a node is not known here.
//!
//! - [`selection`]: names, groups, facts and expressions into nodes, the absent ones named
//! - [`plan`]: nodes into waves; a value that can be shown before anything happens
//! - [`judge`]: the next step of a rollout, from what is stored and the time alone
//! - [`decision`]: what was signed of a rollout, made and checked
//! - [`steer`]: what people may do to a rollout: pause, resume, abort, retry, roll back
//! - [`wire`]: a rollout as bytes that fit into one message
//! - [`bundle`]: a manifest and its files into bytes with one digest
//! - [`fold`]: many equal results into one line
//! - [`answer`]: what a node's reply amounts to
//! - [`outcome`]: what a node's report means to a rollout
//!
//! These are ordinary blocking code without a bus, so that every decision can be tested as a
//! function. The rest reaches the bus and decides nothing:
//! - [`inventory`]: who is there and who was, from the fleet's buckets
//! - [`gather`]: many nodes asked, each heard once
//! - [`sweep`]: a question taken through the chosen nodes, batch by batch
//! - [`bundles`] and [`rollouts`]: where they are kept
//! - `assigning`: what nodes are told to be
//! - [`start`]: a request into a proposal, a proposal into a rollout
//! - [`executor`]: follows the judge, step by step
//! - [`probe`]: asks nodes what a bundle would change
//! - [`drift`]: what nodes are, beside what they should be
//! - [`web`]: all of it as a page, live

#![warn(unreachable_pub)]

pub mod answer;
mod assigning;
pub mod bundle;
pub mod bundles;
pub mod decision;
pub mod drift;
pub mod executor;
#[cfg(test)]
mod fixture;
pub mod fold;
pub mod gather;
pub mod inventory;
pub mod judge;
pub mod outcome;
pub mod plan;
pub mod probe;
pub mod rollouts;
pub mod selection;
pub mod start;
pub mod steer;
pub mod sweep;
pub mod web;
pub mod wire;
