//! Sprig functions for cutting, joining, padding and quoting text.
//!
//! Positions count bytes, as in Go. A character cut in half is replaced by U+FFFD, so that the
//! result is valid text.

use std::sync::Arc;

use crate::go::call::{Args, CallResult, Native, takes, takes_from, to_text};
use crate::go::datum::{Datum, Element, Entries};
use crate::go::limits::Meter;
use crate::{CallError, text};
use ccm_value::quote::quote;

/// Returns the function with this name.
pub(super) fn find(name: &str) -> Option<Native> {
    Some(match name {
        "trim" => takes(1, |args| Ok(args.str(0)?.trim().into())),
        "trimall" | "trimAll" => takes(2, |args| {
            let (set, text) = (args.str(0)?, args.str(1)?);
            Ok(text.trim_matches(|c| set.contains(c)).into())
        }),
        "trimSuffix" => takes(2, |args| {
            let (end, text) = (args.str(0)?, args.str(1)?);
            Ok(text.strip_suffix(end).unwrap_or(text).into())
        }),
        "trimPrefix" => takes(2, |args| {
            let (start, text) = (args.str(0)?, args.str(1)?);
            Ok(text.strip_prefix(start).unwrap_or(text).into())
        }),
        "upper" => takes(1, |args| Ok(text::upper(args.str(0)?).into())),
        "lower" => takes(1, |args| Ok(text::lower(args.str(0)?).into())),
        "nospace" => takes(1, |args| {
            let text = args.str(0)?.chars().filter(|c| !c.is_whitespace());
            Ok(text.collect::<String>().into())
        }),
        "repeat" => takes(2, repeat),
        "replace" => takes(3, replace),
        "contains" => takes(2, |args| Ok(args.str(1)?.contains(args.str(0)?).into())),
        "hasPrefix" => takes(2, |args| Ok(args.str(1)?.starts_with(args.str(0)?).into())),
        "hasSuffix" => takes(2, |args| Ok(args.str(1)?.ends_with(args.str(0)?).into())),
        "trunc" => takes(2, trunc),
        "substr" => takes(3, substr),
        "abbrev" => takes(2, |args| abbreviate(args.str(1)?, 0, args.int(0)?)),
        "abbrevboth" => takes(3, |args| {
            abbreviate(args.str(2)?, args.int(0)?, args.int(1)?)
        }),
        "quote" => takes_from(0, |args| each_present(args, quote)),
        "squote" => takes_from(0, |args| each_present(args, |text| format!("'{text}'"))),
        "cat" => takes_from(0, |args| each_present(args, str::to_owned)),
        "indent" => takes(2, |args| Ok(indent(args)?.into())),
        "nindent" => takes(2, |args| Ok(format!("\n{}", indent(args)?).into())),
        "plural" => takes(3, |args| {
            let (one, many) = (args.str(0)?, args.str(1)?);
            Ok(if args.int(2)? == 1 { one } else { many }.into())
        }),
        "toString" => takes(1, |args| Ok(Datum::Str(args.to_text(0)?))),
        "toStrings" => takes(1, |args| {
            Ok(Datum::strings(strings(args.any(0), args.meter())?))
        }),
        "join" => takes(2, join),
        "sortAlpha" => takes(1, sort_alpha),
        "splitList" => takes(2, |args| {
            Ok(Datum::strings(pieces(args.str(0)?, args.str(1)?, None)))
        }),
        "split" => takes(2, |args| {
            Ok(numbered(pieces(args.str(0)?, args.str(1)?, None)))
        }),
        "splitn" => takes(3, |args| {
            let most = args.int(1)?;
            if most == 0 {
                return Ok(numbered(Vec::new()));
            }
            let most = usize::try_from(most).ok();
            Ok(numbered(pieces(args.str(0)?, args.str(2)?, most)))
        }),
        _ => return None,
    })
}

/// Returns the bytes of `text` from `start` to `end`, as valid text.
pub(super) fn cut(text: &str, start: usize, end: usize) -> String {
    let bytes = text.as_bytes().get(start..end).unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

fn repeat(args: &Args<'_>) -> CallResult {
    let (count, text) = (args.int(0)?, args.str(1)?);
    let count = usize::try_from(count).map_err(|_| "negative repeat count")?;
    args.meter().spend(text.len().saturating_mul(count))?;
    Ok(text.repeat(count).into())
}

fn replace(args: &Args<'_>) -> CallResult {
    let (old, new, text) = (args.str(0)?, args.str(1)?, args.str(2)?);
    let found = if old.is_empty() {
        text.len() + 1
    } else {
        text.matches(old).count()
    };
    let grown = text.len().saturating_add(found.saturating_mul(new.len()));
    args.meter().spend(grown)?;
    Ok(text.replace(old, new).into())
}

fn trunc(args: &Args<'_>) -> CallResult {
    let (count, text) = (args.int(0)?, args.str(1)?);
    let size = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if size >= text.len() {
        return Ok(text.into());
    }
    Ok(if count < 0 {
        cut(text, text.len() - size, text.len())
    } else {
        cut(text, 0, size)
    }
    .into())
}

fn substr(args: &Args<'_>) -> CallResult {
    let (start, end, text) = (args.int(0)?, args.int(1)?, args.str(2)?);
    let len = text.len();
    let start_at = usize::try_from(start).unwrap_or(0);
    let end_at = match usize::try_from(end) {
        Ok(end) if end <= len => end,
        // An end beyond the text is allowed only together with a start.
        _ if start >= 0 => len,
        _ => {
            return Err(format!("slice bounds out of range [:{end}] with length {len}").into());
        }
    };
    if start_at > end_at {
        return Err(format!("slice bounds out of range [{start}:{end_at}]").into());
    }
    Ok(cut(text, start_at, end_at).into())
}

/// Shortens to `width` bytes with dots, keeping the text at `offset`.
fn abbreviate(text: &str, offset: i64, width: i64) -> CallResult {
    if width < 4 || (offset > 0 && width < 7) {
        return Ok(text.into());
    }
    let width = usize::try_from(width).unwrap_or(usize::MAX);
    let len = text.len();
    if len <= width {
        return Ok(text.into());
    }
    let kept = width - 3;
    let offset = usize::try_from(offset).unwrap_or(0).min(len - kept);
    if offset <= 4 {
        return Ok(format!("{}...", cut(text, 0, kept)).into());
    }
    if offset + kept < len {
        // Dots on both sides.
        return Ok(format!("...{}...", cut(text, offset, offset + kept - 3)).into());
    }
    Ok(format!("...{}", cut(text, len - kept, len)).into())
}

/// Joins the non-nil arguments with spaces.
fn each_present(args: &Args<'_>, change: impl Fn(&str) -> String) -> CallResult {
    let mut out = Vec::new();
    for value in args.values {
        if !matches!(value, Datum::Nil) {
            let text = to_text(value, args.meter())?;
            args.meter().spend(text.len())?;
            out.push(change(&text));
        }
    }
    Ok(out.join(" ").into())
}

fn indent(args: &Args<'_>) -> Result<String, CallError> {
    let (blanks, text) = (args.int(0)?, args.str(1)?);
    let blanks = usize::try_from(blanks).map_err(|_| "negative repeat count")?;
    let lines = text.matches('\n').count() + 1;
    args.meter()
        .spend(text.len().saturating_add(lines.saturating_mul(blanks)))?;
    let pad = " ".repeat(blanks);
    Ok(format!("{pad}{}", text.replace('\n', &format!("\n{pad}"))))
}

/// Converts the items of a list to text, without nil; any other value becomes a list of one.
pub(super) fn strings(datum: &Datum, meter: &Meter) -> Result<Vec<Arc<str>>, CallError> {
    match datum {
        Datum::List(list) => list
            .items
            .iter()
            .filter(|item| !matches!(item, Datum::Nil))
            .map(|item| to_text(item, meter))
            .collect(),
        Datum::Nil => Ok(Vec::new()),
        other => Ok(vec![to_text(other, meter)?]),
    }
}

fn join(args: &Args<'_>) -> CallResult {
    let between = args.str(0)?;
    let items = strings(args.any(1), args.meter())?;
    let size = items
        .iter()
        .map(|item| item.len().saturating_add(between.len()))
        .fold(0, usize::saturating_add);
    args.meter().spend(size)?;
    Ok(items.join(between).into())
}

fn sort_alpha(args: &Args<'_>) -> CallResult {
    let mut items = strings(args.any(0), args.meter())?;
    items.sort();
    Ok(Datum::strings(items))
}

/// Splits like Go: an empty separator splits into characters, without empty ends.
fn pieces<'a>(separator: &str, text: &'a str, most: Option<usize>) -> Vec<&'a str> {
    let most = most.unwrap_or(usize::MAX);
    if !separator.is_empty() {
        return text.splitn(most, separator).collect();
    }
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if found.len() + 1 == most {
            found.push(rest);
            break;
        }
        let (head, after) = rest.split_at(c.len_utf8());
        found.push(head);
        rest = after;
    }
    found
}

/// Returns pieces as a map with the keys `_0`, `_1`, …
fn numbered(pieces: Vec<&str>) -> Datum {
    let entries: Entries = pieces
        .into_iter()
        .enumerate()
        .map(|(index, piece)| (format!("_{index}").into(), piece.into()))
        .collect();
    Datum::dict_of(Element::Text, entries)
}
