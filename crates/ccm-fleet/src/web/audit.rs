//! Audit of actions: one log line for each request that changes something or was refused, with the
//! token that sent it. Request bodies are never part of it.
//!
//! The nodes audit the requests that they receive, with the same caller. Refusals are limited per
//! second, so that a flood does not fill the log.

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use parking_lot::Mutex;

use super::access::Requester;
use super::api::ApiError;
use ccm_core::engine::{Level, Line};
use ccm_core::model::audit::DenialLimit;
use ccm_core::run::log::Log;
use ccm_core::system::{Clock as _, SystemClock};

/// Maximum length of a logged path, in characters.
const MAX_PATH: usize = 256;

/// What an action was about, added to the response by its handler.
#[derive(Clone, Debug)]
pub(super) struct AuditNote(pub(super) String);

/// A request, as it is logged.
#[derive(Debug)]
pub(super) struct AuditLine {
    method: Method,
    path: String,
    caller: String,
}

impl AuditLine {
    /// Describes a request. The caller is empty if it is not known.
    pub(super) fn of(request: &Request, server: &str) -> Self {
        let requester = request.extensions().get::<Requester>();
        Self {
            method: request.method().clone(),
            path: request.uri().path().chars().take(MAX_PATH).collect(),
            caller: requester.map_or_else(String::new, |it| it.caller(server)),
        }
    }
}

/// The audit of a server.
pub(super) struct Audit {
    log: Log,
    denials: Mutex<DenialLimit>,
}

impl Audit {
    pub(super) fn new(log: Log) -> Self {
        Self {
            log,
            denials: Mutex::default(),
        }
    }

    /// Logs an action that was executed.
    pub(super) fn allowed(&self, line: &AuditLine, status: StatusCode, note: Option<&AuditNote>) {
        let logged = self.line(Level::Info, "Request allowed", line);
        let logged = logged.with("status", status.as_u16());
        self.log.line(&match note {
            Some(AuditNote(text)) => logged.with("about", text),
            None => logged,
        });
    }

    /// Logs a refusal, with its reason.
    pub(super) fn denied(&self, line: &AuditLine, error: &ApiError) {
        let second = SystemClock.now().timestamp();
        let Some(unrecorded) = self.denials.lock().take(second) else {
            return;
        };
        let mut logged = self
            .line(Level::Warn, "Request denied", line)
            .with("status", error.status.as_u16())
            .with("reason", error.reason());
        if unrecorded > 0 {
            logged = logged.with("unrecorded", unrecorded);
        }
        self.log.line(&logged);
    }

    fn line(&self, level: Level, message: &str, line: &AuditLine) -> Line {
        let request = format!("{} {}", line.method, line.path);
        let logged = Line::new(level, message).with("request", request);
        match line.caller.as_str() {
            "" => logged,
            caller => logged.with("caller", caller),
        }
    }
}
