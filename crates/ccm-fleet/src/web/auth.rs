//! Authorization of requests, and security headers of responses.
//!
//! A server with a token requires it for everything but the static files of the page, which have no
//! fleet data and prompt for the token. A server without a token listens on loopback only and is
//! read-only; there, the `Host` header must name this machine, so that foreign web pages can't read
//! it by DNS rebinding. Actions need the token and a server that allows them.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::api::{ApiError, AppState};
use super::static_files;
use ccm_core::system::Digest;
use ccm_value::secret::Secret;

/// Security headers of every response: no external or inline resources, no frames.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         object-src 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// Authorization rules of the server.
#[derive(Clone, Debug)]
pub(super) struct Auth {
    /// The listen address is a loopback address.
    pub(super) is_local: bool,
    pub(super) token: Option<Secret>,
    pub(super) allow_actions: bool,
}

impl Auth {
    /// Checks a request.
    fn check(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.is_local && !is_for_this_machine(headers) {
            let reason = "the Host header does not name this machine";
            return Err(ApiError::new(StatusCode::FORBIDDEN, reason));
        }
        let is_read = *method == Method::GET || *method == Method::HEAD;
        if is_read && static_files::is_asset(path) {
            return Ok(());
        }
        if let Some(token) = &self.token {
            check_token(token, headers)?;
        }
        match is_read || (self.allow_actions && self.token.is_some()) {
            true => Ok(()),
            false => Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "actions are disabled: start the server with --allow-actions",
            )),
        }
    }
}

/// Checks the token of a request.
fn check_token(token: &Secret, headers: &HeaderMap) -> Result<(), ApiError> {
    let refused = |reason| Err(ApiError::new(StatusCode::UNAUTHORIZED, reason));
    let given = headers.get(header::AUTHORIZATION);
    let given = given.and_then(|value| value.to_str().ok());
    match given.and_then(|value| value.strip_prefix("Bearer ")) {
        None => refused("this server requires a token: send Authorization: Bearer TOKEN"),
        Some(given) if !is_same(given.trim(), token.reveal()) => refused("wrong token"),
        Some(_) => Ok(()),
    }
}

/// Compares two texts in constant time.
fn is_same(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(|text| Digest::of(text.as_bytes()));
    let pairs = one.as_bytes().iter().zip(other.as_bytes());
    pairs.fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// Reports whether the `Host` header can only mean this machine. DNS rebinding can make a foreign
/// name resolve to this machine, but the header then has that name.
fn is_for_this_machine(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST);
    let Some(host) = host.and_then(|value| value.to_str().ok()) else {
        return false;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.chars().all(|c| c.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Middleware: checks a request and adds security headers to the response.
pub(super) async fn authorize(
    State(app): State<Arc<AppState>>,
    request: Request,
    next: Next,
) -> Response {
    let checked = app
        .auth
        .check(request.method(), request.uri().path(), request.headers());
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Responses are never cached.
    let fresh = HeaderValue::from_static("no-store");
    headers.entry(header::CACHE_CONTROL).or_insert(fresh);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(host: &str, token: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().unwrap();
            headers.insert(header::AUTHORIZATION, value);
        }
        headers
    }

    fn auth(is_local: bool, allow_actions: bool) -> Auth {
        Auth {
            is_local,
            token: Some(Secret::new("correct horse")),
            allow_actions,
        }
    }

    fn status(auth: &Auth, method: &Method, path: &str, headers: &HeaderMap) -> Option<u16> {
        let checked = auth.check(method, path, headers);
        checked.err().map(|error| error.status.as_u16())
    }

    #[test]
    fn foreign_host_names_are_refused_on_loopback() {
        let auth = Auth {
            token: None,
            ..auth(true, false)
        };
        for (host, refused) in [
            ("127.0.0.1:8480", None),
            ("localhost", None),
            ("[::1]:8480", None),
            ("evil.example:8480", Some(403)),
            ("127.0.0.1.evil.example", Some(403)),
        ] {
            let headers = headers(host, None);
            let found = status(&auth, &Method::GET, "/api/nodes", &headers);
            assert_eq!(found, refused, "{host}");
        }
    }

    #[test]
    fn a_server_with_a_token_serves_only_static_files_without_it() {
        for is_local in [true, false] {
            for (path, token, refused) in [
                ("/api/nodes", None, Some(401)),
                ("/metrics", None, Some(401)),
                ("/healthz", None, Some(401)),
                ("/somewhere/new", None, Some(401)),
                ("/api/nodes", Some("correct horse"), None),
                ("/api/nodes", Some("correct hors"), Some(401)),
                ("/api/nodes", Some("correct horsf"), Some(401)),
                ("/", None, None),
                ("/app.js", None, None),
            ] {
                let headers = headers("localhost", token);
                let found = status(&auth(is_local, false), &Method::GET, path, &headers);
                assert_eq!(found, refused, "{path} {token:?} {is_local}");
            }
        }
    }

    #[test]
    fn actions_need_the_option_and_the_token() {
        for (allow, token, refused) in [
            (false, None, Some(401)),
            (false, Some("correct horse"), Some(403)),
            (true, None, Some(401)),
            (true, Some("wrong"), Some(401)),
            (true, Some("correct horse"), None),
        ] {
            let headers = headers("localhost:1", token);
            // A path of the page has no action.
            for path in ["/api/nodes/web1/pause", "/"] {
                let found = status(&auth(true, allow), &Method::POST, path, &headers);
                assert_eq!(found, refused, "{path} {allow} {token:?}");
            }
        }
        let open = Auth {
            token: None,
            ..auth(true, true)
        };
        let headers = headers("localhost:1", None);
        let found = status(&open, &Method::POST, "/api/nodes/web1/pause", &headers);
        assert_eq!(found, Some(403));
    }
}
