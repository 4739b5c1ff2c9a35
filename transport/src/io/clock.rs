//! The only reader of the clocks. Embedders that pass times in may read them here too.

use std::pin::Pin;
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

/// A timer for a loop whose next due time moves at nearly every turn and is rarely reached. The
/// runtime's timer is armed anew only when the due time moves ahead of it; when it has moved back
/// the loop is woken once for nothing, and arms it again.
#[derive(Debug)]
pub(crate) struct Alarm {
    sleep: Pin<Box<tokio::time::Sleep>>,
    armed: Option<Instant>,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        Self {
            sleep: Box::pin(tokio::time::sleep_until(now().into())),
            armed: None,
        }
    }

    /// Completes at `due` or, for nothing, before it; never if there is none.
    ///
    /// Cancel safe: a timer that is armed stays armed.
    pub(crate) async fn at_or_before(&mut self, due: Option<Instant>) {
        let Some(due) = due else {
            return std::future::pending().await;
        };
        if self.armed.is_none_or(|armed| due < armed) {
            self.sleep.as_mut().reset(due.into());
            self.armed = Some(due);
        }
        self.sleep.as_mut().await;
        self.armed = None;
    }
}
