//! Sets the host side of a pod's link down (rtnetlink(7)).
//!
//! A packet may wait in the pod for neighbour resolution or in a queue, and a network namespace outlives its processes
//! while a socket closes. The main plugin removes the link only later in DEL, and does not find an interface that the
//! pod has renamed.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice, recv, send, socket_with};

use crate::plugin::netlink::{HEADER_BYTES, NLM_F_ACK, NLM_F_REQUEST, acknowledgement};

const RTM_NEWLINK: u16 = 16;
const IFF_UP: u32 = 1;

/// Size of `struct ifinfomsg`.
const LINK_BYTES: usize = 16;

/// The kernel's response includes the request.
const ANSWER_BYTES: usize = 1024;

/// Sets the interface with this name down, if its index matches or is unknown. Name and index may be those of another
/// interface by now: of a pod that started since, or after a reboot of the node.
///
/// # Errors
/// If it may still be up.
pub(super) fn set_down(name: &str, index: Option<u32>) -> io::Result<()> {
    let found = match netdevice::name_to_index(
        socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?,
        name,
    ) {
        Ok(found) => found,
        Err(rustix::io::Errno::NODEV) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if index.is_some_and(|index| index != found) {
        return Ok(());
    }
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &request(found), SendFlags::empty())?;
    let mut answer = vec![0; ANSWER_BYTES];
    let (_, length) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    let answer = answer.get(..length).and_then(acknowledgement);
    answer.unwrap_or_else(|| Err(io::Error::other("unexpected answer of rtnetlink")))
}

fn request(index: u32) -> Vec<u8> {
    let length = (HEADER_BYTES + LINK_BYTES) as u32;
    let mut request = length.to_ne_bytes().to_vec();
    request.extend(RTM_NEWLINK.to_ne_bytes());
    request.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    // Sequence number and port ID, then the family and the type of the interface.
    request.extend([0; 8 + 4]);
    request.extend(index.to_ne_bytes());
    // The flags, and the mask of those to change.
    request.extend(0u32.to_ne_bytes());
    request.extend(IFF_UP.to_ne_bytes());
    request
}
