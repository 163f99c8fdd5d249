//! Parser for times by a layout. As in Go, a run of spaces matches any other, and a fraction may
//! follow seconds even if the layout has none.

use chrono::{Datelike, NaiveDate, NaiveTime};

use super::layout::{OffsetStyle, Part, next_part};
use super::{MONTHS, Time, TimeError, WEEKDAYS, Zone, short};

/// Parts of a time parsed so far; they are combined at the end.
#[derive(Default)]
struct ParsedParts<'t> {
    year: i32,
    month: Option<u32>,
    day: Option<u32>,
    year_day: Option<u32>,
    hour: u32,
    minute: u32,
    second: u32,
    nanos: u32,
    pm: Option<bool>,
    /// Set by `Z` or `UTC`; overrides offset and name.
    is_utc: bool,
    offset: Option<i32>,
    zone_name: Option<&'t str>,
}

/// Error of parsing one part.
enum PartError {
    Shape,
    Range(&'static str),
}

/// Parses a time by a layout; `default` is the zone of a text without one.
pub(super) fn parse(layout: &str, text: &str, default: &Zone) -> Result<Time, TimeError> {
    let mismatch = |value: &str, part: &str| TimeError::Mismatch {
        text: text.into(),
        layout: layout.into(),
        value: value.into(),
        part: part.into(),
    };
    let impossible = |problem: String| TimeError::Impossible {
        text: text.into(),
        problem,
    };
    let mut found = ParsedParts::default();
    let mut value = text;
    let mut pattern = layout;
    while let Some((before, part, written, after)) = next_part(pattern) {
        value = skip(value, before).map_err(|value| mismatch(value, before))?;
        value = found.read(part, value, after).map_err(|miss| match miss {
            PartError::Range(what) => impossible(format!("{what} out of range")),
            PartError::Shape => mismatch(value, written),
        })?;
        pattern = after;
    }
    value = skip(value, pattern).map_err(|value| mismatch(value, pattern))?;
    if !value.is_empty() {
        return Err(TimeError::Extra {
            text: text.into(),
            extra: value.into(),
        });
    }
    found
        .time(default)
        .map_err(|problem| impossible(problem.into()))
}

/// Skips literal text; a space in it matches any number of spaces. Returns the rest, or the
/// remaining text at the first difference.
fn skip<'t>(mut value: &'t str, mut literal: &str) -> Result<&'t str, &'t str> {
    while let Some(wanted) = literal.chars().next() {
        if wanted == ' ' {
            if !value.is_empty() && !value.starts_with(' ') {
                return Err(value);
            }
            literal = literal.trim_start_matches(' ');
            value = value.trim_start_matches(' ');
            continue;
        }
        value = value.strip_prefix(wanted).ok_or(value)?;
        literal = literal.strip_prefix(wanted).unwrap_or_default();
    }
    Ok(value)
}

/// Parses `least` to `most` digits.
fn digits(value: &str, least: usize, most: usize) -> Result<(u32, &str), PartError> {
    let len = count_digits(value).min(most);
    let (digits, rest) = value.split_at_checked(len).ok_or(PartError::Shape)?;
    match digits.parse() {
        Ok(number) if len >= least => Ok((number, rest)),
        _ => Err(PartError::Shape),
    }
}

fn count_digits(value: &str) -> usize {
    value.bytes().take_while(u8::is_ascii_digit).count()
}

/// Parses a number of one or two digits below `limit`.
fn number<'t>(
    value: &'t str,
    is_fixed: bool,
    limit: u32,
    what: &'static str,
) -> Result<(u32, &'t str), PartError> {
    let (number, rest) = digits(value, if is_fixed { 2 } else { 1 }, 2)?;
    if number < limit {
        Ok((number, rest))
    } else {
        Err(PartError::Range(what))
    }
}

/// Parses a name from a table, in full or its first three letters, in any case.
fn lookup<'t>(names: &[&str], value: &'t str, is_whole: bool) -> Result<(u32, &'t str), PartError> {
    for (index, name) in (0..).zip(names) {
        let name = if is_whole { name } else { short(name) };
        if let Some((head, rest)) = value.split_at_checked(name.len())
            && head.eq_ignore_ascii_case(name)
        {
            return Ok((index, rest));
        }
    }
    Err(PartError::Shape)
}

/// Parses a separator and the digits of a fraction, of which the first nine count.
fn fraction(value: &str, digits: usize) -> Result<(u32, &str), PartError> {
    let body = value.strip_prefix(['.', ',']).ok_or(PartError::Shape)?;
    if count_digits(body) < digits {
        return Err(PartError::Shape);
    }
    let (shown, rest) = body.split_at_checked(digits).ok_or(PartError::Shape)?;
    let nine: String = shown.chars().chain("000000000".chars()).take(9).collect();
    Ok((nine.parse().map_err(|_| PartError::Shape)?, rest))
}

/// Returns the number of digits of a fraction at the start of the text.
fn fraction_len(value: &str) -> usize {
    value.strip_prefix(['.', ',']).map_or(0, count_digits)
}

impl<'t> ParsedParts<'t> {
    /// Parses one part; returns the rest of the text.
    fn read(&mut self, part: Part, value: &'t str, after: &str) -> Result<&'t str, PartError> {
        let rest;
        match part {
            Part::Year => {
                let (year, after) = digits(value, 2, 2)?;
                let century = if year >= 69 { 1900 } else { 2000 };
                self.year = i32::try_from(year + century).map_err(|_| PartError::Shape)?;
                rest = after;
            }
            Part::LongYear => {
                let (year, after) = digits(value, 4, 4)?;
                self.year = i32::try_from(year).map_err(|_| PartError::Shape)?;
                rest = after;
            }
            Part::LongMonth | Part::Month => {
                let (month, after) = lookup(&MONTHS, value, part == Part::LongMonth)?;
                self.month = Some(month + 1);
                rest = after;
            }
            Part::NumMonth | Part::ZeroMonth => {
                let (month, after) = number(value, part == Part::ZeroMonth, 13, "month")?;
                if month == 0 {
                    return Err(PartError::Range("month"));
                }
                self.month = Some(month);
                rest = after;
            }
            // The weekday is parsed and otherwise ignored, as in Go.
            Part::LongWeekday | Part::Weekday => {
                (_, rest) = lookup(&WEEKDAYS, value, part == Part::LongWeekday)?;
            }
            Part::Day | Part::SpaceDay | Part::ZeroDay => {
                let value = match part {
                    Part::SpaceDay => value.strip_prefix(' ').unwrap_or(value),
                    _ => value,
                };
                let (day, after) = number(value, part == Part::ZeroDay, 100, "day")?;
                self.day = Some(day);
                rest = after;
            }
            Part::ZeroYearDay => {
                let (day, after) = digits(value, 3, 3)?;
                self.year_day = Some(day);
                rest = after;
            }
            Part::SpaceYearDay => {
                let value = value.strip_prefix(' ').unwrap_or(value);
                let value = value.strip_prefix(' ').unwrap_or(value);
                let (day, after) = digits(value, 1, 3)?;
                self.year_day = Some(day);
                rest = after;
            }
            Part::Hour => (self.hour, rest) = number(value, false, 24, "hour")?,
            Part::Hour12 | Part::ZeroHour12 => {
                (self.hour, rest) = number(value, part == Part::ZeroHour12, 13, "hour")?;
            }
            Part::Minute | Part::ZeroMinute => {
                (self.minute, rest) = number(value, part == Part::ZeroMinute, 60, "minute")?;
            }
            Part::Second | Part::ZeroSecond => {
                let seconds = number(value, part == Part::ZeroSecond, 60, "second")?;
                self.second = seconds.0;
                rest = match (fraction_len(seconds.1), next_part(after)) {
                    (0, _) | (_, Some((_, Part::Fraction { .. }, _, _))) => seconds.1,
                    (len, _) => self.read_fraction(seconds.1, len)?,
                };
            }
            Part::UpperPm => rest = self.read_am_pm(value, "AM", "PM")?,
            Part::LowerPm => rest = self.read_am_pm(value, "am", "pm")?,
            Part::Offset(style) => rest = self.read_offset(value, style)?,
            Part::ZoneName => rest = self.read_zone_name(value)?,
            Part::Fraction {
                digits,
                optional: false,
                ..
            } => rest = self.read_fraction(value, digits)?,
            Part::Fraction { .. } => {
                rest = match fraction_len(value) {
                    0 => value,
                    len => self.read_fraction(value, len)?,
                };
            }
        }
        Ok(rest)
    }

    fn read_fraction(&mut self, value: &'t str, digits: usize) -> Result<&'t str, PartError> {
        let (nanos, rest) = fraction(value, digits)?;
        self.nanos = nanos;
        Ok(rest)
    }

    fn read_am_pm(&mut self, value: &'t str, am: &str, pm: &str) -> Result<&'t str, PartError> {
        let rest = value.strip_prefix(pm);
        self.pm = Some(rest.is_some());
        rest.or_else(|| value.strip_prefix(am))
            .ok_or(PartError::Shape)
    }

    fn read_offset(&mut self, value: &'t str, style: OffsetStyle) -> Result<&'t str, PartError> {
        if style.z
            && let Some(rest) = value.strip_prefix('Z')
        {
            self.is_utc = true;
            return Ok(rest);
        }
        let (sign, mut rest) = match value.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, value.strip_prefix('+').ok_or(PartError::Shape)?),
        };
        // Offsets of 24 hours, 60 minutes or 60 seconds are accepted, as in Go.
        let fields = [
            (true, 3600, 25, "time zone offset hour"),
            (style.minutes, 60, 61, "time zone offset minute"),
            (style.seconds, 1, 61, "time zone offset second"),
        ];
        let mut offset = 0;
        for (index, (_, unit, limit, what)) in fields.into_iter().filter(|f| f.0).enumerate() {
            if style.colons && index > 0 {
                rest = rest.strip_prefix(':').ok_or(PartError::Shape)?;
            }
            let (field, after) = number(rest, true, limit, what)?;
            offset += i32::try_from(field).map_err(|_| PartError::Shape)? * unit;
            rest = after;
        }
        self.offset = Some(sign * offset);
        Ok(rest)
    }

    fn read_zone_name(&mut self, value: &'t str) -> Result<&'t str, PartError> {
        if let Some(rest) = value.strip_prefix("UTC") {
            self.is_utc = true;
            return Ok(rest);
        }
        let len = zone_name_len(value).ok_or(PartError::Shape)?;
        let (name, rest) = value.split_at_checked(len).ok_or(PartError::Shape)?;
        self.zone_name = Some(name);
        Ok(rest)
    }

    /// Combines all parts to a time.
    fn time(self, default: &Zone) -> Result<Time, &'static str> {
        let hour = match self.pm {
            Some(true) if self.hour < 12 => self.hour + 12,
            Some(false) if self.hour == 12 => 0,
            _ => self.hour,
        };
        let clock = NaiveTime::from_hms_nano_opt(hour, self.minute, self.second, self.nanos)
            .ok_or("hour out of range")?;
        let local = self.date()?.and_time(clock);
        let time = match (self.is_utc, self.offset, self.zone_name) {
            (true, _, _) => Time::at(local, Zone::Utc),
            (_, Some(offset), name) => {
                Time::at_offset(local, offset, default.clone()).map(|time| {
                    let utc = time.utc.naive_utc();
                    let is_default = default.offset(utc) == offset
                        && name.is_none_or(|name| default.abbreviation(utc) == name);
                    if is_default {
                        time
                    } else {
                        time.in_zone(Zone::Fixed(offset, name.unwrap_or_default().into()))
                    }
                })
            }
            (_, None, Some(name)) => match default.offset_of_name(name, local) {
                Some(offset) => Time::at_offset(local, offset, default.clone()),
                // An unknown zone name has no known offset: the clock is read as UTC, and the hours
                // of `GMT+2` only affect formatting, as in Go.
                None => Time::at_offset(local, 0, Zone::Fixed(gmt_offset(name), name.into())),
            },
            (_, None, None) => Time::at(local, default.clone()),
        };
        time.ok_or("time out of range")
    }

    fn date(&self) -> Result<NaiveDate, &'static str> {
        let Some(year_day) = self.year_day else {
            let (month, day) = (self.month.unwrap_or(1), self.day.unwrap_or(1));
            return NaiveDate::from_ymd_opt(self.year, month, day).ok_or("day out of range");
        };
        let date = NaiveDate::from_yo_opt(self.year, year_day).ok_or("day-of-year out of range")?;
        if self.month.is_some_and(|month| month != date.month()) {
            return Err("day-of-year does not match month");
        }
        if self.day.is_some_and(|day| day != date.day()) {
            return Err("day-of-year does not match day");
        }
        Ok(date)
    }
}

/// Returns the length of a zone abbreviation at the start of the text.
fn zone_name_len(value: &str) -> Option<usize> {
    if value.starts_with("ChST") || value.starts_with("MeST") {
        return Some(4);
    }
    if let Some(hours) = value.strip_prefix("GMT") {
        return Some(3 + signed_hours_len(hours));
    }
    if value.starts_with(['+', '-']) {
        return Some(signed_hours_len(value)).filter(|len| *len > 0);
    }
    let upper = value.bytes().take_while(u8::is_ascii_uppercase).count();
    let ends_in_t = || value.as_bytes().get(upper - 1) == Some(&b'T');
    match upper {
        3 => Some(3),
        4 if ends_in_t() || value.starts_with("WITA") => Some(4),
        5 if ends_in_t() => Some(5),
        _ => None,
    }
}

/// Returns the length of a number from -23 to +23 at the start of the text, or 0. The number of
/// leading zeros is limited, which limits the length of zone names.
fn signed_hours_len(value: &str) -> usize {
    let len = value.strip_prefix(['+', '-']).map_or(0, count_digits);
    let hours = value
        .get(1..=len)
        .and_then(|hours| hours.parse::<u64>().ok());
    match hours {
        Some(..=23) if len <= 4 => len + 1,
        _ => 0,
    }
}

/// Returns the offset of a name such as `GMT-8`, and 0 for other names.
fn gmt_offset(name: &str) -> i32 {
    let hours = name
        .strip_prefix("GMT")
        .and_then(|hours| hours.parse().ok());
    hours.map_or(0, |hours: i32| hours * 3600)
}
