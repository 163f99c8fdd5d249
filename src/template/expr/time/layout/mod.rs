//! Layouts: a date format written as the sample `Mon Jan 2 15:04:05 MST 2006`.
//!
//! One table of parts serves printing, here, and reading, in `read`. What is not a part stands
//! for itself.

mod read;

use chrono::{Datelike, Timelike};

use super::{MONTHS, Time, WEEKDAYS};

pub(in crate::template::expr) use read::parse;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::expr::time::Zone;

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
