//! Choria's network protocol, version 2, with its ed25519 tokens: what a server of Choria needs to
//! verify requests and to sign replies.
//!
//! ```text
//! transport { data: secure request { request, signature, caller token, signer token }, headers }
//! transport { data: secure reply   { reply, hash, signature, sender token },           headers }
//! ```
//!
//! - [`message`]: the documents, strictly validated
//! - [`token`]: JSON web tokens of clients and servers, and the chain of trust to an issuer
//! - [`key`]: ed25519 keys in hexadecimal, as Choria stores them
//! - [`security`]: which requests are authentic ([`TrustChain`]), and signed replies ([`ServerKey`])
//!
//! Subjects are in [`crate::subject::choria`]. Replay protection, action policies and agents are in
//! `ccm_agent`.

pub mod key;
pub mod message;
pub mod security;
#[cfg(test)]
mod tests;
pub mod token;

pub use key::{ChoriaKey, ChoriaKeyError, ChoriaSeed};
pub use message::{FederationHeader, MessageError, Request, TransportMessage};
pub use security::{AuthenticRequest, SecurityError, ServerKey, ServerKeyError, TrustChain};
pub use token::{ClientClaims, ServerClaims, TokenError};
