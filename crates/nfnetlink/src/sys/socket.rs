//! A netlink socket of the netfilter bus that never blocks.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use mnl::{Bus, mnl_sys};

use super::{Buffer, read_socket_option};

/// Socket options with an int value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SocketOption {
    /// Limit of the bytes of one send. Needs CAP_NET_ADMIN to exceed `net.core.wmem_max`.
    SendBuffer(i32),
    /// Limit of the bytes of queued replies. Needs CAP_NET_ADMIN.
    ReceiveBuffer(i32),
    /// Errors do not include the refused message.
    CapAck,
    /// Errors include the offset of the refused attribute.
    ExtendedAck,
    /// Subscribes to the multicast group.
    Group(i32),
    /// Reports to the sender of a multicast message that this socket had no room for it (`NETLINK_BROADCAST_ERROR`).
    BroadcastError(bool),
    /// Lost messages do not cause an error of this socket (`NETLINK_NO_ENOBUFS`).
    NoOverrunError(bool),
}

/// Offset of the sender's port id in a netlink message (`struct nlmsghdr`).
const SENDER: u32 = 12;

/// A socket bound to a unique port id. Child processes do not inherit it: they would keep owning its tables.
pub(crate) struct Socket(mnl::Socket);

// SAFETY: `struct mnl_socket` is a file descriptor and its address (libmnl's socket.c); no part of it is bound to a
// thread. `Socket` is not `Sync`, so no two threads use it at once.
unsafe impl Send for Socket {}

impl Socket {
    pub(crate) fn open() -> io::Result<Socket> {
        let socket = Socket(mnl::Socket::open(Bus::Netfilter)?);
        for (command, flag) in [(libc::F_SETFD, libc::FD_CLOEXEC), (libc::F_SETFL, libc::O_NONBLOCK)] {
            // SAFETY: both commands have an int argument and access no memory of this process; the descriptor lives in
            // `socket`.
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

    /// Number of messages dropped for lack of room since the socket was opened. Wraps.
    pub(crate) fn dropped(&self) -> io::Result<u32> {
        // `SK_MEMINFO_VARS` and `SK_MEMINFO_DROPS` of `uapi/linux/sock_diag.h`.
        const NUMBERS: usize = 9;
        const DROPS: usize = 8;
        let mut numbers = Buffer::of_length(NUMBERS * 4);
        read_socket_option(&self.0, libc::SOL_SOCKET, libc::SO_MEMINFO, numbers.bytes_mut())?;
        let drops = numbers.bytes()[DROPS * 4..].first_chunk::<4>();
        drops.map(|drops| u32::from_ne_bytes(*drops)).ok_or_else(|| io::Error::other("SO_MEMINFO is truncated"))
    }

    /// The port id that the kernel assigned.
    pub(crate) fn port(&self) -> u32 {
        self.0.portid()
    }

    /// Sends all bytes as one datagram, which is one skb in the kernel.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = self.0.send(bytes)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::Error::other("netlink message truncated")) }
    }

    /// Attaches a filter that drops messages caused by the socket with this port id.
    pub(crate) fn ignore_author(&self, port: u32) -> io::Result<()> {
        let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        // The field is in host order, while a BPF load converts from network order.
        let author = u32::from_be_bytes(port.to_ne_bytes());
        let mut program = [
            instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, SENDER),
            instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, author),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        let length = size_of::<libc::sock_fprog>() as libc::socklen_t;
        // SAFETY: the kernel reads a `sock_fprog`, which is on this stack frame, and the `len` instructions it points
        // to, which are on this stack frame too; the kernel copies them.
        let result = unsafe {
            let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
            libc::setsockopt(self.0.as_raw_fd(), level, name, (&raw const filter).cast(), length)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits until a datagram or an error can be received. Returns false on timeout, or when a signal arrived.
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

    /// The next queued datagram, if any. A datagram larger than the buffer is an error (`ENOSPC`).
    pub(crate) fn receive<'a>(&self, buffer: &'a mut Buffer) -> io::Result<Option<&'a [u8]>> {
        match self.0.recv_raw(buffer.bytes_mut()) {
            Ok(length) => Ok(buffer.bytes().get(..length)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }
}
