//! Sprig functions for arithmetic. Text, floats and booleans are converted like the Go library
//! `cast` does; a value that cannot be converted counts as 0.

use std::cmp::Ordering;

use crate::CallError;
use crate::go::call::{Args, CallResult, Native, takes, takes_from};
use crate::go::datum::{Datum, Element};

/// Returns the function with this name.
pub(super) fn find(name: &str) -> Option<Native> {
    Some(match name {
        "atoi" => takes(1, |args| Ok(Datum::Int(args.str(0)?.parse().unwrap_or(0)))),
        "int" => takes(1, |args| Ok(Datum::Int(to_int(args.any(0))))),
        "int64" => takes(1, |args| Ok(Datum::Int64(to_int(args.any(0))))),
        "float64" => takes(1, |args| Ok(Datum::Float(to_float(args.any(0))))),
        "toDecimal" => takes(1, |args| {
            let octal = i64::from_str_radix(&args.to_text(0)?, 8);
            Ok(Datum::Int64(octal.unwrap_or(0)))
        }),
        "add1" => takes(1, |args| {
            Ok(Datum::Int64(to_int(args.any(0)).wrapping_add(1)))
        }),
        "add" => takes_from(0, |args| {
            let sum = args.values.iter().map(to_int);
            Ok(Datum::Int64(sum.fold(0, i64::wrapping_add)))
        }),
        "sub" => takes(2, |args| whole(args, |a, b| Some(a.wrapping_sub(b)))),
        "mul" => takes_from(1, |args| {
            let product = args.values.iter().map(to_int);
            Ok(Datum::Int64(product.fold(1, i64::wrapping_mul)))
        }),
        "div" => takes(2, |args| {
            whole(args, |a, b| (b != 0).then(|| a.wrapping_div(b)))
        }),
        "mod" => takes(2, |args| {
            whole(args, |a, b| (b != 0).then(|| a.wrapping_rem(b)))
        }),
        "max" | "biggest" => takes_from(1, |args| {
            let most = args.values.iter().map(to_int).max();
            Ok(Datum::Int64(most.unwrap_or(0)))
        }),
        "min" => takes_from(1, |args| {
            let least = args.values.iter().map(to_int).min();
            Ok(Datum::Int64(least.unwrap_or(0)))
        }),
        "maxf" => takes_from(1, |args| extreme(args, Ordering::Greater)),
        "minf" => takes_from(1, |args| extreme(args, Ordering::Less)),
        "add1f" => takes(1, |args| {
            decimals(to_float(args.any(0)), &[Datum::Int(1)], Operation::Add)
        }),
        "addf" => takes_from(0, |args| decimals(0.0, args.values, Operation::Add)),
        "subf" => takes_from(1, |args| {
            decimals(to_float(args.any(0)), args.from(1), Operation::Subtract)
        }),
        "mulf" => takes_from(1, |args| {
            decimals(to_float(args.any(0)), args.from(1), Operation::Multiply)
        }),
        "divf" => takes_from(1, |args| {
            decimals(to_float(args.any(0)), args.from(1), Operation::Divide)
        }),
        "ceil" => takes(1, |args| Ok(Datum::Float(to_float(args.any(0)).ceil()))),
        "floor" => takes(1, |args| Ok(Datum::Float(to_float(args.any(0)).floor()))),
        "round" => takes_from(2, round),
        "until" => takes(1, |args| {
            let stop = args.int(0)?;
            until_step(args, 0, stop, if stop < 0 { -1 } else { 1 }).map(ints)
        }),
        "untilStep" => takes(3, |args| {
            until_step(args, args.int(0)?, args.int(1)?, args.int(2)?).map(ints)
        }),
        "seq" => takes_from(0, seq),
        _ => return None,
    })
}

/// Converts a value to an integer, or 0.
pub(super) fn to_int(datum: &Datum) -> i64 {
    match datum {
        Datum::Bool(value) => (*value).into(),
        Datum::Int(value) | Datum::Int64(value) => *value,
        // Go wraps around; the maximum is more useful.
        Datum::Uint(value) => i64::try_from(*value).unwrap_or(i64::MAX),
        #[expect(
            clippy::cast_possible_truncation,
            reason = "truncates the fraction on purpose"
        )]
        Datum::Float(value) => *value as i64,
        Datum::Str(text) => parse_int(text).unwrap_or(0),
        _ => 0,
    }
}

/// Parses an integer with Go's prefixes; `1.00` counts as an integer.
fn parse_int(text: &str) -> Option<i64> {
    let text = match text.split_once('.') {
        Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|b| b == b'0') => whole,
        _ => text,
    };
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, body) = match lower.get(..2) {
        Some("0x") => (16, lower.get(2..)?),
        Some("0b") => (2, lower.get(2..)?),
        Some("0o") => (8, lower.get(2..)?),
        Some(_) if lower.starts_with('0') => (8, lower.as_str()),
        _ => (10, lower.as_str()),
    };
    if body.starts_with(['+', '-']) {
        return None;
    }
    i64::from_str_radix(&format!("{sign}{}", body.replace('_', "")), radix).ok()
}

pub(super) fn to_float(datum: &Datum) -> f64 {
    match datum {
        Datum::Bool(value) => f64::from(u8::from(*value)),
        #[expect(
            clippy::cast_precision_loss,
            reason = "the conversion to a float is the purpose"
        )]
        Datum::Int(value) | Datum::Int64(value) => *value as f64,
        #[expect(
            clippy::cast_precision_loss,
            reason = "the conversion to a float is the purpose"
        )]
        Datum::Uint(value) => *value as f64,
        Datum::Float(value) => *value,
        Datum::Str(text) => text.parse().unwrap_or(0.0),
        _ => 0.0,
    }
}

fn whole(args: &Args<'_>, operation: fn(i64, i64) -> Option<i64>) -> CallResult {
    operation(to_int(args.any(0)), to_int(args.any(1)))
        .map(Datum::Int64)
        .ok_or("integer divide by zero".into())
}

fn extreme(args: &Args<'_>, wanted: Ordering) -> CallResult {
    let numbers = args.values.iter().map(to_float);
    let found = numbers.reduce(|best, next| {
        if best.is_nan() || next.partial_cmp(&best) == Some(wanted) {
            // A NaN is kept, as in Go.
            if best.is_nan() { best } else { next }
        } else if next.is_nan() {
            next
        } else {
            best
        }
    });
    Ok(Datum::Float(found.unwrap_or(0.0)))
}

fn round(args: &Args<'_>) -> CallResult {
    if args.len() > 3 {
        return Err("wrong number of args for round: want 2 or 3".into());
    }
    let value = to_float(args.any(0));
    let places = args.int(1)?;
    let threshold = match args.from(2) {
        [] => 0.5,
        [given, ..] => to_float(given),
    };
    let power = 10f64.powi(i32::try_from(places.clamp(-400, 400)).unwrap_or(0));
    let scaled = value * power;
    let rounded = if scaled.fract() >= threshold {
        scaled.ceil()
    } else {
        scaled.floor()
    };
    Ok(Datum::Float(rounded / power))
}

/// Returns the numbers from `start` to `stop`, exclusive, in either direction.
fn until_step(args: &Args<'_>, start: i64, stop: i64, step: i64) -> Result<Vec<i64>, CallError> {
    let up = step > 0 && start < stop;
    let down = step < 0 && stop < start;
    if !up && !down {
        return Ok(Vec::new());
    }
    let count = start.abs_diff(stop).div_ceil(step.unsigned_abs());
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    args.meter().steps(count)?;
    let numbers = std::iter::successors(Some(start), |number| number.checked_add(step));
    Ok(numbers.take(count).collect())
}

fn ints(numbers: Vec<i64>) -> Datum {
    Datum::list_of(Element::Int, numbers.into_iter().map(Datum::Int).collect())
}

/// Implements the arguments of the shell's `seq`: last; first and last; first, step and last.
fn seq(args: &Args<'_>) -> CallResult {
    let ends = |first: i64, last: i64| if last < first { -1 } else { 1 } as i64;
    let (first, step, last) = match args.len() {
        1 => (1, ends(1, args.int(0)?), args.int(0)?),
        2 => (args.int(0)?, ends(args.int(0)?, args.int(1)?), args.int(1)?),
        3 => (args.int(0)?, args.int(1)?, args.int(2)?),
        _ => return Ok("".into()),
    };
    let toward = ends(first, last);
    if toward < 0 && step > 0 {
        return Ok("".into());
    }
    let numbers = until_step(args, first, last.saturating_add(toward), step)?;
    let words: Vec<_> = numbers.iter().map(i64::to_string).collect();
    Ok(words.join(" ").into())
}

#[derive(Clone, Copy)]
enum Operation {
    Add,
    Subtract,
    Multiply,
    Divide,
}

/// Computes in decimal, so that 0.1 and 0.2 make 0.3.
fn decimals(first: f64, rest: &[Datum], operation: Operation) -> CallResult {
    let mut total = first;
    // Intermediate results are decimal as long as they fit, and floats after that.
    let mut exact = Decimal::from_float(first);
    for datum in rest {
        let next = to_float(datum);
        if matches!(operation, Operation::Divide) && next == 0.0 {
            return Err("decimal division by 0".into());
        }
        let decimal = Decimal::from_float(next);
        exact = exact.zip(decimal).and_then(|(a, b)| match operation {
            Operation::Add => a.add(b),
            Operation::Subtract => a.add(b.negated()),
            Operation::Multiply => a.multiply(b),
            Operation::Divide => a.divide(b),
        });
        total = match (&exact, operation) {
            (Some(exact), _) => exact.to_float(),
            (None, Operation::Add) => total + next,
            (None, Operation::Subtract) => total - next,
            (None, Operation::Multiply) => total * next,
            (None, Operation::Divide) => total / next,
        };
    }
    Ok(Datum::Float(total))
}

/// `digits` times ten to the power of minus `scale`.
#[derive(Clone, Copy)]
struct Decimal {
    digits: i128,
    scale: u32,
}

/// Number of decimals of a division, as in the Go library.
const DIVISION_SCALE: u32 = 16;

impl Decimal {
    fn from_float(value: f64) -> Option<Self> {
        if !value.is_finite() {
            return None;
        }
        let text = value.to_string();
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        let digits = format!("{whole}{fraction}").parse().ok()?;
        let scale = u32::try_from(fraction.len()).ok()?;
        Some(Self { digits, scale })
    }

    fn to_float(self) -> f64 {
        format!("{}e-{}", self.digits, self.scale)
            .parse()
            .unwrap_or(f64::NAN)
    }

    fn negated(self) -> Self {
        Self {
            digits: -self.digits,
            ..self
        }
    }

    fn scaled(self, scale: u32) -> Option<i128> {
        let shift = scale.checked_sub(self.scale)?;
        self.digits.checked_mul(10i128.checked_pow(shift)?)
    }

    fn add(self, other: Self) -> Option<Self> {
        let scale = self.scale.max(other.scale);
        let digits = self.scaled(scale)?.checked_add(other.scaled(scale)?)?;
        Some(Self { digits, scale })
    }

    fn multiply(self, other: Self) -> Option<Self> {
        Some(Self {
            digits: self.digits.checked_mul(other.digits)?,
            scale: self.scale.checked_add(other.scale)?,
        })
    }

    fn divide(self, other: Self) -> Option<Self> {
        // One extra digit, for rounding.
        let scale = DIVISION_SCALE + 1;
        let top = self.scaled((scale + other.scale).max(self.scale))?;
        let excess = self.scale.saturating_sub(scale + other.scale);
        let bottom = other.digits.checked_mul(10i128.checked_pow(excess)?)?;
        let quotient = top.checked_div(bottom)?;
        let rounded = (quotient + 5 * quotient.signum()) / 10;
        Some(Self {
            digits: rounded,
            scale: DIVISION_SCALE,
        })
    }
}
