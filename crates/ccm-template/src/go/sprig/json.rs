//! Sprig functions for JSON, in the format of Go's encoder. Parsed numbers are floats, as in Go.

use crate::CallError;
use crate::go::call::{Args, Native, takes};
use crate::go::datum::Datum;
use crate::path::with_float_numbers;
use ccm_value::{Value, json};

/// Returns the function with this name.
pub(super) fn find(name: &str) -> Option<Native> {
    Some(match name {
        // Only `mustFromJson` reports invalid JSON.
        "fromJson" => takes(1, |args| Ok(from_json(args.str(0)?).unwrap_or_default())),
        "mustFromJson" => takes(1, |args| from_json(args.str(0)?)),
        "toJson" | "mustToJson" => takes(1, |args| Ok(to_json(args, json::compact)?.into())),
        "toPrettyJson" | "mustToPrettyJson" => {
            takes(1, |args| Ok(to_json(args, json::pretty)?.into()))
        }
        "toRawJson" | "mustToRawJson" => takes(1, |args| {
            Ok(unescape_html(&to_json(args, json::compact)?).into())
        }),
        _ => return None,
    })
}

fn from_json(text: &str) -> Result<Datum, CallError> {
    let value: Value = serde_json::from_str(text)?;
    Ok(Datum::from_value(&with_float_numbers(value)))
}

fn to_json(
    args: &Args<'_>,
    write: fn(&Value) -> Result<String, serde_json::Error>,
) -> Result<String, CallError> {
    let value = args.any(0).to_value(args.meter())?;
    let text = write(&value)?;
    args.meter().spend(text.len())?;
    Ok(text)
}

/// Reverts the escapes of HTML characters.
fn unescape_html(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some((plain, escape)) = rest.split_once('\\') {
        out.push_str(plain);
        let html = [("u003c", '<'), ("u003e", '>'), ("u0026", '&')]
            .into_iter()
            .find_map(|(code, c)| Some((c, escape.strip_prefix(code)?)));
        rest = match html {
            Some((c, after)) => {
                out.push(c);
                after
            }
            None => {
                // Copies the escaped character with its backslash: it may be a backslash itself.
                out.push('\\');
                let mut chars = escape.chars();
                out.extend(chars.next());
                chars.as_str()
            }
        };
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_escapes_of_html_characters_are_reverted() {
        assert_eq!(
            unescape_html(r#""\u003ca\\u003c\u0026\n\u2028""#),
            r#""<a\\u003c&\n\u2028""#
        );
    }
}
