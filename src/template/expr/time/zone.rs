//! Time zones: an offset for every instant, and a short name for it.
//!
//! UTC, the zone of the machine and fixed offsets are known. Names of the zone database are
//! looked up by `load`.

use std::fmt;
use std::sync::Arc;

use chrono::{Local, NaiveDateTime, Offset, TimeDelta, TimeZone};

use crate::template::expr::val::Reason;

/// Where a time is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::template::expr) enum Zone {
    Utc,
    Local,
    /// Seconds east of UTC, and a name that may be empty.
    Fixed(i32, Arc<str>),
}

impl Zone {
    /// Returns the zone of this name.
    pub(in crate::template::expr) fn load(name: &str) -> Result<Self, Reason> {
        match name {
            "" | "UTC" => Ok(Self::Utc),
            "Local" => Ok(Self::Local),
            _ => Err(format!("unknown time zone {name}")),
        }
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
        }
    }

    /// Returns the offset at the instant when clocks show `local`.
    pub(super) fn offset_of_local(&self, local: NaiveDateTime) -> i32 {
        let guess = self.at(local).0;
        let utc = local
            .checked_sub_signed(TimeDelta::seconds(guess.into()))
            .unwrap_or(local);
        self.at(utc).0
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Utc => "UTC",
            Self::Local => "Local",
            Self::Fixed(_, name) => name,
        })
    }
}
