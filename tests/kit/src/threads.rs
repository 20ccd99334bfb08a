//! Joining of the fakes' threads.

use std::thread::JoinHandle;

/// Joins the thread. Its panic becomes the caller's, unless the caller already panics.
pub fn end(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread
        && let Err(panic) = thread.join()
        && !std::thread::panicking()
    {
        std::panic::resume_unwind(panic);
    }
}
