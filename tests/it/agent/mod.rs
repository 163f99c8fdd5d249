//! The agent on a real bus: what it answers (`verbs`), what it does by itself (`alone`), and what
//! it never loses (`events`).

mod alone;
mod events;
mod verbs;
