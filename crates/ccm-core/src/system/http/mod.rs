//! HTTP client: one request, bounded in time and size; the body is streamed to a writer and hashed.
//!
//! [`get`] downloads a body and fails on any status but 200; [`fetch`] returns any response.
//!
//! Servers are not trusted. Redirects are followed here, not by the client library, so that
//! credentials and headers are sent only to the server of the URL and https never redirects to
//! http. A body that is too long, too slow or truncated is an error. Only downloads are retried,
//! and only if no connection could be established.
//!
//! Blocks; every request has its own async runtime. Reqwest is used because it sends requests for
//! http URLs to a proxy in absolute form, applies `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` as
//! curl does, and reports a connection that breaks off within a body of unknown length.
//!
//! Read next: `redirect` for one request of a redirect chain, `body` for the response body, `tls`
//! for certificates.

mod body;
mod redirect;
mod tls;

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use reqwest::header::{CONTENT_ENCODING, CONTENT_LENGTH, ETAG, HeaderMap, LAST_MODIFIED, LOCATION};
use reqwest::{Response, StatusCode};
use tokio::runtime::Runtime;

use super::{Cause, Clock, Digest};
use crate::model::secret::{Secret, redact_url};
use crate::model::text::go_duration;
use body::Body;
use redirect::Hop;
use tls::TlsError;

pub use tls::TlsOptions;

/// Maximum number of redirects.
const MAX_REDIRECTS: usize = 10;

/// Waits before the connection attempts of a download.
const BACKOFF: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(1)];

/// An HTTP request and its limits.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub method: &'a str,
    pub url: &'a str,
    /// User and password, instead of those in the URL.
    pub credentials: Option<(&'a str, &'a Secret)>,
    /// Sent to the server of the URL only, not to redirect targets elsewhere.
    pub headers: Vec<(&'a str, &'a Secret)>,
    /// Request body, none if empty. Sent to the server of the URL only.
    pub body: &'a [u8],
    /// Validators of a cached copy, for a conditional request.
    pub known: Validators,
    /// Limit for connecting, redirects, retries and the body together.
    pub time_limit: Duration,
    /// Limit of the decoded body, in bytes.
    pub size_limit: u64,
    /// Whether redirects are followed or returned as responses.
    pub follows_redirects: bool,
    pub tls: TlsOptions<'a>,
    /// Proxy URL, instead of the proxies of the environment.
    pub proxy: Option<&'a str>,
    /// Called as the body arrives.
    pub progress: Option<OnProgress<'a>>,
}

/// A callback with the number of bytes received and the announced length, if known.
#[derive(Clone, Copy)]
pub struct OnProgress<'a>(pub &'a dyn Fn(u64, Option<u64>));

impl fmt::Debug for OnProgress<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("OnProgress")
    }
}

impl<'a> Request<'a> {
    /// Returns a plain GET with these limits.
    pub fn new(url: &'a str, time_limit: Duration, size_limit: u64) -> Self {
        Self {
            method: "GET",
            url,
            credentials: None,
            headers: Vec::new(),
            body: &[],
            known: Validators::default(),
            time_limit,
            size_limit,
            follows_redirects: true,
            tls: TlsOptions::default(),
            proxy: None,
            progress: None,
        }
    }
}

/// Validators of a conditional request (RFC 9110): entity tag and modification time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Validators {
    pub etag: Option<String>,
    pub last_modified: Option<String>,
}

impl Validators {
    fn is_empty(&self) -> bool {
        self.etag.is_none() && self.last_modified.is_none()
    }

    fn of(headers: &HeaderMap) -> Self {
        let text = |name| Some(headers.get(name)?.to_str().ok()?.to_owned());
        Self {
            etag: text(ETAG),
            last_modified: text(LAST_MODIFIED),
        }
    }
}

/// Result of a download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The cached copy is current; nothing was written.
    NotModified,
    /// The whole body was written.
    Complete(Received),
}

/// A complete body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub size: u64,
    pub digest: Digest,
    pub validators: Validators,
}

/// Status and headers of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub status: u16,
    /// Names in lower case, and values. Without encoding and length if the body was decompressed.
    pub headers: Vec<(String, String)>,
}

/// A failed request. Texts contain no credentials.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("URL is required")]
    NoUrl,
    #[error("invalid URL {url:?}: {reason}")]
    BadUrl { url: String, reason: String },
    #[error("URL scheme must be http or https, got \"{0}\"")]
    Scheme(String),
    #[error("invalid HTTP header {0:?}")]
    BadHeader(String),
    #[error("invalid HTTP method {0:?}")]
    BadMethod(String),
    #[error("invalid proxy {0:?}")]
    BadProxy(String),
    #[error("could not use CA certificates: {0}")]
    CaCertificates(#[source] TlsError),
    #[error("could not use client certificate: {0}")]
    ClientCertificate(#[source] TlsError),
    #[error("failed to perform HTTP request: {verb} \"{url}\": {reason}")]
    Request {
        /// The method in Go's spelling: `Get`.
        verb: String,
        url: String,
        reason: String,
    },
    #[error("HTTP request failed with status {code}: {code} {text}")]
    Status { code: u16, text: &'static str },
    #[error("could not copy file: {0}")]
    Body(String),
}

/// Downloads a URL to a writer. After an error, part of the body may have been written.
pub fn get(
    request: &Request<'_>,
    clock: &dyn Clock,
    into: &mut dyn Write,
) -> Result<Reply, HttpError> {
    let transfer = Transfer::new(request, clock, &BACKOFF);
    transfer.on_runtime(|runtime| {
        let (hop, response) = transfer.send(runtime)?;
        match response.status() {
            StatusCode::OK => transfer
                .receive(response, &hop, runtime, into)
                .map(Reply::Complete),
            StatusCode::NOT_MODIFIED if !request.known.is_empty() => Ok(Reply::NotModified),
            status => Err(HttpError::Status {
                code: status.as_u16(),
                text: status.canonical_reason().unwrap_or_default(),
            }),
        }
    })
}

/// Sends a request once and returns status and headers of the response, whatever its status. The
/// body is read only if there is a writer.
pub fn fetch(
    request: &Request<'_>,
    clock: &dyn Clock,
    body: Option<&mut dyn Write>,
) -> Result<Head, HttpError> {
    let transfer = Transfer::new(request, clock, &[]);
    transfer.on_runtime(|runtime| {
        let (hop, response) = transfer.send(runtime)?;
        let head = Head::of(&response, &hop);
        if let Some(into) = body {
            transfer.receive(response, &hop, runtime, into)?;
        }
        Ok(head)
    })
}

impl Head {
    fn of(response: &Response, hop: &Hop) -> Self {
        let is_decoded = is_decoded(response, hop);
        let headers = response.headers().iter();
        Self {
            status: response.status().as_u16(),
            headers: headers
                .filter(|(name, _)| {
                    !is_decoded || ![CONTENT_ENCODING, CONTENT_LENGTH].contains(name)
                })
                .map(|(name, value)| {
                    let value = String::from_utf8_lossy(value.as_bytes());
                    (name.as_str().to_owned(), value.into_owned())
                })
                .collect(),
        }
    }
}

/// Whether the body is compressed because this client requested it.
fn is_decoded(response: &Response, hop: &Hop) -> bool {
    hop.requested_gzip() && body::is_gzip(response.headers())
}

/// A request in progress.
struct Transfer<'a> {
    request: &'a Request<'a>,
    clock: &'a dyn Clock,
    /// Waits before further connection attempts.
    waits: &'static [Duration],
    started: Duration,
}

impl<'a> Transfer<'a> {
    fn new(request: &'a Request<'a>, clock: &'a dyn Clock, waits: &'static [Duration]) -> Self {
        Self {
            request,
            clock,
            waits,
            started: clock.monotonic(),
        }
    }

    /// Runs a closure with a new runtime.
    fn on_runtime<T>(
        &self,
        call: impl FnOnce(&Runtime) -> Result<T, HttpError>,
    ) -> Result<T, HttpError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|err| self.failed(err))?;
        let result = call(&runtime);
        // Does not wait for a blocked DNS lookup.
        runtime.shutdown_background();
        result
    }

    /// Sends the request, follows redirects and returns the final response without its body.
    fn send(&self, runtime: &Runtime) -> Result<(Hop, Response), HttpError> {
        let mut hop = Hop::first(self.request)?;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send_hop(&hop, runtime)?;
            let status = response.status();
            let location = response.headers().get(LOCATION);
            match location.filter(|_| self.request.follows_redirects && is_redirect(status)) {
                Some(location) => {
                    hop = hop
                        .follow(status, location.as_bytes())
                        .map_err(|why| self.failed(why.to_string()))?;
                }
                None => return Ok((hop, response)),
            }
        }
        Err(self.failed(format!("stopped after {MAX_REDIRECTS} redirects")))
    }

    /// Sends one request, retrying failed connections, and returns the response without its body.
    fn send_hop(&self, hop: &Hop, runtime: &Runtime) -> Result<Response, HttpError> {
        let client = hop.client(self.request)?;
        let mut waits = self.waits.iter();
        loop {
            let left = self.time_left()?;
            // Built inside the runtime, which its timer needs.
            let sent =
                runtime.block_on(async { hop.request(&client, self.request, left).send().await });
            let error = match sent {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            match waits.next() {
                Some(wait) if is_transient(&error) && *wait < self.time_left()? => {
                    self.clock.sleep(*wait);
                }
                _ => return Err(self.failed(self.reason(&error))),
            }
        }
    }

    fn receive(
        &self,
        mut response: Response,
        hop: &Hop,
        runtime: &Runtime,
        into: &mut dyn Write,
    ) -> Result<Received, HttpError> {
        let limit = self.request.size_limit;
        let validators = Validators::of(response.headers());
        let is_encoded = is_decoded(&response, hop);
        let announced = response.content_length();
        if announced.is_some_and(|length| length > limit) && !is_encoded {
            return Err(HttpError::Body(body::too_large(limit)));
        }
        let mut body = Body::new(into, limit, is_encoded);
        let mut received = 0_u64;
        let failed = |err: io::Error| HttpError::Body(Cause::from(err).to_string());
        loop {
            match runtime.block_on(response.chunk()) {
                Ok(Some(chunk)) => {
                    body.write_all(&chunk).map_err(failed)?;
                    received =
                        received.saturating_add(u64::try_from(chunk.len()).unwrap_or(u64::MAX));
                    if let Some(OnProgress(report)) = self.request.progress {
                        report(received, announced);
                    }
                }
                Ok(None) => break,
                Err(error) => return Err(HttpError::Body(self.reason(&error))),
            }
        }
        let (size, digest) = body.finish().map_err(failed)?;
        Ok(Received {
            size,
            digest,
            validators,
        })
    }

    fn time_left(&self) -> Result<Duration, HttpError> {
        let spent = self.clock.monotonic().saturating_sub(self.started);
        match self.request.time_limit.saturating_sub(spent) {
            Duration::ZERO => Err(self.failed(self.too_slow())),
            left => Ok(left),
        }
    }

    fn too_slow(&self) -> String {
        format!(
            "not complete within {}",
            go_duration(self.request.time_limit)
        )
    }

    fn failed(&self, reason: impl ToString) -> HttpError {
        HttpError::Request {
            verb: verb(self.request.method),
            url: redact_url(self.request.url).into_owned(),
            reason: reason.to_string(),
        }
    }

    /// Returns the innermost cause; the outer ones add nothing.
    fn reason(&self, error: &reqwest::Error) -> String {
        if error.is_timeout() {
            return self.too_slow();
        }
        let mut text = String::new();
        let mut next = error.source();
        while let Some(cause) = next {
            text = cause.to_string();
            next = cause.source();
        }
        if text.is_empty() {
            // The outer text contains the URL with its credentials.
            return "invalid HTTP response".into();
        }
        Cause::from(io::Error::other(text)).to_string()
    }
}

/// Returns a method in Go's spelling: `Get`.
fn verb(method: &str) -> String {
    let mut word = method.to_ascii_lowercase();
    if let Some(first) = word.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    word
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Whether a retry may succeed: the connection failed, and not because of the server's certificate.
fn is_transient(error: &reqwest::Error) -> bool {
    error.is_connect() && !error.is_timeout() && !is_tls_error(error)
}

fn is_tls_error(error: &(dyn Error + 'static)) -> bool {
    // `source` of an I/O error skips the error it wraps.
    let inside = error.downcast_ref().and_then(io::Error::get_ref);
    error.is::<rustls::Error>()
        || inside.is_some_and(|error| is_tls_error(error))
        || error.source().is_some_and(is_tls_error)
}
