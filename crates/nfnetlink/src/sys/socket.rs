//! A netlink socket of the netfilter bus that never blocks.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use mnl::{Bus, mnl_sys};

use super::{Buffer, read_socket_option};

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
    /// Receives what is sent to the multicast group, from now on.
    Group(i32),
    /// The sender of a multicast message is told that this socket had no room for it (`NETLINK_BROADCAST_ERROR`).
    BroadcastError(bool),
    /// Lost messages are no error of this socket (`NETLINK_NO_ENOBUFS`).
    NoOverrunError(bool),
}

/// Where the port id of its sender stands in a netlink message (`struct nlmsghdr`).
const SENDER: u32 = 12;

/// Bound to a port of its own. Programs that this process starts do not inherit it: they would go on owning its tables.
pub(crate) struct Socket(mnl::Socket);

// SAFETY: `struct mnl_socket` is a file descriptor and its address (libmnl's socket.c); nothing of it belongs to a
// thread. `Socket` is not `Sync`, so no two threads use it at once.
unsafe impl Send for Socket {}

impl Socket {
    pub(crate) fn open() -> io::Result<Socket> {
        let socket = Socket(mnl::Socket::open(Bus::Netfilter)?);
        for (command, flag) in [(libc::F_SETFD, libc::FD_CLOEXEC), (libc::F_SETFL, libc::O_NONBLOCK)] {
            // SAFETY: both commands take an int and touch no memory of ours; the descriptor lives in `socket`.
            let result = unsafe { libc::fcntl(socket.0.as_raw_fd(), command, flag) };
            if result < 0 {
                return Err(io::Error::last_os_error());
            }
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
            SocketOption::Group(group) => (libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, group),
            SocketOption::BroadcastError(on) => (libc::SOL_NETLINK, libc::NETLINK_BROADCAST_ERROR, on.into()),
            SocketOption::NoOverrunError(on) => (libc::SOL_NETLINK, libc::NETLINK_NO_ENOBUFS, on.into()),
        };
        let length = size_of::<i32>() as libc::socklen_t;
        // SAFETY: the kernel reads `length` bytes at the pointer, which is an int on this stack frame.
        let result = unsafe { libc::setsockopt(self.0.as_raw_fd(), level, name, (&raw const value).cast(), length) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Messages for which the kernel had no room, since the socket is open. Wraps.
    pub(crate) fn dropped(&self) -> io::Result<u32> {
        // `SK_MEMINFO_VARS` and `SK_MEMINFO_DROPS` of `uapi/linux/sock_diag.h`.
        const NUMBERS: usize = 9;
        const DROPS: usize = 8;
        let mut numbers = Buffer::of_length(NUMBERS * 4);
        read_socket_option(&self.0, libc::SOL_SOCKET, libc::SO_MEMINFO, numbers.bytes_mut())?;
        let drops = numbers.bytes()[DROPS * 4..].first_chunk::<4>();
        drops.map(|drops| u32::from_ne_bytes(*drops)).ok_or_else(|| io::Error::other("SO_MEMINFO is truncated"))
    }

    /// The address that the kernel gave it.
    pub(crate) fn port(&self) -> u32 {
        self.0.portid()
    }

    /// Sends all of it as one datagram, which is one skb to the kernel.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = self.0.send(bytes)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::Error::other("netlink message truncated")) }
    }

    /// Makes the kernel leave out messages whose author is the socket of that port.
    pub(crate) fn ignore_author(&self, port: u32) -> io::Result<()> {
        let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        // The field is in host order, and a load makes a number of its bytes as if they were in network order.
        let author = u32::from_be_bytes(port.to_ne_bytes());
        let mut program = [
            instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, SENDER),
            instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, author),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        let length = size_of::<libc::sock_fprog>() as libc::socklen_t;
        // SAFETY: the kernel reads a `sock_fprog`, which is on this stack frame, and `len` instructions where it points
        // to, which are too; it keeps a copy of its own.
        let result = unsafe {
            let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
            libc::setsockopt(self.0.as_raw_fd(), level, name, (&raw const filter).cast(), length)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits until there is something to receive, an error included. False when the time is over, or when a signal
    /// came.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let milliseconds = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let mut descriptor = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the kernel reads and writes one `pollfd`, which is on this stack frame.
        let result = unsafe { libc::poll(&raw mut descriptor, 1, milliseconds) };
        match result {
            0 => Ok(false),
            1.. => Ok(true),
            _ => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => Ok(false),
                e => Err(e),
            },
        }
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
