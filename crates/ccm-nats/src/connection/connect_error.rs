//! The cause of a failed connect in a few words, without secrets.

use std::error::Error;
use std::io;

use async_nats::{ClientError, ConnectError, ConnectErrorKind, Event};

use ccm_core::system::Cause;

/// Returns the cause of a failed connect.
pub(super) fn reason(err: &ConnectError) -> String {
    let deepest = deepest(err);
    match (err.kind(), deepest) {
        (ConnectErrorKind::AuthorizationViolation, _) => "authorization violation".into(),
        (ConnectErrorKind::TimedOut, _) | (_, None) => err.kind().to_string(),
        (ConnectErrorKind::Authentication, Some(reason)) => {
            format!("authentication failed: {reason}")
        }
        (ConnectErrorKind::Dns, Some(reason)) => format!("host lookup failed: {reason}"),
        (ConnectErrorKind::Tls, Some(reason)) => format!("TLS: {reason}"),
        (_, Some(reason)) => reason,
    }
}

/// Returns the text of an error event.
pub(super) fn event_error(event: &Event) -> Option<String> {
    let text = match event {
        Event::ServerError(err) => err.to_string(),
        Event::ClientError(ClientError::Other(text)) => text.clone(),
        Event::ClientError(err) => err.to_string(),
        _ => return None,
    };
    Some(text.trim_start_matches("nats: ").to_owned())
}

/// Returns the innermost cause of an error.
fn deepest(err: &ConnectError) -> Option<String> {
    let mut cause: &dyn Error = err.source()?;
    while let Some(next) = cause.source() {
        cause = next;
    }
    let text = match cause.downcast_ref::<io::Error>() {
        Some(io) => match io.raw_os_error() {
            Some(code) => Cause::from(io::Error::from_raw_os_error(code)).to_string(),
            None => io.to_string(),
        },
        None => cause.to_string(),
    };
    Some(text.trim_start_matches("nats: ").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_errors_have_short_reasons() {
        let refused = io::Error::from_raw_os_error(111);
        for (err, text) in [
            (
                ConnectError::with_source(ConnectErrorKind::Io, refused),
                "connection refused",
            ),
            (ConnectError::new(ConnectErrorKind::TimedOut), "timed out"),
            (
                ConnectError::with_source(ConnectErrorKind::Authentication, "no such file"),
                "authentication failed: no such file",
            ),
            (
                ConnectError::new(ConnectErrorKind::AuthorizationViolation),
                "authorization violation",
            ),
        ] {
            assert_eq!(reason(&err), text);
        }
    }
}
