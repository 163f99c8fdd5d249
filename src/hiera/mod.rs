//! Hierarchical data: one document holds base data, overrides, and the order in which facts pick
//! among them; the result is plain data.
//!
//! Pure: knows no file, no network and no log. Whoever fetches hands the bytes to [`Source::read`]
//! and gets a [`Document`]; [`resolve`] makes data of it, [`Layers`] says what overrides what, and
//! [`validate`] checks the outcome against the rules in the author's comments.
//!
//! Start reading at `hierarchy`; comments are found in `comments` and understood in `annotations`.

mod annotations;
mod comments;
mod error;
mod hierarchy;
mod layers;
mod output;
mod sources;
mod validate;
mod validators;

pub use annotations::{Annotations, KeyPath, Rule, Warning, annotations};
pub use error::HieraError;
pub use hierarchy::{DATA_KEY, normalize, resolve};
pub use layers::{Handed, Layers};
pub use output::env_lines;
pub use sources::{Document, Source};
pub use validate::{Failure, Invalid, validate};
pub use validators::{CheckError, check};
