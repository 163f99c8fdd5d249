//! Files of the zone database (RFC 9636): past changes of clocks, and the rule for all later ones.

use std::sync::Arc;

use chrono::{Datelike, NaiveDate};

/// What clocks of a zone show, at any instant.
#[derive(Debug)]
pub(in crate::template::expr) struct Table {
    /// Instants at which a period starts, ascending, and the period.
    changes: Vec<(i64, Period)>,
    /// Before the first change.
    first: Period,
    /// After the last.
    rule: Option<Rule>,
}

/// Seconds east of UTC, and the short name.
type Period = (i32, Arc<str>);

/// The rule for the time after the last known change.
#[derive(Debug)]
struct Rule {
    standard: Period,
    /// Summer time, and when it starts and ends by the clock of the period before.
    summer: Option<(Period, Change, Change)>,
}

/// The moment of a change, in any year.
#[derive(Clone, Copy, Debug)]
struct Change {
    day: Day,
    seconds: i64,
}

#[derive(Clone, Copy, Debug)]
enum Day {
    /// `Mm.w.d`: weekday `d` of week `w` (5: the last) of month `m`.
    Weekday { month: u32, week: u32, day: u32 },
    /// `Jn`: day `n` of the year, 29 February never counted.
    Julian(u32),
    /// `n`: days after the first of the year.
    Ordinal(u32),
}

/// Reads big-endian numbers from the front.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn i32(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn count(&mut self) -> Option<usize> {
        usize::try_from(self.i32()?).ok()
    }

    fn i64(&mut self) -> Option<i64> {
        Some(i64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }
}

/// How many of each thing a block holds.
struct Header {
    version: u8,
    ut: usize,
    wall: usize,
    leaps: usize,
    times: usize,
    types: usize,
    chars: usize,
}

impl Header {
    fn read(bytes: &mut Bytes<'_>) -> Option<Self> {
        if bytes.take(4)? != b"TZif" {
            return None;
        }
        let version = bytes.u8()?;
        bytes.take(15)?;
        Some(Self {
            version,
            ut: bytes.count()?,
            wall: bytes.count()?,
            leaps: bytes.count()?,
            times: bytes.count()?,
            types: bytes.count()?,
            chars: bytes.count()?,
        })
    }

    /// Returns the length of the block, where instants take so many bytes.
    fn len(&self, instant: usize) -> usize {
        self.times * (instant + 1)
            + self.types * 6
            + self.chars
            + self.leaps * (instant + 4)
            + self.wall
            + self.ut
    }
}

impl Table {
    /// Reads a file; nothing when it is malformed.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(bytes);
        let mut header = Header::read(&mut bytes)?;
        let wide = header.version >= b'2';
        if wide {
            // The first block is for old readers; the second has all of time.
            bytes.take(header.len(4))?;
            header = Header::read(&mut bytes)?;
        }
        let mut body = Bytes(bytes.take(header.len(if wide { 8 } else { 4 }))?);
        let mut starts = Vec::new();
        for _ in 0..header.times {
            starts.push(match wide {
                true => body.i64()?,
                false => i64::from(body.i32()?),
            });
        }
        let indexes = body.take(header.times)?;
        let mut types = Vec::new();
        for _ in 0..header.types {
            types.push((body.i32()?, body.u8()?, body.u8()?));
        }
        let names = body.take(header.chars)?;
        let period = |index: usize| -> Option<Period> {
            let (offset, _, name) = types.get(index)?;
            let name = names
                .get(usize::from(*name)..)?
                .split(|byte| *byte == 0)
                .next()?;
            Some((*offset, String::from_utf8_lossy(name).into()))
        };
        let changes = starts
            .into_iter()
            .zip(indexes)
            .map(|(start, index)| Some((start, period(usize::from(*index))?)));
        Some(Self {
            changes: changes.collect::<Option<_>>()?,
            first: period(0)?,
            rule: std::str::from_utf8(bytes.0)
                .ok()
                .and_then(|footer| Rule::parse(footer.trim_matches('\n'))),
        })
    }

    /// Returns offset and short name at an instant.
    pub(super) fn at(&self, seconds: i64) -> Period {
        let passed = self.changes.partition_point(|(start, _)| *start <= seconds);
        let known = match passed.checked_sub(1) {
            Some(last) => self.changes.get(last).map(|(_, period)| period),
            None => Some(&self.first),
        };
        let is_later = passed == self.changes.len();
        match (&self.rule, known) {
            (Some(rule), _) if is_later => rule.at(seconds),
            (_, Some(period)) => period.clone(),
            (_, None) => self.first.clone(),
        }
    }
}

impl Rule {
    /// Reads a rule such as `CET-1CEST,M3.5.0,M10.5.0/3`.
    fn parse(text: &str) -> Option<Self> {
        let (name, rest) = take_name(text)?;
        let (west, rest) = take_time(rest)?;
        let standard: Period = (i32::try_from(-west).ok()?, name.into());
        if rest.is_empty() {
            return Some(Self {
                standard,
                summer: None,
            });
        }
        let (name, rest) = take_name(rest)?;
        let (west, rest) = match rest.starts_with(',') {
            true => (west - 3600, rest),
            false => take_time(rest)?,
        };
        let mut changes = rest.strip_prefix(',')?.split(',');
        let start = Change::parse(changes.next()?)?;
        let end = Change::parse(changes.next()?)?;
        let summer = (i32::try_from(-west).ok()?, name.into());
        Some(Self {
            standard,
            summer: Some((summer, start, end)),
        })
    }

    fn at(&self, seconds: i64) -> Period {
        let Some((summer, start, end)) = &self.summer else {
            return self.standard.clone();
        };
        let local = seconds.saturating_add(self.standard.0.into());
        let is_summer = || {
            let year = chrono::DateTime::from_timestamp(local, 0)?.year();
            let start = start.within(year)? - i64::from(self.standard.0);
            let end = end.within(year)? - i64::from(summer.0);
            Some(match start < end {
                true => (start..end).contains(&seconds),
                // South of the equator summer spans the new year.
                false => !(end..start).contains(&seconds),
            })
        };
        match is_summer() {
            Some(true) => summer.clone(),
            _ => self.standard.clone(),
        }
    }
}

impl Change {
    fn parse(text: &str) -> Option<Self> {
        let (day, time) = text.split_once('/').unwrap_or((text, "2"));
        let (seconds, rest) = take_time(time)?;
        let day = match day.strip_prefix('M') {
            Some(parts) => {
                let mut parts = parts.split('.').map(|part| part.parse::<u8>().ok());
                Day::Weekday {
                    month: parts.next()??.into(),
                    week: parts.next()??.into(),
                    day: parts.next()??.into(),
                }
            }
            None => match day.strip_prefix('J') {
                Some(day) => Day::Julian(day.parse::<u16>().ok()?.into()),
                None => Day::Ordinal(day.parse::<u16>().ok()?.into()),
            },
        };
        rest.is_empty().then_some(Self { day, seconds })
    }

    /// Returns the moment in a year, in seconds by the clock of the zone.
    fn within(self, year: i32) -> Option<i64> {
        let date = match self.day {
            Day::Weekday { month, week, day } => {
                let first = NaiveDate::from_ymd_opt(year, month, 1)?;
                let skip = (7 + day).checked_sub(first.weekday().num_days_from_sunday())? % 7;
                let on = |week: u32| {
                    let day = 1 + skip + 7 * week.checked_sub(1)?;
                    NaiveDate::from_ymd_opt(year, month, day)
                };
                on(week).or_else(|| on(4))?
            }
            Day::Julian(day) => {
                let leap = NaiveDate::from_ymd_opt(year, 2, 29).is_some();
                NaiveDate::from_yo_opt(year, if leap && day > 59 { day + 1 } else { day })?
            }
            Day::Ordinal(day) => NaiveDate::from_yo_opt(year, day + 1)?,
        };
        let midnight = date.and_hms_opt(0, 0, 0)?.and_utc().timestamp();
        midnight.checked_add(self.seconds)
    }
}

/// Splits off a name: letters, or anything in angle brackets.
fn take_name(text: &str) -> Option<(&str, &str)> {
    if let Some(quoted) = text.strip_prefix('<') {
        return quoted.split_once('>');
    }
    let end = text
        .find(|c: char| !c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// Splits off `[+-]h[h][:mm[:ss]]`, in seconds.
fn take_time(text: &str) -> Option<(i64, &str)> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(text) => (-1, text),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == ':'))
        .unwrap_or(text.len());
    let (clock, rest) = text.split_at(end);
    let mut total = 0;
    for (unit, part) in [3600, 60, 1].into_iter().zip(clock.split(':')) {
        total += unit * i64::from(part.parse::<u16>().ok()?);
    }
    Some((sign * total, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(rule: &str, utc: &str) -> String {
        let utc = chrono::NaiveDateTime::parse_from_str(utc, "%Y-%m-%d %H:%M").unwrap();
        let (offset, name) = Rule::parse(rule).unwrap().at(utc.and_utc().timestamp());
        format!("{offset} {name}")
    }

    #[test]
    fn rules_know_summer_north_and_south() {
        let berlin = "CET-1CEST,M3.5.0,M10.5.0/3";
        assert_eq!(shown(berlin, "2040-03-25 00:59"), "3600 CET");
        assert_eq!(shown(berlin, "2040-03-25 01:00"), "7200 CEST");
        assert_eq!(shown(berlin, "2040-10-28 00:59"), "7200 CEST");
        assert_eq!(shown(berlin, "2040-10-28 01:00"), "3600 CET");
        let sydney = "AEST-10AEDT,M10.1.0,M4.1.0/3";
        assert_eq!(shown(sydney, "2040-01-01 00:00"), "39600 AEDT");
        assert_eq!(shown(sydney, "2040-07-01 00:00"), "36000 AEST");
    }

    #[test]
    fn rules_without_summer_and_with_quoted_names_are_read() {
        assert_eq!(shown("<+0530>-5:30", "2040-01-01 00:00"), "19800 +0530");
        assert_eq!(shown("EST5", "2040-01-01 00:00"), "-18000 EST");
    }

    #[test]
    fn a_table_gives_the_period_of_an_instant() {
        // One change at second 100 from one hour (A) to two hours (B), old format only.
        let mut bytes = b"TZif\0".to_vec();
        bytes.extend([0; 15]);
        for count in [0_u32, 0, 0, 1, 2, 4] {
            bytes.extend(count.to_be_bytes());
        }
        bytes.extend(100_i32.to_be_bytes());
        bytes.push(1);
        bytes.extend(3600_i32.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(7200_i32.to_be_bytes());
        bytes.extend([1, 2]);
        bytes.extend(b"A\0B\0");
        let table = Table::parse(&bytes).unwrap();
        assert_eq!(table.at(99), (3600, "A".into()));
        assert_eq!(table.at(100), (7200, "B".into()));
        assert!(Table::parse(&bytes[..bytes.len() - 1]).is_none());
        assert!(Table::parse(b"nonsense").is_none());
    }
}
