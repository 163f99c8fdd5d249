//! Encrypted values: texts such as `ENC[age,…]` in data that only the owner of a key can open.
//!
//! Pure: keys and documents are passed in. `keys` has X25519 keys in the format of age, `age` its file
//! format, [`sealed`] the texts in data, `values` finds and opens them in data, `document` rewrites them
//! in texts, and `sops` reads documents of SOPS.
//!
//! The file format of age is implemented here for X25519 recipients only: without any feature, the crate
//! `age` 0.12 would add 70 crates to the agent (translations, scrypt, ML-KEM, P-256, a second AEAD), among
//! them second versions of others, which `deny.toml` refuses. `tests/it/secrets/age.rs` checks this
//! implementation against that crate, both ways.

mod age;
mod document;
mod environment;
mod keys;
pub mod sealed;
mod sops;
mod values;

pub use age::AgeError;
pub use document::{DocumentSecretError, decrypt_document, encrypt_document, rekey};
pub use environment::{WithoutKey, secrets_of, set_data, unseal};
pub use keys::{Identity, KeyError, Recipient, parse_identities};
pub use sealed::{SealedError, SealedType, is_sealed, open, seal};
pub use sops::{SopsError, is_sops, unseal_document};
pub use values::{UnopenedValue, UnopenedValues, has_sealed, open_values, redact_sealed};
