//! Go's date layouts, written as the sample `Mon Jan 2 15:04:05 MST 2006`.
//!
//! One table of parts serves formatting, here, and parsing, in `read`. Other text is literal.

use std::fmt::{self, Write};

use chrono::{Datelike, NaiveDateTime, Timelike};

use super::{MONTHS, Time, WEEKDAYS, name, short};

/// One part of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
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
    /// A separator and a number of digits; with `optional`, trailing zeros are dropped.
    Fraction {
        separator: char,
        digits: usize,
        optional: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OffsetStyle {
    /// `Z` is used for a zero offset.
    pub(super) z: bool,
    pub(super) colons: bool,
    pub(super) minutes: bool,
    pub(super) seconds: bool,
}

/// Parts identified by their text, longer ones first.
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

/// Forms after the `-` or `Z` of an offset: colons, minutes, seconds.
const OFFSETS: [(&str, bool, bool, bool); 5] = [
    ("070000", false, true, true),
    ("07:00:00", true, true, true),
    ("0700", false, true, false),
    ("07:00", true, true, false),
    ("07", false, false, false),
];

/// Splits a layout at its first part: the text before it, the part, the part as written, the rest.
pub(super) fn next_part(layout: &str) -> Option<(&str, Part, &str, &str)> {
    layout.char_indices().find_map(|(at, _)| {
        let (before, here) = layout.split_at(at);
        let (part, len) = part_at(here)?;
        let (written, rest) = here.split_at(len);
        Some((before, part, written, rest))
    })
}

fn part_at(text: &str) -> Option<(Part, usize)> {
    if text.starts_with("_2006") {
        // The underscore is literal before a year.
        return None;
    }
    for (word, part) in WORDS {
        let Some(rest) = text.strip_prefix(word) else {
            continue;
        };
        // `Janet` and `Month` are literal words.
        let is_short_name = matches!(part, Part::Month | Part::Weekday);
        if is_short_name && rest.starts_with(|c: char| c.is_ascii_lowercase()) {
            continue;
        }
        return Some((part, word.len()));
    }
    if let Some(after) = text.strip_prefix(['-', 'Z']) {
        let (word, colons, minutes, seconds) = OFFSETS
            .into_iter()
            .find(|(word, ..)| after.starts_with(word))?;
        let style = OffsetStyle {
            z: text.starts_with('Z'),
            colons,
            minutes,
            seconds,
        };
        return Some((Part::Offset(style), word.len() + 1));
    }
    let after = text.strip_prefix(['.', ','])?;
    let digit = after.chars().next().filter(|c| matches!(c, '0' | '9'))?;
    let follows = after.trim_start_matches(digit);
    if follows.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let digits = after.len() - follows.len();
    let part = Part::Fraction {
        separator: if text.starts_with(',') { ',' } else { '.' },
        digits,
        optional: digit == '9',
    };
    Some((part, digits + 1))
}

/// Formats a time.
pub(super) fn format(time: &Time, layout: &str) -> String {
    let local = time.local();
    let mut out = String::new();
    let mut rest = layout;
    while let Some((before, part, _, after)) = next_part(rest) {
        out.push_str(before);
        // Writing to a string cannot fail.
        let _ = write_part(&mut out, part, time, local);
        rest = after;
    }
    out + rest
}

fn write_part(out: &mut String, part: Part, time: &Time, local: NaiveDateTime) -> fmt::Result {
    let month = name(&MONTHS, local.month0());
    let day = name(&WEEKDAYS, local.weekday().num_days_from_sunday());
    let is_morning = local.hour() < 12;
    let twelve = match local.hour() % 12 {
        0 => 12,
        hour => hour,
    };
    match part {
        Part::LongYear if local.year() < 0 => write!(out, "-{:04}", local.year().unsigned_abs()),
        Part::LongYear => write!(out, "{:04}", local.year()),
        Part::Year => write!(out, "{:02}", local.year().max(0) % 100),
        Part::LongMonth => out.write_str(month),
        Part::Month => out.write_str(short(month)),
        Part::NumMonth => write!(out, "{}", local.month()),
        Part::ZeroMonth => write!(out, "{:02}", local.month()),
        Part::LongWeekday => out.write_str(day),
        Part::Weekday => out.write_str(short(day)),
        Part::Day => write!(out, "{}", local.day()),
        Part::SpaceDay => write!(out, "{:2}", local.day()),
        Part::ZeroDay => write!(out, "{:02}", local.day()),
        Part::SpaceYearDay => write!(out, "{:3}", local.ordinal()),
        Part::ZeroYearDay => write!(out, "{:03}", local.ordinal()),
        Part::Hour => write!(out, "{:02}", local.hour()),
        Part::Hour12 => write!(out, "{twelve}"),
        Part::ZeroHour12 => write!(out, "{twelve:02}"),
        Part::Minute => write!(out, "{}", local.minute()),
        Part::ZeroMinute => write!(out, "{:02}", local.minute()),
        Part::Second => write!(out, "{}", local.second()),
        Part::ZeroSecond => write!(out, "{:02}", local.second()),
        Part::UpperPm => out.write_str(if is_morning { "AM" } else { "PM" }),
        Part::LowerPm => out.write_str(if is_morning { "am" } else { "pm" }),
        Part::ZoneName => match &*time.zone.abbreviation(time.utc.naive_utc()) {
            // A zone without a name is printed as its offset.
            "" => write_offset(out, time, MINUTES),
            name => out.write_str(name),
        },
        Part::Offset(style) => write_offset(out, time, style),
        Part::Fraction {
            separator,
            digits,
            optional,
        } => {
            // Digits beyond nanoseconds are zero.
            let nanos = format!("{:09}", local.nanosecond());
            let shown = nanos.get(..digits).unwrap_or(&nanos);
            match optional.then(|| shown.trim_end_matches('0')) {
                Some("") => Ok(()),
                Some(shown) => write!(out, "{separator}{shown}"),
                None => write!(out, "{separator}{shown}"),
            }
        }
    }
}

const MINUTES: OffsetStyle = OffsetStyle {
    z: false,
    colons: false,
    minutes: true,
    seconds: false,
};

fn write_offset(out: &mut String, time: &Time, style: OffsetStyle) -> fmt::Result {
    let offset = time.zone.offset(time.utc.naive_utc());
    if style.z && offset == 0 {
        return out.write_char('Z');
    }
    let sign = if offset < 0 { '-' } else { '+' };
    let size = offset.unsigned_abs();
    let colon = if style.colons { ":" } else { "" };
    write!(out, "{sign}{:02}", size / 3600)?;
    if style.minutes {
        write!(out, "{colon}{:02}", size / 60 % 60)?;
    }
    if style.seconds {
        write!(out, "{colon}{:02}", size % 60)?;
    }
    Ok(())
}
