//! Durations in Go's format: `1h30m`, `1.5s`, `-250ms`. A duration is an `i64` of nanoseconds.

use super::quote;
use ccm_value::text::go_nanos;

pub(crate) const SECOND: i64 = 1_000_000_000;
pub(crate) const MINUTE: i64 = 60 * SECOND;
pub(crate) const HOUR: i64 = 60 * MINUTE;

/// Largest absolute value of a duration: that of `i64::MIN`.
const MAX_MAGNITUDE: u64 = 1 << 63;

/// Error of an invalid duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DurationError {
    #[error("time: invalid duration {}", quote(.0))]
    Invalid(String),
    #[error("time: missing unit in duration {}", quote(.0))]
    NoUnit(String),
    #[error("time: unknown unit {} in duration {}", quote(.unit), quote(.text))]
    Unit { unit: String, text: String },
}

/// Parses a duration such as `1h30m` or `1.5s` like Go's `time.ParseDuration`. Durations of
/// properties are parsed by `ccm_value::text::parse_duration`.
pub(crate) fn parse(text: &str) -> Result<i64, DurationError> {
    let wrong = || DurationError::Invalid(text.into());
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(wrong());
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (whole, after) = split_digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => split_digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(wrong());
        }
        let end = after
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit = match unit {
            "" => return Err(DurationError::NoUnit(text.into())),
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => SECOND.unsigned_abs(),
            "m" => MINUTE.unsigned_abs(),
            "h" => HOUR.unsigned_abs(),
            _ => {
                return Err(DurationError::Unit {
                    unit: unit.into(),
                    text: text.into(),
                });
            }
        };
        let whole = match whole {
            "" => Some(0),
            digits => digits.parse::<u64>().ok(),
        };
        total = whole
            .and_then(|whole| whole.checked_mul(unit))
            .and_then(|nanos| nanos.checked_add(part_of(unit, fraction)))
            .and_then(|nanos| nanos.checked_add(total))
            .filter(|total| *total <= MAX_MAGNITUDE)
            .ok_or_else(wrong)?;
        rest = after;
    }
    let nanos = if negative {
        0_i64.checked_sub_unsigned(total)
    } else {
        i64::try_from(total).ok()
    };
    nanos.ok_or_else(wrong)
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

/// Returns the nanoseconds of a fraction of a unit. Digits beyond the integer range are ignored,
/// and the rest is computed in floating point, as in Go.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "this is how Go computes, and the result is less than a unit"
)]
fn part_of(unit: u64, digits: &str) -> u64 {
    let mut value: u64 = 0;
    let mut scale = 1.0;
    for digit in digits.bytes() {
        let longer = value
            .checked_mul(10)
            .and_then(|value| value.checked_add(u64::from(digit.saturating_sub(b'0'))))
            .filter(|value| *value <= MAX_MAGNITUDE);
        let Some(longer) = longer else {
            break;
        };
        value = longer;
        scale *= 10.0;
    }
    (value as f64 * (unit as f64 / scale)) as u64
}

/// Formats a duration like Go: `1h30m0s`, `1.5s`, `20ms`.
pub(crate) fn print(nanos: i64) -> String {
    go_nanos(nanos.into())
}

/// Rounds a duration down to a multiple of `step`; a step of zero or less changes nothing.
pub(crate) fn truncate(nanos: i64, step: i64) -> i64 {
    match step {
        1.. => nanos - nanos % step,
        _ => nanos,
    }
}

/// Rounds a duration to the nearest multiple of `step`, halves away from zero.
pub(crate) fn round(nanos: i64, step: i64) -> i64 {
    let low = truncate(nanos, step);
    match (nanos - low).unsigned_abs() {
        over if over == 0 || over < step.unsigned_abs() - over => low,
        _ => low.saturating_add(step * nanos.signum()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_print_as_in_go() {
        for (text, printed) in [
            ("0", "0s"),
            ("90m", "1h30m0s"),
            ("-1.5h", "-1h30m0s"),
            ("95s", "1m35s"),
            ("-1h2m3.004s", "-1h2m3.004s"),
            ("1500us", "1.5ms"),
            ("1.25ms", "1.25ms"),
            ("1µs1ns", "1.001µs"),
            (".5s", "500ms"),
            ("100h", "100h0m0s"),
            ("-9223372036854775808ns", "-2562047h47m16.854775808s"),
            ("9223372036854775807ns", "2562047h47m16.854775807s"),
            ("+5s", "5s"),
            ("5.s", "5s"),
            ("-.5s", "-500ms"),
            ("12\u{b5}s", "12µs"),
            ("12\u{3bc}s", "12µs"),
            ("3ns4us5ms6s7m8h", "8h7m6.005004003s"),
            ("52763797000ns", "52.763797s"),
            ("0.3333333333333333333h", "20m0s"),
            ("0.100000000000000000000h", "6m0s"),
            ("0.830103483285477580700h", "49m48.372539827s"),
        ] {
            assert_eq!(parse(text).map(print).as_deref(), Ok(printed), "{text}");
        }
    }

    #[test]
    fn an_invalid_duration_is_refused_with_its_reason() {
        for (text, reason) in [
            ("", "time: invalid duration \"\""),
            ("-", "time: invalid duration \"-\""),
            ("x", "time: invalid duration \"x\""),
            (".s", "time: invalid duration \".s\""),
            ("3", "time: missing unit in duration \"3\""),
            ("1.2.3s", "time: missing unit in duration \"1.2.3s\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            ("\n", r#"time: invalid duration "\x0a""#),
            (
                "1\u{a0}s",
                r#"time: unknown unit "\xc2\xa0s" in duration "1\xc2\xa0s""#,
            ),
            ("99999999999h", "time: invalid duration \"99999999999h\""),
            (
                "9223372036854775808ns",
                "time: invalid duration \"9223372036854775808ns\"",
            ),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), reason);
        }
    }

    #[test]
    fn halves_round_away_from_zero() {
        assert_eq!(round(15, 10), 20);
        assert_eq!(round(-15, 10), -20);
        assert_eq!(round(14, 10), 10);
        assert_eq!(round(i64::MAX, HOUR), i64::MAX);
    }

    #[test]
    fn a_step_of_zero_or_less_changes_nothing() {
        for step in [0, -1, i64::MIN] {
            assert_eq!((truncate(15, step), round(15, step)), (15, 15));
        }
    }
}
