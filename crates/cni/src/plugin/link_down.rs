//! Sets the host side of a pod's link down (rtnetlink(7)).
//!
//! A packet may wait in the pod for neighbour resolution or in a queue, and a network namespace outlives its processes
//! while a socket closes. The main plugin removes the link only later in DEL, and does not find an interface that the
//! pod has renamed.

use std::io;

use netlink::{AttributeList, Messages, NetlinkProtocol, Socket, flags, message};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use crate::plugin::link_header::link_header;

const RTM_NEWLINK: u16 = 16;
const IFF_UP: u32 = 1;

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
    let request = message(RTM_NEWLINK, flags::ACK, 0, &link_header(found, 0, IFF_UP), &AttributeList::new());
    let answer = Socket::open(NetlinkProtocol::Route)?.request(&request)?;
    let acknowledgement = match Messages::new(&answer).next() {
        Some(message) => message?.acknowledgement()?,
        None => None,
    };
    acknowledgement.ok_or_else(|| io::Error::other("unexpected answer of rtnetlink"))?.result()
}
