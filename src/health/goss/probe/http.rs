//! Web pages: the status, the headers and the body of an answer. Who sends the request is not
//! known here: a function is handed in.

use std::time::Duration;

use super::super::document::Entry;
use super::{Attribute, Family, First, Look, Setting, World, unanswered};
use crate::model::secret::Secret;

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

/// Sends a request and returns the answer, or why there is none. Must end in the request's time
/// and keep bodies within a bound of its own.
pub type Fetch<'f> = dyn Fn(&HttpRequest) -> Result<HttpResponse, String> + Send + Sync + 'f;

/// A request as a rule words it.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    pub url: String,
    pub method: String,
    /// Names and values, the agent's included.
    pub headers: Vec<(String, String)>,
    pub body: String,
    /// The user and password of basic authentication.
    pub credentials: Option<(String, Secret)>,
    /// How long all of it may take.
    pub timeout: Duration,
    pub follow_redirects: bool,
    /// Any certificate will do.
    pub allow_insecure: bool,
    /// Certificates of authorities that are trusted, in a file.
    pub ca_file: Option<String>,
    /// Our own certificate and its key, in files.
    pub cert_file: Option<String>,
    pub key_file: Option<String>,
    pub proxy: Option<String>,
}

/// What a server answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpResponse {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

fn look<'a>(entry: &'a Entry, world: &'a World<'a>) -> Result<Look<'a>, String> {
    let fetch = world
        .probes
        .http
        .ok_or("http checks are not available here")?;
    let response = fetch(&request(entry, world.limit(entry, 5_000))?)?;
    Ok(Box::new(move |attribute| match attribute {
        "status" => Ok(i64::from(response.status).into()),
        "headers" => {
            let headers = response.headers.iter();
            let mut lines: Vec<String> = headers
                .map(|(name, value)| format!("{name}: {value}"))
                .collect();
            lines.sort();
            Ok(lines.join("\n").into())
        }
        "body" => Ok(String::from_utf8_lossy(&response.body).as_ref().into()),
        other => unanswered(other),
    }))
}

fn request(entry: &Entry, timeout: Duration) -> Result<HttpRequest, String> {
    let given = |name: &str| entry.text(name).filter(|text| !text.is_empty());
    let mut headers = vec![("User-Agent".to_owned(), AGENT.to_owned())];
    for line in entry.texts("request-headers") {
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| format!("request header {line:?} has no colon"))?;
        headers.retain(|(known, _)| known != "User-Agent" || !name.eq_ignore_ascii_case(known));
        headers.push((name.trim().to_owned(), value.trim().to_owned()));
    }
    let password = Secret::new(given("password").unwrap_or_default());
    Ok(HttpRequest {
        url: entry.target(),
        method: given("method").unwrap_or_else(|| "GET".to_owned()),
        headers,
        body: given("request-body").unwrap_or_default(),
        credentials: given("username").map(|user| (user, password)),
        timeout,
        follow_redirects: !entry.flag("no-follow-redirects"),
        allow_insecure: entry.flag("allow-insecure"),
        ca_file: given("ca-file"),
        cert_file: given("cert-file"),
        key_file: given("key-file"),
        proxy: given("proxy"),
    })
}
