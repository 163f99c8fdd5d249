//! Who may ask, and what browsers are told about our answers.
//!
//! A server that has a token answers nobody without it, wherever it listens: only the files of the
//! page, which hold no data, are open, because they are what asks for the token. A server without one
//! listens on loopback and can only be read. There a page of somebody else's may not read either,
//! which is why the name that was asked for must be one of this machine. Acting takes a server that
//! was started to be acted on, too.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::api::{Failure, Web};
use super::assets_handler;
use ccm_core::system::Digest;
use ccm_value::secret::Secret;

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
        let is_read = *method == Method::GET || *method == Method::HEAD;
        if is_read && assets_handler::is_asset(path) {
            return Ok(());
        }
        if let Some(token) = &self.token {
            check_token(token, headers)?;
        }
        match is_read || (self.allow_actions && self.token.is_some()) {
            true => Ok(()),
            false => Err(Failure::new(
                StatusCode::FORBIDDEN,
                "actions are off: start the server with --allow-actions",
            )),
        }
    }
}

/// Refuses a request that does not carry the token.
fn check_token(token: &Secret, headers: &HeaderMap) -> Result<(), Failure> {
    let refused = |reason| Err(Failure::new(StatusCode::UNAUTHORIZED, reason));
    let given = headers.get(header::AUTHORIZATION);
    let given = given.and_then(|value| value.to_str().ok());
    match given.and_then(|value| value.strip_prefix("Bearer ")) {
        None => refused("this server has a token: send Authorization: Bearer TOKEN"),
        Some(given) if !is_same(given.trim(), token.reveal()) => {
            refused("this is not the token of this server")
        }
        Some(_) => Ok(()),
    }
}

/// Compares in a time that says nothing about where two texts differ, nor about their lengths.
fn is_same(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(|text| Digest::of(text.as_bytes()));
    let pairs = one.as_bytes().iter().zip(other.as_bytes());
    pairs.fold(0, |all, (a, b)| all | (a ^ b)) == 0
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
        let guard = Guard {
            token: None,
            ..guard(true, false)
        };
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
    fn a_server_with_a_token_tells_nothing_without_it_but_the_page_itself() {
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
                let found = status(&guard(is_local, false), &Method::GET, path, &headers);
                assert_eq!(found, refused, "{path} {token:?} {is_local}");
            }
        }
    }

    #[test]
    fn acting_takes_a_server_that_allows_it_and_the_token() {
        for (allow, token, refused) in [
            (false, None, Some(401)),
            (false, Some("correct horse"), Some(403)),
            (true, None, Some(401)),
            (true, Some("wrong"), Some(401)),
            (true, Some("correct horse"), None),
        ] {
            let headers = headers("localhost:1", token);
            // A path of the page is none to act on.
            for path in ["/api/nodes/web1/pause", "/"] {
                let found = status(&guard(true, allow), &Method::POST, path, &headers);
                assert_eq!(found, refused, "{path} {allow} {token:?}");
            }
        }
        let open = Guard {
            token: None,
            ..guard(true, true)
        };
        let headers = headers("localhost:1", None);
        let found = status(&open, &Method::POST, "/api/nodes/web1/pause", &headers);
        assert_eq!(found, Some(403));
    }
}
