//! Lines on their way out: gathered while there are more, written at once, and only then counted as
//! told.
//!
//! Writing happens on a thread of its own, so that a reader that does not read can't keep us from
//! answering the servers or from ending when we are told to.

use std::io::{self, Write as _};

use crate::cli::CliError;

/// How many bytes are gathered before they are written.
const MOST_BYTES: usize = 256 << 10;

/// What became of lines that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Yes,
    /// Nobody reads any more.
    Unwanted,
}

/// Lines that wait.
#[derive(Debug, Default)]
pub(super) struct Output {
    bytes: Vec<u8>,
}

impl Output {
    /// Takes one more line, without its end.
    pub(super) fn line(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(b'\n');
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= MOST_BYTES
    }

    /// Writes what waits to standard output. On return it has left us.
    pub(super) async fn flush(&mut self) -> Result<Written, CliError> {
        let bytes = std::mem::take(&mut self.bytes);
        let writing = tokio::task::spawn_blocking(move || {
            let mut out = io::stdout().lock();
            out.write_all(&bytes).and_then(|()| out.flush())
        });
        match writing.await.map_err(CliError::failed)? {
            Ok(()) => Ok(Written::Yes),
            Err(err) if err.kind() == io::ErrorKind::BrokenPipe => Ok(Written::Unwanted),
            Err(err) => Err(CliError::failed(err).at("standard output")),
        }
    }
}
