//! The agent on a real bus: what it answers (`verbs`), what it does by itself (`alone`), what it
//! never loses (`events`), and what people learn beside the answers (`told`).

pub(crate) mod alone;
mod events;
mod told;
mod verbs;
