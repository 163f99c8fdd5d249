//! Spans of time as Go writes them: `1h30m`, `1.5s`, `-250ms`. A span is nanoseconds in an `i64`.

/// Reads a span.
pub fn parse(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {text:?}");
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = 0i128;
    while !rest.is_empty() {
        let number_len = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(|| format!("time: missing unit in duration {text:?}"))?;
        let (number, after) = rest.split_at(number_len);
        let unit_len = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_len);
        rest = after;
        let scale: i128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(format!("time: unknown unit {unit:?} in duration {text:?}")),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
            return Err(invalid());
        }
        // Digits beyond what a nanosecond can tell are ignored.
        let fraction = fraction.get(..fraction.len().min(18)).unwrap_or("");
        let parse = |digits: &str| match digits {
            "" => Ok(0),
            digits => digits.parse::<i64>().map_err(|_| invalid()),
        };
        total += i128::from(parse(whole)?) * scale;
        let power = 10i128.pow(u32::try_from(fraction.len()).unwrap_or(0));
        total += i128::from(parse(fraction)?) * scale / power;
        if total > i128::from(i64::MAX) {
            return Err(invalid());
        }
    }
    i64::try_from(if negative { -total } else { total }).map_err(|_| invalid())
}

/// Returns a span as Go prints it.
pub fn print(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let size = nanos.unsigned_abs();
    let fraction = |size: u64, scale: u64| {
        let text = format!(
            "{}.{:0width$}",
            size / scale,
            size % scale,
            width = scale.ilog10() as usize
        );
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let text = match size {
        0 => "0s".to_owned(),
        1..1_000 => format!("{size}ns"),
        1_000..1_000_000 => format!("{}µs", fraction(size, 1_000)),
        1_000_000..1_000_000_000 => format!("{}ms", fraction(size, 1_000_000)),
        _ => {
            let minutes = size / 60_000_000_000;
            let seconds = fraction(size % 60_000_000_000, 1_000_000_000);
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{seconds}s"),
                (0, minutes) => format!("{minutes}m{seconds}s"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
            }
        }
    };
    format!("{sign}{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_and_print_as_in_go() {
        let cases = [
            ("1h30m", "1h30m0s"),
            ("-1.5h", "-1h30m0s"),
            ("95s", "1m35s"),
            ("1.25ms", "1.25ms"),
            ("1500us", "1.5ms"),
            ("0", "0s"),
            (".5s", "500ms"),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text).map(print).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn text_that_is_no_span_is_refused() {
        for text in ["", "-", "1", "1x", "s", ".s", "1.2.3s", "99999999999h", "é"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
