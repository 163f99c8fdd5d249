//! Buffered output of event lines.
//!
//! Writing happens on a blocking thread, so that a slow reader does not block the NATS connection
//! or signal handling.

use std::io::{self, Write as _};

use crate::cli::CliError;

/// Buffer size at which lines are written.
const MAX_BUFFERED: usize = 256 << 10;

/// Result of writing the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    Written,
    /// The reader closed the pipe.
    Closed,
}

/// Lines that have not been written yet.
#[derive(Debug, Default)]
pub(super) struct Output {
    bytes: Vec<u8>,
}

impl Output {
    /// Adds a line.
    pub(super) fn line(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(b'\n');
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= MAX_BUFFERED
    }

    /// Writes and flushes the buffer to standard output.
    pub(super) async fn flush(&mut self) -> Result<Flushed, CliError> {
        let bytes = std::mem::take(&mut self.bytes);
        let writing = tokio::task::spawn_blocking(move || {
            let mut out = io::stdout().lock();
            out.write_all(&bytes).and_then(|()| out.flush())
        });
        match writing.await.map_err(CliError::failed)? {
            Ok(()) => Ok(Flushed::Written),
            Err(err) if err.kind() == io::ErrorKind::BrokenPipe => Ok(Flushed::Closed),
            Err(err) => Err(CliError::failed(err).at("standard output")),
        }
    }
}
