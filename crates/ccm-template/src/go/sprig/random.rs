//! Sprig functions for random values, from the operating system's generator.
//!
//! A template that uses them renders differently every time, so a file with this content is never
//! stable.

use data_encoding::BASE64;

use crate::CallError;
use crate::go::call::{Args, CallResult, Native, takes};
use crate::go::datum::Datum;

const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const DIGITS: &str = "0123456789";

/// Returns the function with this name.
pub(super) fn find(name: &str) -> Option<Native> {
    Some(match name {
        "randAlphaNum" => takes(1, |args| random_text(args, &format!("{LETTERS}{DIGITS}"))),
        "randAlpha" => takes(1, |args| random_text(args, LETTERS)),
        "randNumeric" => takes(1, |args| random_text(args, DIGITS)),
        "randAscii" => takes(1, |args| {
            let printable: String = (' '..='~').collect();
            random_text(args, &printable)
        }),
        "randBytes" => takes(1, |args| {
            let mut bytes = vec![0; count(args)?];
            getrandom::fill(&mut bytes)?;
            Ok(BASE64.encode(&bytes).into())
        }),
        "randInt" => takes(2, rand_int),
        "shuffle" => takes(1, shuffle),
        "uuidv4" => takes(0, |_| uuid()),
        _ => return None,
    })
}

fn count(args: &Args<'_>) -> Result<usize, CallError> {
    let count = args.int(0)?;
    let count = usize::try_from(count).map_err(|_| format!("invalid length {count}"))?;
    args.meter().steps(count)?;
    Ok(count)
}

/// Returns a uniformly distributed number below `bound`.
fn random_below(bound: u64) -> Result<u64, CallError> {
    // Values from the incomplete last interval are rejected to avoid bias.
    let fair = u64::MAX - u64::MAX % bound.max(1);
    loop {
        let bits = getrandom::u64()?;
        if bits < fair {
            return Ok(bits % bound.max(1));
        }
    }
}

fn random_text(args: &Args<'_>, alphabet: &str) -> CallResult {
    let mut out = String::new();
    for _ in 0..count(args)? {
        let index = random_below(alphabet.len() as u64)?;
        let index = usize::try_from(index).unwrap_or(0);
        out.extend(alphabet.chars().nth(index));
    }
    Ok(out.into())
}

fn rand_int(args: &Args<'_>) -> CallResult {
    let (least, end) = (args.int(0)?, args.int(1)?);
    if least >= end {
        return Err(format!("randInt: {least} is not less than {end}").into());
    }
    let offset = random_below(least.abs_diff(end))?;
    Ok(Datum::Int(least.wrapping_add_unsigned(offset)))
}

fn shuffle(args: &Args<'_>) -> CallResult {
    let mut chars: Vec<char> = args.str(0)?.chars().collect();
    args.meter().steps(chars.len())?;
    for last in (1..chars.len()).rev() {
        let other = random_below(last as u64 + 1)?;
        chars.swap(last, usize::try_from(other).unwrap_or(last));
    }
    Ok(chars.into_iter().collect::<String>().into())
}

fn uuid() -> CallResult {
    let bits = u128::from(random_below(u64::MAX)?) << 64 | u128::from(random_below(u64::MAX)?);
    // Sets the fixed bits: version 4 and the variant of RFC 9562.
    let value = bits & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{value:032x}");
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or("").to_owned();
    let parts = [
        part(0, 8),
        part(8, 12),
        part(12, 16),
        part(16, 20),
        part(20, 32),
    ];
    Ok(parts.join("-").into())
}
