//! Threads that end with what they serve.

use std::thread::JoinHandle;

/// Waits for the thread's end. Its panic becomes the caller's, unless that panics already.
pub fn end(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread
        && let Err(panic) = thread.join()
        && !std::thread::panicking()
    {
        std::panic::resume_unwind(panic);
    }
}
