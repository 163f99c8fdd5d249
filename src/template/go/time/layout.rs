//! Go's layouts: a time format is the reference time `Mon Jan 2 15:04:05 MST 2006`, rearranged.
//!
//! Here a layout is cut into parts and a time is printed by them; `read` goes the other way.

use chrono::{Datelike, Timelike, Weekday};

use super::Time;

/// A part of a layout that stands for a part of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Part {
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

pub(super) const MONTHS: [&str; 12] = [
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

pub(super) const DAYS: [&str; 7] = [
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
pub(super) fn split(layout: &str) -> (&str, Option<Part>, &str) {
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

pub(super) fn short(name: &str) -> &str {
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

#[cfg(test)]
mod tests {
    use super::super::Zone;
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
}
