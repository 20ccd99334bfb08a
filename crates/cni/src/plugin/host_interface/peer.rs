//! The other end of a pod's veth, asked of the kernel from within the pod (rtnetlink(7)).
//!
//! From the host the question has no answer: the ends of all pods may have peers of the same index, each in its own
//! namespace.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice, recv, send, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLM_F_REQUEST: u16 = 1;
const IFLA_ADDRESS: u16 = 1;
const IFLA_LINK: u16 = 5;

/// Of `struct nlmsghdr` and `struct ifinfomsg`, which are as long as each other.
const HEADER_BYTES: usize = 16;

/// What the kernel says of one interface is below two kilobytes.
const ANSWER_BYTES: usize = 16 * 1024;

/// The index on the host of the other end of an interface; none if that cannot be said.
pub(super) fn index_on_host(sandbox: &Path, interface: &str) -> Option<u32> {
    let ask = || {
        let namespace = File::open(sandbox).ok()?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).ok()?;
        let answer = ask_link(interface)?;
        Some(u32::from_ne_bytes(attribute(&answer, IFLA_LINK)?.try_into().ok()?))
    };
    // Only the thread moves into the pod.
    std::thread::scope(|scope| scope.spawn(ask).join().ok().flatten())
}

fn open(family: AddressFamily, kind: SocketType) -> Option<OwnedFd> {
    socket_with(family, kind, SocketFlags::CLOEXEC, None).ok()
}

fn request(index: u32) -> [u8; 2 * HEADER_BYTES] {
    const LENGTH: u32 = 2 * HEADER_BYTES as u32;
    let mut request = [0; 2 * HEADER_BYTES];
    request[0..4].copy_from_slice(&LENGTH.to_ne_bytes());
    request[4..6].copy_from_slice(&RTM_GETLINK.to_ne_bytes());
    request[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    request[HEADER_BYTES + 4..HEADER_BYTES + 8].copy_from_slice(&index.to_ne_bytes());
    request
}

/// The hardware address of an interface of the calling thread's namespace, if it is an Ethernet one.
pub(in crate::plugin) fn hardware_address(interface: &str) -> Option<String> {
    let answer = ask_link(interface)?;
    // `ifi_type` of `struct ifinfomsg`: ARPHRD_ETHER is 1.
    let bytes: [u8; 6] = attribute(&answer, IFLA_ADDRESS)?.try_into().ok()?;
    let is_ethernet = u16_at(&answer, HEADER_BYTES + 2)? == 1;
    is_ethernet.then(|| bytes.map(|byte| format!("{byte:02x}")).join(":"))
}

/// What the kernel says of an interface of the calling thread's namespace.
fn ask_link(interface: &str) -> Option<Vec<u8>> {
    let index = netdevice::name_to_index(open(AddressFamily::INET, SocketType::DGRAM)?, interface).ok()?;
    let socket = open(AddressFamily::NETLINK, SocketType::RAW)?;
    send(&socket, &request(index), SendFlags::empty()).ok()?;
    let mut answer = vec![0; ANSWER_BYTES];
    let (_, length) = recv(&socket, &mut answer[..], RecvFlags::empty()).ok()?;
    answer.truncate(length);
    Some(answer)
}

/// The value of an attribute of the answer.
fn attribute(answer: &[u8], kind: u16) -> Option<&[u8]> {
    if u16_at(answer, 4)? != RTM_NEWLINK {
        return None;
    }
    let mut attributes = answer.get(2 * HEADER_BYTES..)?;
    loop {
        let length = usize::from(u16_at(attributes, 0)?);
        if u16_at(attributes, 2)? == kind {
            return attributes.get(4..length);
        }
        // An attribute is as long as its header at least; else this would not end.
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}
