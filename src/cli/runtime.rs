//! Tokio runtime for one command.

use std::future::Future;

use tokio::runtime::{Builder, Runtime};

use super::CliError;

/// Runs a future to completion on this thread. Tasks that are still running are dropped.
pub(super) fn block_on<T>(
    future: impl Future<Output = Result<T, CliError>>,
) -> Result<T, CliError> {
    let runtime = build()?;
    let outcome = runtime.block_on(future);
    // Don't wait for a host name lookup that is still running on a blocking thread.
    runtime.shutdown_background();
    outcome
}

/// Returns a runtime that the thread which waits for it drives.
pub(super) fn build() -> Result<Runtime, CliError> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CliError::failed)
}
