//! HTTP: one GET, bounded in time and size, its body handed on as it comes and hashed on the way.
//!
//! What a server says is not trusted. Redirects are followed by hand, so that credentials and
//! headers stay with the host they were meant for and nothing leads from https back to http. A
//! body that is too long, too slow or cut short is an error. Only a connection that could not be
//! made is tried again: nothing was asked yet.
//!
//! Blocks like the rest of this room; a runtime lives only as long as its request. It knows
//! nothing of archives and manifests. Read next: `hop` is one URL on the way, `body` what comes
//! back, `trust` who may sign for a server.

mod body;
mod hop;
mod trust;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use reqwest::header::{ETAG, HeaderMap, LAST_MODIFIED, LOCATION};
use reqwest::{Response, StatusCode};
use tokio::runtime::Runtime;

use super::{Cause, Clock, Digest};
use crate::model::secret::{Secret, redact_url};
use crate::model::text::go_duration;
use body::Body;
use hop::Hop;

/// How many redirects are followed.
const MOST_REDIRECTS: usize = 10;

/// The waits before a connection is tried again.
const BACKOFF: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(1)];

/// What to get, and how much of it at most.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub url: &'a str,
    /// A user and password, instead of those the URL may carry.
    pub credentials: Option<(&'a str, &'a Secret)>,
    /// Sent to the host of the URL and to no other.
    pub headers: Cow<'a, BTreeMap<String, Secret>>,
    /// What we already have: the server may answer that nothing is newer.
    pub known: Validators,
    /// For everything: connecting, redirects, retries and the body.
    pub time_limit: Duration,
    /// In bytes, after decoding.
    pub size_limit: u64,
    /// Who may sign for a server, as PEM; those the machine trusts unless given.
    pub ca_file: Option<&'a Path>,
}

impl<'a> Request<'a> {
    /// Returns a plain request with these limits.
    pub fn new(url: &'a str, time_limit: Duration, size_limit: u64) -> Self {
        Self {
            url,
            credentials: None,
            headers: Cow::default(),
            known: Validators::default(),
            time_limit,
            size_limit,
            ca_file: None,
        }
    }
}

/// By what a server knows a version of a thing again.
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

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// What is already known is still what there is; nothing was written.
    NotModified,
    /// All of the body was written.
    Complete(Received),
}

/// A body that arrived whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub size: u64,
    pub digest: Digest,
    pub validators: Validators,
}

/// Why there is no body. No text holds a password.
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
    #[error("could not use CA certificates: {0}")]
    Trust(String),
    #[error("failed to perform HTTP request: Get \"{url}\": {reason}")]
    Request { url: String, reason: String },
    #[error("HTTP request failed with status {code}: {code} {text}")]
    Status { code: u16, text: &'static str },
    #[error("could not copy file: {0}")]
    Body(String),
}

/// Gets a URL and writes its body. On an error, part of the body may have been written.
pub fn get(
    request: &Request<'_>,
    clock: &dyn Clock,
    into: &mut dyn Write,
) -> Result<Reply, HttpError> {
    let first = Hop::first(request)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|err| Transfer::new(request, clock).failed(err))?;
    let result = Transfer::new(request, clock).run(first, &runtime, into);
    // A lookup that hangs in the system's resolver must not keep us.
    runtime.shutdown_background();
    result
}

/// A request on its way.
struct Transfer<'a> {
    request: &'a Request<'a>,
    clock: &'a dyn Clock,
    began: Duration,
}

impl<'a> Transfer<'a> {
    fn new(request: &'a Request<'a>, clock: &'a dyn Clock) -> Self {
        Self {
            request,
            clock,
            began: clock.monotonic(),
        }
    }

    fn run(&self, first: Hop, runtime: &Runtime, into: &mut dyn Write) -> Result<Reply, HttpError> {
        let mut hop = first;
        for _ in 0..=MOST_REDIRECTS {
            let response = self.send(&hop, runtime)?;
            match (response.status(), response.headers().get(LOCATION)) {
                (StatusCode::OK, _) => {
                    return self
                        .receive(response, &hop, runtime, into)
                        .map(Reply::Complete);
                }
                (StatusCode::NOT_MODIFIED, _) if !self.request.known.is_empty() => {
                    return Ok(Reply::NotModified);
                }
                (status, Some(location)) if is_redirect(status) => {
                    hop = hop
                        .follow(location.as_bytes())
                        .map_err(|why| self.failed(why))?;
                }
                (status, _) => {
                    return Err(HttpError::Status {
                        code: status.as_u16(),
                        text: status.canonical_reason().unwrap_or_default(),
                    });
                }
            }
        }
        Err(self.failed(format!("stopped after {MOST_REDIRECTS} redirects")))
    }

    /// Sends one request, again if the connection could not be made, and returns the answer
    /// without its body.
    fn send(&self, hop: &Hop, runtime: &Runtime) -> Result<Response, HttpError> {
        let client = hop.client(self.request.ca_file)?;
        let mut waits = BACKOFF.into_iter();
        loop {
            let left = self.time_left()?;
            // Built inside: its timer belongs to the runtime.
            let sent =
                runtime.block_on(async { hop.request(&client, self.request, left).send().await });
            let error = match sent {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            match waits.next() {
                Some(wait) if is_passing(&error) && wait < self.time_left()? => {
                    self.clock.sleep(wait);
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
        let is_encoded = hop.asked_for_gzip() && body::is_gzip(response.headers());
        let announced = response.content_length().unwrap_or_default();
        if announced > limit && !is_encoded {
            return Err(HttpError::Body(body::too_large(limit)));
        }
        let mut body = Body::new(into, limit, is_encoded);
        let failed = |err: io::Error| HttpError::Body(Cause::from(err).to_string());
        loop {
            match runtime.block_on(response.chunk()) {
                Ok(Some(chunk)) => body.write_all(&chunk).map_err(failed)?,
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
        let spent = self.clock.monotonic().saturating_sub(self.began);
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
            url: redact_url(self.request.url).into_owned(),
            reason: reason.to_string(),
        }
    }

    /// Returns the innermost cause: the ones around it only say that something failed.
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
        match text.is_empty() {
            // Its own text would name the URL with all that it carries.
            true => "no answer that HTTP allows".into(),
            false => Cause::from(io::Error::other(text)).to_string(),
        }
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Whether a failure may be gone at the next try: the connection could not be made, and not
/// because of what the server showed of itself.
fn is_passing(error: &reqwest::Error) -> bool {
    error.is_connect() && !error.is_timeout() && !is_distrust(error)
}

fn is_distrust(error: &(dyn Error + 'static)) -> bool {
    // An error inside an I/O error is not its source, of all things.
    let inside = error.downcast_ref().and_then(io::Error::get_ref);
    error.is::<rustls::Error>()
        || inside.is_some_and(|error| is_distrust(error))
        || error.source().is_some_and(is_distrust)
}
