//! Sprig functions for regular expressions. The syntax is in `crate::pattern`.

use regex::NoExpand;

use crate::go::call::{Args, CallResult, Native, takes};
use crate::go::datum::Datum;
use crate::pattern::compile;

/// Returns the function with this name.
pub(super) fn find(name: &str) -> Option<Native> {
    Some(match name {
        // An invalid pattern matches nothing; only `must` reports it.
        "regexMatch" => takes(2, |args| {
            let text = args.str(1)?;
            Ok(compile(args.str(0)?)
                .is_ok_and(|regex| regex.is_match(text))
                .into())
        }),
        "mustRegexMatch" => takes(2, |args| {
            Ok(compile(args.str(0)?)?.is_match(args.str(1)?).into())
        }),
        "regexFind" | "mustRegexFind" => takes(2, |args| {
            let found = compile(args.str(0)?)?.find(args.str(1)?);
            Ok(found.map_or("", |found| found.as_str()).into())
        }),
        "regexFindAll" | "mustRegexFindAll" => takes(3, |args| {
            let regex = compile(args.str(0)?)?;
            let found = regex.find_iter(args.str(1)?).map(|found| found.as_str());
            Ok(Datum::strings(found.take(at_most(args.int(2)?))))
        }),
        "regexReplaceAll" | "mustRegexReplaceAll" => takes(3, |args| replace(args, false)),
        "regexReplaceAllLiteral" | "mustRegexReplaceAllLiteral" => {
            takes(3, |args| replace(args, true))
        }
        "regexSplit" | "mustRegexSplit" => takes(3, split),
        "regexQuoteMeta" => takes(1, |args| Ok(quote_meta(args.str(0)?).into())),
        _ => return None,
    })
}

/// Converts a count; a negative one means all.
fn at_most(count: i64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn replace(args: &Args<'_>, literally: bool) -> CallResult {
    let regex = compile(args.str(0)?)?;
    let (text, with) = (args.str(1)?, args.str(2)?);
    // Each match grows at most by the replacement and by the groups it inserts.
    let groups = if literally {
        0
    } else {
        with.matches('$').count()
    };
    let matches = regex.find_iter(text).count();
    let grown = matches
        .saturating_mul(with.len())
        .saturating_add(groups.saturating_mul(text.len()))
        .saturating_add(text.len());
    args.meter().spend(grown)?;
    let out = if literally {
        regex.replace_all(text, NoExpand(with))
    } else {
        regex.replace_all(text, with)
    };
    Ok(out.into_owned().into())
}

fn split(args: &Args<'_>) -> CallResult {
    let regex = compile(args.str(0)?)?;
    let (text, most) = (args.str(1)?, at_most(args.int(2)?));
    if most == 0 {
        return Ok(Datum::strings(Vec::<&str>::new()));
    }
    if text.is_empty() {
        return Ok(Datum::strings([""]));
    }
    let mut pieces = Vec::new();
    let mut start = 0;
    for found in regex.find_iter(text) {
        if pieces.len() + 1 >= most {
            break;
        }
        // An empty match at the start splits nothing off.
        if found.end() == 0 {
            continue;
        }
        pieces.push(text.get(start..found.start()).unwrap_or(""));
        start = found.end();
    }
    if start != text.len() || pieces.is_empty() || !regex.is_match("") {
        pieces.push(text.get(start..).unwrap_or(""));
    }
    Ok(Datum::strings(pieces))
}

/// Escapes the characters that Go's `QuoteMeta` escapes, fewer than Rust's `regex::escape`.
fn quote_meta(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
