//! Chance, from the operating system: passwords are made of this.
//!
//! A template that uses it renders differently every time, so the file it makes is never stable.

use data_encoding::BASE64;

use crate::CallError;
use crate::go::call::{Answer, Args, Native, takes};
use crate::go::datum::Datum;

const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const DIGITS: &str = "0123456789";

/// Returns the function of a name.
pub(super) fn find(name: &str) -> Option<Native> {
    Some(match name {
        "randAlphaNum" => takes(1, |args| drawn(args, &format!("{LETTERS}{DIGITS}"))),
        "randAlpha" => takes(1, |args| drawn(args, LETTERS)),
        "randNumeric" => takes(1, |args| drawn(args, DIGITS)),
        "randAscii" => takes(1, |args| {
            let printable: String = (' '..='~').collect();
            drawn(args, &printable)
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
    let count = usize::try_from(count).map_err(|_| format!("cannot make {count} characters"))?;
    args.meter().steps(count)?;
    Ok(count)
}

/// Returns a number below `bound`, each as likely as the others.
fn below(bound: u64) -> Result<u64, CallError> {
    // Draws from the uneven rest of the range are thrown away.
    let fair = u64::MAX - u64::MAX % bound.max(1);
    loop {
        let drawn = getrandom::u64()?;
        if drawn < fair {
            return Ok(drawn % bound.max(1));
        }
    }
}

fn drawn(args: &Args<'_>, alphabet: &str) -> Answer {
    let mut out = String::new();
    for _ in 0..count(args)? {
        let index = below(alphabet.len() as u64)?;
        let index = usize::try_from(index).unwrap_or(0);
        out.extend(alphabet.chars().nth(index));
    }
    Ok(out.into())
}

fn rand_int(args: &Args<'_>) -> Answer {
    let (least, end) = (args.int(0)?, args.int(1)?);
    if least >= end {
        return Err(format!("there is no number from {least} to below {end}").into());
    }
    let offset = below(least.abs_diff(end))?;
    Ok(Datum::Int(least.wrapping_add_unsigned(offset)))
}

fn shuffle(args: &Args<'_>) -> Answer {
    let mut chars: Vec<char> = args.str(0)?.chars().collect();
    args.meter().steps(chars.len())?;
    for last in (1..chars.len()).rev() {
        let other = below(last as u64 + 1)?;
        chars.swap(last, usize::try_from(other).unwrap_or(last));
    }
    Ok(chars.into_iter().collect::<String>().into())
}

fn uuid() -> Answer {
    let drawn = u128::from(below(u64::MAX)?) << 64 | u128::from(below(u64::MAX)?);
    // Version 4 and the variant of RFC 9562 have fixed bits.
    let value = drawn & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
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
