//! Sprig functions for URLs and host names, without network access.

use std::net::IpAddr;

use crate::go::call::{Args, CallResult, Native, takes};
use crate::go::datum::{Datum, Entries};
use crate::text::percent;
use ccm_value::quote::quote;

/// Returns the function with this name.
pub(super) fn find(name: &str) -> Option<Native> {
    Some(match name {
        "urlParse" => takes(1, |args| parse(args.str(0)?)),
        "urlJoin" => takes(1, join),
        "getHostByName" => takes(1, host),
        _ => return None,
    })
}

/// Implements `getHostByName` for `localhost` and addresses; a caller with network access provides
/// its own function.
fn host(args: &Args<'_>) -> CallResult {
    match args.str(0)? {
        "localhost" => Ok("127.0.0.1".into()),
        name if name.parse::<IpAddr>().is_ok() => Ok(name.into()),
        name => Err(format!("host name lookup of {name} is not available here").into()),
    }
}

fn parse(text: &str) -> CallResult {
    let failed = |reason: &str| format!("unable to parse url: parse {}: {reason}", quote(text));
    if text.chars().any(|c| c.is_ascii_control()) {
        return Err(failed("invalid control character in URL").into());
    }
    let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
    let (scheme, rest) = scheme(rest).map_err(failed)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut opaque = "";
    let (mut userinfo, mut host, mut path) = ("", "", rest);
    if let Some(after) = rest.strip_prefix("//") {
        let end = after.find('/').unwrap_or(after.len());
        let (authority, tail) = after.split_at(end);
        (userinfo, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        path = tail;
    } else if !scheme.is_empty() && !rest.starts_with('/') {
        (opaque, path) = (rest, "");
    } else if scheme.is_empty() && rest.split('/').next().is_some_and(|s| s.contains(':')) {
        return Err(failed("first path segment in URL cannot contain colon").into());
    }
    let decoded = |part: &str| decode(part).ok_or_else(|| failed("invalid URL escape"));
    let entries: [(&str, String); 8] = [
        ("scheme", scheme.to_ascii_lowercase()),
        ("host", decoded(host)?),
        ("hostname", hostname(host).map_err(failed)?.to_owned()),
        ("path", decoded(path)?),
        ("query", query.to_owned()),
        ("opaque", opaque.to_owned()),
        ("fragment", decoded(fragment)?),
        ("userinfo", userinfo.to_owned()),
    ];
    let entries: Entries = entries
        .into_iter()
        .map(|(key, value)| (key.into(), value.into()))
        .collect();
    Ok(Datum::dict(entries))
}

/// Splits off the scheme, if there is one.
fn scheme(text: &str) -> Result<(&str, &str), &'static str> {
    let len = text
        .find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c)))
        .unwrap_or(text.len());
    let (scheme, rest) = text.split_at(len);
    match rest.strip_prefix(':') {
        Some(_) if scheme.is_empty() => Err("missing protocol scheme"),
        Some(after) if scheme.starts_with(|c: char| c.is_ascii_alphabetic()) => Ok((scheme, after)),
        _ => Ok(("", text)),
    }
}

/// Returns a host without its port, and an IPv6 address without its brackets.
fn hostname(host: &str) -> Result<&str, &'static str> {
    if let Some(address) = host.strip_prefix('[') {
        return match address.split_once(']') {
            Some((address, _)) => Ok(address),
            None => Err("missing ']' in host"),
        };
    }
    let allowed = |c: char| !c.is_ascii() || c.is_ascii_graphic() && !"#/?@\\^`{|}".contains(c);
    if !host.chars().all(allowed) {
        return Err("invalid character in host name");
    }
    match host.rsplit_once(':') {
        Some((_, port)) if !port.bytes().all(|b| b.is_ascii_digit()) => Err("invalid port"),
        Some((name, _)) => Ok(name),
        None => Ok(host),
    }
}

fn join(args: &Args<'_>) -> CallResult {
    let dict = args.dict(0)?;
    let entry = |key: &str| match dict.entries.borrow().get(key) {
        None => Ok(String::new()),
        Some(Datum::Str(text)) => Ok(text.to_string()),
        Some(other) => Err(format!(
            "unable to parse {key} key, must be of type string, but {} found",
            other.kind_name()
        )),
    };
    let (scheme, host, userinfo) = (entry("scheme")?, entry("host")?, entry("userinfo")?);
    let (path, opaque) = (entry("path")?, entry("opaque")?);
    let (query, fragment) = (entry("query")?, entry("fragment")?);
    let mut out = String::new();
    if !scheme.is_empty() {
        out.push_str(&scheme);
        out.push(':');
    }
    if opaque.is_empty() {
        if !host.is_empty()
            || !userinfo.is_empty()
            || (!scheme.is_empty() && path.starts_with("//"))
        {
            out.push_str("//");
            if !userinfo.is_empty() {
                out.push_str(&userinfo);
                out.push('@');
            }
            out.push_str(&percent(&host, "!$&'()*+,;=:[]<>\""));
            if !path.is_empty() && !path.starts_with('/') && !host.is_empty() {
                out.push('/');
            }
        }
        // A colon in the first part of a relative path would be read as a scheme.
        let first = path.split('/').next().unwrap_or("");
        if out.is_empty() && first.contains(':') {
            out.push_str("./");
        }
        out.push_str(&percent(&path, "$&+,/:;=@"));
    } else {
        out.push_str(&opaque);
    }
    if !query.is_empty() {
        out.push('?');
        out.push_str(&query);
    }
    if !fragment.is_empty() {
        out.push('#');
        out.push_str(&percent(&fragment, "!$&'()*+,/:;=?@"));
    }
    args.meter().spend(out.len())?;
    Ok(out.into())
}

fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let code = digit()? * 16 + digit()?;
        out.push(u8::try_from(code).ok()?);
    }
    String::from_utf8(out).ok()
}
