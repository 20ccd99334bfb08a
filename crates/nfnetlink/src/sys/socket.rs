//! A netlink socket of the netfilter bus that never blocks.

use std::io;
use std::os::fd::AsRawFd;

use mnl::{Bus, mnl_sys};

use super::Buffer;

/// Options that take an int.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SocketOption {
    /// Bytes that one send may take. Needs CAP_NET_ADMIN, unlike the limit that everybody has.
    SendBuffer(i32),
    /// Bytes of replies that may wait. Needs CAP_NET_ADMIN.
    ReceiveBuffer(i32),
    /// Errors do not carry the message that they are about.
    CapAck,
    /// Errors say where in the message the kernel found fault.
    ExtendedAck,
}

/// Bound to a port of its own and to no group.
pub(crate) struct Socket(mnl::Socket);

// SAFETY: `struct mnl_socket` is a file descriptor and its address (libmnl's socket.c); nothing of it belongs to a
// thread. `Socket` is not `Sync`, so no two threads use it at once.
unsafe impl Send for Socket {}

impl Socket {
    pub(crate) fn open() -> io::Result<Socket> {
        let socket = Socket(mnl::Socket::open(Bus::Netfilter)?);
        // SAFETY: fcntl with F_SETFL takes an int and touches no memory of ours; the descriptor lives in `socket`.
        let result = unsafe { libc::fcntl(socket.0.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        socket.0.bind(0, mnl_sys::MNL_SOCKET_AUTOPID)?;
        Ok(socket)
    }

    pub(crate) fn set(&self, option: SocketOption) -> io::Result<()> {
        let (level, name, value) = match option {
            SocketOption::SendBuffer(bytes) => (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes),
            SocketOption::ReceiveBuffer(bytes) => (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes),
            SocketOption::CapAck => (libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1),
            SocketOption::ExtendedAck => (libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, 1),
        };
        let length = size_of::<i32>() as libc::socklen_t;
        // SAFETY: the kernel reads `length` bytes at the pointer, which is an int on this stack frame.
        let result = unsafe { libc::setsockopt(self.0.as_raw_fd(), level, name, (&raw const value).cast(), length) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The address that the kernel gave it.
    pub(crate) fn port(&self) -> u32 {
        self.0.portid()
    }

    /// Sends all of it as one datagram, which is one skb to the kernel.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = self.0.send(bytes)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::Error::other("the datagram was cut")) }
    }

    /// The next datagram, if one is waiting. One that does not fit is an error (`ENOSPC`).
    pub(crate) fn receive<'a>(&self, buffer: &'a mut Buffer) -> io::Result<Option<&'a [u8]>> {
        match self.0.recv_raw(buffer.bytes_mut()) {
            Ok(length) => Ok(buffer.bytes().get(..length)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }
}
