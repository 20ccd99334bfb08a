//! Links of a network namespace over rtnetlink: listing them, and creating them in the scratch namespaces of the
//! self-test.
//!
//! A socket belongs to the namespace of the thread that opened it, unlike `/sys/class/net`, which shows the namespace
//! of its mount.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

/// Receive buffer: the kernel fills at most 32 KiB of a dump at once (`netlink_dump`).
const DATAGRAM: usize = 64 << 10;
/// Bound on listed links, far above the some hundred pods of a node.
const MOST_LINKS: usize = 65_536;
/// Attempts to list the links; pods starting concurrently interrupt some.
const LISTINGS: u32 = 10;

/// Lengths of `struct nlmsghdr` and `struct ifinfomsg`.
const HEADER: usize = 16;
const INTERFACE_HEADER: usize = 16;
/// Length of `struct tcmsg`.
const QDISC_HEADER: usize = 20;
/// The two upper bits of an attribute's type are flags: nested, and network byte order.
const TYPE_MASK: u16 = 0x3fff;

/// `linux/veth.h`, `linux/if_link.h` and `linux/rtnetlink.h`: constants missing in libc.
const VETH_INFO_PEER: u16 = 1;
const IFLA_BR_VLAN_FILTERING: u16 = 7;
const IFLA_BR_NF_CALL_IPTABLES: u16 = 36;
const IFLA_BR_NF_CALL_IP6TABLES: u16 = 37;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_GENEVE_PORT: u16 = 5;
const IFLA_BAREUDP_PORT: u16 = 1;
/// `linux/if_tunnel.h`: the UDP port of a tunnel in FOU or GUE, 0 without them.
const IFLA_IPTUN_ENCAP_DPORT: u16 = 18;
const IFLA_GRE_ENCAP_DPORT: u16 = 17;
const RTNH_F_ONLINK: u32 = 4;
/// `linux/rtnetlink.h`: the kind of a qdisc.
const TCA_KIND: u16 = 1;
/// The ingress qdiscs of interfaces (`net/sched/sch_ingress.c`).
const INGRESS_QDISCS: [&str; 2] = ["ingress", "clsact"];

/// Flag of an interface that is up.
const UP: u32 = libc::IFF_UP as u32;

/// Properties of an interface used by the doctor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) name: String,
    pub(crate) index: u32,
    /// Driver name in the kernel, such as `veth` or `bridge`; empty for hardware.
    pub(crate) kind: String,
    /// Index of the bridge of a port.
    pub(crate) master: Option<u32>,
    /// The peer is in another namespace.
    pub(crate) leads_elsewhere: bool,
    /// `nf_call_iptables` and `nf_call_ip6tables` of the bridge.
    pub(crate) calls_iptables: bool,
    pub(crate) calls_ip6tables: bool,
    /// `vlan_filtering` of a bridge.
    pub(crate) filters_vlans: bool,
    pub(crate) is_up: bool,
    /// The UDP port of a tunnel: VXLAN, Geneve, bareudp, or FOU and GUE.
    pub(crate) tunnel_port: Option<u16>,
}

pub(crate) struct Rtnetlink {
    socket: OwnedFd,
    sequence: u32,
}

/// One end of a new veth pair.
pub(super) struct VethEnd<'a> {
    pub(super) name: &'a str,
    pub(super) index: u32,
    pub(super) hardware: [u8; 6],
}

impl Rtnetlink {
    /// Opens a socket in the calling thread's namespace.
    pub(crate) fn open() -> io::Result<Rtnetlink> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        Ok(Rtnetlink { socket, sequence: 0 })
    }

    pub(crate) fn links(&mut self) -> io::Result<Vec<Link>> {
        for _ in 0..LISTINGS {
            if let Some(links) = self.list_links()? {
                return Ok(links);
            }
        }
        Err(io::Error::other(format!(
            "the dump of links was interrupted (NLM_F_DUMP_INTR) in each of {LISTINGS} attempts"
        )))
    }

    /// `None` if the dump was interrupted, so that links may be missing.
    fn list_links(&mut self) -> io::Result<Option<Vec<Link>>> {
        let mut links = Vec::new();
        let is_whole = self.dump(libc::RTM_GETLINK, &[0; INTERFACE_HEADER], |message| {
            if message.kind != libc::RTM_NEWLINK {
                return Ok(());
            }
            if links.len() >= MOST_LINKS {
                return Err(io::Error::other(format!("more than {MOST_LINKS} links")));
            }
            links.push(link(message.body)?);
            Ok(())
        })?;
        Ok(is_whole.then_some(links))
    }

    /// Indices of the interfaces with an ingress qdisc, whose filters may redirect packets. Empty on a kernel without
    /// traffic control.
    pub(crate) fn links_with_ingress_qdisc(&mut self) -> io::Result<BTreeSet<u32>> {
        for _ in 0..LISTINGS {
            let mut found = BTreeSet::new();
            let listed = self.dump(libc::RTM_GETQDISC, &[0; QDISC_HEADER], |message| {
                if message.kind == libc::RTM_NEWQDISC {
                    found.extend(link_of_ingress_qdisc(message.body)?);
                }
                Ok(())
            });
            match listed {
                Ok(true) => return Ok(found),
                Ok(false) => {}
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(BTreeSet::new()),
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other(format!(
            "the dump of qdiscs was interrupted (NLM_F_DUMP_INTR) in each of {LISTINGS} attempts"
        )))
    }

    /// Returns false if the dump was interrupted (NLM_F_DUMP_INTR) and may be inconsistent.
    fn dump(
        &mut self,
        request: u16,
        header: &[u8],
        mut take: impl FnMut(&Message) -> io::Result<()>,
    ) -> io::Result<bool> {
        let mut interrupted = false;
        self.send(request, libc::NLM_F_DUMP, header)?;
        let mut buffer = vec![0; DATAGRAM];
        loop {
            let datagram = self.receive(&mut buffer)?;
            for message in Messages(datagram) {
                let message = message?;
                interrupted |= i32::from(message.flags) & libc::NLM_F_DUMP_INTR != 0;
                match i32::from(message.kind) {
                    libc::NLMSG_DONE => return Ok(!interrupted),
                    libc::NLMSG_ERROR => message.acknowledged()?,
                    _ => take(&message)?,
                }
            }
        }
    }

    /// Creates a veth pair with the far end in another namespace. The near end is up; the far end can only be set up
    /// once the pair exists (`veth_open`).
    pub(super) fn add_veth(&mut self, near: &VethEnd, far: &VethEnd, namespace: BorrowedFd) -> io::Result<()> {
        let mut peer = Body::interface(far.index, 0);
        peer.text(libc::IFLA_IFNAME, far.name);
        peer.bytes(libc::IFLA_ADDRESS, &far.hardware);
        peer.bytes(libc::IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes());
        let mut data = Body::default();
        data.bytes(VETH_INFO_PEER, &peer.0);
        let mut info = Body::default();
        info.text(libc::IFLA_INFO_KIND, "veth");
        info.bytes(libc::IFLA_INFO_DATA, &data.0);
        let mut body = Body::interface(near.index, UP);
        body.text(libc::IFLA_IFNAME, near.name);
        body.bytes(libc::IFLA_ADDRESS, &near.hardware);
        body.bytes(libc::IFLA_LINKINFO, &info.0);
        self.create(libc::RTM_NEWLINK, &body)
    }

    pub(super) fn set_up(&mut self, interface: u32) -> io::Result<()> {
        self.request(libc::RTM_SETLINK, 0, &Body::interface(interface, UP))
    }

    /// Adds an address to an interface, usable at once.
    pub(super) fn add_address(&mut self, interface: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        let octets = octets(address);
        let mut body = Body(vec![family(address), prefix, 0, 0]);
        body.0.extend_from_slice(&interface.to_ne_bytes());
        body.bytes(libc::IFA_LOCAL, &octets);
        body.bytes(libc::IFA_ADDRESS, &octets);
        // Duplicate address detection is unnecessary: the link has no other hosts.
        body.bytes(libc::IFA_FLAGS, &libc::IFA_F_NODAD.to_ne_bytes());
        self.create(libc::RTM_NEWADDR, &body)
    }

    /// Adds a permanent neighbour entry, so that no ARP or neighbour discovery is needed.
    pub(super) fn add_neighbour(&mut self, interface: u32, address: IpAddr, hardware: [u8; 6]) -> io::Result<()> {
        let mut body = Body(vec![family(address), 0, 0, 0]);
        body.0.extend_from_slice(&interface.to_ne_bytes());
        body.0.extend_from_slice(&libc::NUD_PERMANENT.to_ne_bytes());
        body.0.extend_from_slice(&[0, 0]);
        body.bytes(libc::NDA_DST, &octets(address));
        body.bytes(libc::NDA_LLADDR, &hardware);
        self.create(libc::RTM_NEWNEIGH, &body)
    }

    pub(super) fn add_default_route(&mut self, interface: u32, gateway: IpAddr) -> io::Result<()> {
        let (table, protocol, kind) = (libc::RT_TABLE_MAIN, libc::RTPROT_BOOT, libc::RTN_UNICAST);
        let scope = libc::RT_SCOPE_UNIVERSE;
        let mut body = Body(vec![family(gateway), 0, 0, 0, table, protocol, scope, kind]);
        // Connected routes may not exist yet, since the kernel adds them in the background.
        body.0.extend_from_slice(&RTNH_F_ONLINK.to_ne_bytes());
        body.bytes(libc::RTA_OIF, &interface.to_ne_bytes());
        body.bytes(libc::RTA_GATEWAY, &octets(gateway));
        self.create(libc::RTM_NEWROUTE, &body)
    }

    fn create(&mut self, kind: u16, body: &Body) -> io::Result<()> {
        self.request(kind, libc::NLM_F_CREATE | libc::NLM_F_EXCL, body)
    }

    fn request(&mut self, kind: u16, flags: i32, body: &Body) -> io::Result<()> {
        self.send(kind, flags | libc::NLM_F_ACK, &body.0)?;
        let mut buffer = vec![0; DATAGRAM];
        let datagram = self.receive(&mut buffer)?;
        match Messages(datagram).next() {
            Some(message) => message?.acknowledged(),
            None => Err(malformed()),
        }
    }

    fn send(&mut self, kind: u16, flags: i32, body: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = Vec::with_capacity(HEADER + body.len());
        bytes.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
        bytes.extend_from_slice(&self.sequence.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(body);
        send(self.socket.as_raw_fd(), &bytes, MsgFlags::empty())?;
        Ok(())
    }

    /// The kernel replies during the send call, so receiving does not block.
    fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
        let length = recv(self.socket.as_raw_fd(), buffer, flags)?;
        buffer.get(..length).ok_or_else(|| io::Error::other("a netlink message of more than 64 KiB"))
    }
}

/// Change of an interface, decoded from a notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkChange {
    Present {
        index: u32,
        name: String,
    },
    Gone {
        index: u32,
    },
    /// An address of an interface was added or removed.
    Address,
    /// An ingress qdisc of an interface was added or removed.
    IngressQdisc,
}

/// Decodes the interface changes in a datagram of rtnetlink's multicast groups.
pub(crate) fn link_changes(datagram: &[u8]) -> io::Result<Vec<LinkChange>> {
    let mut changes = Vec::new();
    for message in Messages(datagram) {
        let Message { kind, flags: _, body } = message?;
        if kind == libc::RTM_NEWADDR || kind == libc::RTM_DELADDR {
            changes.push(LinkChange::Address);
            continue;
        }
        if kind == libc::RTM_NEWQDISC || kind == libc::RTM_DELQDISC {
            changes.extend(link_of_ingress_qdisc(body)?.map(|_| LinkChange::IngressQdisc));
            continue;
        }
        if kind != libc::RTM_NEWLINK && kind != libc::RTM_DELLINK {
            continue;
        }
        // Bridge ports have separate notifications (`br_ifinfo_notify`), which report a port as deleted although the
        // interface has only left its bridge.
        if body.first() == Some(&(libc::AF_BRIDGE as u8)) {
            continue;
        }
        let Link { index, name, .. } = link(body)?;
        changes.push(if kind == libc::RTM_NEWLINK {
            LinkChange::Present { index, name }
        } else {
            LinkChange::Gone { index }
        });
    }
    Ok(changes)
}

/// Index of the interface if the qdisc is an ingress qdisc.
fn link_of_ingress_qdisc(body: &[u8]) -> io::Result<Option<u32>> {
    let (header, attributes) = body.split_at_checked(QDISC_HEADER).ok_or_else(malformed)?;
    for attribute in Attributes(attributes) {
        if let (TCA_KIND, kind) = attribute? {
            let is_at_ingress = INGRESS_QDISCS.contains(&&*text(kind));
            return Ok(is_at_ingress.then_some(number(&header[4..8])?));
        }
    }
    Err(malformed())
}

fn link(body: &[u8]) -> io::Result<Link> {
    let (header, attributes) = body.split_at_checked(INTERFACE_HEADER).ok_or_else(malformed)?;
    let is_up = number(&header[8..12])? & UP != 0;
    let mut link = Link { index: number(&header[4..8])?, is_up, ..Link::default() };
    for attribute in Attributes(attributes) {
        let (kind, value) = attribute?;
        match kind {
            libc::IFLA_IFNAME => link.name = text(value),
            libc::IFLA_MASTER => link.master = Some(number(value)?),
            libc::IFLA_LINK_NETNSID => link.leads_elsewhere = true,
            libc::IFLA_LINKINFO => describe(&mut link, value)?,
            _ => {}
        }
    }
    Ok(link)
}

fn describe(link: &mut Link, info: &[u8]) -> io::Result<()> {
    let mut data = None;
    for attribute in Attributes(info) {
        match attribute? {
            (libc::IFLA_INFO_KIND, value) => link.kind = text(value),
            (libc::IFLA_INFO_DATA, value) => data = Some(value),
            _ => {}
        }
    }
    let Some(data) = data else { return Ok(()) };
    for attribute in Attributes(data) {
        match (&*link.kind, attribute?) {
            ("bridge", (IFLA_BR_VLAN_FILTERING, value)) => link.filters_vlans = value != [0],
            ("bridge", (IFLA_BR_NF_CALL_IPTABLES, value)) => link.calls_iptables = value != [0],
            ("bridge", (IFLA_BR_NF_CALL_IP6TABLES, value)) => link.calls_ip6tables = value != [0],
            ("vxlan", (IFLA_VXLAN_PORT, value))
            | ("geneve", (IFLA_GENEVE_PORT, value))
            | ("bareudp", (IFLA_BAREUDP_PORT, value))
            | ("ipip" | "sit" | "ip6tnl", (IFLA_IPTUN_ENCAP_DPORT, value))
            | ("gre" | "gretap" | "ip6gre" | "ip6gretap", (IFLA_GRE_ENCAP_DPORT, value)) => {
                link.tunnel_port = Some(port(value)?).filter(|port| *port != 0);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Payload after the message header.
#[derive(Default)]
struct Body(Vec<u8>);

impl Body {
    /// A `struct ifinfomsg` that sets the flags.
    fn interface(index: u32, flags: u32) -> Body {
        let mut bytes = vec![0; 4];
        bytes.extend_from_slice(&index.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        Body(bytes)
    }

    fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.0.extend_from_slice(&((value.len() + 4) as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn text(&mut self, kind: u16, value: &str) {
        self.bytes(kind, &[value.as_bytes(), &[0]].concat());
    }
}

struct Message<'a> {
    kind: u16,
    flags: u16,
    body: &'a [u8],
}

impl Message<'_> {
    /// Checks the kernel's acknowledgement.
    fn acknowledged(&self) -> io::Result<()> {
        if i32::from(self.kind) != libc::NLMSG_ERROR {
            return Err(malformed());
        }
        match number(self.body.get(..4).ok_or_else(malformed)?)?.cast_signed() {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno.wrapping_neg())),
        }
    }
}

struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = io::Result<Message<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let length = self.0.get(..4).and_then(|l| number(l).ok()).map_or(0, |length| length as usize);
        let (Some(body), Some(&[k0, k1, f0, f1])) = (self.0.get(HEADER..length), self.0.get(4..8)) else {
            self.0 = &[];
            return Some(Err(malformed()));
        };
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(Ok(Message { kind: u16::from_ne_bytes([k0, k1]), flags: u16::from_ne_bytes([f0, f1]), body }))
    }
}

struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = io::Result<(u16, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        let [l0, l1, k0, k1, ..] = *self.0 else {
            let rest = std::mem::take(&mut self.0);
            return (!rest.is_empty()).then(|| Err(malformed()));
        };
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let Some(value) = self.0.get(4..length) else {
            self.0 = &[];
            return Some(Err(malformed()));
        };
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(Ok((u16::from_ne_bytes([k0, k1]) & TYPE_MASK, value)))
    }
}

/// A 32-bit number in host byte order.
fn number(value: &[u8]) -> io::Result<u32> {
    value.try_into().map(u32::from_ne_bytes).map_err(|_| malformed())
}

/// A port in network byte order.
fn port(value: &[u8]) -> io::Result<u16> {
    value.try_into().map(u16::from_be_bytes).map_err(|_| malformed())
}

/// A string without its terminating NUL.
fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn family(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    family as u8
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "cannot decode the kernel's netlink message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridge_and_port_decode_from_rtnetlink_attributes() {
        let mut data = Body::default();
        data.bytes(IFLA_BR_NF_CALL_IPTABLES, &[1]);
        data.bytes(IFLA_BR_NF_CALL_IP6TABLES, &[0]);
        data.bytes(IFLA_BR_VLAN_FILTERING, &[1]);
        let mut info = Body::default();
        info.text(libc::IFLA_INFO_KIND, "bridge");
        info.bytes(libc::IFLA_INFO_DATA, &data.0);
        let mut bridge = Body::interface(7, 0);
        bridge.text(libc::IFLA_IFNAME, "cni0");
        bridge.bytes(libc::IFLA_LINKINFO, &info.0);
        let expected = Link {
            name: "cni0".into(),
            index: 7,
            kind: "bridge".into(),
            calls_iptables: true,
            filters_vlans: true,
            ..Link::default()
        };
        assert_eq!(link(&bridge.0).unwrap(), expected);

        let mut port = Body::interface(8, 0);
        port.text(libc::IFLA_IFNAME, "veth1");
        port.bytes(libc::IFLA_MASTER, &7u32.to_ne_bytes());
        port.bytes(libc::IFLA_LINK_NETNSID, &0u32.to_ne_bytes());
        let expected =
            Link { name: "veth1".into(), index: 8, master: Some(7), leads_elsewhere: true, ..Link::default() };
        assert_eq!(link(&port.0).unwrap(), expected);
    }

    #[test]
    fn udp_port_of_a_tunnel_is_read() {
        let tunnel = |kind: &str, attribute: u16, port: u16| {
            let mut data = Body::default();
            data.bytes(attribute, &port.to_be_bytes());
            let mut info = Body::default();
            info.text(libc::IFLA_INFO_KIND, kind);
            info.bytes(libc::IFLA_INFO_DATA, &data.0);
            let mut body = Body::interface(9, UP);
            body.bytes(libc::IFLA_LINKINFO, &info.0);
            link(&body.0).unwrap()
        };
        for (kind, attribute) in
            [("vxlan", 15), ("geneve", 5), ("bareudp", 1), ("ipip", 18), ("sit", 18), ("ip6tnl", 18), ("gretap", 17)]
        {
            let link = tunnel(kind, attribute, 5555);
            assert_eq!((link.tunnel_port, link.is_up), (Some(5555), true), "{kind}");
        }
        assert_eq!(tunnel("ipip", 18, 0).tunnel_port, None, "without FOU");
        assert_eq!(tunnel("veth", 15, 5555).tunnel_port, None);
    }

    #[test]
    fn an_answer_that_is_cut_is_an_error() {
        let mut whole = Body::interface(7, 0);
        whole.text(libc::IFLA_IFNAME, "cni0");
        // The last three bytes are padding to a multiple of four.
        for length in 0..whole.0.len() - 3 {
            let cut = &whole.0[..length];
            assert!(length == INTERFACE_HEADER || link(cut).is_err(), "{length} bytes");
            assert!(length == 0 || Messages(cut).next().is_some_and(|m| m.is_err()), "{length} bytes");
        }
    }
}
