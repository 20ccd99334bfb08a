//! Conntrack events: new and removed entries, and a dump of the existing ones.
//!
//! The kernel sends events only for entries that were created while a socket in their namespace was subscribed
//! (`net.netfilter.nf_conntrack_events` of 2, the default): the removal of an older entry causes no event.

use std::io;
use std::time::{Duration, Instant};

use crate::conntrack::GET_ENTRIES;
use crate::decode::{DecodeError, FlowEvent, TrackedFlow, decode_flow_events, decode_tracked_flows};
use crate::request::{Kernel, RequestError};
use crate::sys::{Buffer, Socket, SocketOption};

/// The events to subscribe to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subscription {
    /// New and removed entries.
    All,
    /// Removed entries. The kernel creates no message for a new entry, whose cost the first packet of a flow would bear
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

/// Bytes of one datagram. An event has some 300 bytes, and less than 8 KiB with labels and a security context
/// (`ctnetlink_nlmsg_size`).
const DATAGRAM: usize = 16 << 10;

/// Least memory that the kernel accounts for a queued message: `struct sk_buff` and `struct skb_shared_info`.
const SMALLEST_MESSAGE_BYTES: usize = 512;

/// The kernel enlarges smaller buffers to this size (`SOCK_MIN_RCVBUF`).
const SMALLEST_BUFFER_BYTES: usize = 4096;

/// Receives conntrack events of the network namespace in which it was opened. Intended for a dedicated thread.
pub struct FlowMonitor {
    socket: Socket,
    datagram: Buffer,
    /// Maximum number of messages that the socket can queue.
    capacity: usize,
    /// Set after the socket reported an overrun: the maximum number of queued messages that are older than it.
    overrun: Option<usize>,
}

/// Events, or their loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowEvents {
    /// The events of one datagram, in order and never empty.
    Events(Vec<FlowEvent>),
    /// The kernel dropped events. All events queued before the overrun have been returned already, so that later events
    /// are newer than a dump made now ([`list_flows`]).
    Lost,
}

/// Why events cannot be received.
#[derive(Debug, thiserror::Error)]
pub enum FlowMonitorError {
    /// `EPERM`: the user namespace of the network namespace decides.
    #[error("receiving events of connection tracking needs CAP_NET_ADMIN")]
    NotPermitted,
    /// Built without events of conntrack, or the module `nf_conntrack_netlink` cannot be loaded.
    #[error("this kernel does not support conntrack netlink (CONFIG_NF_CT_NETLINK, CONFIG_NF_CONNTRACK_EVENTS): {0}")]
    Unavailable(io::Error),
    /// Any other error of the socket; a new one has to be opened.
    #[error("the conntrack netlink socket failed: {0}")]
    Io(#[from] io::Error),
    /// The events of one datagram are lost; later ones are not.
    #[error("cannot decode an event of connection tracking: {0}")]
    Decode(#[from] DecodeError),
}

/// Why entries could not be dumped.
#[derive(Debug, thiserror::Error)]
pub enum ListFlowsError {
    /// No socket of `NETLINK_NETFILTER`.
    #[error("cannot open a conntrack netlink socket: {0}")]
    Open(io::Error),
    /// Visited entries may have gaps and duplicates. The dump has to be repeated.
    #[error("the listing of conntrack entries was interrupted (NLM_F_DUMP_INTR)")]
    Interrupted,
    /// The kernel refused the dump, or its messages are invalid.
    #[error("cannot list conntrack entries: {0}")]
    Request(RequestError),
}

impl FlowMonitor {
    /// Subscribes to entries of both families in the calling thread's network namespace.
    ///
    /// `receive_buffer` is the number of bytes of events that the socket can queue; the kernel doubles it, since it
    /// accounts for its own overhead per message too. An event uses some 1,300 of the doubled bytes.
    ///
    /// # Errors
    /// If this process lacks the privilege, or the kernel the feature.
    pub fn open(subscription: Subscription, receive_buffer: usize) -> Result<FlowMonitor, FlowMonitorError> {
        let unavailable = |e: io::Error| match e.raw_os_error() {
            Some(libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT | libc::ENOENT) => FlowMonitorError::Unavailable(e),
            Some(libc::EPERM | libc::EACCES) => FlowMonitorError::NotPermitted,
            _ => FlowMonitorError::Io(e),
        };
        let socket = Socket::open().map_err(unavailable)?;
        // The kernel caps the size at half of the largest number.
        let bytes = i32::try_from(receive_buffer).unwrap_or(i32::MAX);
        socket.set(SocketOption::ReceiveBuffer(bytes)).map_err(unavailable)?;
        for group in subscription.groups() {
            socket.set(SocketOption::Group(*group)).map_err(unavailable)?;
        }
        let capacity = receive_buffer.saturating_mul(2).max(SMALLEST_BUFFER_BYTES) / SMALLEST_MESSAGE_BYTES + 1;
        Ok(FlowMonitor { socket, datagram: Buffer::of_length(DATAGRAM), capacity, overrun: None })
    }

    /// Makes the kernel keep a removed entry, and retry its event every 100 ms, until this socket has room for it
    /// (`nf_conntrack_ecache.c`). Such entries count towards `nf_conntrack_max`.
    ///
    /// Only removals are kept: the event of a new entry without room is sent with a later packet of the flow, or not at
    /// all if there is none before the removal. [`FlowEvents::Lost`] is not reported meanwhile.
    ///
    /// # Errors
    /// If the kernel refuses the socket options.
    pub fn set_reliable(&mut self, on: bool) -> io::Result<()> {
        self.socket.set(SocketOption::BroadcastError(on))?;
        self.socket.set(SocketOption::NoOverrunError(on))
    }

    /// Number of messages dropped since the socket was opened because it had no room; wraps. With
    /// [`FlowMonitor::set_reliable`] each attempt to send the same event counts.
    ///
    /// # Errors
    /// If the kernel does not report the number.
    pub fn dropped_messages(&self) -> io::Result<u32> {
        self.socket.dropped()
    }

    /// Waits for the next events; `None` on timeout.
    ///
    /// A thread that waits here is woken by the first event, at the expense of the packet that causes it
    /// (docs/performance.md). Sleeping in between, and then reading with a timeout of zero until nothing is queued, is
    /// cheaper for packets.
    ///
    /// # Errors
    /// [`FlowMonitorError::Decode`] for a datagram that cannot be decoded, whose events are lost; after any other error
    /// the socket is unusable.
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
                // The kernel reports an overrun before the queued messages, and drops new ones until the queue is empty
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

/// Passes every conntrack entry of the calling thread's network namespace to `visit`, of both families, with counters.
///
/// Entries are visited during the dump, so memory does not grow with their number. An entry that is created or removed
/// during the dump may or may not be visited.
///
/// # Errors
/// If the dump is incomplete; some entries were visited nevertheless. The error for an entry that cannot be decoded
/// names its attribute.
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
