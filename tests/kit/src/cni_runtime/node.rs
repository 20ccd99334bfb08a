//! The namespaces for a node's plugins: its network namespace, and a mount namespace whose `/sys` shows that network.

use std::fs::File;
use std::path::Path;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

/// Created once for each node, so that running a plugin is cheap.
pub struct NodeNamespaces {
    network: File,
    mounts: File,
}

impl NodeNamespaces {
    /// # Panics
    /// If the network namespace does not exist, or cannot be entered.
    pub fn of(network: &Path) -> NodeNamespaces {
        let network = File::open(network).expect("a network namespace");
        let mounts = on_a_thread(|| {
            setns(&network, CloneFlags::CLONE_NEWNET).expect("entering a namespace (the tests run as root)");
            unshare(CloneFlags::CLONE_NEWNS).expect("a new mount namespace");
            let nothing = None::<&str>;
            // Mounts of the outside propagate into this namespace, but not the reverse.
            mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_SLAVE, nothing).expect("mounts of its own");
            mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), nothing).expect("the node's /sys");
            // Plugins wait for duplicate address detection, which is useless here.
            for scope in ["all", "default"] {
                let path = format!("/proc/sys/net/ipv6/conf/{scope}/accept_dad");
                std::fs::write(&path, "0").unwrap_or_else(|error| panic!("{path}: {error}"));
            }
            File::open("/proc/thread-self/ns/mnt").expect("the namespace of this thread")
        });
        NodeNamespaces { network, mounts }
    }

    /// Runs `work` on a thread in the namespaces. Programs that it starts run there too.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        on_a_thread(|| {
            // A thread that shares its root and working folder cannot change its mount namespace.
            unshare(CloneFlags::CLONE_FS).expect("a thread of its own");
            setns(&self.mounts, CloneFlags::CLONE_NEWNS).expect("entering a namespace");
            setns(&self.network, CloneFlags::CLONE_NEWNET).expect("entering a namespace");
            work()
        })
    }
}

/// Runs `work` on a thread whose namespaces it may change.
pub(super) fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
