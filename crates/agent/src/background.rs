//! Work in a thread of its own, whose result the event loop awaits.

use std::io;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

/// Runs at most one thread.
pub(crate) struct Background<T> {
    running: Option<oneshot::Receiver<T>>,
}

impl<T> Default for Background<T> {
    fn default() -> Background<T> {
        Background { running: None }
    }
}

impl<T: Send + 'static> Background<T> {
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Starts the work in a thread of this name.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(&mut self, name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<()> {
        let (sender, receiver) = oneshot::channel();
        std::thread::Builder::new().name(name.into()).spawn(move || {
            if sender.send(work()).is_err() {
                tracing::debug!("the result of a thread was discarded: its receiver was dropped");
            }
        })?;
        self.running = Some(receiver);
        Ok(())
    }

    /// Makes the next [`Background::outcome`] an error, as if the work had panicked.
    pub(crate) fn fail(&mut self) {
        self.running = Some(oneshot::channel().1);
    }

    /// The result of the running work, or an error if the work panicked. Pending while no work runs. Cancel safe.
    pub(crate) async fn outcome(&mut self) -> Result<T, RecvError> {
        let Some(running) = &mut self.running else { return std::future::pending().await };
        let outcome = running.await;
        self.running = None;
        outcome
    }
}
