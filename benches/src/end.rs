//! The other end of an exchange: a thread of its own with a runtime of one thread. The bench's own
//! thread runs this end, likewise on a runtime of one thread, so each end is exactly one thread,
//! whatever runs on it, and its cost can be read off.

use std::future::Future;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

use crate::Fault;
use crate::meter::ThreadMeter;

/// A runtime of one thread, the caller's.
///
/// # Errors
/// The system refused.
pub fn single_threaded() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// A thread that runs what is spawned on it, until it is dropped.
#[derive(Debug)]
pub struct OtherEnd {
    handle: Handle,
    meter: ThreadMeter,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl OtherEnd {
    /// Starts it.
    ///
    /// # Errors
    /// The system refused.
    pub fn start() -> Result<Self, Fault> {
        let runtime = single_threaded()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("other-end".to_owned())
            .spawn(move || {
                if tell.send(ThreadMeter::of_this_thread()).is_ok() {
                    // The sender is dropped to stop it.
                    drop(runtime.block_on(stopped));
                }
            })?;
        let meter = told.recv()??;
        Ok(Self {
            handle,
            meter,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// What reads its cost.
    #[must_use]
    pub const fn meter(&self) -> &ThreadMeter {
        &self.meter
    }

    /// Runs `future` there and waits for what it gives.
    ///
    /// # Errors
    /// It panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Fault> {
        Ok(self.handle.spawn(future).await?)
    }

    /// Runs `future` there for as long as the returned handle isn't aborted.
    pub fn spawn(
        &self,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> tokio::task::JoinHandle<()> {
        self.handle.spawn(future)
    }
}

impl Drop for OtherEnd {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            drop(thread.join());
        }
    }
}
