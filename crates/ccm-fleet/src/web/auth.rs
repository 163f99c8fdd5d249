//! Authorization of requests, and security headers of responses.
//!
//! A server with tokens requires one for everything but the static files of the page, which have no
//! fleet data and prompt for the token. A server without tokens listens on loopback only and is
//! read-only; there, the `Host` header must name this machine, so that foreign web pages can't read
//! it by DNS rebinding. The role of the token decides on actions; the routes name the role that they
//! need.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::access::{AccessRole, Requester};
use super::access_file::CurrentAccess;
use super::api::{ApiError, AppState};
use super::audit::AuditLine;
use super::static_files;

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
    pub(super) access: CurrentAccess,
}

/// A refused request, with its sender if that is known.
struct Refused {
    requester: Option<Requester>,
    error: ApiError,
}

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Self {
        Self {
            requester: None,
            error,
        }
    }
}

impl Auth {
    /// Returns who sends a request, if the request may be sent. Routes may need a higher role.
    fn check(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Requester, Refused> {
        if self.is_local && !is_for_this_machine(headers) {
            let reason = "the Host header does not name this machine";
            return Err(ApiError::new(StatusCode::FORBIDDEN, reason).into());
        }
        let is_read = *method == Method::GET || *method == Method::HEAD;
        if is_read && static_files::is_asset(path) {
            return Ok(Requester::anonymous());
        }
        let requester = match self.access.get().needs_token() {
            true => self.identify(headers)?,
            false => Requester::anonymous(),
        };
        match requester.require(AccessRole::Ask) {
            Err(error) if !is_read => Err(Refused {
                requester: Some(requester),
                error,
            }),
            _ => Ok(requester),
        }
    }

    /// Returns the owner of the token of a request.
    fn identify(&self, headers: &HeaderMap) -> Result<Requester, ApiError> {
        let access = self.access.get();
        if access.is_closed() {
            let reason = "the tokens of this server can't be read: see its log";
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, reason));
        }
        let refused = |reason| ApiError::new(StatusCode::UNAUTHORIZED, reason);
        let given = headers.get(header::AUTHORIZATION);
        let given = given.and_then(|value| value.to_str().ok());
        let Some(given) = given.and_then(|value| value.strip_prefix("Bearer ")) else {
            let reason = "this server requires a token: send Authorization: Bearer TOKEN";
            return Err(refused(reason));
        };
        let found = access.identify(given.trim());
        found.ok_or_else(|| refused("wrong token"))
    }
}

impl Requester {
    /// Refuses a requester with a lower role.
    pub(super) fn require(&self, needed: AccessRole) -> Result<(), ApiError> {
        if self.role >= needed {
            return Ok(());
        }
        let (role, needed) = (self.role.as_str(), needed.as_str());
        let reason = match &self.name {
            Some(name) => format!("token {name} has the role {role}: this needs {needed}"),
            None => "actions are disabled: start the server with --allow-actions".into(),
        };
        Err(ApiError::new(StatusCode::FORBIDDEN, reason))
    }
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
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let checked = app.auth.check(request.method(), path, request.headers());
    let mut response = match checked {
        Ok(requester) => {
            request.extensions_mut().insert(requester);
            next.run(request).await
        }
        Err(Refused { requester, error }) => {
            if let Some(requester) = requester {
                request.extensions_mut().insert(requester);
            }
            let line = AuditLine::of(&request, app.actions.server());
            app.audit.denied(&line, &error);
            error.into_response()
        }
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
    use super::super::access::Access;
    use super::*;
    use ccm_value::secret::Secret;

    const TOKEN: &str = "correct-horse-battery";

    fn headers(host: &str, token: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().unwrap();
            headers.insert(header::AUTHORIZATION, value);
        }
        headers
    }

    fn auth(is_local: bool, role: AccessRole) -> Auth {
        Auth {
            is_local,
            access: CurrentAccess::new(Access::single(&Secret::new(TOKEN), role).unwrap()),
        }
    }

    fn status(auth: &Auth, method: &Method, path: &str, headers: &HeaderMap) -> Option<u16> {
        let checked = auth.check(method, path, headers);
        checked.err().map(|refused| refused.error.status.as_u16())
    }

    #[test]
    fn foreign_host_names_are_refused_on_loopback() {
        let auth = Auth {
            is_local: true,
            access: CurrentAccess::new(Access::open()),
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
                ("/api/stream", None, Some(401)),
                ("/metrics", None, Some(401)),
                ("/healthz", None, Some(401)),
                ("/somewhere/new", None, Some(401)),
                ("/api/nodes", Some(TOKEN), None),
                ("/api/nodes", Some("correct-horse-batter"), Some(401)),
                ("/api/nodes", Some("correct-horse-batterz"), Some(401)),
                ("/", None, None),
                ("/app.js", None, None),
            ] {
                let headers = headers("localhost", token);
                let auth = auth(is_local, AccessRole::Read);
                let found = status(&auth, &Method::GET, path, &headers);
                assert_eq!(found, refused, "{path} {token:?} {is_local}");
            }
        }
    }

    #[test]
    fn actions_need_a_token_with_a_role_above_read() {
        for (role, token, refused) in [
            (AccessRole::Read, None, Some(401)),
            (AccessRole::Read, Some(TOKEN), Some(403)),
            (AccessRole::Ask, None, Some(401)),
            (AccessRole::Ask, Some("wrong"), Some(401)),
            (AccessRole::Ask, Some(TOKEN), None),
            (AccessRole::RollOut, Some(TOKEN), None),
        ] {
            let headers = headers("localhost:1", token);
            // A path of the page has no action.
            for path in ["/api/nodes/web1/pause", "/"] {
                let found = status(&auth(true, role), &Method::POST, path, &headers);
                assert_eq!(found, refused, "{path} {role:?} {token:?}");
            }
        }
        let open = Auth {
            is_local: true,
            access: CurrentAccess::new(Access::open()),
        };
        let headers = headers("localhost:1", None);
        let found = status(&open, &Method::POST, "/api/nodes/web1/pause", &headers);
        assert_eq!(found, Some(403));
    }

    #[test]
    fn a_refusal_names_the_token_and_the_role_that_is_needed() {
        let bob = Requester {
            name: Some("bob".parse().unwrap()),
            role: AccessRole::Ask,
        };
        bob.require(AccessRole::Ask).unwrap();
        let refused = bob.require(AccessRole::RollOut).unwrap_err();
        assert_eq!(
            refused.reason(),
            "token bob has the role ask: this needs roll-out"
        );
    }
}
