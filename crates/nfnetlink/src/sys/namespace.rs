//! Network namespaces.

use std::io;

/// Moves only the calling thread into a new network namespace, which exists until the thread and the sockets opened
/// there are gone.
pub(crate) fn enter_new_network_namespace() -> io::Result<()> {
    // SAFETY: unshare takes flags and touches no memory; CLONE_NEWNET changes nothing that threads share.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
