//! Raw frames from the Ethernet header on, as a pod with CAP_NET_RAW can send them.
#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, bind, sendto, socket,
};

/// Sends the frame on an interface of this thread's network namespace.
///
/// # Panics
/// If it cannot be sent. Needs root.
pub fn send_frame(interface: &str, frame: &[u8]) {
    send_from_packet_socket(&packet_socket(), interface, frame);
}

/// Sends the frame with partial checksum (`PACKET_VNET_HDR`): the kernel sums the frame from `start` on, and writes the
/// checksum at `start`.
///
/// # Panics
/// If it cannot be sent. Needs root.
pub fn send_frame_with_checksum_at(interface: &str, frame: &[u8], start: u16) {
    const PACKET_VNET_HDR: libc::c_int = 15;
    const VIRTIO_NET_HDR_F_NEEDS_CSUM: u8 = 1;
    let socket = packet_socket();
    let on: libc::c_int = 1;
    // SAFETY: setsockopt reads a number of the given size at the pointer, which outlives the call.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            PACKET_VNET_HDR,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
    // struct virtio_net_hdr: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset.
    let mut bytes = vec![VIRTIO_NET_HDR_F_NEEDS_CSUM, 0, 0, 0, 0, 0];
    bytes.extend(start.to_ne_bytes());
    bytes.extend([0, 0]);
    bytes.extend(frame);
    send_from_packet_socket(&socket, interface, &bytes);
}

/// Disables the transmit checksum offload of an interface of this thread's network namespace, as `ethtool -K` does.
///
/// # Panics
/// If it cannot be disabled. Needs root.
pub fn switch_checksum_offload_off(interface: &str) {
    const ETHTOOL_STXCSUM: u32 = 0x17;
    switch_off(interface, ETHTOOL_STXCSUM);
}

/// Disables GRO at an interface of this thread's network namespace, as `ethtool -K` does.
///
/// # Panics
/// If it cannot be disabled. Needs root.
pub fn switch_receive_offload_off(interface: &str) {
    const ETHTOOL_SGRO: u32 = 0x2c;
    switch_off(interface, ETHTOOL_SGRO);
}

fn switch_off(interface: &str, command: u32) {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    // struct ethtool_value: the command, and the value.
    let mut value = [command, 0];
    // SAFETY: an ifreq is a plain structure of the C library, for which zeros are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    // SAFETY: the kernel reads the ifreq and the two numbers that it points to, which both outlive the call
    // (netdevice(7)).
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
    assert_eq!(done, 0, "{interface}: {}", io::Error::last_os_error());
}

fn packet_socket() -> OwnedFd {
    socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None).expect("a packet socket")
}

fn send_from_packet_socket(socket: &OwnedFd, interface: &str, bytes: &[u8]) {
    let index = if_nametoindex(interface).expect("the interface is there");
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: 0,
        sll_ifindex: i32::try_from(index).expect("a small number"),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: sendto reads `bytes.len()` bytes at the frame and the size of a sockaddr_ll at the address, which both
    // outlive the call, and keeps neither (packet(7)).
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            0,
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    assert!(usize::try_from(sent) == Ok(bytes.len()), "{interface}: {}", io::Error::last_os_error());
}

/// Sends packets, each from the IP header on, by the routes of this thread's network namespace.
///
/// # Panics
/// If one cannot be sent. Needs root.
pub fn send_packets(packets: &[Vec<u8>]) {
    for packet in packets {
        let v4 = packet[0] >> 4 == 4;
        let family = if v4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let raw = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw).expect("a raw socket");
        let sent = if v4 {
            let destination: [u8; 4] = packet[16..20].try_into().expect("4 bytes");
            let to = SockaddrIn::from(SocketAddrV4::new(destination.into(), 0));
            sendto(raw.as_raw_fd(), packet, &to, MsgFlags::empty())
        } else {
            let destination: [u8; 16] = packet[24..40].try_into().expect("16 bytes");
            let to = SockaddrIn6::from(SocketAddrV6::new(destination.into(), 0, 0, 0));
            sendto(raw.as_raw_fd(), packet, &to, MsgFlags::empty())
        };
        assert_eq!(sent.expect("the packet leaves"), packet.len());
    }
}

/// A packet of any protocol over IPv4, from the IP header on.
///
/// # Panics
/// If it exceeds the maximum length of a packet.
pub fn ipv4_packet(source: [u8; 4], destination: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len()).expect("a short packet");
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 1, 0, 0, 64, protocol, 0, 0]);
    packet.extend(source);
    packet.extend(destination);
    let checksum = checksum(&packet);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet.extend(payload);
    packet
}

/// Inserts these options, a multiple of 4 bytes, into the header of the IPv4 packet.
///
/// # Panics
/// If the header or the packet would be too long.
pub fn with_ipv4_options(packet: &[u8], options: &[u8]) -> Vec<u8> {
    let words = 5 + u8::try_from(options.len() / 4).expect("few options");
    let mut packet = [&packet[..20], options, &packet[20..]].concat();
    let length = u16::try_from(packet.len()).expect("a short packet");
    packet[0] = 0x40 | words;
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet[10..12].fill(0);
    let checksum = checksum(&packet[..usize::from(words) * 4]);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// A UDP datagram over IPv4, from the IP header on. Without a UDP checksum, as RFC 768 allows.
pub fn udp_packet(source: [u8; 4], destination: [u8; 4], port: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).expect("a short packet");
    let header = [40_000, port, length, 0].map(u16::to_be_bytes).concat();
    ipv4_packet(source, destination, 17, &[&header, payload].concat())
}

/// A packet over either family, from the IP header on.
///
/// # Panics
/// If the addresses have different families.
pub fn ip_packet(source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            ipv4_packet(source.octets(), destination.octets(), protocol, payload)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let length = u16::try_from(payload.len()).expect("a short packet");
            let mut packet = vec![0x60, 0, 0, 0];
            packet.extend(length.to_be_bytes());
            packet.extend([protocol, 64]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
            packet.extend(payload);
            packet
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => panic!("{source} and {destination}"),
    }
}

/// A UDP datagram over either family, from the IP header on.
///
/// # Panics
/// If the addresses have different families.
pub fn udp_datagram(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).expect("a short packet");
    let mut datagram = [source.port(), destination.port(), length, 0].map(u16::to_be_bytes).concat();
    datagram.extend(payload);
    if let (IpAddr::V6(source), IpAddr::V6(destination)) = (source.ip(), destination.ip()) {
        // RFC 8200, section 8.1: a checksum is required.
        let checksum = transport_checksum(&source.octets(), &destination.octets(), 17, &datagram);
        datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
    }
    ip_packet(source.ip(), destination.ip(), 17, &datagram)
}

/// A TCP segment over IPv4, from the IP header on: sequence and acknowledgment number, flags and payload.
///
/// # Panics
/// If it exceeds the maximum length of a packet.
pub fn tcp_packet(
    (source, source_port): ([u8; 4], u16),
    (destination, port): ([u8; 4], u16),
    (sequence, acknowledged): (u32, u32),
    flags: u8,
    payload: &[u8],
) -> Vec<u8> {
    let mut segment = [source_port.to_be_bytes(), port.to_be_bytes()].concat();
    segment.extend([sequence, acknowledged].map(u32::to_be_bytes).concat());
    segment.extend([0x50, flags, 0x40, 0, 0, 0, 0, 0]);
    segment.extend(payload);
    let checksum = transport_checksum(&source, &destination, 6, &segment);
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    ipv4_packet(source, destination, 6, &segment)
}

/// A TCP segment without data behind an IPv6 authentication header (RFC 4302), whose integrity check value
/// is not valid.
pub fn authenticated_segment(source: SocketAddrV6, destination: SocketAddrV6, flags: u8) -> Vec<u8> {
    let mut segment = [source.port(), destination.port()].map(u16::to_be_bytes).concat();
    segment.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0x20, 0, 0, 0, 0, 0]);
    let checksum = transport_checksum(&source.ip().octets(), &destination.ip().octets(), 6, &segment);
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    // The length is counted in words of 4 bytes, without the first two; the integrity check value has 12 bytes.
    let mut header = vec![6, 4];
    header.resize(24, 0);
    ip_packet((*source.ip()).into(), (*destination.ip()).into(), 51, &[header, segment].concat())
}

/// A destination unreachable (port unreachable) of either family, from the IP header on.
///
/// # Panics
/// If the addresses have different families.
pub fn unreachable_packet(source: IpAddr, destination: IpAddr, quoted: &[u8]) -> Vec<u8> {
    match (source, destination) {
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            icmpv6_packet(source, destination, 1, &[&[0; 4], quoted].concat())
        }
        _ => {
            let mut message = [&[3, 3, 0, 0, 0, 0, 0, 0], quoted].concat();
            let checksum = checksum(&message);
            message[2..4].copy_from_slice(&checksum.to_be_bytes());
            ip_packet(source, destination, 1, &message)
        }
    }
}

/// An ICMPv6 message from the IP header on, with the hop limit of its sender.
pub fn icmpv6_packet(source: Ipv6Addr, destination: Ipv6Addr, kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0], rest].concat();
    let length = u16::try_from(message.len()).expect("a short message");
    let checksum = transport_checksum(&source.octets(), &destination.octets(), 58, &message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([58, 255]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend(message);
    packet
}

/// The checksum of TCP and UDP (RFC 9293, section 3.1; RFC 8200, section 8.1) and of ICMPv6 (RFC 4443, section 2.3). The
/// pseudo headers of both families have the same sum.
fn transport_checksum(source: &[u8], destination: &[u8], protocol: u8, message: &[u8]) -> u16 {
    let length = u16::try_from(message.len()).expect("a short packet").to_be_bytes();
    let mut covered = [source, destination, &[0, protocol], &length, message].concat();
    covered.resize(covered.len().next_multiple_of(2), 0);
    checksum(&covered)
}

/// RFC 1071, over an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("it was folded")
}

/// Sends datagrams as a container's process without capabilities and root can (uid 65534): from a source that is not an
/// address of this thread's network namespace (`IPV6_FREEBIND`). The calling thread keeps that user ID.
///
/// # Panics
/// If they cannot be sent.
pub fn send_with_free_source(source: Ipv6Addr, destination: SocketAddrV6, count: u64) {
    const NOBODY: libc::c_long = 65_534;
    // SAFETY: setresuid takes three numbers and changes the credentials of this thread only, which libc's wrapper would
    // extend to the whole process; without root's uid the kernel clears the capabilities (capabilities(7)).
    let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
    assert_eq!(changed, 0, "{}", io::Error::last_os_error());
    let socket = socket(AddressFamily::Inet6, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    let on: libc::c_int = 1;
    // SAFETY: setsockopt reads a number of the given size at the pointer, which outlives the call.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IPV6,
            libc::IPV6_FREEBIND,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
    let socket = UdpSocket::from(socket);
    let from = SockaddrIn6::from(SocketAddrV6::new(source, 0, 0, 0));
    bind(socket.as_raw_fd(), &from).expect("an address that is not there");
    for _ in 0..count {
        // The ICMP error of an earlier datagram may be pending.
        match socket.send_to(b"forged", destination) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{error}"),
        }
    }
}

/// An ARP packet (RFC 826) from the Ethernet header on.
pub fn arp_frame(to: [u8; 6], from: [u8; 6], operation: u16, sender: ([u8; 6], [u8; 4]), target: [u8; 4]) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x08, 0x06, 0, 1, 0x08, 0, 6, 4], &operation.to_be_bytes()].concat();
    frame.extend(sender.0);
    frame.extend(sender.1);
    frame.extend([0; 6]);
    frame.extend(target);
    frame
}
