//! Waiting for what is asynchronous: one small runtime for the length of a command.

use std::future::Future;

use tokio::runtime::Builder;

use super::CliError;

/// Runs a future to its end on this thread. Tasks that it leaves behind end with it.
pub(super) fn block_on<T>(
    future: impl Future<Output = Result<T, CliError>>,
) -> Result<T, CliError> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CliError::failed)?;
    let outcome = runtime.block_on(future);
    // A lookup of a host's name may still be going on; nobody wants to wait for it.
    runtime.shutdown_background();
    outcome
}
