//! Durations as Go writes them: `1h30m`, `1.5s`, `-250ms`. A duration is nanoseconds in an `i64`.

pub const SECOND: i64 = 1_000_000_000;
pub const MINUTE: i64 = 60 * SECOND;
pub const HOUR: i64 = 60 * MINUTE;

/// Returns the duration that a text such as `1h30m` or `1.5s` stands for.
pub fn parse(text: &str) -> Result<i64, String> {
    let wrong = || format!("time: invalid duration {text:?}");
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
    let mut total: i128 = 0;
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
            "" => return Err(format!("time: missing unit in duration {text:?}")),
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => i128::from(SECOND),
            "m" => i128::from(MINUTE),
            "h" => i128::from(HOUR),
            _ => return Err(format!("time: unknown unit {unit:?} in duration {text:?}")),
        };
        let number = |digits: &str| match digits {
            "" => Some(0),
            digits => digits.parse::<i128>().ok(),
        };
        // More digits than a nanosecond can show do not count.
        let fraction = fraction.get(..18).unwrap_or(fraction);
        let scale = 10_i128.pow(u32::try_from(fraction.len()).unwrap_or(0));
        total = number(whole)
            .and_then(|whole| whole.checked_mul(unit))
            .and_then(|nanos| nanos.checked_add(number(fraction)? * unit / scale))
            .and_then(|nanos| nanos.checked_add(total))
            .filter(|total| *total <= i128::from(i64::MAX) + 1)
            .ok_or_else(wrong)?;
        rest = after;
    }
    i64::try_from(if negative { -total } else { total }).map_err(|_| wrong())
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

/// Returns a duration as Go prints it: `1h30m0s`, `1.5s`, `20ms`.
pub fn print(nanos: i64) -> String {
    let size = nanos.unsigned_abs();
    let sign = if nanos < 0 { "-" } else { "" };
    match size {
        0 => "0s".into(),
        1..1_000 => format!("{sign}{size}ns"),
        1_000..1_000_000 => format!("{sign}{}µs", decimal(size, 1_000)),
        1_000_000..1_000_000_000 => format!("{sign}{}ms", decimal(size, 1_000_000)),
        _ => {
            let minute = MINUTE.unsigned_abs();
            let seconds = decimal(size % minute, SECOND.unsigned_abs());
            match (size / minute / 60, size / minute % 60) {
                (0, 0) => format!("{sign}{seconds}s"),
                (0, minutes) => format!("{sign}{minutes}m{seconds}s"),
                (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}s"),
            }
        }
    }
}

/// Returns `value / unit`, a power of ten, with no more digits than it needs.
fn decimal(value: u64, unit: u64) -> String {
    let width = unit.ilog10() as usize;
    let text = format!("{}.{:0width$}", value / unit, value % unit);
    text.trim_end_matches('0').trim_end_matches('.').into()
}

/// Returns a duration without what is over a multiple of `step`; a step of nothing changes nothing.
pub fn truncate(nanos: i64, step: i64) -> i64 {
    match step {
        1.. => nanos - nanos % step,
        _ => nanos,
    }
}

/// Returns the multiple of `step` that is nearest to a duration, halves away from zero.
pub fn round(nanos: i64, step: i64) -> i64 {
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
        ] {
            assert_eq!(parse(text).map(print).as_deref(), Ok(printed), "{text}");
        }
    }

    #[test]
    fn text_that_is_no_duration_says_why() {
        for (text, reason) in [
            ("", "time: invalid duration \"\""),
            ("-", "time: invalid duration \"-\""),
            ("x", "time: invalid duration \"x\""),
            (".s", "time: invalid duration \".s\""),
            ("3", "time: missing unit in duration \"3\""),
            ("1.2.3s", "time: missing unit in duration \"1.2.3s\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            ("99999999999h", "time: invalid duration \"99999999999h\""),
            (
                "9223372036854775808ns",
                "time: invalid duration \"9223372036854775808ns\"",
            ),
        ] {
            assert_eq!(parse(text).unwrap_err(), reason);
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
    fn a_step_that_is_no_step_changes_nothing() {
        for step in [0, -1, i64::MIN] {
            assert_eq!((truncate(15, step), round(15, step)), (15, 15));
        }
    }
}
