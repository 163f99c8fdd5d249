//! Debian versions, `[epoch:]upstream[-revision]`, compared like dpkg.
//!
//! More lenient than dpkg in two points that upstream CCM's tests require: a version need not start with
//! a digit, and a trailing hyphen belongs to the upstream part.

use std::cmp::Ordering;
use std::fmt;

use super::{VersionError, numbers, split};

/// A parsed Debian version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version<'a> {
    pub epoch: u32,
    pub upstream: &'a str,
    /// Empty if there is none.
    pub revision: &'a str,
}

impl<'a> Version<'a> {
    /// Parses a version.
    pub fn parse(text: &'a str) -> Result<Self, VersionError> {
        if text.is_empty() {
            return Err(VersionError::Empty);
        }
        let invalid = || VersionError::NotDebian(text.into());
        let (epoch, rest) = match text.split_once(':') {
            None => (0, text),
            Some((epoch, rest)) => (parse_epoch(text, epoch)?, rest),
        };
        let (upstream, revision) = match rest.rsplit_once('-') {
            Some((upstream, revision)) if !revision.is_empty() => (upstream, revision),
            _ => (rest, ""),
        };
        let allowed = |c: char| c.is_ascii_alphanumeric() || ".+~-:".contains(c);
        if upstream.is_empty() || !rest.chars().all(allowed) || revision.contains(':') {
            return Err(invalid());
        }
        Ok(Self {
            epoch,
            upstream,
            revision,
        })
    }
}

/// Parses an epoch; as in dpkg, at most 2^31 - 1.
fn parse_epoch(version: &str, epoch: &str) -> Result<u32, VersionError> {
    if epoch.is_empty() || !epoch.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(VersionError::NotDebian(version.into()));
    }
    let number: Option<i32> = epoch.parse().ok();
    let number = number.ok_or_else(|| VersionError::Epoch {
        version: version.into(),
        epoch: epoch.into(),
    })?;
    Ok(number.unsigned_abs())
}

/// Displays a version without an epoch of zero.
impl fmt::Display for Version<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.epoch > 0 {
            write!(out, "{}:", self.epoch)?;
        }
        out.write_str(self.upstream)?;
        if !self.revision.is_empty() {
            write!(out, "-{}", self.revision)?;
        }
        Ok(())
    }
}

/// Compares two versions.
pub fn compare(left: &str, right: &str) -> Result<Ordering, VersionError> {
    let (left, right) = (Version::parse(left)?, Version::parse(right)?);
    Ok(left
        .epoch
        .cmp(&right.epoch)
        .then_with(|| compare_parts(left.upstream, right.upstream))
        .then_with(|| compare_parts(left.revision, right.revision)))
}

/// Compares two parts: alternately non-digits by weight and numbers by value.
fn compare_parts(left: &str, right: &str) -> Ordering {
    let (mut left, mut right) = (left.as_bytes(), right.as_bytes());
    while !(left.is_empty() && right.is_empty()) {
        let ((words, left_rest), (other_words, right_rest)) = (
            split(left, |byte| !byte.is_ascii_digit()),
            split(right, |byte| !byte.is_ascii_digit()),
        );
        let ((digits, left_rest), (other_digits, right_rest)) = (
            split(left_rest, |byte| byte.is_ascii_digit()),
            split(right_rest, |byte| byte.is_ascii_digit()),
        );
        let order = compare_texts(words, other_words).then_with(|| numbers(digits, other_digits));
        if order.is_ne() {
            return order;
        }
        (left, right) = (left_rest, right_rest);
    }
    Ordering::Equal
}

fn compare_texts(left: &[u8], right: &[u8]) -> Ordering {
    let longest = left.len().max(right.len());
    let weights = |text: &[u8]| text.iter().map(|byte| weight(*byte)).collect::<Vec<_>>();
    let (mut left, mut right) = (weights(left), weights(right));
    left.resize(longest, END);
    right.resize(longest, END);
    left.cmp(&right)
}

/// The weight of the end of a part: above a tilde, below everything else.
const END: u16 = 1;

/// Returns the weight of a byte: tilde, end of part, letters, then others.
fn weight(byte: u8) -> u16 {
    match byte {
        b'~' => 0,
        letter if letter.is_ascii_alphabetic() => u16::from(letter),
        other => u16::from(other) + 256,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_into_parts() {
        for (text, epoch, upstream, revision) in [
            ("1.0", 0, "1.0", ""),
            ("1:2.0-3", 1, "2.0", "3"),
            (
                "1:20191210.1-0ubuntu0.19.04.2",
                1,
                "20191210.1",
                "0ubuntu0.19.04.2",
            ),
            ("2.42.1+19.04", 0, "2.42.1+19.04", ""),
            (
                "5:1.0.0+git-20190109.133f4c4-0ubuntu2",
                5,
                "1.0.0+git-20190109.133f4c4",
                "0ubuntu2",
            ),
            ("1.0~beta1", 0, "1.0~beta1", ""),
            ("1:2:3", 1, "2:3", ""),
            ("1.0-", 0, "1.0-", ""),
        ] {
            let version = Version::parse(text).unwrap();
            let parts = (version.epoch, version.upstream, version.revision);
            assert_eq!(parts, (epoch, upstream, revision), "{text}");
            assert_eq!(version.to_string(), text);
        }
    }

    #[test]
    fn an_epoch_of_zero_is_not_printed() {
        assert_eq!(Version::parse("0:1.0-1").unwrap().to_string(), "1.0-1");
    }

    #[test]
    fn invalid_versions_are_rejected() {
        for (text, error) in [
            (
                "",
                "invalid version \"\": unable to parse empty string as a debian version identifier",
            ),
            (
                "!!!invalid!!!",
                "invalid version \"!!!invalid!!!\": unable to parse \"!!!invalid!!!\" as a debian version identifier",
            ),
            (
                "99999999999:1",
                "invalid version \"99999999999:1\": unable to parse epoch \"99999999999\": value out of range",
            ),
        ] {
            assert_eq!(Version::parse(text).unwrap_err().to_string(), error);
        }
        for text in ["a:1", ":1", "1:", "1 0", "-1", "1.0-1_2", "1.0-1:2", "ä"] {
            let error = Version::parse(text).unwrap_err();
            assert!(matches!(error, VersionError::NotDebian(_)), "{text}");
        }
    }

    #[test]
    fn numbers_of_any_length_are_compared_by_value() {
        let order = compare("1.99999999999999999999", "1.100000000000000000000").unwrap();
        assert_eq!(order, Ordering::Less);
        assert_eq!(compare("1.01", "1.1").unwrap(), Ordering::Equal);
        assert_eq!(compare("1.0", "1.0-0").unwrap(), Ordering::Equal);
    }

    #[test]
    fn a_trailing_hyphen_belongs_to_the_upstream_part() {
        assert_eq!(compare("1.0a", "1.0-").unwrap(), Ordering::Less);
        assert_eq!(compare("a1b2d-d1a", "a1b2d-d1-").unwrap(), Ordering::Less);
    }
}
