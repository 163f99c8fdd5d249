//! Reads a time from text, part by part.

use chrono::{NaiveDate, NaiveTime};

use super::{MONTHS, OffsetStyle, Part, Time, WEEKDAYS, next_part, short};
use crate::template::expr::time::Zone;
use crate::template::expr::val::Reason;

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
        let local = date.and_time(time);
        if let Some(Zone::Fixed(0, name)) = &self.zone
            && let Some(time) = Time::at(local, default.clone())
            && time.zone.at(time.utc).1 == *name
        {
            // The abbreviation is one the wanted zone itself uses.
            return Some(time);
        }
        Time::at(local, self.zone.unwrap_or_else(|| default.clone()))
    }
}
