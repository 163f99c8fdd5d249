//! One URL on the way to a body: what is sent there, and where it may lead.
//!
//! Credentials live in the URL of the hop and are gone with it. Whatever the author gave for the
//! first host goes to that host only; once a redirect has left it, nothing brings it back.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, USER_AGENT,
};
use reqwest::{Client, RequestBuilder, Url};

use super::{HttpError, Request, trust};
use crate::model::secret::{Secret, redact_url};

/// How we introduce ourselves.
const AGENT: &str = concat!("ccm/", env!("CARGO_PKG_VERSION"));

/// A URL and what goes to its host.
#[derive(Debug)]
pub(super) struct Hop {
    url: Url,
    headers: HeaderMap,
}

impl Hop {
    /// Returns where a request starts.
    pub(super) fn first(request: &Request<'_>) -> Result<Self, HttpError> {
        if request.url.is_empty() {
            return Err(HttpError::NoUrl);
        }
        let mut url = Url::parse(request.url).map_err(|err| HttpError::BadUrl {
            url: redact_url(request.url).into_owned(),
            reason: err.to_string(),
        })?;
        if !is_http(&url) {
            return Err(HttpError::Scheme(url.scheme().into()));
        }
        let headers = headers(request)?;
        if headers.contains_key(AUTHORIZATION) {
            set_credentials(&mut url, "", None);
        } else if let Some((user, password)) = request.credentials {
            // A sign that escapes would be taken for an escape.
            let escaped = |text: &str| text.replace('%', "%25");
            set_credentials(&mut url, &escaped(user), Some(&escaped(password.reveal())));
        }
        Ok(Self { url, headers })
    }

    /// Returns where a redirect leads, or why no one should go there.
    pub(super) fn follow(self, location: &[u8]) -> Result<Self, String> {
        let Self { url: from, headers } = self;
        let mut to = std::str::from_utf8(location)
            .ok()
            .and_then(|location| from.join(location).ok())
            .ok_or("redirected to something that is no URL")?;
        if !is_http(&to) {
            return Err(format!("redirected to a {} URL", to.scheme()));
        }
        if from.scheme() == "https" && to.scheme() == "http" {
            let host = to.host_str().unwrap_or_default();
            return Err(format!("refusing redirect from https to http://{host}"));
        }
        if !is_same_host(&from, &to) {
            return Ok(Self {
                url: to,
                headers: HeaderMap::new(),
            });
        }
        if to.username().is_empty() && to.password().is_none() {
            set_credentials(&mut to, from.username(), from.password());
        }
        Ok(Self { url: to, headers })
    }

    /// Returns a client for this hop.
    pub(super) fn client(&self, ca_file: Option<&Path>) -> Result<Client, HttpError> {
        let trust = match self.url.scheme() {
            "https" => trust::roots(ca_file)?,
            // No certificate is ever seen: a machine without any can speak http.
            _ => rustls::RootCertStore::empty(),
        };
        let mut builder = Client::builder()
            .tls_backend_preconfigured(trust::config(trust)?)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never());
        if is_loopback(&self.url) {
            // This machine is never reached through another one, whatever the environment says.
            builder = builder.no_proxy();
        }
        builder
            .build()
            .map_err(|err| HttpError::Trust(err.without_url().to_string()))
    }

    /// Returns the request to send.
    pub(super) fn request(
        &self,
        client: &Client,
        request: &Request<'_>,
        time_limit: Duration,
    ) -> RequestBuilder {
        // The credentials of the URL become a header here and do not travel in the URL.
        let mut builder = client.get(self.url.clone()).timeout(time_limit);
        for (name, text) in [
            (IF_NONE_MATCH, &request.known.etag),
            (IF_MODIFIED_SINCE, &request.known.last_modified),
        ] {
            if let Some(text) = text {
                builder = builder.header(name, text);
            }
        }
        for (name, text) in [(USER_AGENT, AGENT), (ACCEPT_ENCODING, "gzip")] {
            if !self.headers.contains_key(&name) {
                builder = builder.header(name, text);
            }
        }
        builder.headers(self.headers.clone())
    }

    /// Whether a compressed body is our own wish, and so ours to undo.
    pub(super) fn asked_for_gzip(&self) -> bool {
        !self.headers.contains_key(ACCEPT_ENCODING)
    }
}

fn is_http(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// Whether two URLs name the same server: host and port, or the same host's step up to https.
fn is_same_host(from: &Url, to: &Url) -> bool {
    let is_default = |url: &Url| url.port().is_none();
    let port_fits = match (from.scheme(), to.scheme()) {
        ("http", "https") => is_default(from) && is_default(to),
        _ => from.port_or_known_default() == to.port_or_known_default(),
    };
    from.host_str() == to.host_str() && port_fits
}

/// Puts credentials into a URL, already escaped, or takes them out.
fn set_credentials(url: &mut Url, user: &str, password: Option<&str>) {
    // Only a URL without a host can refuse this, and http has one.
    let _ = url.set_username(user);
    let _ = url.set_password(password);
}

fn headers(request: &Request<'_>) -> Result<HeaderMap, HttpError> {
    let header = |(name, value): (&String, &Secret)| {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        let mut value = HeaderValue::from_str(value.reveal()).ok()?;
        value.set_sensitive(true);
        Some((name, value))
    };
    let mut headers = HeaderMap::new();
    for (name, value) in request.headers.iter() {
        let (key, value) =
            header((name, value)).ok_or_else(|| HttpError::BadHeader(name.clone()))?;
        headers.append(key, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;
    use std::collections::BTreeMap;

    fn request(url: &str) -> Request<'_> {
        let mut request = Request::new(url, Duration::from_secs(1), 1);
        let headers = BTreeMap::from([("X-Token".to_owned(), Secret::new("t"))]);
        request.headers = Cow::Owned(headers);
        request
    }

    fn follow(from: &str, to: &str) -> Result<(String, bool), String> {
        let hop = Hop::first(&request(from)).unwrap().follow(to.as_bytes())?;
        Ok((hop.url.to_string(), hop.headers.contains_key("x-token")))
    }

    #[test]
    fn what_was_meant_for_a_host_stays_with_it() {
        for (from, to, url, keeps_headers) in [
            ("http://u:p@h/a", "/b", "http://u:p@h/b", true),
            ("http://u:p@h/a", "http://h:80/b", "http://u:p@h/b", true),
            ("http://u:p@h/a", "https://h/b", "https://u:p@h/b", true),
            ("http://u:p@h/a", "http://v:q@h/b", "http://v:q@h/b", true),
            ("http://u:p@h/a", "http://g/b", "http://g/b", false),
            ("http://u:p@h/a", "//g/b", "http://g/b", false),
            ("http://u:p@h/a", "http://h:81/b", "http://h:81/b", false),
            ("http://u:p@h/a", "http://sub.h/b", "http://sub.h/b", false),
            (
                "http://u:p@h:81/a",
                "https://h:82/b",
                "https://h:82/b",
                false,
            ),
        ] {
            assert_eq!(
                follow(from, to),
                Ok((url.into(), keeps_headers)),
                "{from} {to}"
            );
        }
    }

    #[test]
    fn what_left_its_host_does_not_come_back() {
        let hop = Hop::first(&request("http://u:p@h/a")).unwrap();
        let hop = hop
            .follow(b"http://g/")
            .unwrap()
            .follow(b"http://h/b")
            .unwrap();
        assert_eq!(hop.url.as_str(), "http://h/b");
        assert!(hop.headers.is_empty());
    }

    #[test]
    fn a_redirect_to_less_safety_or_to_no_url_is_refused() {
        for (to, reason) in [
            ("http://h/b", "refusing redirect from https to http://h"),
            ("ftp://h/b", "redirected to a ftp URL"),
            ("file:///etc/passwd", "redirected to a file URL"),
            ("https://", "redirected to something that is no URL"),
        ] {
            assert_eq!(follow("https://h/a", to), Err(reason.into()));
        }
    }

    #[test]
    fn this_machine_is_known_by_all_its_names() {
        for (url, is_ours) in [
            ("http://localhost/", true),
            ("http://127.0.0.2:80/", true),
            ("http://[::1]:80/", true),
            ("http://10.0.0.1/", false),
            ("http://localhost.example.net/", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(url).unwrap()), is_ours, "{url}");
        }
    }

    #[test]
    fn given_credentials_beat_those_of_the_url_and_a_header_beats_both() {
        let password = Secret::new("50%41:/@");
        let mut request = request("http://u:p@h/");
        request.credentials = Some(("ann", &password));
        let hop = Hop::first(&request).unwrap();
        assert_eq!(hop.url.as_str(), "http://ann:50%2541%3A%2F%40@h/");
        request
            .headers
            .to_mut()
            .insert("authorization".into(), Secret::new("Bearer x"));
        let hop = Hop::first(&request).unwrap();
        assert_eq!(hop.url.as_str(), "http://h/");
    }

    #[test]
    fn a_request_that_cannot_be_sent_says_so_without_secrets() {
        let reason = |url: &str| Hop::first(&request(url)).unwrap_err().to_string();
        assert_eq!(reason(""), "URL is required");
        assert_eq!(
            reason("ftp://h/x"),
            "URL scheme must be http or https, got \"ftp\""
        );
        assert_eq!(
            reason("http://u:secret@h:port/"),
            "invalid URL \"http://REDACTED@h:port/\": invalid port number"
        );
        let mut request = request("http://h/");
        request
            .headers
            .to_mut()
            .insert("X".into(), Secret::new("a\nb"));
        let error = Hop::first(&request).unwrap_err().to_string();
        assert_eq!(error, "invalid HTTP header \"X\"");
    }
}
