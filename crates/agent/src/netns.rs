//! Network namespaces for unit tests that need a kernel. They never change the host's namespace.

use nix::sched::{CloneFlags, unshare};

/// Runs `work` in a separate thread, in a new, empty network namespace. Needs root.
pub(crate) fn in_new_namespace(work: impl FnOnce() + Send) {
    let in_namespace = || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a new network namespace (the tests run as root)");
        work();
    };
    let ended = std::thread::scope(|scope| scope.spawn(in_namespace).join());
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}
