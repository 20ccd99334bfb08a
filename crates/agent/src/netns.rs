//! Network namespaces for unit tests that need a kernel. Nothing here touches the machine's own namespace.

use nix::sched::{CloneFlags, unshare};

/// Runs `work` on a thread of its own in a new, empty network namespace. Needs root.
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
