//! Type `http`: status, headers and body of a response.

use std::io::Write;
use std::path::PathBuf;

use super::super::document::Entry;
use super::{
    Attribute, AttributeReader, FirstAttribute, InspectError, ProbeContext, ResourceType, Setting,
    not_implemented,
};
use crate::model::secret::Secret;
use crate::system::http::{self, Head, Request, TlsOptions};

/// The `User-Agent` header.
const USER_AGENT: &str = concat!("goss/", env!("CARGO_PKG_VERSION"));

pub(super) const RESOURCE_TYPE: ResourceType = ResourceType {
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
    first: FirstAttribute::Prerequisite,
    inspect,
};

/// The largest body that is read.
const MAX_BODY_BYTES: u64 = 64 << 20;

fn inspect<'a>(
    entry: &'a Entry,
    context: &'a ProbeContext<'a>,
) -> Result<AttributeReader<'a>, InspectError> {
    let (head, body) = send(entry, context)?;
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
        other => not_implemented(other),
    }))
}

/// Sends the request of a rule. The body is read only if it is tested.
fn send(entry: &Entry, context: &ProbeContext<'_>) -> Result<(Head, Vec<u8>), InspectError> {
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
    let mut request = Request::new(&url, context.limit(entry, 5_000), MAX_BODY_BYTES);
    request.method = method.as_deref().unwrap_or("GET");
    request.credentials = has_user.then_some((user.as_str(), &password));
    request.headers = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value))
        .collect();
    request.body = sent.as_deref().unwrap_or_default().as_bytes();
    request.follows_redirects = !entry.flag("no-follow-redirects");
    request.tls = TlsOptions {
        ca_file: ca_file.as_deref(),
        accepts_any_certificate: entry.flag("allow-insecure"),
        client_certificate: match (&certificate, &key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(InspectError::IncompleteClientCertificate),
        },
    };
    request.proxy = proxy.as_deref();

    let mut body = Vec::new();
    let into = entry.expects("body").then_some(&mut body as &mut dyn Write);
    let head = http::fetch(&request, context.probes.clock, into)?;
    Ok((head, body))
}

/// Returns the headers of a request, with a default user agent.
fn headers(entry: &Entry) -> Result<Vec<(String, Secret)>, InspectError> {
    let mut headers = Vec::new();
    for line in entry.texts("request-headers") {
        // The value may be a secret.
        let (name, value) = line.split_once(':').ok_or(InspectError::Header)?;
        headers.push((name.trim().to_owned(), Secret::new(value.trim())));
    }
    let is_named = |(name, _): &(String, Secret)| name.eq_ignore_ascii_case("user-agent");
    if !headers.iter().any(is_named) {
        headers.push(("User-Agent".into(), Secret::new(USER_AGENT)));
    }
    Ok(headers)
}

/// Returns the name of a header in Go's canonical form: `Content-Type`.
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
    fn header_names_are_canonicalized() {
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
