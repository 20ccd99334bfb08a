//! Finds the peer of a pod's veth, by rtnetlink(7) from within the pod.
//!
//! The host cannot answer this query: the veths of all pods may have peers of the same index, each in its own
//! namespace.

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice, recv, send, socket_with};

use crate::plugin::netlink::{HEADER_BYTES, NLM_F_REQUEST, find, message_type, u16_at};
use crate::plugin::sandbox::in_sandbox;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const IFLA_ADDRESS: u16 = 1;
const IFLA_LINK: u16 = 5;

/// Size of `struct ifinfomsg`.
const LINK_BYTES: usize = 16;

/// Messages about one interface have less than two kilobytes.
const ANSWER_BYTES: usize = 16 * 1024;

/// Index of an interface's peer on the host; `None` if it cannot be determined.
pub(super) fn index_on_host(sandbox: &str, interface: &str) -> Option<u32> {
    let ask = || {
        let answer = ask_link(interface)?;
        Some(u32::from_ne_bytes(link_attribute(&answer, IFLA_LINK)?.try_into().ok()?))
    };
    in_sandbox(sandbox, || Ok(ask())).ok().flatten()
}

fn open(family: AddressFamily, kind: SocketType) -> Option<OwnedFd> {
    socket_with(family, kind, SocketFlags::CLOEXEC, None).ok()
}

fn request(index: u32) -> [u8; HEADER_BYTES + LINK_BYTES] {
    const LENGTH: u32 = (HEADER_BYTES + LINK_BYTES) as u32;
    let mut request = [0; HEADER_BYTES + LINK_BYTES];
    request[0..4].copy_from_slice(&LENGTH.to_ne_bytes());
    request[4..6].copy_from_slice(&RTM_GETLINK.to_ne_bytes());
    request[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    request[HEADER_BYTES + 4..HEADER_BYTES + 8].copy_from_slice(&index.to_ne_bytes());
    request
}

/// Hardware address of an Ethernet interface in the calling thread's namespace.
pub(in crate::plugin) fn hardware_address(interface: &str) -> Option<String> {
    let answer = ask_link(interface)?;
    // `ifi_type` of `struct ifinfomsg`: ARPHRD_ETHER is 1.
    let bytes: [u8; 6] = link_attribute(&answer, IFLA_ADDRESS)?.try_into().ok()?;
    let is_ethernet = u16_at(&answer, HEADER_BYTES + 2)? == 1;
    is_ethernet.then(|| bytes.map(|byte| format!("{byte:02x}")).join(":"))
}

/// Queries an interface of the calling thread's namespace.
fn ask_link(interface: &str) -> Option<Vec<u8>> {
    let index = netdevice::name_to_index(open(AddressFamily::INET, SocketType::DGRAM)?, interface).ok()?;
    let socket = open(AddressFamily::NETLINK, SocketType::RAW)?;
    send(&socket, &request(index), SendFlags::empty()).ok()?;
    let mut answer = vec![0; ANSWER_BYTES];
    let (_, length) = recv(&socket, &mut answer[..], RecvFlags::empty()).ok()?;
    answer.truncate(length);
    Some(answer)
}

/// Value of an attribute of the response.
fn link_attribute(answer: &[u8], kind: u16) -> Option<&[u8]> {
    match message_type(answer)? {
        RTM_NEWLINK => find(answer.get(HEADER_BYTES + LINK_BYTES..)?, kind),
        _ => None,
    }
}
