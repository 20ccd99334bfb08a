//! Events of connection tracking: entries as they are made and removed, and a listing of those that are there.
//!
//! The kernel sends events about entries that were made while somebody in their namespace listened
//! (`net.netfilter.nf_conntrack_events` of 2, the default): the removal of an older entry is not announced.

use std::io;
use std::time::{Duration, Instant};

use crate::conntrack::GET_ENTRIES;
use crate::decode::{DecodeError, FlowEvent, TrackedFlow, decode_flow_events, decode_tracked_flows};
use crate::request::{Kernel, RequestError};
use crate::sys::{Buffer, Socket, SocketOption};

/// Which entries are announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subscription {
    /// New and removed entries.
    All,
    /// Removed entries. The kernel makes no message of a new one, which the first packet of a flow would pay for
    /// (docs/performance.md).
    Removed,
}

impl Subscription {
    fn groups(self) -> &'static [i32] {
        match self {
            Subscription::All => &[libc::NFNLGRP_CONNTRACK_NEW, libc::NFNLGRP_CONNTRACK_DESTROY],
            Subscription::Removed => &[libc::NFNLGRP_CONNTRACK_DESTROY],
        }
    }
}

/// Bytes of one datagram. An event takes some 300 bytes, and below 8 KiB with labels and a security context
/// (`ctnetlink_nlmsg_size`).
const DATAGRAM: usize = 16 << 10;

/// The least that the kernel counts for a waiting message: `struct sk_buff` and `struct skb_shared_info`.
const SMALLEST_MESSAGE_BYTES: usize = 512;

/// A smaller buffer than this is enlarged (`SOCK_MIN_RCVBUF`).
const SMALLEST_BUFFER_BYTES: usize = 4096;

/// Receives events of connection tracking of the network namespace that it was opened in. Meant for a thread of its own.
pub struct FlowMonitor {
    socket: Socket,
    datagram: Buffer,
    /// Messages that can wait in the socket at most.
    capacity: usize,
    /// The socket reported a loss; so many of the messages that wait are at most older than it.
    overrun: Option<usize>,
}

/// What the kernel sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowEvents {
    /// The events of one datagram, in order. There is at least one.
    Events(Vec<FlowEvent>),
    /// The kernel dropped events, all of them before this moment: every event that it did not drop until then has been
    /// returned already, so that a listing made now ([`list_flows`]) has no effect that a later event contradicts.
    Lost,
}

/// Why there are no events.
#[derive(Debug, thiserror::Error)]
pub enum FlowMonitorError {
    #[error("receiving events of connection tracking needs CAP_NET_ADMIN")]
    NotPermitted,
    #[error("this kernel does not support conntrack netlink (CONFIG_NF_CT_NETLINK, CONFIG_NF_CONNTRACK_EVENTS): {0}")]
    Unavailable(io::Error),
    #[error("the conntrack netlink socket failed: {0}")]
    Io(#[from] io::Error),
    /// The events of one datagram are lost; the next ones are not.
    #[error("cannot decode an event of connection tracking: {0}")]
    Decode(#[from] DecodeError),
}

/// Why entries could not be listed.
#[derive(Debug, thiserror::Error)]
pub enum ListFlowsError {
    #[error("cannot open a conntrack netlink socket: {0}")]
    Open(io::Error),
    /// Among the entries that were visited some may be missing and others there twice. The listing has to be repeated.
    #[error("the listing of conntrack entries was interrupted (NLM_F_DUMP_INTR)")]
    Interrupted,
    #[error("cannot list conntrack entries: {0}")]
    Request(RequestError),
}

impl FlowMonitor {
    /// Subscribes to entries of both families in the calling thread's network namespace.
    ///
    /// `receive_buffer` is the number of bytes of events that may wait; the kernel doubles it, since it counts what it
    /// needs to keep a message too. An event takes some 1,300 of the doubled bytes.
    ///
    /// # Errors
    /// If this process may not, or the kernel cannot.
    pub fn open(subscription: Subscription, receive_buffer: usize) -> Result<FlowMonitor, FlowMonitorError> {
        let unavailable = |e: io::Error| match e.raw_os_error() {
            Some(libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT | libc::ENOENT) => FlowMonitorError::Unavailable(e),
            Some(libc::EPERM | libc::EACCES) => FlowMonitorError::NotPermitted,
            _ => FlowMonitorError::Io(e),
        };
        let socket = Socket::open().map_err(unavailable)?;
        // The kernel takes half of the largest number at most.
        let bytes = i32::try_from(receive_buffer).unwrap_or(i32::MAX);
        socket.set(SocketOption::ReceiveBuffer(bytes)).map_err(unavailable)?;
        for group in subscription.groups() {
            socket.set(SocketOption::Group(*group)).map_err(unavailable)?;
        }
        let capacity = receive_buffer.saturating_mul(2).max(SMALLEST_BUFFER_BYTES) / SMALLEST_MESSAGE_BYTES + 1;
        Ok(FlowMonitor { socket, datagram: Buffer::of_length(DATAGRAM), capacity, overrun: None })
    }

    /// Makes the kernel keep a removed entry, and try every 100 ms to send its event, until this socket has room for it
    /// (`nf_conntrack_ecache.c`). Such entries count towards `nf_conntrack_max`.
    ///
    /// Only removals are kept so: an event of a new entry for which there is no room comes with a later packet of the
    /// flow, or not at all if none comes before the removal. [`FlowEvents::Lost`] is not reported meanwhile.
    ///
    /// # Errors
    /// If the socket does not take the options.
    pub fn set_reliable(&mut self, on: bool) -> io::Result<()> {
        self.socket.set(SocketOption::BroadcastError(on))?;
        self.socket.set(SocketOption::NoOverrunError(on))
    }

    /// Messages for which the socket had no room, since it is open; wraps. With [`FlowMonitor::set_reliable`] each
    /// attempt to send the same event counts.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn dropped_messages(&self) -> io::Result<u32> {
        self.socket.dropped()
    }

    /// Waits for the next events; `None` if there were none within that time.
    ///
    /// A thread that waits here is woken by the first event, at the cost of the packet that causes it (docs/performance.md).
    /// One that sleeps in between, and then reads with a timeout of zero until there is nothing left, costs packets less.
    ///
    /// # Errors
    /// [`FlowMonitorError::Decode`] for a datagram that cannot be decoded, whose events are lost; otherwise the socket is
    /// of no more use.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<FlowEvents>, FlowMonitorError> {
        let deadline = Instant::now() + timeout;
        loop {
            if self.overrun == Some(0) {
                self.overrun = None;
                return Ok(Some(FlowEvents::Lost));
            }
            match self.socket.receive(&mut self.datagram) {
                Ok(Some(datagram)) => {
                    self.overrun = self.overrun.map(|left| left - 1);
                    let events = decode_flow_events(datagram)?;
                    if !events.is_empty() {
                        return Ok(Some(FlowEvents::Events(events)));
                    }
                    continue;
                }
                Ok(None) if self.overrun.is_some() => {
                    self.overrun = Some(0);
                    continue;
                }
                Ok(None) => {}
                // The kernel reports a loss before the messages that wait, and drops all that come until they are read
                // (`netlink_overrun`, `netlink_rcv_wake`).
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.overrun = Some(self.capacity);
                    continue;
                }
                Err(e) => return Err(e.into()),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.socket.wait(left)? && left.is_zero() {
                return Ok(None);
            }
        }
    }
}

/// Gives every conntrack entry of the calling thread's network namespace to `visit`, of both families, with counters.
///
/// Entries are visited as they are listed, so memory does not grow with their number. An entry that is made or removed
/// meanwhile may or may not be visited.
///
/// # Errors
/// If the listing is not complete; then some entries were visited all the same. An entry that cannot be decoded is an
/// error that names its attribute.
pub fn list_flows(mut visit: impl FnMut(TrackedFlow)) -> Result<(), ListFlowsError> {
    let mut kernel = Kernel::socket().map_err(ListFlowsError::Open)?;
    // AF_UNSPEC: both families.
    let listed = kernel.dump(
        GET_ENTRIES,
        0,
        |w| w,
        |datagram| {
            decode_tracked_flows(datagram)?.into_iter().for_each(&mut visit);
            Ok(())
        },
    );
    listed.map_err(|e| match e {
        RequestError::Interrupted => ListFlowsError::Interrupted,
        e => ListFlowsError::Request(e),
    })
}
