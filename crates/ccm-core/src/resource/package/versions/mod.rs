//! Version comparison: by the rules of Debian, of rpm, and upstream CCM's generic rules. Pure functions
//! over text; providers choose one.

pub mod debian;
pub mod generic;
pub mod rpm;

use std::cmp::Ordering;

use crate::model::text::quote;

/// An invalid version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    #[error("invalid version \"\": unable to parse empty string as a debian version identifier")]
    Empty,
    #[error("invalid version {version}: unable to parse {version} as a debian version identifier", version = quote(.0))]
    NotDebian(String),
    #[error(
        "invalid version {}: unable to parse epoch {}: value out of range",
        quote(version),
        quote(epoch)
    )]
    Epoch { version: String, epoch: String },
}

/// Compares two runs of digits as numbers of any length; an empty run is zero.
fn numbers(left: &[u8], right: &[u8]) -> Ordering {
    let (left, right) = (trim_zeros(left), trim_zeros(right));
    left.len().cmp(&right.len()).then_with(|| left.cmp(right))
}

fn trim_zeros(digits: &[u8]) -> &[u8] {
    split(digits, |byte| byte == b'0').1
}

/// Splits text after its longest prefix of bytes that satisfy `belongs`.
fn split(text: &[u8], belongs: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    let at = text.iter().position(|byte| !belongs(*byte));
    text.split_at_checked(at.unwrap_or(text.len()))
        .unwrap_or((text, &[]))
}
