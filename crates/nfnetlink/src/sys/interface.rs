//! Network interfaces.

use std::ffi::CStr;
use std::io;

/// The name of the interface with this index in the calling thread's network namespace; `None` if it does not exist.
pub fn interface_name(index: u32) -> io::Result<Option<String>> {
    let mut room = [0u8; libc::IF_NAMESIZE];
    // SAFETY: if_indextoname writes at most IF_NAMESIZE bytes at the pointer, which is an array of that length on this
    // stack frame.
    let found = unsafe { libc::if_indextoname(index, room.as_mut_ptr().cast()) };
    if found.is_null() {
        return match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            e => Err(e),
        };
    }
    match CStr::from_bytes_until_nul(&room) {
        Ok(name) => Ok(Some(name.to_string_lossy().into_owned())),
        Err(e) => Err(io::Error::other(e)),
    }
}
