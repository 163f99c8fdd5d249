//! HTTP: one request, bounded in time and size, its body handed on as it comes and hashed on the
//! way. [`get`] wants a body and takes nothing else for an answer; [`fetch`] wants to know what a
//! server says, whatever that is.
//!
//! What a server says is not trusted. Redirects are followed by hand, so that credentials and
//! headers stay with the host they were meant for and nothing leads from https back to http. A
//! body that is too long, too slow or cut short is an error. Only a download whose connection
//! could not be made is tried again: nothing was asked yet.
//!
//! Blocks like the rest of this room; a runtime lives only as long as its request. It knows
//! nothing of archives and manifests. Read next: `hop` is one URL on the way, `body` what comes
//! back, `trust` who may sign for a server.

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
use tls::TrustError;

pub use tls::Trust;

/// How many redirects are followed.
const MOST_REDIRECTS: usize = 10;

/// The waits before the connection of a download is tried again.
const BACKOFF: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(1)];

/// What to ask a server for, and how much of it at most.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub method: &'a str,
    pub url: &'a str,
    /// A user and password, instead of those the URL may carry.
    pub credentials: Option<(&'a str, &'a Secret)>,
    /// Sent to the host of the URL and to no other.
    pub headers: Vec<(&'a str, &'a Secret)>,
    /// What is sent along; nothing if empty. Goes to no other host either.
    pub body: &'a [u8],
    /// What we already have: the server may answer that nothing is newer.
    pub known: Validators,
    /// For everything: connecting, redirects, retries and the body.
    pub time_limit: Duration,
    /// In bytes, after decoding.
    pub size_limit: u64,
    /// Otherwise a redirect is an answer like any other.
    pub follows_redirects: bool,
    pub trust: Trust<'a>,
    /// The way to the server, instead of the one the environment names.
    pub proxy: Option<&'a str>,
    /// Who is told how far a body is.
    pub watch: Option<Watch<'a>>,
}

/// Told how many bytes of a body are here, and of how many if the server said so.
#[derive(Clone, Copy)]
pub struct Watch<'a>(pub &'a dyn Fn(u64, Option<u64>));

impl fmt::Debug for Watch<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Watch")
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
            trust: Trust::default(),
            proxy: None,
            watch: None,
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

/// How an answer begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub status: u16,
    /// Names in lower case, and values; what only told how the body travelled is left out.
    pub headers: Vec<(String, String)>,
}

/// Why there is no answer, or no body. No text holds a password.
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
    Trust(#[source] TrustError),
    #[error("could not use client certificate: {0}")]
    Identity(#[source] TrustError),
    #[error("failed to perform HTTP request: {verb} \"{url}\": {reason}")]
    Request {
        /// The method as a word.
        verb: String,
        url: String,
        reason: String,
    },
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
    let transfer = Transfer::new(request, clock, &BACKOFF);
    transfer.on_runtime(|runtime| {
        let (hop, response) = transfer.arrive(runtime)?;
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

/// Sends a request once and returns how the answer begins, whatever its status. The body is
/// only read for someone who takes it.
pub fn fetch(
    request: &Request<'_>,
    clock: &dyn Clock,
    body: Option<&mut dyn Write>,
) -> Result<Head, HttpError> {
    let transfer = Transfer::new(request, clock, &[]);
    transfer.on_runtime(|runtime| {
        let (hop, response) = transfer.arrive(runtime)?;
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

/// Whether a body was compressed for the journey because we asked for that.
fn is_decoded(response: &Response, hop: &Hop) -> bool {
    hop.asked_for_gzip() && body::is_gzip(response.headers())
}

/// A request on its way.
struct Transfer<'a> {
    request: &'a Request<'a>,
    clock: &'a dyn Clock,
    /// The waits before a connection is tried again.
    waits: &'static [Duration],
    began: Duration,
}

impl<'a> Transfer<'a> {
    fn new(request: &'a Request<'a>, clock: &'a dyn Clock, waits: &'static [Duration]) -> Self {
        Self {
            request,
            clock,
            waits,
            began: clock.monotonic(),
        }
    }

    /// Does something on a runtime of its own.
    fn on_runtime<T>(
        &self,
        work: impl FnOnce(&Runtime) -> Result<T, HttpError>,
    ) -> Result<T, HttpError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|err| self.failed(err))?;
        let result = work(&runtime);
        // A lookup that hangs in the system's resolver must not keep us.
        runtime.shutdown_background();
        result
    }

    /// Follows redirects to an answer that is none, and returns it without its body.
    fn arrive(&self, runtime: &Runtime) -> Result<(Hop, Response), HttpError> {
        let mut hop = Hop::first(self.request)?;
        for _ in 0..=MOST_REDIRECTS {
            let response = self.send(&hop, runtime)?;
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
        Err(self.failed(format!("stopped after {MOST_REDIRECTS} redirects")))
    }

    /// Sends one request, again if the connection could not be made, and returns the answer
    /// without its body.
    fn send(&self, hop: &Hop, runtime: &Runtime) -> Result<Response, HttpError> {
        let client = hop.client(self.request)?;
        let mut waits = self.waits.iter();
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
                Some(wait) if is_passing(&error) && *wait < self.time_left()? => {
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
        let mut here = 0_u64;
        let failed = |err: io::Error| HttpError::Body(Cause::from(err).to_string());
        loop {
            match runtime.block_on(response.chunk()) {
                Ok(Some(chunk)) => {
                    body.write_all(&chunk).map_err(failed)?;
                    here = here.saturating_add(u64::try_from(chunk.len()).unwrap_or(u64::MAX));
                    if let Some(Watch(tell)) = self.request.watch {
                        tell(here, announced);
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
            verb: verb(self.request.method),
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
        if text.is_empty() {
            // Its own text would name the URL with all that it carries.
            return "no answer that HTTP allows".into();
        }
        Cause::from(io::Error::other(text)).to_string()
    }
}

/// Returns a method as a word: `Get`.
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
