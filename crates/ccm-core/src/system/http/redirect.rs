//! One request of a redirect chain, and the rules for the next.
//!
//! Credentials are kept in the URL of the hop. Credentials and headers are sent only to the server
//! of the first URL; once a redirect has left it they are dropped, even if a later one returns.

use std::net::IpAddr;
use std::time::Duration;

use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, USER_AGENT,
};
use reqwest::{Client, Method, Proxy, RequestBuilder, StatusCode, Url};

use super::tls::TlsError;
use super::{HttpError, Request};
use crate::model::secret::redact_url;

/// The `User-Agent` header.
const USER_AGENT_VALUE: &str = concat!("ccm/", env!("CARGO_PKG_VERSION"));

/// A URL and what is sent to its server.
#[derive(Debug)]
pub(super) struct Hop {
    method: Method,
    url: Url,
    headers: HeaderMap,
    /// Whether no redirect has led to another server yet.
    is_first_host: bool,
    sends_body: bool,
}

/// A redirect that is not followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RedirectError {
    #[error("invalid URL in redirect")]
    NoUrl,
    #[error("redirected to a {0} URL")]
    Scheme(String),
    #[error("refusing redirect from https to http://{0}")]
    Insecure(String),
    #[error("refusing to send the request body to {0} after a redirect")]
    Body(String),
}

impl Hop {
    /// Returns the first hop of a request.
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
        let method = Method::from_bytes(request.method.as_bytes())
            .map_err(|_| HttpError::BadMethod(request.method.into()))?;
        let headers = headers(request)?;
        if headers.contains_key(AUTHORIZATION) {
            set_credentials(&mut url, "", None);
        } else if let Some((user, password)) = request.credentials {
            // The URL setters do not escape a percent sign.
            let escaped = |text: &str| text.replace('%', "%25");
            set_credentials(&mut url, &escaped(user), Some(&escaped(password.reveal())));
        }
        Ok(Self {
            method,
            url,
            headers,
            is_first_host: true,
            sends_body: !request.body.is_empty(),
        })
    }

    /// Returns the next hop after a redirect.
    pub(super) fn follow(self, status: StatusCode, location: &[u8]) -> Result<Self, RedirectError> {
        let from = &self.url;
        let mut to = std::str::from_utf8(location)
            .ok()
            .and_then(|location| from.join(location).ok())
            .ok_or(RedirectError::NoUrl)?;
        if !is_http(&to) {
            return Err(RedirectError::Scheme(to.scheme().into()));
        }
        if from.scheme() == "https" && to.scheme() == "http" {
            let host = to.host_str().unwrap_or_default();
            return Err(RedirectError::Insecure(host.into()));
        }
        let is_same_host = is_same_host(from, &to);
        if is_same_host && to.username().is_empty() && to.password().is_none() {
            set_credentials(&mut to, from.username(), from.password());
        }
        let (method, sends_body) = match status {
            // Only these two statuses repeat method and body.
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => {
                (self.method, self.sends_body)
            }
            _ if self.method == Method::HEAD => (Method::HEAD, false),
            _ => (Method::GET, false),
        };
        if sends_body && !is_same_host {
            let host = to.host_str().unwrap_or_default();
            return Err(RedirectError::Body(host.into()));
        }
        Ok(Self {
            method,
            url: to,
            headers: if is_same_host {
                self.headers
            } else {
                HeaderMap::new()
            },
            is_first_host: self.is_first_host && is_same_host,
            sends_body,
        })
    }

    /// Returns a client for this hop.
    pub(super) fn client(&self, request: &Request<'_>) -> Result<Client, HttpError> {
        let tls = request
            .tls
            .config(self.url.scheme() == "https", self.is_first_host)?;
        let mut builder = Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never());
        if let Some(proxy) = request.proxy {
            let bad = |_| HttpError::BadProxy(redact_url(proxy).into_owned());
            builder = builder.proxy(Proxy::all(proxy).map_err(bad)?);
        } else if is_loopback(&self.url) {
            // Loopback addresses never use a proxy of the environment.
            builder = builder.no_proxy();
        }
        builder
            .build()
            .map_err(|err| HttpError::CaCertificates(TlsError::Client(err.without_url())))
    }

    /// Returns the HTTP request.
    pub(super) fn request(
        &self,
        client: &Client,
        request: &Request<'_>,
        time_limit: Duration,
    ) -> RequestBuilder {
        // Reqwest turns the credentials of the URL into a header.
        let mut builder = client
            .request(self.method.clone(), self.url.clone())
            .timeout(time_limit);
        if self.sends_body {
            builder = builder.body(request.body.to_vec());
        }
        for (name, text) in [
            (IF_NONE_MATCH, &request.known.etag),
            (IF_MODIFIED_SINCE, &request.known.last_modified),
        ] {
            if let Some(text) = text {
                builder = builder.header(name, text);
            }
        }
        for (name, text) in [(USER_AGENT, USER_AGENT_VALUE), (ACCEPT_ENCODING, "gzip")] {
            if !self.headers.contains_key(&name) {
                builder = builder.header(name, text);
            }
        }
        builder.headers(self.headers.clone())
    }

    /// Whether this client requested compression, and so has to decompress.
    pub(super) fn requested_gzip(&self) -> bool {
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

/// Whether two URLs have the same host and port, or differ only by an upgrade to https.
fn is_same_host(from: &Url, to: &Url) -> bool {
    let is_default = |url: &Url| url.port().is_none();
    let is_same_port = match (from.scheme(), to.scheme()) {
        ("http", "https") => is_default(from) && is_default(to),
        _ => from.port_or_known_default() == to.port_or_known_default(),
    };
    from.host_str() == to.host_str() && is_same_port
}

/// Sets or removes the credentials of a URL; they must be escaped.
fn set_credentials(url: &mut Url, user: &str, password: Option<&str>) {
    // Fails only for URLs without a host, which http and https URLs have.
    let _ = url.set_username(user);
    let _ = url.set_password(password);
}

fn headers(request: &Request<'_>) -> Result<HeaderMap, HttpError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &request.headers {
        let bad = || HttpError::BadHeader((*name).into());
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
        let mut value = HeaderValue::from_str(value.reveal()).map_err(|_| bad())?;
        value.set_sensitive(true);
        headers.append(key, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::secret::Secret;

    fn request(url: &str) -> Request<'_> {
        Request::new(url, Duration::from_secs(1), 1)
    }

    /// Returns the first hop of a request with a token.
    fn first(url: &str) -> Hop {
        let token = Secret::new("t");
        let mut request = request(url);
        request.headers.push(("X-Token", &token));
        Hop::first(&request).unwrap()
    }

    fn follow(from: &str, to: &str) -> Result<(String, bool), String> {
        let hop = first(from)
            .follow(StatusCode::FOUND, to.as_bytes())
            .map_err(|err| err.to_string())?;
        let has_token = hop.headers.contains_key("x-token");
        assert_eq!(hop.is_first_host, has_token);
        Ok((hop.url.to_string(), has_token))
    }

    #[test]
    fn credentials_and_headers_stay_with_their_server() {
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
    fn dropped_credentials_are_not_restored() {
        let away = first("http://u:p@h/a").follow(StatusCode::FOUND, b"http://g/");
        let back = away.unwrap().follow(StatusCode::FOUND, b"http://h/b");
        let hop = back.unwrap();
        assert_eq!(hop.url.as_str(), "http://h/b");
        assert!(hop.headers.is_empty() && !hop.is_first_host);
    }

    #[test]
    fn method_and_body_after_a_redirect_depend_on_its_status() {
        let follow = |method, status: u16, to: &str| {
            let mut request = request("http://h/a");
            (request.method, request.body) = (method, b"body");
            let status = StatusCode::from_u16(status).unwrap();
            let hop = Hop::first(&request).unwrap();
            let hop = hop.follow(status, to.as_bytes())?;
            Ok((hop.method.to_string(), hop.sends_body))
        };
        for status in [301, 302, 303] {
            assert_eq!(follow("POST", status, "/b"), Ok(("GET".into(), false)));
            assert_eq!(follow("HEAD", status, "/b"), Ok(("HEAD".into(), false)));
            assert_eq!(
                follow("POST", status, "http://g/"),
                Ok(("GET".into(), false))
            );
        }
        for status in [307, 308] {
            assert_eq!(follow("POST", status, "/b"), Ok(("POST".into(), true)));
            let refused = RedirectError::Body("g".into());
            assert_eq!(follow("POST", status, "http://g/"), Err(refused));
        }
    }

    #[test]
    fn a_redirect_to_http_or_to_an_invalid_url_is_refused() {
        for (to, reason) in [
            ("http://h/b", "refusing redirect from https to http://h"),
            ("ftp://h/b", "redirected to a ftp URL"),
            ("file:///etc/passwd", "redirected to a file URL"),
            ("https://", "invalid URL in redirect"),
        ] {
            assert_eq!(follow("https://h/a", to), Err(reason.into()));
        }
    }

    #[test]
    fn loopback_urls_are_recognized() {
        for (url, expected) in [
            ("http://localhost/", true),
            ("http://127.0.0.2:80/", true),
            ("http://[::1]:80/", true),
            ("http://10.0.0.1/", false),
            ("http://localhost.example.net/", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(url).unwrap()), expected, "{url}");
        }
    }

    #[test]
    fn given_credentials_beat_those_of_the_url_and_a_header_beats_both() {
        let password = Secret::new("50%41:/@");
        let mut request = request("http://u:p@h/");
        request.credentials = Some(("ann", &password));
        let hop = Hop::first(&request).unwrap();
        assert_eq!(hop.url.as_str(), "http://ann:50%2541%3A%2F%40@h/");
        let bearer = Secret::new("Bearer x");
        request.headers.push(("authorization", &bearer));
        let hop = Hop::first(&request).unwrap();
        assert_eq!(hop.url.as_str(), "http://h/");
    }

    #[test]
    fn errors_of_invalid_requests_contain_no_secrets() {
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
        let value = Secret::new("a\nb");
        let mut request = request("http://h/");
        request.headers.push(("X", &value));
        let error = Hop::first(&request).unwrap_err().to_string();
        assert_eq!(error, "invalid HTTP header \"X\"");
        request.headers.clear();
        request.method = "GET IT";
        let error = Hop::first(&request).unwrap_err().to_string();
        assert_eq!(error, "invalid HTTP method \"GET IT\"");
    }
}
