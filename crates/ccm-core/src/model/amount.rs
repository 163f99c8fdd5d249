//! Amounts of nodes: a count (`10`) or a percentage (`5%`).
//!
//! A percentage of nodes is rounded up, so it is at least one node: `1%` of twenty nodes is one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::text::quote;

/// Invalid amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    #[error("invalid amount {}: expected a number such as 10, or a percentage such as 5%", quote(.0))]
    Amount(String),
    #[error("invalid percentage {}: expected 0.01% to 100%", quote(.0))]
    Percent(String),
}

/// Percentage in hundredths of a percent: 1 to 10,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Percent(u32);

impl Percent {
    const WHOLE: u32 = 10_000;

    pub const ALL: Self = Self(Self::WHOLE);

    /// Returns this percentage of a number of nodes, rounded up.
    pub fn of(self, whole: usize) -> usize {
        let part = (whole as u128 * u128::from(self.0)).div_ceil(u128::from(Self::WHOLE));
        usize::try_from(part).unwrap_or(whole)
    }

    /// Reports whether `part` is more than this percentage of `whole`.
    pub fn is_exceeded(self, part: usize, whole: usize) -> bool {
        part as u128 * u128::from(Self::WHOLE) > whole as u128 * u128::from(self.0)
    }
}

impl FromStr for Percent {
    type Err = AmountError;

    /// Parses `5%`, `0.5%` or `5`.
    fn from_str(text: &str) -> Result<Self, AmountError> {
        let bad = || AmountError::Percent(text.into());
        let number = text.strip_suffix('%').unwrap_or(text);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !is_digits(whole) || !is_digits(fraction) || fraction.len() > 2 {
            return Err(bad());
        }
        let whole: u32 = whole.parse().map_err(|_| bad())?;
        let hundredths: u32 = format!("{fraction:0<2}").parse().map_err(|_| bad())?;
        whole
            .checked_mul(100)
            .and_then(|number| number.checked_add(hundredths))
            .filter(|number| (1..=Self::WHOLE).contains(number))
            .map(Self)
            .ok_or_else(bad)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, hundredths) = (self.0 / 100, self.0 % 100);
        match hundredths {
            0 => write!(out, "{whole}%"),
            tenths if tenths % 10 == 0 => write!(out, "{whole}.{}%", tenths / 10),
            _ => write!(out, "{whole}.{hundredths:02}%"),
        }
    }
}

/// Count or percentage of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Amount {
    Count(usize),
    Percent(Percent),
}

impl Amount {
    /// Returns the amount of a number of nodes, at most that number.
    pub fn of(self, whole: usize) -> usize {
        match self {
            Self::Count(count) => count.min(whole),
            Self::Percent(percent) => percent.of(whole),
        }
    }
}

impl FromStr for Amount {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        if text.ends_with('%') {
            return text.parse().map(Self::Percent);
        }
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let count = text.parse().ok().filter(|_| is_number);
        count
            .map(Self::Count)
            .ok_or_else(|| AmountError::Amount(text.into()))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(out, "{count}"),
            Self::Percent(percent) => write!(out, "{percent}"),
        }
    }
}

macro_rules! string_conversions {
    ($($name:ident),*) => {$(
        impl TryFrom<String> for $name {
            type Error = AmountError;

            fn try_from(text: String) -> Result<Self, AmountError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(amount: $name) -> Self {
                amount.to_string()
            }
        }
    )*};
}

string_conversions!(Percent, Amount);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_a_count_or_a_percentage() {
        for text in ["0", "10", "5%", "100%", "0.5%", "2.25%", "0.01%"] {
            assert_eq!(text.parse::<Amount>().unwrap().to_string(), text);
        }
        for text in [
            "", "-1", "+1", "0%", "101%", "5.123%", "%", "a", ".5%", "1e2",
        ] {
            assert!(text.parse::<Amount>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_percentage_is_rounded_up_to_at_least_one_node() {
        for (text, whole, part) in [
            ("5%", 100, 5),
            ("5%", 101, 6),
            ("1%", 20, 1),
            ("0.01%", 3, 1),
            ("100%", 7, 7),
            ("50%", 0, 0),
            ("3", 2, 2),
        ] {
            assert_eq!(text.parse::<Amount>().unwrap().of(whole), part, "{text}");
        }
        assert_eq!(Percent::ALL.of(usize::MAX), usize::MAX);
    }

    #[test]
    fn a_percentage_is_exceeded_by_more_than_itself() {
        let five: Percent = "5".parse().unwrap();
        assert!(!five.is_exceeded(5, 100));
        assert!(five.is_exceeded(6, 100));
        assert!(!five.is_exceeded(0, 0));
    }
}
