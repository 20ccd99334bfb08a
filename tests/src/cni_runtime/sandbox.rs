//! A pod's network namespace, without a name: nothing is left of it when its last user is gone.

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use nix::sched::{CloneFlags, setns, unshare};

use super::node::on_a_thread;

#[derive(Debug)]
pub struct Sandbox {
    namespace: File,
}

impl Sandbox {
    /// An empty one, as runtimes make it before they start plugins.
    ///
    /// # Panics
    /// If it cannot be made. That needs root.
    #[expect(clippy::new_without_default, reason = "it is made in the kernel, and by nobody unasked")]
    pub fn new() -> Sandbox {
        let namespace = on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("a new network namespace (the tests run as root)");
            // Else an IPv6 address is of no use in its first second.
            fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").expect("a setting of the new namespace");
            File::open("/proc/thread-self/ns/net").expect("the namespace of this thread")
        });
        Sandbox { namespace }
    }

    /// CNI_NETNS: good for as long as this lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespace.as_raw_fd())
    }

    /// Runs `work` on a thread in the namespace. Programs that it starts run there too.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        on_a_thread(|| {
            self.enter();
            work()
        })
    }

    /// Moves this thread, and no other, into the namespace.
    pub(super) fn enter(&self) {
        setns(&self.namespace, CloneFlags::CLONE_NEWNET).expect("entering a namespace");
    }
}
