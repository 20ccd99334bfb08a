//! A pod's network namespace without a name, which the kernel removes with its last user.

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use nix::sched::{CloneFlags, setns, unshare};

use super::node::on_a_thread;

#[derive(Debug)]
pub struct Sandbox {
    namespace: File,
}

impl Sandbox {
    /// Creates an empty namespace, as runtimes do before they start plugins.
    ///
    /// # Panics
    /// If it cannot be created. Needs root.
    #[expect(clippy::new_without_default, reason = "it creates a network namespace")]
    pub fn new() -> Sandbox {
        let namespace = on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("a new network namespace (the tests run as root)");
            // Without this, duplicate address detection makes an IPv6 address unusable for its first second.
            fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").expect("a setting of the new namespace");
            File::open("/proc/thread-self/ns/net").expect("the namespace of this thread")
        });
        Sandbox { namespace }
    }

    /// CNI_NETNS: valid for the lifetime of this value.
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

    /// Moves only this thread into the namespace.
    pub(super) fn enter(&self) {
        setns(&self.namespace, CloneFlags::CLONE_NEWNET).expect("entering a namespace");
    }
}
