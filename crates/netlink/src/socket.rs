//! A socket for requests that the kernel answers at once.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};

/// The kernel processes a request inside `sendmsg`, so that the answer is queued before it is read. A missing answer is
/// an error after this timeout.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Size of the receive buffer: the kernel fills at most 32 KiB of a dump at once (`netlink_dump`), and an error
/// includes the refused message, whose nested attributes have less than 64 KiB.
const DATAGRAM: usize = 128 << 10;

/// Netlink family: the protocol of the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetlinkProtocol {
    /// `NETLINK_ROUTE`: interfaces, addresses, routes, neighbours, queueing disciplines.
    Route,
    /// `NETLINK_NETFILTER`: nf_tables, conntrack, logged packets.
    Netfilter,
    /// `NETLINK_GENERIC`: families with a number of their own, such as ethtool.
    Generic,
}

/// A socket in the network namespace of the thread that opened it. Child processes do not inherit it.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Socket {
    /// Opens a socket.
    pub fn open(protocol: NetlinkProtocol) -> io::Result<Socket> {
        let protocol = match protocol {
            // `NETLINK_ROUTE` is 0.
            NetlinkProtocol::Route => None,
            NetlinkProtocol::Netfilter => Some(netlink::NETFILTER),
            NetlinkProtocol::Generic => Some(netlink::GENERIC),
        };
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
        Ok(Socket(socket))
    }

    /// Sends messages as one datagram.
    pub fn send(&self, messages: &[u8]) -> io::Result<()> {
        let sent = send(&self.0, messages, SendFlags::empty())?;
        if sent == messages.len() { Ok(()) } else { Err(io::Error::other("a netlink message was sent only partially")) }
    }

    /// Receives a datagram.
    ///
    /// # Errors
    /// `WouldBlock` if the kernel does not answer within a second.
    pub fn receive(&self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; DATAGRAM];
        let (_, length) = recv(&self.0, &mut buffer[..], RecvFlags::TRUNC)?;
        if length > buffer.len() {
            return Err(io::Error::other(format!(
                "a netlink datagram has {length} bytes: expected at most {DATAGRAM}"
            )));
        }
        buffer.truncate(length);
        Ok(buffer)
    }

    /// Sends one request and receives the first datagram of the answer.
    pub fn request(&self, message: &[u8]) -> io::Result<Vec<u8>> {
        self.send(message)?;
        self.receive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AttributeList, Messages, flags, message};

    /// `RTM_GETLINK` of the loopback interface and of one that does not exist need no privilege.
    #[test]
    fn kernel_answers_requests_about_interfaces() {
        let socket = Socket::open(NetlinkProtocol::Route).unwrap();
        let ask = |name: &str| {
            let named = AttributeList::new().put_text(3, name);
            socket.request(&message(18, flags::ACK, 5, &[0; 16], &named)).unwrap()
        };
        let answer = ask("lo");
        let link = Messages::new(&answer).next().unwrap().unwrap();
        assert_eq!((link.kind, link.sequence), (16, 5));
        let (_, attributes) = link.split(16).unwrap();
        assert_eq!(attributes.find_kind(3).unwrap().text(), Ok("lo"));
        // The acknowledgement of the first request is a separate datagram.
        socket.receive().unwrap();
        let refused = ask("no-such-link");
        let refusal = Messages::new(&refused).next().unwrap().unwrap().acknowledgement().unwrap().unwrap();
        assert_eq!((refusal.sequence, refusal.result().unwrap_err().raw_os_error()), (5, Some(19)));
    }
}
