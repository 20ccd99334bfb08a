//! Many short TCP connections, one at a time in one thread: it owns the sockets of both ends, so that no connection
//! waits for another thread to be scheduled.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::{Range, RangeInclusive};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};

use crate::lab::Lab;

/// TCP repeats a connection within seconds if the kernel's backlog dropped its packets.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum length of requests and answers.
const MOST_BYTES: usize = 64;

/// Client and server of the connections. Each connection uses another source port.
pub struct ConnectionLoad {
    client: IpAddr,
    /// The address to which the client connects.
    target: SocketAddr,
    listener: TcpListener,
}

impl ConnectionLoad {
    /// A server that listens at `server`; the client at `client` connects to `target`, which may be translated.
    ///
    /// # Panics
    /// If an address is missing from the lab, or the server's is in use.
    pub fn new(lab: &Lab, client: IpAddr, target: SocketAddr, server: SocketAddr) -> ConnectionLoad {
        let listener = lab.in_namespace_of(server.ip(), || TcpListener::bind(server).expect("an address of the lab"));
        ConnectionLoad { client, target, listener }
    }

    /// Opens one connection from each of the source ports, with a request, an answer, and a clean close.
    ///
    /// # Panics
    /// If one of them fails.
    pub fn exchange(&self, lab: &Lab, source_ports: Range<u16>) {
        lab.in_namespace_of(self.client, || {
            for port in source_ports {
                self.exchange_one(port);
            }
        });
    }

    fn exchange_one(&self, source_port: u16) {
        let socket = bound(SocketAddr::new(self.client, source_port), SockFlag::SOCK_CLOEXEC);
        connect(socket.as_raw_fd(), &SockaddrStorage::from(self.target)).expect("the server listens");
        let mut client = TcpStream::from(socket);
        let (mut server, _) = self.listener.accept().expect("a connection");
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        }
        // The lengths make swapped or shifted volumes of connections have other sums.
        let request = 1 + usize::from(source_port) % MOST_BYTES;
        let answer = 1 + usize::from(source_port / 3) % MOST_BYTES;
        let mut bytes = [7; MOST_BYTES];
        client.write_all(&bytes[..request]).expect("a request");
        server.read_exact(&mut bytes[..request]).expect("the request");
        server.write_all(&bytes[..answer]).expect("an answer");
        client.read_exact(&mut bytes[..answer]).expect("the answer");
        client.shutdown(Shutdown::Write).expect("an end");
        assert_eq!(server.read(&mut bytes).expect("the end"), 0);
        drop(server);
        assert_eq!(client.read(&mut bytes).expect("the end"), 0);
    }
}

/// Starts a connection from each of the source ports, and abandons it after its first packet.
///
/// # Panics
/// If the address is missing from the lab.
pub fn send_first_packets(lab: &Lab, client: IpAddr, target: SocketAddr, source_ports: Range<u16>) {
    lab.in_namespace_of(client, || {
        for port in source_ports {
            let socket = bound(SocketAddr::new(client, port), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK);
            let begun = connect(socket.as_raw_fd(), &SockaddrStorage::from(target));
            assert_eq!(begun, Err(Errno::EINPROGRESS));
        }
    });
}

/// Sends a datagram from each of the source ports to each of the ports of the destination: a flow for each pair.
///
/// # Panics
/// If the address is missing from the lab, or a source port is in use.
pub fn send_datagrams(
    lab: &Lab,
    client: IpAddr,
    destination: IpAddr,
    source_ports: RangeInclusive<u16>,
    ports: &RangeInclusive<u16>,
) {
    lab.in_namespace_of(client, || {
        for source_port in source_ports {
            let socket = UdpSocket::bind((client, source_port)).expect("a free port");
            for port in ports.clone() {
                socket.send_to(b"hello", (destination, port)).expect("a route");
            }
        }
    });
}

fn bound(source: SocketAddr, flags: SockFlag) -> OwnedFd {
    let family = if source.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Stream, flags, None).expect("a socket");
    setsockopt(&socket, sockopt::ReuseAddr, &true).expect("a socket option");
    bind(socket.as_raw_fd(), &SockaddrStorage::from(source)).expect("a free port");
    socket
}
