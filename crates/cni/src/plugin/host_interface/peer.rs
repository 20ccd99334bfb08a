//! Finds the peer of a pod's veth, by rtnetlink(7) from within the pod.
//!
//! The host cannot answer this query: the veths of all pods may have peers of the same index, each in its own
//! namespace.

use netlink::{Attribute, AttributeList, Messages, NetlinkProtocol, Socket, message};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use crate::plugin::link_header::{LINK_HEADER, link_header};
use crate::plugin::sandbox::in_sandbox;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const IFLA_ADDRESS: u16 = 1;
const IFLA_LINK: u16 = 5;

/// `ifi_type` of an Ethernet interface.
const ARPHRD_ETHER: u16 = 1;

/// Index of an interface's peer on the host; `None` if it cannot be determined.
pub(super) fn index_on_host(sandbox: &str, interface: &str) -> Option<u32> {
    in_sandbox(sandbox, || Ok(ask_link(interface))).ok().flatten()?.attribute(IFLA_LINK)?.ne32().ok()
}

/// Hardware address of an Ethernet interface in the calling thread's namespace.
pub(in crate::plugin) fn hardware_address(interface: &str) -> Option<String> {
    let link = ask_link(interface)?;
    let bytes: [u8; 6] = link.attribute(IFLA_ADDRESS)?.array().ok()?;
    (link.kind()? == ARPHRD_ETHER).then(|| bytes.map(|byte| format!("{byte:02x}")).join(":"))
}

/// The kernel's description of an interface.
struct LinkAnswer(Vec<u8>);

impl LinkAnswer {
    /// `struct ifinfomsg` and the attributes behind it.
    fn parts(&self) -> Option<(&[u8], netlink::Attributes<'_>)> {
        let message = Messages::new(&self.0).next()?.ok()?;
        if message.kind == RTM_NEWLINK { message.split(LINK_HEADER).ok() } else { None }
    }

    fn attribute(&self, kind: u16) -> Option<Attribute<'_>> {
        self.parts()?.1.find_kind(kind)
    }

    /// `ifi_type` of `struct ifinfomsg`.
    fn kind(&self) -> Option<u16> {
        let (header, _) = self.parts()?;
        Some(u16::from_ne_bytes(header.get(2..4)?.try_into().ok()?))
    }
}

/// Queries an interface of the calling thread's namespace.
fn ask_link(interface: &str) -> Option<LinkAnswer> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    let index = netdevice::name_to_index(socket, interface).ok()?;
    let request = message(RTM_GETLINK, 0, 0, &link_header(index, 0, 0), &AttributeList::new());
    Some(LinkAnswer(Socket::open(NetlinkProtocol::Route).ok()?.request(&request).ok()?))
}
