//! First packets of flows, one at a time.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};

/// Packets handed to the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    pub datagrams: u64,
    /// SYN packets.
    pub connections: u64,
}

/// Sends datagrams and SYN packets to one destination from the network namespace of its thread.
pub struct Shots {
    datagrams: UdpSocket,
    target: SocketAddr,
    sent: Sent,
}

impl Shots {
    /// Sends from an address of the thread's namespace, or from one that the kernel selects.
    ///
    /// # Panics
    /// If the address is missing.
    pub fn new(from: Option<IpAddr>, target: SocketAddr) -> Shots {
        let any: IpAddr = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let datagrams = UdpSocket::bind((from.unwrap_or(any), 0)).expect("a socket");
        datagrams.set_nonblocking(true).expect("a socket that does not wait");
        Shots { datagrams, target, sent: Sent::default() }
    }

    /// Sends a datagram and a SYN packet without waiting.
    ///
    /// # Panics
    /// If they cannot be sent for a reason independent of the target.
    pub fn fire(&mut self) {
        let target = self.target;
        match self.datagrams.send_to(b"probe", target) {
            Ok(_) => self.sent.datagrams += 1,
            Err(error) if is_harmless(&error) => {}
            Err(error) => panic!("{target}: {error}"),
        }
        let family = if target.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let connection = socket(family, SockType::Stream, flags, None).expect("a socket");
        match connect(connection.as_raw_fd(), &SockaddrStorage::from(target)) {
            Ok(()) | Err(Errno::EINPROGRESS) => self.sent.connections += 1,
            Err(error) if is_harmless(&error.into()) => {}
            Err(error) => panic!("{target}: {error}"),
        }
    }

    pub fn sent(&self) -> Sent {
        self.sent
    }
}

/// Full buffers, exhausted ports, a refused connection, or an unreachable neighbour.
fn is_harmless(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::AddrNotAvailable | ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable
    ) || error.raw_os_error() == Some(Errno::ENOBUFS as i32)
}
