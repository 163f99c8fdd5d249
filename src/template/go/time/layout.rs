//! Go's layouts: a time format is the reference time `Mon Jan 2 15:04:05 MST 2006`, rearranged.

use chrono::{Datelike, NaiveDate, NaiveTime, Timelike, Weekday};

use super::{Time, Zone, at_wall};

/// A part of a layout that stands for a part of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    MonthName,
    MonthShort,
    Month {
        zero: bool,
    },
    DayName,
    DayShort,
    Day {
        fill: Option<char>,
    },
    YearDay {
        fill: char,
    },
    Hour,
    Hour12 {
        zero: bool,
    },
    Minute {
        zero: bool,
    },
    Second {
        zero: bool,
    },
    Year,
    YearShort,
    HalfDay {
        upper: bool,
    },
    ZoneName,
    Offset {
        z: bool,
        colon: bool,
        fields: usize,
    },
    Fraction {
        digits: usize,
        trimmed: bool,
        sign: char,
    },
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

/// The parts that are told by their first letters alone, longer ones first.
const WORDS: [(&str, Part); 31] = [
    ("January", Part::MonthName),
    ("Monday", Part::DayName),
    ("MST", Part::ZoneName),
    ("002", Part::YearDay { fill: '0' }),
    ("01", Part::Month { zero: true }),
    ("02", Part::Day { fill: Some('0') }),
    ("03", Part::Hour12 { zero: true }),
    ("04", Part::Minute { zero: true }),
    ("05", Part::Second { zero: true }),
    ("06", Part::YearShort),
    ("15", Part::Hour),
    ("1", Part::Month { zero: false }),
    ("2006", Part::Year),
    ("2", Part::Day { fill: None }),
    ("__2", Part::YearDay { fill: ' ' }),
    ("_2", Part::Day { fill: Some(' ') }),
    ("3", Part::Hour12 { zero: false }),
    ("4", Part::Minute { zero: false }),
    ("5", Part::Second { zero: false }),
    ("PM", Part::HalfDay { upper: true }),
    ("pm", Part::HalfDay { upper: false }),
    (
        "-070000",
        Part::Offset {
            z: false,
            colon: false,
            fields: 3,
        },
    ),
    (
        "-07:00:00",
        Part::Offset {
            z: false,
            colon: true,
            fields: 3,
        },
    ),
    (
        "-0700",
        Part::Offset {
            z: false,
            colon: false,
            fields: 2,
        },
    ),
    (
        "-07:00",
        Part::Offset {
            z: false,
            colon: true,
            fields: 2,
        },
    ),
    (
        "-07",
        Part::Offset {
            z: false,
            colon: false,
            fields: 1,
        },
    ),
    (
        "Z070000",
        Part::Offset {
            z: true,
            colon: false,
            fields: 3,
        },
    ),
    (
        "Z07:00:00",
        Part::Offset {
            z: true,
            colon: true,
            fields: 3,
        },
    ),
    (
        "Z0700",
        Part::Offset {
            z: true,
            colon: false,
            fields: 2,
        },
    ),
    (
        "Z07:00",
        Part::Offset {
            z: true,
            colon: true,
            fields: 2,
        },
    ),
    (
        "Z07",
        Part::Offset {
            z: true,
            colon: false,
            fields: 1,
        },
    ),
];

/// Splits a layout at its first part: the text before, the part, the rest.
fn split(layout: &str) -> (&str, Option<Part>, &str) {
    for (at, _) in layout.char_indices() {
        let (before, rest) = layout.split_at(at);
        if let Some((part, len)) = part_at(rest) {
            return (before, Some(part), rest.get(len..).unwrap_or(""));
        }
    }
    (layout, None, "")
}

fn part_at(text: &str) -> Option<(Part, usize)> {
    if let Some(fraction) = text.strip_prefix(['.', ',']) {
        let sign = text.chars().next()?;
        let digit = fraction.chars().next().filter(|c| matches!(c, '0' | '9'))?;
        let after = fraction.trim_start_matches(digit);
        if after.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let digits = fraction.len() - after.len();
        let trimmed = digit == '9';
        return Some((
            Part::Fraction {
                digits,
                trimmed,
                sign,
            },
            digits + 1,
        ));
    }
    if text.starts_with("_2006") {
        // The blank stands for itself before a year.
        return None;
    }
    let found = WORDS.iter().find(|(word, _)| text.starts_with(word));
    if let Some((word, part)) = found {
        return Some((*part, word.len()));
    }
    let lower_follows = |s: &str| s.starts_with(|c: char| c.is_ascii_lowercase());
    match text.get(..3)? {
        "Jan" if !lower_follows(text.get(3..)?) => Some((Part::MonthShort, 3)),
        "Mon" if !lower_follows(text.get(3..)?) => Some((Part::DayShort, 3)),
        _ => None,
    }
}

pub fn format(time: &Time, layout: &str) -> String {
    let wall = time.wall();
    let mut out = String::new();
    let mut rest = layout;
    loop {
        let (before, part, after) = split(rest);
        out.push_str(before);
        let Some(part) = part else { return out };
        rest = after;
        let number = |value: u32, zero: bool| {
            if zero {
                format!("{value:02}")
            } else {
                value.to_string()
            }
        };
        let half = match wall.hour() % 12 {
            0 => 12,
            hour => hour,
        };
        let text = match part {
            Part::MonthName => month_name(wall.month0()).to_owned(),
            Part::MonthShort => short(month_name(wall.month0())).to_owned(),
            Part::Month { zero } => number(wall.month(), zero),
            Part::DayName => day_name(wall.weekday()).to_owned(),
            Part::DayShort => short(day_name(wall.weekday())).to_owned(),
            Part::Day { fill: Some(' ') } => format!("{:2}", wall.day()),
            Part::Day { fill } => number(wall.day(), fill.is_some()),
            Part::YearDay { fill: ' ' } => format!("{:3}", wall.ordinal()),
            Part::YearDay { .. } => format!("{:03}", wall.ordinal()),
            Part::Hour => number(wall.hour(), true),
            Part::Hour12 { zero } => number(half, zero),
            Part::Minute { zero } => number(wall.minute(), zero),
            Part::Second { zero } => number(wall.second(), zero),
            Part::Year if wall.year() < 0 => format!("-{:04}", wall.year().unsigned_abs()),
            Part::Year => format!("{:04}", wall.year()),
            Part::YearShort => number(wall.year().rem_euclid(100).unsigned_abs(), true),
            Part::HalfDay { upper } => {
                let name = if wall.hour() < 12 { "am" } else { "pm" };
                if upper {
                    name.to_uppercase()
                } else {
                    name.to_owned()
                }
            }
            Part::ZoneName => time.zone_name(),
            Part::Offset { z: true, .. } if time.offset() == 0 => "Z".into(),
            Part::Offset { colon, fields, .. } => offset(time.offset(), colon, fields),
            Part::Fraction {
                digits,
                trimmed,
                sign,
            } => fraction(wall.nanosecond(), digits, trimmed, sign),
        };
        out.push_str(&text);
    }
}

fn month_name(index: u32) -> &'static str {
    usize::try_from(index)
        .ok()
        .and_then(|index| MONTHS.get(index))
        .copied()
        .unwrap_or("")
}

fn day_name(day: Weekday) -> &'static str {
    let index = day.num_days_from_monday();
    usize::try_from(index)
        .ok()
        .and_then(|index| DAYS.get(index))
        .copied()
        .unwrap_or("")
}

fn short(name: &str) -> &str {
    name.get(..3).unwrap_or(name)
}

fn offset(seconds: i32, colon: bool, fields: usize) -> String {
    let sign = if seconds < 0 { '-' } else { '+' };
    let size = seconds.unsigned_abs();
    let between = if colon { ":" } else { "" };
    let parts = [size / 3600, size / 60 % 60, size % 60];
    let text: Vec<_> = parts
        .iter()
        .take(fields)
        .map(|part| format!("{part:02}"))
        .collect();
    format!("{sign}{}", text.join(between))
}

fn fraction(nanos: u32, digits: usize, trimmed: bool, sign: char) -> String {
    let all = format!("{:09}", nanos % 1_000_000_000);
    let mut text = all.get(..digits.min(9)).unwrap_or(&all).to_owned();
    if trimmed {
        text.truncate(text.trim_end_matches('0').len());
        if text.is_empty() {
            return text;
        }
    } else {
        // Go can show no more than nanoseconds; further zeros are only zeros.
        text.extend(std::iter::repeat_n('0', digits.saturating_sub(9)));
    }
    format!("{sign}{text}")
}

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
fn name<'a>(value: &'a str, names: impl Iterator<Item = &'static str>) -> Option<(u32, &'a str)> {
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

    fn sample() -> Time {
        Time::from_unix(1_700_000_000, Zone::named("Europe/Berlin")).unwrap()
    }

    #[test]
    fn layouts_print_the_parts_they_name() {
        let cases = [
            ("2006-01-02 15:04:05 MST", "2023-11-14 23:13:20 CET"),
            ("Mon Jan _2 3:04PM 06", "Tue Nov 14 11:13PM 23"),
            ("Monday, January 2 2006", "Tuesday, November 14 2023"),
            ("2006-01-02T15:04:05Z07:00", "2023-11-14T23:13:20+01:00"),
            ("002 __2 .000 .999 Month", "318 318 .000  Month"),
            ("Monty _2006", "Monty _2023"),
        ];
        for (layout, expected) in cases {
            assert_eq!(sample().format(layout), expected, "{layout}");
        }
    }

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
