//! Questions to a batch system.

use mend_batch::BatchError;

/// Asks a batch system, whose commands may take a while.
pub(crate) async fn ask<T: Send + 'static>(question: impl FnOnce() -> Result<T, BatchError> + Send + 'static) -> Result<T, BatchError> {
    match tokio::task::spawn_blocking(question).await {
        Ok(answer) => answer,
        Err(error) => Err(BatchError::Unexpected { what: "a batch system's command", text: error.to_string() }),
    }
}
