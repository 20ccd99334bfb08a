//! Links of a network namespace over rtnetlink: listing them, and creating them in the scratch namespaces of the
//! self-test.
//!
//! A socket belongs to the namespace of the thread that opened it, unlike `/sys/class/net`, which shows the namespace
//! of its mount.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink::{
    Attribute, AttributeList, Attributes, MalformedNetlink, Message, Messages, NetlinkProtocol, Socket, flags,
};

/// Bound on listed links, far above the some hundred pods of a node.
const MOST_LINKS: usize = 65_536;
/// Attempts to list the links; pods starting concurrently interrupt some.
const LISTINGS: u32 = 10;

/// Length of `struct ifinfomsg`.
const INTERFACE_HEADER: usize = 16;
/// Length of `struct ndmsg`.
const NEIGHBOUR_HEADER: usize = 12;
/// Length of `struct tcmsg`.
const QDISC_HEADER: usize = 20;

/// `linux/veth.h`, `linux/if_link.h` and `linux/rtnetlink.h`: constants missing in libc.
const VETH_INFO_PEER: u16 = 1;
const IFLA_BR_VLAN_FILTERING: u16 = 7;
const IFLA_BR_NF_CALL_IPTABLES: u16 = 36;
const IFLA_BR_NF_CALL_IP6TABLES: u16 = 37;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_VXLAN_COLLECT_METADATA: u16 = 25;
const IFLA_GENEVE_PORT: u16 = 5;
const IFLA_GENEVE_COLLECT_METADATA: u16 = 6;
const IFLA_BAREUDP_PORT: u16 = 1;
/// `linux/if_tunnel.h`: the UDP port of a tunnel in FOU or GUE, 0 without them.
const IFLA_IPTUN_ENCAP_DPORT: u16 = 18;
const IFLA_GRE_ENCAP_DPORT: u16 = 17;
const IFLA_GRE_COLLECT_METADATA: u16 = 18;
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
    /// A tunnel in collect-metadata mode (`external` in iproute2).
    pub(crate) collects_metadata: bool,
    /// Index of the interface on which this one is, such as that of a macvlan or VLAN interface, in this namespace.
    pub(crate) lower: Option<u32>,
    /// `None` for interfaces without an Ethernet address.
    pub(crate) hardware: Option<[u8; 6]>,
}

/// A unicast address that an interface receives beside its own: that of an interface on top of it (`dev_uc_add`), which
/// may be in another namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnicastFilter {
    /// Index of the receiving interface.
    pub(crate) interface: u32,
    pub(crate) hardware: [u8; 6],
}

pub(crate) struct Rtnetlink {
    socket: Socket,
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
        Ok(Rtnetlink { socket: Socket::open(NetlinkProtocol::Route)?, sequence: 0 })
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

    /// The unicast filters of these bridges. The kernel is asked for the entries of each bridge's own device alone: the
    /// forwarding entries of its ports, which any host of its network can add, may be some 100,000, and the time of
    /// their dump grows with their square (`br_fdb_dump`).
    pub(crate) fn unicast_filters(&mut self, bridges: impl Iterator<Item = u32>) -> io::Result<Vec<UnicastFilter>> {
        let mut filters = Vec::new();
        for bridge in bridges {
            filters.extend(self.unicast_filters_of(bridge)?);
        }
        Ok(filters)
    }

    fn unicast_filters_of(&mut self, bridge: u32) -> io::Result<Vec<UnicastFilter>> {
        // A `struct ifinfomsg`, whose index selects the interface without strict checking (`valid_fdb_dump_legacy`).
        let mut request = [0; INTERFACE_HEADER];
        request[0] = libc::AF_BRIDGE as u8;
        request[4..8].copy_from_slice(&bridge.to_ne_bytes());
        for _ in 0..LISTINGS {
            let mut filters = Vec::new();
            let is_whole = self.dump(libc::RTM_GETNEIGH, &request, |message| {
                if message.kind == libc::RTM_NEWNEIGH {
                    filters.extend(unicast_filter(message.body)?);
                }
                if filters.len() > MOST_LINKS {
                    return Err(io::Error::other(format!("more than {MOST_LINKS} unicast filters")));
                }
                Ok(())
            })?;
            if is_whole {
                return Ok(filters);
            }
        }
        Err(io::Error::other(format!(
            "the dump of forwarding entries was interrupted (NLM_F_DUMP_INTR) in each of {LISTINGS} attempts"
        )))
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
        self.send(request, flags::DUMP, header, &AttributeList::new())?;
        loop {
            let datagram = self.socket.receive()?;
            for message in Messages::new(&datagram) {
                let message = message?;
                interrupted |= message.flags & flags::DUMP_INTERRUPTED != 0;
                match message.kind {
                    netlink::DONE => return Ok(!interrupted),
                    netlink::ERROR => acknowledged(&message)?,
                    _ => take(&message)?,
                }
            }
        }
    }

    /// Creates a veth pair with the far end in another namespace. The near end is up; the far end can only be set up
    /// once the pair exists (`veth_open`).
    pub(super) fn add_veth(&mut self, near: &VethEnd, far: &VethEnd, namespace: BorrowedFd) -> io::Result<()> {
        let peer = [
            &interface_header(far.index, 0)[..],
            AttributeList::new()
                .put_text(libc::IFLA_IFNAME, far.name)
                .put(libc::IFLA_ADDRESS, &far.hardware)
                .put(libc::IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes())
                .as_ref(),
        ]
        .concat();
        let data = AttributeList::new().put(VETH_INFO_PEER, &peer);
        let info = AttributeList::new().put_text(libc::IFLA_INFO_KIND, "veth").put(libc::IFLA_INFO_DATA, data.as_ref());
        let attributes = AttributeList::new()
            .put_text(libc::IFLA_IFNAME, near.name)
            .put(libc::IFLA_ADDRESS, &near.hardware)
            .put(libc::IFLA_LINKINFO, info.as_ref());
        self.create(libc::RTM_NEWLINK, &interface_header(near.index, UP), &attributes)
    }

    pub(super) fn set_up(&mut self, interface: u32) -> io::Result<()> {
        self.request(libc::RTM_SETLINK, 0, &interface_header(interface, UP), &AttributeList::new())
    }

    /// Adds an address to an interface, usable at once.
    pub(super) fn add_address(&mut self, interface: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        let octets = octets(address);
        let header = [&[family(address), prefix, 0, 0], &interface.to_ne_bytes()[..]].concat();
        let attributes = AttributeList::new()
            .put(libc::IFA_LOCAL, &octets)
            .put(libc::IFA_ADDRESS, &octets)
            // Duplicate address detection is unnecessary: the link has no other hosts.
            .put_ne32(libc::IFA_FLAGS, libc::IFA_F_NODAD);
        self.create(libc::RTM_NEWADDR, &header, &attributes)
    }

    /// Adds a permanent neighbour entry, so that no ARP or neighbour discovery is needed.
    pub(super) fn add_neighbour(&mut self, interface: u32, address: IpAddr, hardware: [u8; 6]) -> io::Result<()> {
        let state = libc::NUD_PERMANENT.to_ne_bytes();
        let header = [&[family(address), 0, 0, 0], &interface.to_ne_bytes()[..], &state, &[0, 0]].concat();
        let attributes = AttributeList::new().put(libc::NDA_DST, &octets(address)).put(libc::NDA_LLADDR, &hardware);
        self.create(libc::RTM_NEWNEIGH, &header, &attributes)
    }

    pub(super) fn add_default_route(&mut self, interface: u32, gateway: IpAddr) -> io::Result<()> {
        let (table, protocol, kind) = (libc::RT_TABLE_MAIN, libc::RTPROT_BOOT, libc::RTN_UNICAST);
        let scope = libc::RT_SCOPE_UNIVERSE;
        // Connected routes may not exist yet, since the kernel adds them in the background.
        let route_flags = RTNH_F_ONLINK.to_ne_bytes();
        let header = [&[family(gateway), 0, 0, 0, table, protocol, scope, kind], &route_flags[..]].concat();
        let attributes =
            AttributeList::new().put_ne32(libc::RTA_OIF, interface).put(libc::RTA_GATEWAY, &octets(gateway));
        self.create(libc::RTM_NEWROUTE, &header, &attributes)
    }

    fn create(&mut self, kind: u16, header: &[u8], attributes: &AttributeList) -> io::Result<()> {
        self.request(kind, flags::CREATE | flags::EXCLUSIVE, header, attributes)
    }

    fn request(&mut self, kind: u16, flags: u16, header: &[u8], attributes: &AttributeList) -> io::Result<()> {
        self.send(kind, flags | flags::ACK, header, attributes)?;
        match Messages::new(&self.socket.receive()?).next() {
            Some(message) => acknowledged(&message?),
            None => Err(malformed()),
        }
    }

    fn send(&mut self, kind: u16, flags: u16, header: &[u8], attributes: &AttributeList) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&netlink::message(kind, flags, self.sequence, header, attributes))
    }
}

/// Checks that the message is an acknowledgement of success.
fn acknowledged(message: &Message) -> io::Result<()> {
    message.acknowledgement()?.ok_or_else(malformed)?.result()
}

/// A `struct ifinfomsg` that sets the flags.
fn interface_header(index: u32, flags: u32) -> [u8; INTERFACE_HEADER] {
    let mut header = [0; INTERFACE_HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&flags.to_ne_bytes());
    header
}

/// Change of an interface, decoded from a notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkChange {
    Present {
        index: u32,
        name: String,
        /// As in [`Link`].
        master: Option<u32>,
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
    for message in Messages::new(datagram) {
        let Message { kind, body, .. } = message?;
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
        let Link { index, name, master, .. } = link(body)?;
        changes.push(if kind == libc::RTM_NEWLINK {
            LinkChange::Present { index, name, master }
        } else {
            LinkChange::Gone { index }
        });
    }
    Ok(changes)
}

/// Index of the interface if the qdisc is an ingress qdisc.
fn link_of_ingress_qdisc(body: &[u8]) -> io::Result<Option<u32>> {
    let (header, attributes) = body.split_at_checked(QDISC_HEADER).ok_or_else(malformed)?;
    for attribute in Attributes::new(attributes) {
        let attribute = attribute?;
        if attribute.kind == TCA_KIND {
            let is_at_ingress = INGRESS_QDISCS.contains(&&*text(attribute));
            return Ok(is_at_ingress.then_some(number(&header[4..8])?));
        }
    }
    Err(malformed())
}

/// The filter if the forwarding entry is one (`ndo_dflt_fdb_dump`): permanent, with the flag `NTF_SELF`, and unicast.
fn unicast_filter(body: &[u8]) -> io::Result<Option<UnicastFilter>> {
    let (header, attributes) = body.split_at_checked(NEIGHBOUR_HEADER).ok_or_else(malformed)?;
    let (state, flags) = (u16::from_ne_bytes([header[8], header[9]]), header[10]);
    if state & libc::NUD_PERMANENT == 0 || flags & libc::NTF_SELF == 0 {
        return Ok(None);
    }
    for attribute in Attributes::new(attributes) {
        let attribute = attribute?;
        if attribute.kind == libc::NDA_LLADDR {
            let hardware = <[u8; 6]>::try_from(attribute.value).ok().filter(|address| address[0] & 1 == 0);
            let interface = number(&header[4..8])?;
            return Ok(hardware.map(|hardware| UnicastFilter { interface, hardware }));
        }
    }
    Ok(None)
}

fn link(body: &[u8]) -> io::Result<Link> {
    let (header, attributes) = body.split_at_checked(INTERFACE_HEADER).ok_or_else(malformed)?;
    let is_up = number(&header[8..12])? & UP != 0;
    let mut link = Link { index: number(&header[4..8])?, is_up, ..Link::default() };
    for attribute in Attributes::new(attributes) {
        let attribute = attribute?;
        match attribute.kind {
            libc::IFLA_IFNAME => link.name = text(attribute),
            libc::IFLA_MASTER => link.master = Some(attribute.ne32()?),
            libc::IFLA_LINK_NETNSID => link.leads_elsewhere = true,
            libc::IFLA_LINK => link.lower = Some(attribute.ne32()?),
            libc::IFLA_ADDRESS => link.hardware = attribute.value.try_into().ok(),
            libc::IFLA_LINKINFO => describe(&mut link, attribute.nested())?,
            _ => {}
        }
    }
    // The index is that of an interface in another namespace.
    if link.leads_elsewhere {
        link.lower = None;
    }
    Ok(link)
}

fn describe(link: &mut Link, info: Attributes<'_>) -> Result<(), MalformedNetlink> {
    let mut data = None;
    for attribute in info {
        let attribute = attribute?;
        match attribute.kind {
            libc::IFLA_INFO_KIND => link.kind = text(attribute),
            libc::IFLA_INFO_DATA => data = Some(attribute.nested()),
            _ => {}
        }
    }
    for attribute in data.into_iter().flatten() {
        let attribute = attribute?;
        match (&*link.kind, attribute.kind) {
            ("bridge", IFLA_BR_VLAN_FILTERING) => link.filters_vlans = attribute.value != [0],
            ("bridge", IFLA_BR_NF_CALL_IPTABLES) => link.calls_iptables = attribute.value != [0],
            ("bridge", IFLA_BR_NF_CALL_IP6TABLES) => link.calls_ip6tables = attribute.value != [0],
            ("vxlan", IFLA_VXLAN_COLLECT_METADATA) => link.collects_metadata = attribute.value != [0],
            // Flags without a value.
            ("geneve", IFLA_GENEVE_COLLECT_METADATA)
            | ("gre" | "gretap" | "ip6gre" | "ip6gretap", IFLA_GRE_COLLECT_METADATA) => link.collects_metadata = true,
            ("vxlan", IFLA_VXLAN_PORT)
            | ("geneve", IFLA_GENEVE_PORT)
            | ("bareudp", IFLA_BAREUDP_PORT)
            | ("ipip" | "sit" | "ip6tnl", IFLA_IPTUN_ENCAP_DPORT)
            | ("gre" | "gretap" | "ip6gre" | "ip6gretap", IFLA_GRE_ENCAP_DPORT) => {
                link.tunnel_port = Some(attribute.be16()?).filter(|port| *port != 0);
            }
            _ => {}
        }
    }
    Ok(())
}

/// A 32-bit number of a header, in host byte order.
fn number(value: &[u8]) -> io::Result<u32> {
    value.try_into().map(u32::from_ne_bytes).map_err(|_| malformed())
}

/// A string of any encoding without its terminating NUL.
fn text(attribute: Attribute) -> String {
    String::from_utf8_lossy(attribute.bytes()).into_owned()
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

    /// A description of an interface: its header and attributes.
    fn body(index: u32, flags: u32, attributes: &AttributeList) -> Vec<u8> {
        [&interface_header(index, flags)[..], attributes.as_ref()].concat()
    }

    #[test]
    fn bridge_and_port_decode_from_rtnetlink_attributes() {
        let data = AttributeList::new()
            .put(IFLA_BR_NF_CALL_IPTABLES, &[1])
            .put(IFLA_BR_NF_CALL_IP6TABLES, &[0])
            .put(IFLA_BR_VLAN_FILTERING, &[1]);
        let info = AttributeList::new().put_text(libc::IFLA_INFO_KIND, "bridge").put_nested(libc::IFLA_INFO_DATA, data);
        let bridge = AttributeList::new().put_text(libc::IFLA_IFNAME, "cni0").put_nested(libc::IFLA_LINKINFO, info);
        let expected = Link {
            name: "cni0".into(),
            index: 7,
            kind: "bridge".into(),
            calls_iptables: true,
            filters_vlans: true,
            ..Link::default()
        };
        assert_eq!(link(&body(7, 0, &bridge)).unwrap(), expected);

        let port = AttributeList::new()
            .put_text(libc::IFLA_IFNAME, "veth1")
            .put_ne32(libc::IFLA_MASTER, 7)
            .put_ne32(libc::IFLA_LINK_NETNSID, 0);
        let expected =
            Link { name: "veth1".into(), index: 8, master: Some(7), leads_elsewhere: true, ..Link::default() };
        assert_eq!(link(&body(8, 0, &port)).unwrap(), expected);
    }

    #[test]
    fn udp_port_of_a_tunnel_is_read() {
        let tunnel = |kind: &str, attribute: u16, port: u16| {
            let data = AttributeList::new().put(attribute, &port.to_be_bytes());
            let info = AttributeList::new().put_text(libc::IFLA_INFO_KIND, kind).put_nested(libc::IFLA_INFO_DATA, data);
            link(&body(9, UP, &AttributeList::new().put_nested(libc::IFLA_LINKINFO, info))).unwrap()
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
    fn collect_metadata_mode_of_tunnels_is_read() {
        let collects = |kind: &str, attribute: u16, value: &[u8]| {
            let data = AttributeList::new().put(attribute, value);
            let info = AttributeList::new().put_text(libc::IFLA_INFO_KIND, kind).put_nested(libc::IFLA_INFO_DATA, data);
            let message = body(9, UP, &AttributeList::new().put_nested(libc::IFLA_LINKINFO, info));
            link(&message).unwrap().collects_metadata
        };
        assert!(collects("vxlan", 25, &[1]) && !collects("vxlan", 25, &[0]));
        assert!(collects("geneve", 6, &[]) && collects("gretap", 18, &[]) && collects("ip6gretap", 18, &[]));
        assert!(!collects("ipip", 18, &[0, 0]) && !collects("veth", 25, &[1]));
    }

    #[test]
    fn only_permanent_unicast_entries_are_filters() {
        let entry = |state: u16, flags: u8, hardware: [u8; 6]| {
            let header = [&[7, 0, 0, 0][..], &5_u32.to_ne_bytes(), &state.to_ne_bytes(), &[flags, 0]].concat();
            let attributes = AttributeList::new().put(libc::NDA_LLADDR, &hardware);
            unicast_filter(&[&header, attributes.as_ref()].concat()).unwrap()
        };
        let unicast = [2, 0, 0, 0, 0, 1];
        let filter = UnicastFilter { interface: 5, hardware: unicast };
        assert_eq!(entry(libc::NUD_PERMANENT, libc::NTF_SELF, unicast), Some(filter));
        assert_eq!(entry(libc::NUD_PERMANENT, 0, unicast), None, "an address of the bridge");
        assert_eq!(entry(libc::NUD_REACHABLE, libc::NTF_SELF, unicast), None, "a tunnel's remote");
        assert_eq!(entry(libc::NUD_PERMANENT, libc::NTF_SELF, [0x33, 0x33, 0, 0, 0, 1]), None);
        assert!(unicast_filter(&[0; 8]).is_err());
    }

    #[test]
    fn truncated_link_message_is_an_error() {
        let whole = body(7, 0, &AttributeList::new().put_text(libc::IFLA_IFNAME, "cni0"));
        // The last three bytes are padding to a multiple of four.
        for length in 0..whole.len() - 3 {
            let cut = &whole[..length];
            assert!(length == INTERFACE_HEADER || link(cut).is_err(), "{length} bytes");
        }
    }
}
