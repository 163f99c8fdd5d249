//! Time zones: an offset for every instant, and a short name for it.
//!
//! Names such as `Europe/Berlin` are looked up in the zone database of the machine, as Go does.
//! That is the one file this room reads by itself: it is part of the system's notion of time, as
//! the zone behind [`Zone::Local`] is. The format of those files is in `tzif`.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use chrono::{Local, NaiveDateTime, Offset, TimeDelta, TimeZone};

use super::tzif::Table;
use crate::template::expr::val::Reason;

/// Where systems keep the zone database.
const DATABASES: [&str; 3] = [
    "/usr/share/zoneinfo",
    "/usr/share/lib/zoneinfo",
    "/usr/lib/locale/TZ",
];

/// Where a time is read.
#[derive(Clone, Debug)]
pub(in crate::template::expr) enum Zone {
    Utc,
    Local,
    /// Seconds east of UTC, and a name that may be empty.
    Fixed(i32, Arc<str>),
    /// A zone of the database, by name.
    Named(Arc<str>, Arc<Table>),
}

impl Zone {
    /// Returns the zone of this name.
    pub(in crate::template::expr) fn load(name: &str) -> Result<Self, Reason> {
        match name {
            "" | "UTC" => Ok(Self::Utc),
            "Local" => Ok(Self::Local),
            _ => Self::from_database(name).ok_or_else(|| format!("unknown time zone {name}")),
        }
    }

    fn from_database(name: &str) -> Option<Self> {
        let is_safe = name.split('/').all(|part| {
            !part.is_empty()
                && part != ".."
                && part
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "_+-".contains(c))
        });
        if !is_safe {
            return None;
        }
        let bytes = DATABASES
            .iter()
            .find_map(|dir| std::fs::read(Path::new(dir).join(name)).ok())?;
        Some(Self::Named(name.into(), Arc::new(Table::parse(&bytes)?)))
    }

    /// Returns offset and short name at an instant.
    pub(super) fn at(&self, utc: NaiveDateTime) -> (i32, Arc<str>) {
        match self {
            Self::Utc => (0, "UTC".into()),
            Self::Local => {
                let offset = Local.offset_from_utc_datetime(&utc).fix();
                match offset.local_minus_utc() {
                    0 => (0, "UTC".into()),
                    seconds => (seconds, "".into()),
                }
            }
            Self::Fixed(seconds, name) => (*seconds, name.clone()),
            Self::Named(_, table) => table.at(utc.and_utc().timestamp()),
        }
    }

    /// Returns the offset at the instant when clocks show `local`.
    pub(super) fn offset_of_local(&self, local: NaiveDateTime) -> i32 {
        let guess = self.at(local).0;
        // Around a change of clocks the first guess may be of the other side.
        let delta = TimeDelta::seconds(guess.into());
        self.at(local.checked_sub_signed(delta).unwrap_or(local)).0
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Utc, Self::Utc) | (Self::Local, Self::Local) => true,
            (Self::Fixed(left, name), Self::Fixed(right, other)) => left == right && name == other,
            (Self::Named(left, _), Self::Named(right, _)) => left == right,
            _ => false,
        }
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Utc => "UTC",
            Self::Local => "Local",
            Self::Fixed(_, name) | Self::Named(name, _) => name,
        })
    }
}
