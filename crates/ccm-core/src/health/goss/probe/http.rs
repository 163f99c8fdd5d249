//! Web pages: the status, the headers and the body of an answer, whatever it is. How a request
//! travels, and with whom it may share what the rule gave it, is the client's.

use std::io::Write;
use std::path::PathBuf;

use super::super::document::Entry;
use super::{Attribute, Family, First, Look, LookError, Setting, World, unanswered};
use crate::model::secret::Secret;
use crate::system::http::{self, Head, Request, Trust};

/// What servers are told that we are.
const AGENT: &str = concat!("goss/", env!("CARGO_PKG_VERSION"));

pub(super) const FAMILY: Family = Family {
    key: "http",
    name: "HTTP",
    target: "url",
    settings: &[
        ("method", Setting::Text),
        Setting::TIMEOUT,
        ("allow-insecure", Setting::Flag),
        ("no-follow-redirects", Setting::Flag),
        ("request-headers", Setting::Texts),
        ("request-body", Setting::Text),
        ("username", Setting::Text),
        ("password", Setting::Text),
        ("ca-file", Setting::Text),
        ("cert-file", Setting::Text),
        ("key-file", Setting::Text),
        ("proxy", Setting::Text),
    ],
    attributes: &[
        Attribute::new("status"),
        Attribute::stream("headers").shown_as("Headers"),
        Attribute::stream("body").shown_as("Body"),
    ],
    first: First::Gate,
    look,
};

/// The largest body that is looked at.
const MAX_BODY_BYTES: u64 = 64 << 20;

fn look<'a>(entry: &'a Entry, world: &'a World<'a>) -> Result<Look<'a>, LookError> {
    let (head, body) = ask(entry, world)?;
    Ok(Box::new(move |attribute| match attribute {
        "status" => Ok(i64::from(head.status).into()),
        "headers" => {
            let headers = head.headers.iter();
            let mut lines: Vec<String> = headers
                .map(|(name, value)| format!("{}: {value}", canonical(name)))
                .collect();
            lines.sort();
            Ok(lines.join("\n").into())
        }
        "body" => Ok(String::from_utf8_lossy(&body).as_ref().into()),
        other => unanswered(other),
    }))
}

/// Sends the request of a rule. A body that no one asks about is not read.
fn ask(entry: &Entry, world: &World<'_>) -> Result<(Head, Vec<u8>), LookError> {
    let given = |name: &str| entry.text(name).filter(|text| !text.is_empty());
    let [method, user, password, sent, proxy] =
        ["method", "username", "password", "request-body", "proxy"].map(given);
    let [ca_file, certificate, key] =
        ["ca-file", "cert-file", "key-file"].map(|name| given(name).map(PathBuf::from));
    let has_user = user.is_some() || password.is_some();
    let (user, password) = (user.unwrap_or_default(), password.unwrap_or_default());
    let password = Secret::new(password);
    let headers = headers(entry)?;

    let url = entry.target();
    let mut request = Request::new(&url, world.limit(entry, 5_000), MAX_BODY_BYTES);
    request.method = method.as_deref().unwrap_or("GET");
    request.credentials = has_user.then_some((user.as_str(), &password));
    request.headers = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value))
        .collect();
    request.body = sent.as_deref().unwrap_or_default().as_bytes();
    request.follows_redirects = !entry.flag("no-follow-redirects");
    request.trust = Trust {
        ca_file: ca_file.as_deref(),
        believes_anyone: entry.flag("allow-insecure"),
        identity: match (&certificate, &key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(LookError::HalfIdentity),
        },
    };
    request.proxy = proxy.as_deref();

    let mut body = Vec::new();
    let into = entry.expects("body").then_some(&mut body as &mut dyn Write);
    let head = http::fetch(&request, world.probes.clock, into)?;
    Ok((head, body))
}

/// Returns the headers of a request, with a name for ourselves unless the rule has one.
fn headers(entry: &Entry) -> Result<Vec<(String, Secret)>, LookError> {
    let mut headers = Vec::new();
    for line in entry.texts("request-headers") {
        // What follows a colon may be a secret.
        let (name, value) = line.split_once(':').ok_or(LookError::Header)?;
        headers.push((name.trim().to_owned(), Secret::new(value.trim())));
    }
    let is_named = |(name, _): &(String, Secret)| name.eq_ignore_ascii_case("user-agent");
    if !headers.iter().any(is_named) {
        headers.push(("User-Agent".into(), Secret::new(AGENT)));
    }
    Ok(headers)
}

/// Returns the name of a header as rules write it: `Content-Type`.
fn canonical(name: &str) -> String {
    let words = name.split('-').map(|word| {
        let mut word = word.to_ascii_lowercase();
        if let Some(first) = word.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        word
    });
    words.collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn header_names_are_written_as_rules_have_them() {
        for (name, shown) in [
            ("content-type", "Content-Type"),
            ("x-XSS-protection", "X-Xss-Protection"),
            ("etag", "Etag"),
            ("-", "-"),
        ] {
            assert_eq!(canonical(name), shown);
        }
    }
}
