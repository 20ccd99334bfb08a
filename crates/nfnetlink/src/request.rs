//! Sends requests to the kernel and receives the replies.
//!
//! The kernel processes a request inside `sendmsg` and the rest of a dump inside `recvmsg`, so a reply is queued before
//! it is read, and the socket never blocks: a missing reply is an error, never a wait.

use std::io;

use crate::decode::{DecodeError, decode_generation, decode_replies};
use crate::message::{Messages, NFTABLES, Writer};
use crate::sys::{Buffer, Socket, SocketOption};

/// Limit of the bytes of one transaction: about two million elements with comments. The kernel copies the transaction
/// into one contiguous piece of virtual memory.
pub(crate) const LARGEST_BATCH: usize = 256 << 20;
/// Bytes of replies that the socket can queue: some 40,000 errors, each of which the kernel accounts as 768 bytes.
const WAITING_REPLIES: i32 = 32 << 20;
/// Bytes of one datagram: the kernel fills at most 32 KiB of a dump at once (`netlink_dump`).
const DATAGRAM: usize = 64 << 10;
/// Limit of the bytes of one dump: four times the largest batch, so that every committed table can be read back.
const LARGEST_DUMP: usize = 4 * LARGEST_BATCH;

/// `NFT_MSG_GETGEN`
const GET_GENERATION: u16 = NFTABLES | 16;

/// A socket to the nf_tables of the network namespace in which it was opened. It can be moved between threads.
pub struct Kernel {
    pub(crate) socket: Socket,
    pub(crate) replies: Buffer,
    sequence: u32,
}

/// Why the socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// `EPERM` or `EACCES`.
    #[error("programming the kernel's packet filter needs CAP_NET_ADMIN: run as root, or give the container NET_ADMIN")]
    NotPermitted,
    /// The protocol `NETLINK_NETFILTER` or the subsystem nf_tables is not registered.
    #[error("this kernel has no nf_tables (CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET): {0}")]
    NoNfTables(io::Error),
    /// Any other error of socket(2), bind(2) or setsockopt(2).
    #[error("cannot open a netlink socket: {0}")]
    Io(io::Error),
    /// The first request, for the generation, failed.
    #[error("cannot read the kernel's ruleset generation: {0}")]
    Request(RequestError),
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// Error of sendmsg(2) or recvmsg(2).
    #[error("netlink socket failed: {0}")]
    Io(#[from] io::Error),
    /// The errno of the kernel's answer (`NLMSG_ERROR`).
    #[error("the kernel refused: {0}")]
    Refused(io::Error),
    /// The kernel's answer is not valid netlink, or lacks an attribute.
    #[error("cannot decode the kernel's netlink message: {0}")]
    Decode(#[from] DecodeError),
    /// The ruleset changed during the dump, which therefore has to be repeated.
    #[error("netlink dump interrupted (NLM_F_DUMP_INTR)")]
    Interrupted,
    /// The answer should have been queued when sendmsg(2) returned.
    #[error("timed out: no answer from the kernel")]
    Silent,
    /// The rest of the dump was not read.
    #[error("the netlink dump is larger than {LARGEST_DUMP} bytes")]
    TooBig,
}

impl Kernel {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> Result<Kernel, OpenError> {
        let mut kernel = Kernel::socket().map_err(|e| match e.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => OpenError::NotPermitted,
            Some(libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT) => OpenError::NoNfTables(e),
            _ => OpenError::Io(e),
        })?;
        match kernel.generation() {
            Ok(_) => Ok(kernel),
            Err(RequestError::Refused(e)) => Err(match e.raw_os_error() {
                Some(libc::EPERM) => OpenError::NotPermitted,
                // nfnetlink returns EINVAL for an unregistered subsystem.
                Some(libc::EINVAL | libc::EOPNOTSUPP) => OpenError::NoNfTables(e),
                _ => OpenError::Request(RequestError::Refused(e)),
            }),
            Err(e) => Err(OpenError::Request(e)),
        }
    }

    /// Opens a socket without requiring nf_tables.
    pub(crate) fn socket() -> io::Result<Kernel> {
        let socket = Socket::open()?;
        socket.set(SocketOption::SendBuffer(LARGEST_BATCH as i32))?;
        socket.set(SocketOption::ReceiveBuffer(WAITING_REPLIES))?;
        socket.set(SocketOption::CapAck)?;
        socket.set(SocketOption::ExtendedAck)?;
        Ok(Kernel { socket, replies: Buffer::of_length(DATAGRAM), sequence: 0 })
    }

    /// The port id of the socket, by which the kernel identifies the owner of a protected table and the sender of a
    /// commit.
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// The kernel generation, which every commit to any table of the namespace changes.
    pub fn generation(&mut self) -> Result<u32, RequestError> {
        let sequence = self.reserve_sequences(1);
        let request = Writer::new(GET_GENERATION, 0, sequence, 0).finish();
        let mut generation = None;
        self.request(&request, sequence, |datagram| {
            generation = decode_generation(datagram)?;
            Ok(())
        })?;
        generation.ok_or(RequestError::Silent)
    }

    /// Reserves `count` sequence numbers and returns the first.
    pub(crate) fn reserve_sequences(&mut self, count: u32) -> u32 {
        let first = self.sequence.wrapping_add(1);
        self.sequence = self.sequence.wrapping_add(count);
        first
    }

    /// Sends a request other than a dump and passes its reply to `take`, if there is one.
    pub(crate) fn request(
        &mut self,
        request: &[u8],
        sequence: u32,
        mut take: impl FnMut(&[u8]) -> Result<(), DecodeError>,
    ) -> Result<(), RequestError> {
        self.socket.send(request)?;
        while let Some(datagram) = self.socket.receive(&mut self.replies)? {
            if !answers(datagram, sequence)? {
                continue;
            }
            refusal(datagram)?;
            take(datagram)?;
            return Ok(());
        }
        Err(RequestError::Silent)
    }

    /// Sends a dump request for objects of the family and passes every datagram of the reply to `take`.
    ///
    /// The reply is always read to its end, since the kernel refuses a dump while another is in progress. After an
    /// error of `take` the remaining datagrams are discarded.
    pub(crate) fn dump(
        &mut self,
        kind: u16,
        family: u8,
        fill: impl FnOnce(Writer) -> Writer,
        mut take: impl FnMut(&[u8]) -> Result<(), DecodeError>,
    ) -> Result<(), RequestError> {
        let sequence = self.reserve_sequences(1);
        let request = fill(Writer::new(kind, libc::NLM_F_DUMP, sequence, family)).finish();
        self.socket.send(&request)?;
        let (mut taken, mut read, mut interrupted) = (Ok(()), 0, false);
        while let Some(datagram) = self.socket.receive(&mut self.replies)? {
            if !answers(datagram, sequence)? {
                continue;
            }
            refusal(datagram)?;
            read += datagram.len();
            if taken.is_ok() && read <= LARGEST_DUMP {
                taken = take(datagram);
            }
            let mut done = false;
            for message in Messages::new(datagram) {
                let message = message.map_err(DecodeError::from)?;
                interrupted |= message.flags & libc::NLM_F_DUMP_INTR as u16 != 0;
                done |= message.kind == libc::NLMSG_DONE as u16;
            }
            if done {
                taken?;
                return match (interrupted, read <= LARGEST_DUMP) {
                    (true, _) => Err(RequestError::Interrupted),
                    (false, false) => Err(RequestError::TooBig),
                    (false, true) => Ok(()),
                };
            }
        }
        Err(RequestError::Silent)
    }
}

/// Whether the datagram replies to the request with this sequence number; stale replies are skipped.
fn answers(datagram: &[u8], sequence: u32) -> Result<bool, DecodeError> {
    match Messages::new(datagram).next() {
        Some(first) => Ok(first?.sequence == sequence),
        None => Ok(false),
    }
}

/// The error in the datagram, in an error message or at the end of a dump.
fn refusal(datagram: &[u8]) -> Result<(), RequestError> {
    let code = |errno| match errno {
        0 => Ok(()),
        libc::EINTR => Err(RequestError::Interrupted),
        errno => Err(RequestError::Refused(io::Error::from_raw_os_error(errno))),
    };
    for reply in decode_replies(datagram)? {
        code(reply.errno)?;
    }
    for message in Messages::new(datagram) {
        let message = message.map_err(DecodeError::from)?;
        if message.kind == libc::NLMSG_DONE as u16
            && let Some(errno) = message.body.first_chunk::<4>()
        {
            code(i32::from_ne_bytes(*errno).saturating_neg())?;
        }
    }
    Ok(())
}
