//! Generic version comparison, compatible with upstream CCM: by hyphens, dots, numbers and words, token
//! by token. Total, but not transitive.

use std::cmp::Ordering;

use super::{numbers, split};

/// Compares two versions. With `ignore_trailing_zeroes`, trailing `.0` segments before the first hyphen
/// are ignored.
pub fn compare(left: &str, right: &str, ignore_trailing_zeroes: bool) -> Ordering {
    let trim = |text: &str| {
        if ignore_trailing_zeroes {
            without_trailing_zeroes(text)
        } else {
            text.to_owned()
        }
    };
    let (left, right) = (trim(left), trim(right));
    let (mut left_rest, mut right_rest) = (left.as_bytes(), right.as_bytes());
    loop {
        let (token, rest) = next_token(left_rest);
        let (other, other_rest) = next_token(right_rest);
        if token.is_empty() || other.is_empty() {
            return left.cmp(&right);
        }
        if token != other {
            return compare_tokens(token, other);
        }
        (left_rest, right_rest) = (rest, other_rest);
    }
}

/// Splits off the next hyphen, dot, run of digits or run of other bytes.
fn next_token(text: &[u8]) -> (&[u8], &[u8]) {
    match text {
        [b'-' | b'.', ..] => text.split_at_checked(1).unwrap_or((text, &[])),
        [first, ..] if first.is_ascii_digit() => split(text, |byte| byte.is_ascii_digit()),
        _ => split(text, |byte| {
            !(byte.is_ascii_digit() || matches!(byte, b'-' | b'.'))
        }),
    }
}

/// Compares two different tokens.
fn compare_tokens(left: &[u8], right: &[u8]) -> Ordering {
    match (left, right) {
        (b"-", _) => Ordering::Less,
        (_, b"-") => Ordering::Greater,
        (b".", _) => Ordering::Less,
        (_, b".") => Ordering::Greater,
        ([first, ..], [other, ..]) if first.is_ascii_digit() && other.is_ascii_digit() => {
            if *first == b'0' || *other == b'0' {
                left.cmp(right)
            } else {
                numbers(left, right)
            }
        }
        _ => upper(left).cmp(&upper(right)),
    }
}

fn upper(token: &[u8]) -> String {
    String::from_utf8_lossy(token).to_uppercase()
}

fn without_trailing_zeroes(text: &str) -> String {
    let (mut head, tail) = match text.find('-').and_then(|at| text.split_at_checked(at)) {
        Some(parts) => parts,
        None => (text, ""),
    };
    while let Some((rest, zeroes)) = head.rsplit_once('.')
        && !zeroes.is_empty()
        && zeroes.bytes().all(|byte| byte == b'0')
    {
        head = rest;
    }
    format!("{head}{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_segments_of_zeroes_are_dropped() {
        for (text, rest) in [
            ("1.0.0-rc1", "1-rc1"),
            ("2.0.0", "2"),
            ("11.00", "11"),
            ("10", "10"),
            ("1.10", "1.10"),
            ("1.0-1.0", "1-1.0"),
            ("1.", "1."),
        ] {
            assert_eq!(without_trailing_zeroes(text), rest, "{text}");
        }
    }

    #[test]
    fn words_that_differ_in_case_end_the_comparison_as_equal() {
        assert_eq!(compare("1.0A9", "1.0a1", false), Ordering::Equal);
    }
}
