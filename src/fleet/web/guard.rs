//! Who may ask, and what browsers are told about our answers.
//!
//! On the loopback everyone may read; a page of somebody else's may not, which is why the name
//! that was asked for must be one of this machine. Elsewhere reading takes the token. Acting takes
//! the token everywhere, and a server that was started to be acted on.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::api::{Failure, Web};
use crate::model::secret::Secret;

/// What every answer says to browsers: nothing from elsewhere, nothing inline, no frames.
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

/// Whom the server listens to.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    /// The address that is listened on can only be reached from this machine.
    pub(super) is_local: bool,
    pub(super) token: Option<Secret>,
    pub(super) allow_actions: bool,
}

impl Guard {
    /// Refuses a request that may not be answered.
    fn check(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Failure> {
        if self.is_local && !asks_this_machine(headers) {
            let reason = "the host that was asked for is not this machine";
            return Err(Failure::new(StatusCode::FORBIDDEN, reason));
        }
        if *method != Method::GET && *method != Method::HEAD {
            return self.check_action(headers);
        }
        let is_secret = path.starts_with("/api/") || path == "/metrics";
        match is_secret && !self.is_local && !self.knows_token(headers) {
            true => Err(Failure::new(
                StatusCode::UNAUTHORIZED,
                "reading takes the token: send Authorization: Bearer",
            )),
            false => Ok(()),
        }
    }

    fn check_action(&self, headers: &HeaderMap) -> Result<(), Failure> {
        if !self.allow_actions {
            let reason = "actions are off: start the server with --allow-actions";
            return Err(Failure::new(StatusCode::FORBIDDEN, reason));
        }
        match self.knows_token(headers) {
            true => Ok(()),
            false => Err(Failure::new(
                StatusCode::FORBIDDEN,
                "acting takes the token: send Authorization: Bearer",
            )),
        }
    }

    fn knows_token(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else {
            return false;
        };
        let given = headers.get(header::AUTHORIZATION);
        let given = given.and_then(|value| value.to_str().ok());
        let given = given.and_then(|value| value.strip_prefix("Bearer "));
        given.is_some_and(|given| is_same(given.trim().as_bytes(), token.reveal().as_bytes()))
    }
}

/// Compares in a time that says nothing about where two texts differ.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && differences == 0
}

/// Reports whether the name that was asked for can only mean this machine. A page of somebody
/// else's can make its own name lead here, but it can't change the name.
fn asks_this_machine(headers: &HeaderMap) -> bool {
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

/// Lets a request through, or says why not; adds what browsers must know.
pub(super) async fn guard(State(web): State<Arc<Web>>, request: Request, next: Next) -> Response {
    let checked = web
        .guard
        .check(request.method(), request.uri().path(), request.headers());
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // What is told is of this moment.
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

    fn guard(is_local: bool, allow_actions: bool) -> Guard {
        Guard {
            is_local,
            token: Some(Secret::new("correct horse")),
            allow_actions,
        }
    }

    fn status(guard: &Guard, method: &Method, path: &str, headers: &HeaderMap) -> Option<u16> {
        let checked = guard.check(method, path, headers);
        checked.err().map(|failure| failure.status.as_u16())
    }

    #[test]
    fn a_page_whose_own_name_leads_here_reads_nothing() {
        let guard = guard(true, false);
        for (host, refused) in [
            ("127.0.0.1:8480", None),
            ("localhost", None),
            ("[::1]:8480", None),
            ("evil.example:8480", Some(403)),
            ("127.0.0.1.evil.example", Some(403)),
        ] {
            let headers = headers(host, None);
            let found = status(&guard, &Method::GET, "/api/nodes", &headers);
            assert_eq!(found, refused, "{host}");
        }
    }

    #[test]
    fn elsewhere_reading_takes_the_token_but_the_page_itself_does_not() {
        let guard = guard(false, false);
        for (path, token, refused) in [
            ("/api/nodes", None, Some(401)),
            ("/metrics", None, Some(401)),
            ("/api/nodes", Some("correct horse"), None),
            ("/api/nodes", Some("correct hors"), Some(401)),
            ("/api/nodes", Some("correct horsf"), Some(401)),
            ("/", None, None),
            ("/healthz", None, None),
        ] {
            let headers = headers("fleet.example", token);
            let found = status(&guard, &Method::GET, path, &headers);
            assert_eq!(found, refused, "{path} {token:?}");
        }
    }

    #[test]
    fn acting_takes_a_server_that_allows_it_and_the_token() {
        for (allow, token, refused) in [
            (false, Some("correct horse"), Some(403)),
            (true, None, Some(403)),
            (true, Some("wrong"), Some(403)),
            (true, Some("correct horse"), None),
        ] {
            let headers = headers("localhost:1", token);
            let path = "/api/nodes/web1/pause";
            let found = status(&guard(true, allow), &Method::POST, path, &headers);
            assert_eq!(found, refused, "{allow} {token:?}");
        }
    }
}
