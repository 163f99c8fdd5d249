//! Reads a time out of text by a Go layout, with Go's indulgence: any run of blanks matches any
//! other, and a fraction may follow seconds that the layout gives without one.

use chrono::{NaiveDate, NaiveTime};

use super::layout::{DAYS, MONTHS, Part, short, split};
use super::{Time, Zone, at_wall};

/// What the parts of a text say, until the end of the layout tells what they mean together.
#[derive(Default)]
struct Read {
    year: i32,
    month: Option<u32>,
    day: Option<u32>,
    year_day: Option<u32>,
    hour: u32,
    minute: u32,
    second: u32,
    nanos: u32,
    afternoon: Option<bool>,
    zone: Option<Zone>,
    zone_name: Option<String>,
}

pub fn parse(layout: &str, text: &str) -> Result<Time, String> {
    let mut read = Read::default();
    let mut value = text;
    let mut rest = layout;
    let wrong = |value: &str, what: &str| {
        format!("parsing time {text:?} as {layout:?}: cannot parse {value:?} as {what:?}")
    };
    loop {
        let (before, part, after) = split(rest);
        value = skip(value, before).ok_or_else(|| wrong(value, before))?;
        let Some(part) = part else { break };
        let what_len = rest.len() - before.len() - after.len();
        let what = rest
            .get(before.len()..before.len() + what_len)
            .unwrap_or("");
        let fraction_next = matches!(split(after), ("", Some(Part::Fraction { .. }), _));
        value = read
            .part(part, value, fraction_next)
            .ok_or_else(|| wrong(value, what))?;
        rest = after;
    }
    if !value.is_empty() {
        return Err(format!("parsing time {text:?}: extra text: {value:?}"));
    }
    read.time()
        .ok_or_else(|| format!("parsing time {text:?}: out of range"))
}

/// Passes over the literal text of a layout; any run of blanks matches any other.
fn skip<'a>(mut value: &'a str, mut literal: &str) -> Option<&'a str> {
    while let Some(c) = literal.chars().next() {
        if c == ' ' {
            if !value.is_empty() && !value.starts_with(' ') {
                return None;
            }
            literal = literal.trim_start_matches(' ');
            value = value.trim_start_matches(' ');
            continue;
        }
        value = value.strip_prefix(c)?;
        literal = literal.strip_prefix(c)?;
    }
    Some(value)
}

/// Reads between `least` and `most` digits.
fn digits(value: &str, least: usize, most: usize) -> Option<(u32, &str)> {
    let len = value
        .bytes()
        .take(most)
        .take_while(u8::is_ascii_digit)
        .count();
    let (number, rest) = value.split_at_checked(len)?;
    (len >= least)
        .then(|| number.parse().ok())
        .flatten()
        .map(|number| (number, rest))
}

/// Reads one of some names, in any case, and returns its position.
fn name(value: &str, names: impl Iterator<Item = &'static str>) -> Option<(u32, &str)> {
    for (index, name) in (0..).zip(names) {
        let (head, rest) = value.split_at_checked(name.len())?;
        if head.eq_ignore_ascii_case(name) {
            return Some((index, rest));
        }
    }
    None
}

impl Read {
    /// Takes one part from the front of a text; returns the rest of it.
    fn part<'a>(&mut self, part: Part, value: &'a str, fraction_next: bool) -> Option<&'a str> {
        let two = |zero: bool, value: &'a str| digits(value, if zero { 2 } else { 1 }, 2);
        let rest;
        match part {
            Part::MonthName | Part::MonthShort => {
                let found = if part == Part::MonthName {
                    longest_name(value, &MONTHS)?
                } else {
                    name(value, MONTHS.iter().map(|name| short(name)))?
                };
                self.month = Some(found.0 + 1);
                rest = found.1;
            }
            Part::Month { zero } => {
                let (month, after) = two(zero, value)?;
                self.month = Some(month);
                rest = after;
            }
            // The day of the week is checked for form and otherwise ignored, as in Go.
            Part::DayName => rest = longest_name(value, &DAYS)?.1,
            Part::DayShort => rest = name(value, DAYS.iter().map(|name| short(name)))?.1,
            Part::Day { fill } => {
                let value = match fill {
                    Some(' ') => value.strip_prefix(' ').unwrap_or(value),
                    _ => value,
                };
                let (day, after) = two(fill == Some('0'), value)?;
                self.day = Some(day);
                rest = after;
            }
            Part::YearDay { fill } => {
                let (day, after) = match fill {
                    '0' => digits(value, 3, 3)?,
                    _ => digits(value.trim_start_matches(' '), 1, 3)?,
                };
                self.year_day = Some(day);
                rest = after;
            }
            Part::Hour => (self.hour, rest) = two(false, value)?,
            Part::Hour12 { zero } => {
                (self.hour, rest) = two(zero, value)?;
                if self.hour > 12 {
                    return None;
                }
            }
            Part::Minute { zero } => (self.minute, rest) = two(zero, value)?,
            Part::Second { zero } => {
                let (second, after) = two(zero, value)?;
                self.second = second;
                // A fraction may follow the seconds even where the layout has none.
                rest = match self.fraction(after, None) {
                    Some(past) if !fraction_next => past,
                    _ => after,
                };
            }
            Part::Year => {
                let (year, after) = digits(value, 4, 4)?;
                self.year = i32::try_from(year).ok()?;
                rest = after;
            }
            Part::YearShort => {
                let (year, after) = digits(value, 2, 2)?;
                let century = if year >= 69 { 1900 } else { 2000 };
                self.year = i32::try_from(year).ok()? + century;
                rest = after;
            }
            Part::HalfDay { upper } => {
                let (head, after) = value.split_at_checked(2)?;
                let (am, pm) = if upper { ("AM", "PM") } else { ("am", "pm") };
                self.afternoon = Some(if head == pm {
                    true
                } else if head == am {
                    false
                } else {
                    return None;
                });
                rest = after;
            }
            Part::ZoneName => {
                let len = value.bytes().take_while(u8::is_ascii_uppercase).count();
                if !(3..=5).contains(&len) {
                    return None;
                }
                let (name, after) = value.split_at_checked(len)?;
                self.zone_name = Some(name.to_owned());
                rest = after;
            }
            Part::Offset { z, colon, fields } => {
                rest = match value.strip_prefix('Z') {
                    Some(after) if z => {
                        self.zone = Some(Zone::Utc);
                        after
                    }
                    _ => self.offset(value, colon, fields)?,
                };
            }
            Part::Fraction {
                digits, trimmed, ..
            } => {
                let wanted = (!trimmed).then_some(digits);
                rest = match self.fraction(value, wanted) {
                    Some(rest) => rest,
                    None if trimmed => value,
                    None => return None,
                };
            }
        }
        Some(rest)
    }

    fn offset<'a>(&mut self, value: &'a str, colon: bool, fields: usize) -> Option<&'a str> {
        let sign = match value.chars().next()? {
            '+' => 1,
            '-' => -1,
            _ => return None,
        };
        let mut rest = value.get(1..)?;
        let mut seconds = 0;
        for (index, scale) in [3600, 60, 1].into_iter().take(fields).enumerate() {
            if colon && index > 0 {
                rest = rest.strip_prefix(':')?;
            }
            let (part, after) = digits(rest, 2, 2)?;
            if part > if index == 0 { 24 } else { 60 } {
                return None;
            }
            seconds += i32::try_from(part).ok()? * scale;
            rest = after;
        }
        self.zone = Some(Zone::Fixed(sign * seconds, String::new()));
        Some(rest)
    }

    /// Reads `.123`, of exactly `wanted` digits where that is given.
    fn fraction<'a>(&mut self, value: &'a str, wanted: Option<usize>) -> Option<&'a str> {
        let after = value.strip_prefix(['.', ','])?;
        let len = after.bytes().take_while(u8::is_ascii_digit).count();
        let len = match wanted {
            Some(wanted) if len < wanted => return None,
            Some(wanted) => wanted,
            None if len == 0 => return None,
            None => len,
        };
        let (number, rest) = after.split_at_checked(len)?;
        let nine: String = number.chars().chain("000000000".chars()).take(9).collect();
        self.nanos = nine.parse().ok()?;
        Some(rest)
    }

    fn time(self) -> Option<Time> {
        let hour = match self.afternoon {
            Some(true) if self.hour < 12 => self.hour + 12,
            Some(false) if self.hour == 12 => 0,
            _ => self.hour,
        };
        let date = match (self.year_day, self.month, self.day) {
            (Some(day), None, None) => NaiveDate::from_yo_opt(self.year, day)?,
            (_, month, day) => {
                NaiveDate::from_ymd_opt(self.year, month.unwrap_or(1), day.unwrap_or(1))?
            }
        };
        let clock = NaiveTime::from_hms_nano_opt(hour, self.minute, self.second, self.nanos)?;
        let zone = match (self.zone, self.zone_name) {
            (Some(Zone::Fixed(0, _)), _) => Zone::Utc,
            (Some(Zone::Fixed(offset, _)), Some(name)) => Zone::Fixed(offset, name),
            (Some(zone), _) => zone,
            (None, Some(name)) if name == "UTC" => Zone::Utc,
            // A name alone tells no offset; Go makes it a zone of that name at zero.
            (None, Some(name)) => Zone::Fixed(0, name),
            (None, None) => Zone::Local,
        };
        at_wall(date.and_time(clock), &zone)
    }
}

/// Reads a full name; names of which one starts another do not exist among ours.
fn longest_name<'a>(value: &'a str, names: &'static [&'static str]) -> Option<(u32, &'a str)> {
    (0..).zip(names).find_map(|(index, name)| {
        let (head, rest) = value.split_at_checked(name.len())?;
        head.eq_ignore_ascii_case(name).then_some((index, rest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_back_by_its_layout() {
        let cases = [
            ("2006-01-02T15:04:05Z07:00", "2023-11-14T22:13:20Z"),
            (
                "Jan 2, 2006 at 3:04pm (-0700)",
                "Nov 14, 2023 at 11:13pm (+0100)",
            ),
            ("2006-01-02 15:04:05 -0700", "2023-11-14 23:13:20.5 +0100"),
        ];
        for (layout, text) in cases {
            let time = Time::parse(layout, text).unwrap();
            assert_eq!(time.unix() / 60, 1_700_000_000 / 60, "{text}");
        }
    }

    #[test]
    fn text_that_does_not_fit_its_layout_is_refused() {
        for (layout, text) in [
            ("2006-01-02", "2023-13-01"),
            ("2006-01-02", "2023-02-30"),
            ("2006-01-02", "2023-01-02x"),
            ("15:04", "25:00"),
            ("2006", "é"),
        ] {
            assert!(Time::parse(layout, text).is_err(), "{text}");
        }
    }
}
