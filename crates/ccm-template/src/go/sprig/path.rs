//! Sprig functions for paths and environment variables. Paths are handled as text, without file
//! access; environment variables come from the root data.

use crate::go::call::{Args, CallResult, Native, takes};
use ccm_value::Value;

/// Returns the function with this name.
pub(super) fn find(name: &str) -> Option<Native> {
    Some(match name {
        "base" | "osBase" => takes(1, |args| Ok(base(args.str(0)?).into())),
        "dir" | "osDir" => takes(1, |args| {
            let path = args.str(0)?;
            let dir = path
                .rfind('/')
                .map_or("", |at| path.get(..=at).unwrap_or(""));
            Ok(clean(dir).into())
        }),
        "clean" | "osClean" => takes(1, |args| Ok(clean(args.str(0)?).into())),
        "ext" | "osExt" => takes(1, |args| {
            let path = args.str(0)?;
            let name = path.rsplit('/').next().unwrap_or("");
            let ext = name.rfind('.').and_then(|at| name.get(at..));
            Ok(ext.unwrap_or("").into())
        }),
        "isAbs" | "osIsAbs" => takes(1, |args| Ok(args.str(0)?.starts_with('/').into())),
        "env" => takes(1, |args| Ok(variable(args, args.str(0)?).into())),
        "expandenv" => takes(1, expand),
        _ => return None,
    })
}

fn base(path: &str) -> &str {
    if path.is_empty() {
        return ".";
    }
    match path.trim_end_matches('/') {
        "" => "/",
        path => path.rsplit('/').next().unwrap_or(path),
    }
}

/// Returns the shortest equivalent path: no empty or `.` parts, `..` resolved.
fn clean(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut kept: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => match kept.last() {
                Some(&last) if last != ".." => {
                    kept.pop();
                }
                _ if rooted => {}
                _ => kept.push(part),
            },
            part => kept.push(part),
        }
    }
    match (rooted, kept.join("/")) {
        (true, rest) => format!("/{rest}"),
        (false, rest) if rest.is_empty() => ".".into(),
        (false, rest) => rest,
    }
}

fn variable<'a>(args: &Args<'a>, name: &str) -> &'a str {
    let found = args.context.environ.and_then(|environ| environ.get(name));
    found.and_then(Value::as_str).unwrap_or("")
}

/// Replaces `$NAME` and `${NAME}`; an unknown name becomes empty text.
fn expand(args: &Args<'_>) -> CallResult {
    let mut out = String::new();
    let mut rest = args.str(0)?;
    while let Some((plain, after)) = rest.split_once('$') {
        out.push_str(plain);
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let is_special = |c: char| c.is_ascii_digit() || "*#$@!?-".contains(c);
        let (name, tail) = if let Some(braced) = after.strip_prefix('{') {
            match braced.split_once('}') {
                Some((name, tail)) => (name, tail),
                // Go drops an unclosed brace.
                None => ("", braced),
            }
        } else if after.starts_with(is_special) {
            after.split_at(1)
        } else {
            after.split_at(after.find(|c| !is_name(c)).unwrap_or(after.len()))
        };
        if name.is_empty() && !after.starts_with('{') {
            out.push('$');
        }
        let value = variable(args, name);
        args.meter().spend(plain.len() + value.len())?;
        out.push_str(value);
        rest = tail;
    }
    out.push_str(rest);
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_as_in_go() {
        let cases = [
            ("", "."),
            ("/", "/"),
            ("a//b/./c", "a/b/c"),
            ("a/../..", ".."),
            ("/../a", "/a"),
            ("../../x", "../../x"),
        ];
        for (path, expected) in cases {
            assert_eq!(clean(path), expected, "{path}");
        }
    }
}
