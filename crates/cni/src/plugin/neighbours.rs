//! Drops the packets that wait on the node for the resolution of a new pod's address (rtnetlink(7)).
//!
//! The node forwards packets to an address of a bridge's subnet that no pod has yet, and keeps some 200 KB of them while
//! it asks for the address (`unres_qlen_bytes`). It sends them once a pod with the address answers: behind all hooks of
//! IP, which judged them before the policies of this pod were in force.

use std::io;
use std::net::IpAddr;

use netlink::{AttributeList, Messages, NetlinkProtocol, Socket, flags, message};

const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
/// The only state in which packets wait (`__neigh_event_send`).
const NUD_INCOMPLETE: u16 = 1;
/// `AF_INET` and `AF_INET6`.
const FAMILIES: [u8; 2] = [2, 10];

/// Length of `struct ndmsg`: the family, 3 bytes of padding, the interface, the state, flags and type.
const HEADER: usize = 12;

/// An entry whose address is being resolved.
struct UnresolvedEntry {
    header: [u8; HEADER],
    address: IpAddr,
}

/// # Errors
/// If packets to one of the addresses may still wait.
pub(super) fn drop_waiting(addresses: &[IpAddr]) -> io::Result<()> {
    let socket = Socket::open(NetlinkProtocol::Route)?;
    for family in FAMILIES {
        for UnresolvedEntry { header, address } in unresolved(&socket, family)? {
            if addresses.contains(&address) {
                remove(&socket, &header, address)?;
            }
        }
    }
    Ok(())
}

fn unresolved(socket: &Socket, family: u8) -> io::Result<Vec<UnresolvedEntry>> {
    let mut header = [0; HEADER];
    header[0] = family;
    socket.send(&message(RTM_GETNEIGH, flags::DUMP, 0, &header, &AttributeList::new()))?;
    let mut found = Vec::new();
    loop {
        let datagram = socket.receive()?;
        for message in Messages::new(&datagram) {
            let message = message?;
            if message.kind == netlink::DONE {
                return Ok(found);
            }
            if let Some(acknowledgement) = message.acknowledgement()? {
                acknowledgement.result()?;
            }
            if message.kind != RTM_NEWNEIGH {
                continue;
            }
            let (header, attributes) = message.split(HEADER)?;
            let Some(address) = attributes.find_kind(NDA_DST) else { continue };
            let header: [u8; HEADER] = header.try_into().expect("the length of the header");
            let state = u16::from_ne_bytes([header[8], header[9]]);
            if state & NUD_INCOMPLETE == 0 {
                continue;
            }
            let address = match family {
                2 => IpAddr::from(address.array::<4>()?),
                _ => IpAddr::from(address.array::<16>()?),
            };
            found.push(UnresolvedEntry { header, address });
        }
    }
}

/// Removes the entry together with the packets that wait for it.
fn remove(socket: &Socket, header: &[u8; HEADER], address: IpAddr) -> io::Result<()> {
    let destination = match address {
        IpAddr::V4(address) => AttributeList::new().put(NDA_DST, &address.octets()),
        IpAddr::V6(address) => AttributeList::new().put(NDA_DST, &address.octets()),
    };
    let answer = socket.request(&message(RTM_DELNEIGH, flags::ACK, 0, header, &destination))?;
    let acknowledgement = match Messages::new(&answer).next() {
        Some(message) => message?.acknowledgement()?,
        None => None,
    };
    let removed = acknowledgement.ok_or_else(|| io::Error::other("unexpected answer of rtnetlink"))?.result();
    match removed {
        // The entry has expired meanwhile.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOENT.raw_os_error()) => Ok(()),
        removed => removed,
    }
}
