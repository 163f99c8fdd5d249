//! Text formats of Go programs: durations, timestamps, clean paths and shell words.

mod byte_size;

pub use byte_size::byte_size;

use std::borrow::Cow;
use std::time::Duration;

use chrono::{DateTime, Datelike as _, FixedOffset, SecondsFormat, TimeZone, Utc};

pub use super::quote::quote;

/// Returns the shortest equivalent path, without file access.
pub fn clean_path(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => match parts.last() {
                Some(&last) if last != ".." => {
                    parts.pop();
                }
                _ if rooted => {}
                _ => parts.push(".."),
            },
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    match (rooted, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".into(),
        (false, false) => joined,
    }
}

/// Decodes the `%` escapes of a part of a URL; `None` if they are invalid.
pub fn unescape(part: &str) -> Option<String> {
    let mut pieces = part.split('%');
    let mut bytes = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let hex = piece.get(..2)?;
        if !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(hex, 16).ok()?);
        bytes.extend(piece.bytes().skip(2));
    }
    String::from_utf8(bytes).ok()
}

/// Splits a URL into its scheme and the text after the colon; `None` if it has no scheme.
pub fn url_scheme(text: &str) -> Option<(&str, &str)> {
    text.split_once(':').filter(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    })
}

/// Formats a count with its noun, such as `1 node` or `2 nodes`.
pub fn count_of(count: usize, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

/// Error of an invalid duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("invalid duration")]
    Invalid,
    #[error("invalid duration: invalid unit {0}")]
    Unit(String),
}

const NANOS_PER_HOUR: f64 = 3.6e12;

/// The two characters for "micro": the sign and the Greek letter.
const MICRO: [char; 2] = ['\u{b5}', '\u{3bc}'];

/// Parses a duration such as `90s`, `1h30m` or `2w`; returns nanoseconds, which may be negative.
///
/// All `<number><unit>` matches are added and other characters are ignored, as upstream does; days
/// and longer units are truncated to whole hours.
pub fn parse_duration(text: &str) -> Result<i64, DurationError> {
    let text = text.trim();
    if text == "0" {
        return Ok(0);
    }
    let mut total = 0.0;
    let mut negative = None;
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit() || c == '.') {
        let (before, from) = rest.split_at(start);
        let digits = from.len()
            - from
                .trim_start_matches(|c: char| c.is_ascii_digit() || c == '.')
                .len();
        let (number, after) = from.split_at(digits);
        let letters = after.len()
            - after
                .trim_start_matches(|c: char| c.is_ascii_alphabetic() || MICRO.contains(&c))
                .len();
        let (unit, tail) = after.split_at(letters);
        rest = tail;
        if unit.is_empty() {
            continue;
        }
        negative.get_or_insert(before.ends_with('-'));
        let number: f64 = number.parse().map_err(|_| DurationError::Invalid)?;
        total += nanos(number, unit)?;
    }
    let sign = match negative {
        None => return Err(DurationError::Invalid),
        Some(true) => -1.0,
        Some(false) => 1.0,
    };
    // A float outside the range of `i64` saturates.
    Ok((sign * total) as i64)
}

fn nanos(number: f64, unit: &str) -> Result<f64, DurationError> {
    let hours = |each: f64| (number * each).trunc() * NANOS_PER_HOUR;
    Ok(match unit {
        "ns" => number,
        "us" | "\u{b5}s" | "\u{3bc}s" => number * 1e3,
        "ms" => number * 1e6,
        "s" => number * 1e9,
        "m" => number * 6e10,
        "h" => number * NANOS_PER_HOUR,
        "d" | "D" => hours(24.0),
        "w" | "W" => hours(7.0 * 24.0),
        "M" => hours(30.0 * 24.0),
        "y" | "Y" => hours(365.0 * 24.0),
        other => return Err(DurationError::Unit(other.into())),
    })
}

/// Parses a duration to wait for; a negative one becomes zero.
pub fn parse_wait(text: &str) -> Result<Duration, DurationError> {
    let nanos = parse_duration(text)?;
    Ok(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
}

/// Formats a duration like Go, truncated to milliseconds.
pub fn go_millis(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    go_duration(Duration::from_millis(millis))
}

/// Formats a duration like Go: `0s`, `24.6µs`, `250ms`, `1.5s`, `5m0s`, `1h0m3.2s`.
pub fn go_duration(duration: Duration) -> String {
    go_nanos(i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX))
}

/// Formats nanoseconds, which may be negative, like a Go duration.
pub fn go_nanos(nanos: i128) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let nanos = nanos.unsigned_abs();
    let decimal = |whole: u128, fraction: u128, width: usize, unit: &str| {
        let digits = format!("{fraction:0width$}");
        match digits.trim_end_matches('0') {
            "" => format!("{whole}{unit}"),
            digits => format!("{whole}.{digits}{unit}"),
        }
    };
    let size = match nanos {
        0 => "0s".into(),
        1..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => decimal(nanos / 1_000, nanos % 1_000, 3, "µs"),
        1_000_000..1_000_000_000 => decimal(nanos / 1_000_000, nanos % 1_000_000, 6, "ms"),
        _ => {
            let seconds = nanos / 1_000_000_000;
            let tail = decimal(seconds % 60, nanos % 1_000_000_000, 9, "s");
            match (seconds / 3600, seconds / 60 % 60) {
                (0, 0) => tail,
                (0, minutes) => format!("{minutes}m{tail}"),
                (hours, minutes) => format!("{hours}h{minutes}m{tail}"),
            }
        }
    };
    format!("{sign}{size}")
}

/// Formats a time as RFC 3339 in UTC, to the second.
pub fn to_the_second(time: &DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Formats a time as RFC 3339 without trailing zeros in the fraction, as Go does.
pub fn go_time<Z: TimeZone>(time: &DateTime<Z>) -> String
where
    Z::Offset: std::fmt::Display,
{
    let text = time.to_rfc3339_opts(SecondsFormat::Nanos, true);
    let Some((seconds, rest)) = text.split_once('.') else {
        return text;
    };
    let zone = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let fraction = rest
        .strip_suffix(zone)
        .unwrap_or(rest)
        .trim_end_matches('0');
    if fraction.is_empty() {
        format!("{seconds}{zone}")
    } else {
        format!("{seconds}.{fraction}{zone}")
    }
}

/// Error of an invalid time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    #[error("invalid time {}: {cause}", quote(.text))]
    Invalid {
        text: String,
        #[source]
        cause: chrono::ParseError,
    },
    #[error("invalid time {}: its year in UTC has more than four digits", quote(.0))]
    Year(String),
}

/// Parses a time in any zone, if [`go_time`] can format it again.
pub fn parse_time(text: &str) -> Result<DateTime<FixedOffset>, TimeError> {
    let time = DateTime::parse_from_rfc3339(text).map_err(|cause| TimeError::Invalid {
        text: text.into(),
        cause,
    })?;
    if (0..=9999).contains(&time.to_utc().year()) {
        Ok(time)
    } else {
        Err(TimeError::Year(text.into()))
    }
}

/// Serializes UTC times in the format of [`go_time`].
pub mod timestamp {
    use super::{DateTime, Utc, go_time, parse_time};
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(time: &DateTime<Utc>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&go_time(time))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DateTime<Utc>, D::Error> {
        let text = String::deserialize(from)?;
        let time = parse_time(&text).map_err(serde::de::Error::custom)?;
        Ok(time.to_utc())
    }
}

/// Serializes an optional time.
pub mod maybe_timestamp {
    use super::{DateTime, Utc, go_time, parse_time};
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(
        time: &Option<DateTime<Utc>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => to.serialize_str(&go_time(time)),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<DateTime<Utc>>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else {
            return Ok(None);
        };
        let time = parse_time(&text).map_err(serde::de::Error::custom)?;
        Ok(Some(time.to_utc()))
    }
}

/// Go's zero time, which means "never".
pub const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// Serializes a file's time with its zone; an absent one as Go's zero time.
pub mod mtime {
    use super::{DateTime, FixedOffset, ZERO_TIME, go_time, parse_time};
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(
        time: &Option<DateTime<FixedOffset>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => to.serialize_str(&go_time(time)),
            None => to.serialize_str(ZERO_TIME),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<DateTime<FixedOffset>>, D::Error> {
        let text = String::deserialize(from)?;
        if text == ZERO_TIME {
            return Ok(None);
        }
        parse_time(&text)
            .map(Some)
            .map_err(serde::de::Error::custom)
    }
}

/// Serializes durations as integer nanoseconds.
pub mod nanoseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let nanos = i64::deserialize(from)?;
        Ok(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
    }
}

/// Error of splitting a command line into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    #[error("Unterminated single-quoted string")]
    SingleQuote,
    #[error("Unterminated double-quoted string")]
    DoubleQuote,
    #[error("Unterminated backslash-escape")]
    Backslash,
}

/// Quotes a word for a shell if necessary.
pub fn shell_word(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("'{}'", text.replace('\'', r"'\''")))
    }
}

/// Joins words to a command line that [`split_words`] and shells split into the same words.
pub fn join_words<T: AsRef<str>>(words: &[T]) -> String {
    let quoted = words.iter().map(|word| shell_word(word.as_ref()));
    quoted.collect::<Vec<_>>().join(" ")
}

/// Splits a command line into words with shell quoting, without expansion.
pub fn split_words(line: &str) -> Result<Vec<String>, SplitError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' | '\n' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or(SplitError::SingleQuote)? {
                        '\'' => break,
                        c => word.push(c),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or(SplitError::DoubleQuote)? {
                        '"' => break,
                        '\\' => match chars.next().ok_or(SplitError::DoubleQuote)? {
                            '\n' => {}
                            c @ ('$' | '`' | '"' | '\\') => word.push(c),
                            c => word.extend(['\\', c]),
                        },
                        c => word.push(c),
                    }
                }
            }
            '\\' => match chars.next().ok_or(SplitError::Backslash)? {
                '\n' => {}
                c => word.get_or_insert_default().push(c),
            },
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_with_other_characters_is_quoted_for_the_shell() {
        for (text, quoted) in [
            ("/tmp/ccm-session-1", "/tmp/ccm-session-1"),
            ("/tmp/it's here", r"'/tmp/it'\''s here'"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(text), quoted);
        }
    }

    #[test]
    fn a_time_that_cannot_be_formatted_again_is_refused() {
        for text in ["2026-05-01T09:08:07.5+02:00", "9999-12-31T23:59:59Z"] {
            let time = parse_time(text).unwrap();
            assert_eq!(parse_time(&go_time(&time.to_utc())), Ok(time));
        }
        for text in [
            "9999-12-31T23:59:59-00:01",
            "0000-01-01T00:00:00+00:01",
            "soon",
        ] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn escapes_of_a_url_are_replaced_or_refused() {
        assert_eq!(unescape("a%20b/%C3%A9"), Some("a b/é".into()));
        for bad in ["%", "%2", "%zz", "%+1", "%ff", "%é"] {
            assert_eq!(unescape(bad), None, "{bad}");
        }
    }

    #[test]
    fn durations_add_their_parts_and_accept_long_units() {
        let hour = 3_600_000_000_000;
        for (text, nanos) in [
            ("0", 0),
            ("1h30m", hour + hour / 2),
            ("1d", 24 * hour),
            ("1w", 7 * 24 * hour),
            ("1M", 30 * 24 * hour),
            ("1y", 365 * 24 * hour),
            ("-1s", -1_000_000_000),
            (" 250ms ", 250_000_000),
            ("1.5s", 1_500_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn a_duration_without_a_number_and_unit_is_refused() {
        assert_eq!(parse_duration("invalid"), Err(DurationError::Invalid));
        assert_eq!(parse_duration(""), Err(DurationError::Invalid));
        assert_eq!(parse_duration("5"), Err(DurationError::Invalid));
        assert_eq!(
            parse_duration("5x").unwrap_err().to_string(),
            "invalid duration: invalid unit x"
        );
    }

    /// Output of Go's `time.Duration`.
    #[test]
    fn durations_print_in_the_form_of_go() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (-1, "-1ns"),
            (999, "999ns"),
            (1_000, "1µs"),
            (1_100, "1.1µs"),
            (24_600, "24.6µs"),
            (1_500_000, "1.5ms"),
            (2_200_000, "2.2ms"),
            (250_000_000, "250ms"),
            (-250_000_000, "-250ms"),
            (1_000_000_000, "1s"),
            (1_500_000_000, "1.5s"),
            (3_300_000_000, "3.3s"),
            (59_999_999_999, "59.999999999s"),
            (60_000_000_000, "1m0s"),
            (300_000_000_000, "5m0s"),
            (245_000_000_000, "4m5s"),
            (245_001_000_000, "4m5.001s"),
            (3_600_000_000_000, "1h0m0s"),
            (3_603_200_000_000, "1h0m3.2s"),
            (-5_400_000_000_000, "-1h30m0s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (480_000_000_001, "8m0.000000001s"),
            (i64::MAX.into(), "2562047h47m16.854775807s"),
            (i64::MIN.into(), "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(go_nanos(nanos), text);
            if let Ok(nanos) = u64::try_from(nanos) {
                assert_eq!(go_duration(Duration::from_nanos(nanos)), text);
            }
        }
    }

    #[test]
    fn a_printed_duration_can_be_read_again() {
        for nanos in [1, 1_000, 24_600, 1_500_000, 90_000_000_000, -250_000_000] {
            let text = go_nanos(nanos.into());
            assert_eq!(parse_duration(&text), Ok(nanos), "{text}");
        }
        assert_eq!(parse_duration("3\u{3bc}s"), Ok(3_000));
    }

    #[test]
    fn times_lose_their_trailing_zeros() {
        let time = |text| DateTime::parse_from_rfc3339(text).unwrap().to_utc();
        assert_eq!(
            go_time(&time("2026-05-01T09:08:07.120Z")),
            "2026-05-01T09:08:07.12Z"
        );
        assert_eq!(
            go_time(&time("2026-05-01T09:08:07Z")),
            "2026-05-01T09:08:07Z"
        );
        let zoned = DateTime::parse_from_rfc3339("2026-05-01T09:08:07.5+02:00").unwrap();
        assert_eq!(go_time(&zoned), "2026-05-01T09:08:07.5+02:00");
    }

    #[test]
    fn paths_are_cleaned_by_their_text() {
        for (path, clean) in [
            ("/a/../b", "/b"),
            ("/a/./b/", "/a/b"),
            ("a/b", "a/b"),
            ("", "."),
            ("/..", "/"),
            ("../x", "../x"),
            ("a/../../b", "../b"),
            ("/with space", "/with space"),
        ] {
            assert_eq!(clean_path(path), clean);
        }
    }

    #[test]
    fn words_follow_shell_quoting() {
        for (line, words) in [
            ("echo hello  world", vec!["echo", "hello", "world"]),
            ("echo 'a b' \"c d\"", vec!["echo", "a b", "c d"]),
            ("echo hello\\ world", vec!["echo", "hello world"]),
            ("echo \"it's\" ''", vec!["echo", "it's", ""]),
            (r#""a\"b" "\n" "\$x""#, vec!["a\"b", "\\n", "$x"]),
            ("a\\\nb", vec!["ab"]),
            ("", vec![]),
        ] {
            assert_eq!(split_words(line).unwrap(), words, "{line}");
        }
    }

    #[test]
    fn an_open_quote_is_named() {
        for (line, text) in [
            ("'unterminated", "Unterminated single-quoted string"),
            ("\"open", "Unterminated double-quoted string"),
            ("end\\", "Unterminated backslash-escape"),
        ] {
            assert_eq!(split_words(line).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn joined_words_are_split_into_the_same_words() {
        let words = [
            "ls", "-l", "", "a b", "it's", "$HOME", "\\", "\"x\"", "a\nb",
        ];
        let line = join_words(&words);
        assert_eq!(split_words(&line).unwrap(), words, "{line}");
        assert_eq!(join_words(&["uname", "-r"]), "uname -r");
    }
}
