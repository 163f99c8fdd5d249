//! Layouts: a date format written as the sample `Mon Jan 2 15:04:05 MST 2006`.
//!
//! One table of parts serves printing and reading. What is not a part stands for itself.

use chrono::{Datelike, NaiveDate, NaiveTime, Timelike};

use super::{MONTHS, Time, WEEKDAYS, Zone};
use crate::template::expr::val::Reason;

/// One part of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    LongMonth,
    Month,
    NumMonth,
    ZeroMonth,
    LongWeekday,
    Weekday,
    Day,
    SpaceDay,
    ZeroDay,
    SpaceYearDay,
    ZeroYearDay,
    Hour,
    Hour12,
    ZeroHour12,
    Minute,
    ZeroMinute,
    Second,
    ZeroSecond,
    LongYear,
    Year,
    UpperPm,
    LowerPm,
    ZoneName,
    Offset(OffsetStyle),
    /// A separator and so many digits; optional ones are cut where zeros end.
    Fraction {
        digits: usize,
        optional: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OffsetStyle {
    /// `Z` stands for no offset.
    z: bool,
    colons: bool,
    minutes: bool,
    seconds: bool,
}

const WORDS: [(&str, Part); 23] = [
    ("January", Part::LongMonth),
    ("Monday", Part::LongWeekday),
    ("MST", Part::ZoneName),
    ("002", Part::ZeroYearDay),
    ("01", Part::ZeroMonth),
    ("02", Part::ZeroDay),
    ("03", Part::ZeroHour12),
    ("04", Part::ZeroMinute),
    ("05", Part::ZeroSecond),
    ("06", Part::Year),
    ("15", Part::Hour),
    ("1", Part::NumMonth),
    ("2006", Part::LongYear),
    ("2", Part::Day),
    ("__2", Part::SpaceYearDay),
    ("_2", Part::SpaceDay),
    ("3", Part::Hour12),
    ("4", Part::Minute),
    ("5", Part::Second),
    ("PM", Part::UpperPm),
    ("pm", Part::LowerPm),
    ("Jan", Part::Month),
    ("Mon", Part::Weekday),
];

const OFFSETS: [(&str, bool, bool, bool); 5] = [
    ("070000", false, true, true),
    ("07:00:00", true, true, true),
    ("0700", false, true, false),
    ("07:00", true, true, false),
    ("07", false, false, false),
];

/// Splits a layout at its first part: the text before it, the part as written, the rest.
fn next_part(layout: &str) -> Option<(&str, Part, &str, &str)> {
    for (at, _) in layout.char_indices() {
        let (before, here) = layout.split_at(at);
        // `_2006` is an underscore and a year.
        if here.starts_with("_2006") {
            let (before, here) = layout.split_at(at + 1);
            let (written, rest) = here.split_at(4);
            return Some((before, Part::LongYear, written, rest));
        }
        if let Some((part, len)) = part_at(here) {
            let (written, rest) = here.split_at(len);
            return Some((before, part, written, rest));
        }
    }
    None
}

fn part_at(text: &str) -> Option<(Part, usize)> {
    for (word, part) in WORDS {
        let Some(rest) = text.strip_prefix(word) else {
            continue;
        };
        // `Janet` and `Month` are words, not parts.
        let is_short_name = matches!(part, Part::Month | Part::Weekday);
        if is_short_name && rest.starts_with(|c: char| c.is_ascii_lowercase()) {
            continue;
        }
        return Some((part, word.len()));
    }
    if let Some(after) = text.strip_prefix(['-', 'Z']) {
        let z = text.starts_with('Z');
        for (word, colons, minutes, seconds) in OFFSETS {
            if after.starts_with(word) {
                let style = OffsetStyle {
                    z,
                    colons,
                    minutes,
                    seconds,
                };
                return Some((Part::Offset(style), word.len() + 1));
            }
        }
    }
    let after = text.strip_prefix(['.', ','])?;
    let digit = after.chars().next().filter(|c| matches!(c, '0' | '9'))?;
    let digits = after.chars().take_while(|c| *c == digit).count();
    let follows = after.chars().nth(digits);
    if follows.is_some_and(|c| c.is_ascii_digit()) {
        return None;
    }
    let part = Part::Fraction {
        digits,
        optional: digit == '9',
    };
    Some((part, digits + 1))
}

/// Returns a time written by a layout.
pub(in crate::template::expr) fn format(time: &Time, layout: &str) -> String {
    let local = time.local();
    let (offset, zone) = time.zone.at(time.utc);
    let mut out = String::new();
    let mut rest = layout;
    while let Some((before, part, written, after)) = next_part(rest) {
        out.push_str(before);
        rest = after;
        let twelve = || match local.hour() % 12 {
            0 => 12,
            hour => hour,
        };
        let text = match part {
            Part::LongYear => match local.year() {
                year if year < 0 => format!("-{:04}", year.unsigned_abs()),
                year => format!("{year:04}"),
            },
            Part::Year => format!("{:02}", local.year().rem_euclid(100)),
            Part::LongMonth => name(&MONTHS, local.month0()).into(),
            Part::Month => short(name(&MONTHS, local.month0())).into(),
            Part::NumMonth => local.month().to_string(),
            Part::ZeroMonth => format!("{:02}", local.month()),
            Part::LongWeekday => name(&WEEKDAYS, local.weekday().num_days_from_sunday()).into(),
            Part::Weekday => short(name(&WEEKDAYS, local.weekday().num_days_from_sunday())).into(),
            Part::Day => local.day().to_string(),
            Part::SpaceDay => format!("{:2}", local.day()),
            Part::ZeroDay => format!("{:02}", local.day()),
            Part::SpaceYearDay => format!("{:3}", local.ordinal()),
            Part::ZeroYearDay => format!("{:03}", local.ordinal()),
            Part::Hour => format!("{:02}", local.hour()),
            Part::Hour12 => twelve().to_string(),
            Part::ZeroHour12 => format!("{:02}", twelve()),
            Part::Minute => local.minute().to_string(),
            Part::ZeroMinute => format!("{:02}", local.minute()),
            Part::Second => local.second().to_string(),
            Part::ZeroSecond => format!("{:02}", local.second()),
            Part::UpperPm => if local.hour() < 12 { "AM" } else { "PM" }.into(),
            Part::LowerPm => if local.hour() < 12 { "am" } else { "pm" }.into(),
            Part::ZoneName if !zone.is_empty() => zone.to_string(),
            // Without a name the offset has to do.
            Part::ZoneName => offset_text(
                offset,
                OffsetStyle {
                    z: false,
                    colons: false,
                    minutes: true,
                    seconds: false,
                },
            ),
            Part::Offset(style) => offset_text(offset, style),
            Part::Fraction { digits, optional } => {
                let nanos = format!("{:09}", local.nanosecond() % 1_000_000_000);
                let shown = nanos.get(..digits.min(9)).unwrap_or_default();
                let shown = match optional {
                    true => shown.trim_end_matches('0'),
                    false => shown,
                };
                let sign = written.get(..1).unwrap_or(".");
                match shown.is_empty() {
                    true => String::new(),
                    false => format!("{sign}{shown}"),
                }
            }
        };
        out.push_str(&text);
    }
    out + rest
}

fn name<'a>(names: &[&'a str], index: u32) -> &'a str {
    names.get(index as usize).copied().unwrap_or_default()
}

fn short(name: &str) -> &str {
    name.get(..3).unwrap_or(name)
}

fn offset_text(offset: i32, style: OffsetStyle) -> String {
    if style.z && offset == 0 {
        return "Z".into();
    }
    let sign = if offset < 0 { '-' } else { '+' };
    let size = offset.unsigned_abs();
    let colon = if style.colons { ":" } else { "" };
    let mut text = format!("{sign}{:02}", size / 3600);
    if style.minutes {
        text += &format!("{colon}{:02}", size / 60 % 60);
    }
    if style.seconds {
        text += &format!("{colon}{:02}", size % 60);
    }
    text
}

/// What a text has said about a date so far.
#[derive(Default)]
struct Found {
    year: Option<i32>,
    month: Option<u32>,
    day: Option<u32>,
    year_day: Option<u32>,
    hour: u32,
    minute: u32,
    second: u32,
    nanos: u32,
    pm: Option<bool>,
    zone: Option<Zone>,
}

/// Why a part did not fit.
enum Miss {
    Shape,
    Range(&'static str),
}

/// Reads a time written by a layout; a text that names no zone is in `default`.
pub(in crate::template::expr) fn parse(
    layout: &str,
    text: &str,
    default: &Zone,
) -> Result<Time, Reason> {
    let mut found = Found::default();
    let mut rest = text;
    let mut pattern = layout;
    loop {
        let (before, part, written, after) = match next_part(pattern) {
            Some((before, part, written, after)) => (before, Some(part), written, after),
            None => (pattern, None, "", ""),
        };
        let Some(value) = skip(rest, before) else {
            return Err(format!(
                "parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {before:?}"
            ));
        };
        let Some(part) = part else {
            if !value.is_empty() {
                return Err(format!("parsing time {text:?}: extra text: {value:?}"));
            }
            break;
        };
        pattern = after;
        rest = match found.read(part, value, after) {
            Ok(rest) => rest,
            Err(Miss::Range(what)) => {
                return Err(format!("parsing time {text:?}: {what} out of range"));
            }
            Err(Miss::Shape) => {
                return Err(format!(
                    "parsing time {text:?} as {layout:?}: cannot parse {value:?} as {written:?}"
                ));
            }
        };
    }
    found
        .time(default)
        .ok_or_else(|| format!("parsing time {text:?}: day out of range"))
}

/// Drops literal text from the front; a blank in it stands for any number of blanks.
fn skip<'a>(mut value: &'a str, literal: &str) -> Option<&'a str> {
    let mut literal = literal;
    while let Some(wanted) = literal.chars().next() {
        if wanted == ' ' {
            if !value.is_empty() && !value.starts_with(' ') {
                return None;
            }
            literal = literal.trim_start_matches(' ');
            value = value.trim_start_matches(' ');
            continue;
        }
        value = value.strip_prefix(wanted)?;
        literal = literal.strip_prefix(wanted)?;
    }
    Some(value)
}

/// Reads one or two digits.
fn number(value: &str, fixed: bool) -> Result<(u32, &str), Miss> {
    let digits = value.bytes().take(2).take_while(u8::is_ascii_digit).count();
    if digits == 0 || (fixed && digits < 2) {
        return Err(Miss::Shape);
    }
    digits_of(value, digits)
}

fn digits_of(value: &str, count: usize) -> Result<(u32, &str), Miss> {
    let (digits, rest) = value.split_at_checked(count).ok_or(Miss::Shape)?;
    match digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => Ok((digits.parse().map_err(|_| Miss::Shape)?, rest)),
        false => Err(Miss::Shape),
    }
}

/// Reads a name of a table, whole or its first three letters, in any case.
fn lookup<'a>(names: &[&str], value: &'a str, whole: bool) -> Result<(u32, &'a str), Miss> {
    for (index, name) in names.iter().enumerate() {
        let name = if whole { name } else { short(name) };
        if let Some((head, rest)) = value.split_at_checked(name.len())
            && head.eq_ignore_ascii_case(name)
        {
            return Ok((u32::try_from(index).unwrap_or(0), rest));
        }
    }
    Err(Miss::Shape)
}

fn below(value: u32, limit: u32, what: &'static str) -> Result<u32, Miss> {
    match value < limit {
        true => Ok(value),
        false => Err(Miss::Range(what)),
    }
}

/// Reads a separator and digits of a fraction, of which the first nine count.
fn fraction(value: &str, digits: usize) -> Result<(u32, &str), Miss> {
    let body = value.strip_prefix(['.', ',']).ok_or(Miss::Shape)?;
    let (shown, rest) = body.split_at_checked(digits).ok_or(Miss::Shape)?;
    if !shown.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Miss::Shape);
    }
    let nanos = format!("{shown:0<9}");
    let nanos = nanos.get(..9).and_then(|nanos| nanos.parse().ok());
    Ok((nanos.ok_or(Miss::Shape)?, rest))
}

fn fraction_digits(value: &str) -> usize {
    match value.strip_prefix(['.', ',']) {
        Some(body) => body.bytes().take_while(u8::is_ascii_digit).count(),
        None => 0,
    }
}

impl Found {
    fn read<'a>(&mut self, part: Part, value: &'a str, after: &str) -> Result<&'a str, Miss> {
        let (slot, (number, rest)): (&mut u32, _) = match part {
            Part::Year => {
                let (year, rest) = digits_of(value, 2)?;
                let year = i32::try_from(year).map_err(|_| Miss::Shape)?;
                self.year = Some(if year >= 69 { year + 1900 } else { year + 2000 });
                return Ok(rest);
            }
            Part::LongYear => {
                let (year, rest) = digits_of(value, 4)?;
                self.year = Some(i32::try_from(year).map_err(|_| Miss::Shape)?);
                return Ok(rest);
            }
            Part::LongMonth | Part::Month => {
                let (month, rest) = lookup(&MONTHS, value, part == Part::LongMonth)?;
                self.month = Some(month + 1);
                return Ok(rest);
            }
            Part::NumMonth | Part::ZeroMonth => {
                let (month, rest) = number(value, part == Part::ZeroMonth)?;
                self.month = Some(below(month.wrapping_sub(1), 12, "month")? + 1);
                return Ok(rest);
            }
            Part::LongWeekday | Part::Weekday => {
                return lookup(&WEEKDAYS, value, part == Part::LongWeekday).map(|(_, rest)| rest);
            }
            Part::Day | Part::SpaceDay | Part::ZeroDay => {
                let value = match part {
                    Part::SpaceDay => value.strip_prefix(' ').unwrap_or(value),
                    _ => value,
                };
                let (day, rest) = number(value, part == Part::ZeroDay)?;
                self.day = Some(day);
                return Ok(rest);
            }
            Part::SpaceYearDay | Part::ZeroYearDay => {
                let value = match part {
                    Part::SpaceYearDay => value.trim_start_matches(' '),
                    _ => value,
                };
                let digits = value.bytes().take(3).take_while(u8::is_ascii_digit).count();
                if digits == 0 || (part == Part::ZeroYearDay && digits < 3) {
                    return Err(Miss::Shape);
                }
                let (day, rest) = digits_of(value, digits)?;
                self.year_day = Some(day);
                return Ok(rest);
            }
            Part::Hour => {
                let (hour, rest) = number(value, false)?;
                (&mut self.hour, (below(hour, 24, "hour")?, rest))
            }
            Part::Hour12 | Part::ZeroHour12 => {
                let (hour, rest) = number(value, part == Part::ZeroHour12)?;
                (&mut self.hour, (below(hour, 13, "hour")?, rest))
            }
            Part::Minute | Part::ZeroMinute => {
                let (minute, rest) = number(value, part == Part::ZeroMinute)?;
                (&mut self.minute, (below(minute, 60, "minute")?, rest))
            }
            Part::Second | Part::ZeroSecond => {
                let (second, rest) = number(value, part == Part::ZeroSecond)?;
                self.second = below(second, 60, "second")?;
                // A fraction may follow even if the layout has none.
                let digits = fraction_digits(rest);
                let expected = matches!(next_part(after), Some(("", Part::Fraction { .. }, _, _)));
                if digits == 0 || expected {
                    return Ok(rest);
                }
                (&mut self.nanos, fraction(rest, digits)?)
            }
            Part::UpperPm | Part::LowerPm => {
                let (am, pm) = match part {
                    Part::UpperPm => ("AM", "PM"),
                    _ => ("am", "pm"),
                };
                if let Some(rest) = value.strip_prefix(pm) {
                    self.pm = Some(true);
                    return Ok(rest);
                }
                self.pm = Some(false);
                return value.strip_prefix(am).ok_or(Miss::Shape);
            }
            Part::Offset(style) => return self.read_offset(value, style),
            Part::ZoneName => return self.read_zone(value),
            Part::Fraction {
                digits,
                optional: false,
            } => (&mut self.nanos, fraction(value, digits)?),
            Part::Fraction { .. } => match fraction_digits(value) {
                0 => return Ok(value),
                digits => (&mut self.nanos, fraction(value, digits)?),
            },
        };
        *slot = number;
        Ok(rest)
    }

    fn read_offset<'a>(&mut self, value: &'a str, style: OffsetStyle) -> Result<&'a str, Miss> {
        if style.z
            && let Some(rest) = value.strip_prefix('Z')
        {
            self.zone = Some(Zone::Utc);
            return Ok(rest);
        }
        let sign = match value.chars().next() {
            Some('+') => 1,
            Some('-') => -1,
            _ => return Err(Miss::Shape),
        };
        let mut rest = value.get(1..).ok_or(Miss::Shape)?;
        let mut field = |wanted: bool, first: bool, limit| -> Result<i32, Miss> {
            if !wanted {
                return Ok(0);
            }
            if style.colons && !first {
                rest = rest.strip_prefix(':').ok_or(Miss::Shape)?;
            }
            let (number, after) = digits_of(rest, 2)?;
            rest = after;
            let number = below(number, limit, "time zone offset")?;
            i32::try_from(number).map_err(|_| Miss::Shape)
        };
        let hours = field(true, true, 25)?;
        let minutes = field(style.minutes, false, 61)?;
        let seconds = field(style.seconds, false, 61)?;
        let offset = sign * (hours * 3600 + minutes * 60 + seconds);
        self.zone = Some(match offset {
            0 => Zone::Utc,
            _ => Zone::Fixed(offset, "".into()),
        });
        Ok(rest)
    }

    /// Reads an abbreviation. Only UTC and `GMT+n` say what they mean.
    fn read_zone<'a>(&mut self, value: &'a str) -> Result<&'a str, Miss> {
        if let Some(rest) = value.strip_prefix("UTC") {
            self.zone = Some(Zone::Utc);
            return Ok(rest);
        }
        let mut len = value
            .bytes()
            .take(6)
            .take_while(u8::is_ascii_uppercase)
            .count();
        let mut offset = 0;
        if let Some(after) = value.strip_prefix("GMT") {
            len = 3;
            let digits = after.strip_prefix(['+', '-']).map_or(0, |hours| {
                hours.bytes().take_while(u8::is_ascii_digit).count()
            });
            if digits > 0
                && let Some(hours) = after
                    .get(..=digits)
                    .and_then(|text| text.parse::<i32>().ok())
                && (-23..=23).contains(&hours)
            {
                offset = hours * 3600;
                len += digits + 1;
            }
        }
        let fits = len == 3
            || len > 6
            || matches!((len, value.as_bytes().get(len - 1)), (4 | 5, Some(b'T')));
        let (name, rest) = value
            .split_at_checked(len)
            .filter(|_| fits || offset != 0)
            .ok_or(Miss::Shape)?;
        self.zone = Some(Zone::Fixed(offset, name.into()));
        Ok(rest)
    }

    fn time(self, default: &Zone) -> Option<Time> {
        // A text without a date is in year zero, as in Go.
        let year = self.year.unwrap_or(0);
        let date = match self.year_day {
            Some(day) => NaiveDate::from_yo_opt(year, day)?,
            None => NaiveDate::from_ymd_opt(year, self.month.unwrap_or(1), self.day.unwrap_or(1))?,
        };
        let hour = match self.pm {
            Some(true) if self.hour < 12 => self.hour + 12,
            Some(false) if self.hour == 12 => 0,
            _ => self.hour,
        };
        let time = NaiveTime::from_hms_nano_opt(hour, self.minute, self.second, self.nanos)?;
        Time::at(
            date.and_time(time),
            self.zone.unwrap_or_else(|| default.clone()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utc(layout: &str, text: &str) -> String {
        match parse(layout, text, &Zone::Utc) {
            Ok(time) => time.to_string(),
            Err(reason) => reason,
        }
    }

    #[test]
    fn common_layouts_are_read() {
        for (layout, text, expected) in [
            ("2006-01-02", "2024-05-06", "2024-05-06 00:00:00 +0000 UTC"),
            ("15:04:05", "12:30:00", "0000-01-01 12:30:00 +0000 UTC"),
            (
                "2006-01-02T15:04:05Z07:00",
                "2024-05-06T01:02:03.5+02:00",
                "2024-05-06 01:02:03.5 +0200 +0200",
            ),
            (
                "Mon, 02 Jan 2006 15:04:05 MST",
                "Mon, 06 May 2024 01:02:03 GMT",
                "2024-05-06 01:02:03 +0000 GMT",
            ),
            (
                "Jan _2 2006 3:04PM",
                "May  6 2024 1:05PM",
                "2024-05-06 13:05:00 +0000 UTC",
            ),
        ] {
            assert_eq!(utc(layout, text), expected, "{text}");
        }
    }

    #[test]
    fn errors_name_the_part_that_does_not_fit() {
        assert_eq!(
            utc("2006-01-02", "hello"),
            "parsing time \"hello\" as \"2006-01-02\": cannot parse \"hello\" as \"2006\""
        );
        assert_eq!(
            utc("2006-01-02", "2024-13-01"),
            "parsing time \"2024-13-01\": month out of range"
        );
        assert_eq!(
            utc("2006-01-02", "2023-02-29"),
            "parsing time \"2023-02-29\": day out of range"
        );
        assert_eq!(
            utc("2006-01-02", "2024-05-06x"),
            "parsing time \"2024-05-06x\": extra text: \"x\""
        );
    }

    #[test]
    fn every_part_is_written() {
        let time = parse(
            "2006-01-02 15:04:05.000",
            "2024-05-06 13:02:03.040",
            &Zone::Utc,
        )
        .unwrap();
        for (layout, expected) in [
            (
                "Monday Mon January Jan 1 01 2 _2 02",
                "Monday Mon May May 5 05 6  6 06",
            ),
            ("15 3 03 4 04 5 05 PM pm", "13 1 01 2 02 3 03 PM pm"),
            ("2006 06 002 __2 _2006", "2024 24 127 127 _2024"),
            (
                "Z07:00 -0700 -07 MST .000 .999 ,00",
                "Z +0000 +00 UTC .040 .04 ,04",
            ),
            ("Month Janet", "Month Janet"),
        ] {
            assert_eq!(format(&time, layout), expected, "{layout}");
        }
    }
}
