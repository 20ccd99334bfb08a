//! Joins the threads of the fake servers.

use std::thread::JoinHandle;

/// Joins the thread and propagates its panic, unless the caller already panics.
pub fn end(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread
        && let Err(panic) = thread.join()
        && !std::thread::panicking()
    {
        std::panic::resume_unwind(panic);
    }
}
