//! Network namespaces for tests. The machine's own namespace is never changed.

use std::thread;

use nix::sched::{CloneFlags, unshare};

/// Runs `work` on a new thread in a new, empty network namespace, which ends with it. Programs that `work` starts run
/// in that namespace too. Needs root.
///
/// # Panics
/// If the namespace cannot be created, or `work` panics.
pub fn in_new_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            enter_new_namespace();
            work()
        });
        match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Moves the calling thread, and programs that it starts later, to a new, empty network namespace for the lifetime of
/// the thread. Needs root.
///
/// # Panics
/// If the namespace cannot be created.
pub fn enter_new_namespace() {
    unshare(CloneFlags::CLONE_NEWNET).expect("a new network namespace (the tests run as root)");
}
