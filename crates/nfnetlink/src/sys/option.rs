//! Socket options whose value is a kernel structure.

use std::io;
use std::os::fd::AsRawFd;

/// Reads an option into a buffer whose first bytes are the request. The kernel has to fill all of it.
pub(crate) fn read_socket_option(socket: &impl AsRawFd, level: i32, name: i32, buffer: &mut [u8]) -> io::Result<()> {
    let mut length = libc::socklen_t::try_from(buffer.len()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads and writes at most `length` bytes at the pointer, which is that of a slice of this
    // length, and then sets `length`, which is on this stack frame, to the number of bytes written.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, buffer.as_mut_ptr().cast(), &raw mut length) };
    match result {
        0 if length as usize == buffer.len() => Ok(()),
        0 => Err(io::Error::other(format!("a socket option of {length} bytes, expected {}", buffer.len()))),
        _ => Err(io::Error::last_os_error()),
    }
}
