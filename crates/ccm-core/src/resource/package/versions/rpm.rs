//! rpm versions, `[epoch:]version[-release]`, compared like rpm's own library.
//!
//! Every text is a valid version. A wanted version may omit epoch and release; [`matches()`] then ignores
//! them.

use std::cmp::Ordering;

use super::{numbers, split};

/// A parsed rpm version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evr<'a> {
    pub epoch: Option<&'a str>,
    pub version: &'a str,
    pub release: Option<&'a str>,
}

impl<'a> Evr<'a> {
    /// Parses a version.
    pub fn parse(text: &'a str) -> Self {
        let is_number = |epoch: &str| epoch.bytes().all(|byte| byte.is_ascii_digit());
        let (epoch, rest) = match text.split_once(':') {
            Some((epoch, rest)) if is_number(epoch) => (Some(epoch), rest),
            _ => (None, text),
        };
        let (version, release) = match rest.rsplit_once('-') {
            Some((version, release)) => (version, Some(release)),
            None => (rest, None),
        };
        Self {
            epoch,
            version,
            release,
        }
    }

    fn epoch_digits(&self) -> &'a [u8] {
        self.epoch.unwrap_or_default().as_bytes()
    }
}

/// Compares two versions. A missing epoch is 0; a version with a release is newer than the same version
/// without.
pub fn compare(left: &str, right: &str) -> Ordering {
    let (left, right) = (Evr::parse(left), Evr::parse(right));
    let releases = || match (left.release, right.release) {
        (Some(left), Some(right)) => compare_parts(left, right),
        (left, right) => left.is_some().cmp(&right.is_some()),
    };
    numbers(left.epoch_digits(), right.epoch_digits())
        .then_with(|| compare_parts(left.version, right.version))
        .then_with(releases)
}

/// Compares an installed version with a wanted version. An epoch or release missing in the wanted version
/// is ignored.
pub fn matches(installed: &str, wanted: &str) -> Ordering {
    let (installed, wanted) = (Evr::parse(installed), Evr::parse(wanted));
    let epochs = match wanted.epoch {
        Some(_) => numbers(installed.epoch_digits(), wanted.epoch_digits()),
        None => Ordering::Equal,
    };
    let releases = || match wanted.release {
        Some(wanted) => compare_parts(installed.release.unwrap_or_default(), wanted),
        None => Ordering::Equal,
    };
    epochs
        .then_with(|| compare_parts(installed.version, wanted.version))
        .then_with(releases)
}

/// Compares two parts segment by segment: digits by value, letters by byte; other bytes are separators. A
/// tilde sorts before the end of a part, a caret after it but before any text.
fn compare_parts(left: &str, right: &str) -> Ordering {
    let (mut left, mut right) = (left.as_bytes(), right.as_bytes());
    loop {
        (left, right) = (skip_separators(left), skip_separators(right));
        match (left, right) {
            ([b'~', left_rest @ ..], [b'~', right_rest @ ..])
            | ([b'^', left_rest @ ..], [b'^', right_rest @ ..]) => {
                (left, right) = (left_rest, right_rest);
                continue;
            }
            ([b'~', ..], _) => return Ordering::Less,
            (_, [b'~', ..]) => return Ordering::Greater,
            ([], []) => return Ordering::Equal,
            ([], _) => return Ordering::Less,
            (_, []) => return Ordering::Greater,
            ([b'^', ..], _) => return Ordering::Less,
            (_, [b'^', ..]) => return Ordering::Greater,
            ([first, ..], [other, ..]) => {
                let is_number = first.is_ascii_digit();
                if is_number != other.is_ascii_digit() {
                    // A number is newer than a word.
                    return is_number.cmp(&!is_number);
                }
                let belongs = |byte: u8| {
                    if is_number {
                        byte.is_ascii_digit()
                    } else {
                        byte.is_ascii_alphabetic()
                    }
                };
                let (segment, left_rest) = split(left, belongs);
                let (other_segment, right_rest) = split(right, belongs);
                let order = if is_number {
                    numbers(segment, other_segment)
                } else {
                    segment.cmp(other_segment)
                };
                if order.is_ne() {
                    return order;
                }
                (left, right) = (left_rest, right_rest);
            }
        }
    }
}

fn skip_separators(text: &[u8]) -> &[u8] {
    let is_separator = |byte: u8| !(byte.is_ascii_alphanumeric() || matches!(byte, b'~' | b'^'));
    split(text, is_separator).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rpm_orders_what_the_generic_rules_get_wrong() {
        for (left, right, order) in [
            ("1.0~rc1", "1.0", Ordering::Less),
            ("1.0^git1", "1.0.1", Ordering::Less),
            ("1.0^git1", "1.0", Ordering::Greater),
            ("1.0^git1", "1.0~rc1", Ordering::Greater),
            ("1:1.0", "2.0", Ordering::Greater),
            ("0:1.0", "1.0", Ordering::Equal),
            ("1.05", "1.5", Ordering::Equal),
            ("1.05", "1.4", Ordering::Greater),
            ("1.010", "1.9", Ordering::Greater),
            ("1.0.a", "1.0.1", Ordering::Less),
            ("1.0A", "1.0a", Ordering::Less),
            ("2.0", "2_0", Ordering::Equal),
            ("1..0", "1.0", Ordering::Equal),
            ("1.0.", "1.0", Ordering::Equal),
            ("1a", "1.a", Ordering::Equal),
            ("5.8", "5.8-9.el9", Ordering::Less),
            ("5.8-9.el9", "5.8-10.el9", Ordering::Less),
            ("1.0.0", "1.0", Ordering::Greater),
        ] {
            assert_eq!(compare(left, right), order, "{left} {right}");
            assert_eq!(compare(right, left), order.reverse(), "{right} {left}");
        }
    }

    #[test]
    fn epoch_and_release_are_ignored_unless_wanted() {
        let installed = "1:5.8-9.el9";
        for (wanted, order) in [
            ("5.8", Ordering::Equal),
            ("5.8-9.el9", Ordering::Equal),
            ("1:5.8", Ordering::Equal),
            ("1:5.8-9.el9", Ordering::Equal),
            ("0:5.8", Ordering::Greater),
            ("5.8-10.el9", Ordering::Less),
            ("5.9", Ordering::Less),
            ("5.7-99", Ordering::Greater),
        ] {
            assert_eq!(matches(installed, wanted), order, "{wanted}");
        }
    }

    #[test]
    fn a_colon_after_letters_is_no_epoch() {
        assert_eq!(Evr::parse("a:1-2").epoch, None);
        assert_eq!(Evr::parse(":1-2").epoch, Some(""));
    }
}
