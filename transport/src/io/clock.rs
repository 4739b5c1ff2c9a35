//! The only reader of the clocks. Embedders that pass times in may read them here too.

use std::time::{Instant, SystemTime};

/// The monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the clock is read"
)]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// The wall clock, for certificates alone.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the clock is read"
)]
#[must_use]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// Sleeps until `due`, for ever if there is none.
pub(crate) async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}
