//! Sends changes of the node's interfaces to the event loop: renames, deletions and ingress qdiscs, so that the rules
//! of a pod follow its interface, and addresses, which the tunnel rules depend on.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt, socket, sockopt,
};
use std::os::fd::AsFd;
use tokio::sync::mpsc;

use crate::event_loop::Event;
use crate::rtnetlink::{Link, LinkChange, Rtnetlink, link_changes};

/// `1 << (RTNLGRP_LINK - 1)`, and the same for `RTNLGRP_TC`, `RTNLGRP_IPV4_IFADDR` and `RTNLGRP_IPV6_IFADDR`.
const GROUPS: u32 = 1 | 1 << 3 | 1 << 4 | 1 << 8;

/// Receive buffer of the socket in bytes. The kernel accounts some 4 KB per notification, so a thousand fit; if more
/// are lost, the attachments are read again.
const WAITING: usize = 4 << 20;

/// Maximum size of a datagram: a message about one interface has less than 4 KiB without its virtual functions.
const DATAGRAM: usize = 64 << 10;

/// Poll timeout, after which the thread checks whether the agent still runs.
const LOOK_MILLIS: u16 = 60_000;

/// Backoff after an error, so that a persistent one causes no busy loop. The resync covers the gap.
const AFTER_ERROR: Duration = Duration::from_secs(5);

/// Pause after an event, so that a flood of notifications, such as new lifetimes of addresses by router advertisements,
/// does not occupy the event loop.
const BETWEEN_EVENTS: Duration = Duration::from_millis(20);

/// Removed interfaces that are remembered, far more than a node has pods. They keep their index while they are in
/// another network namespace, and interfaces that are made meanwhile get a higher one.
const MOST_REMOVED: usize = 16_384;

/// Subjects of the received notifications.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct NotifiedChanges {
    /// An interface was renamed or removed, came back from another network namespace, joined or left a bridge, or an
    /// ingress qdisc was added or removed.
    links: bool,
    addresses: bool,
}

impl NotifiedChanges {
    /// Assumed when notifications were lost.
    const ANYTHING: NotifiedChanges = NotifiedChanges { links: true, addresses: true };
}

/// Marks an event as queued until it is handled: the handler reads everything, so a second one would be redundant, and a
/// flood of them would delay all other events.
#[derive(Debug, Clone, Default)]
pub(crate) struct QueuedFlag(Arc<AtomicBool>);

impl QueuedFlag {
    /// Returns whether the event was not queued before.
    fn enqueue(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }

    /// Must precede what the handler reads, so that a later change queues the event again.
    pub(crate) fn dequeue(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Subscription to the interfaces of the network namespace in which it was opened.
pub(crate) struct LinkWatch {
    socket: OwnedFd,
    links: KnownLinks,
    /// Notifications were lost since `links` was listed.
    is_stale: bool,
    buffer: Vec<u8>,
}

impl LinkWatch {
    pub(crate) fn open() -> io::Result<LinkWatch> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        setsockopt(&socket, sockopt::RcvBuf, &WAITING)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
        // After the subscription, so that no change is missed.
        let links = KnownLinks { present: present()?, removed: BTreeSet::new() };
        Ok(LinkWatch { socket, links, is_stale: false, buffer: vec![0; DATAGRAM] })
    }

    /// Waits for notifications.
    fn next(&mut self) -> io::Result<NotifiedChanges> {
        if !self.is_stale {
            let mut descriptors = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            poll(&mut descriptors, PollTimeout::from(LOOK_MILLIS))?;
        }
        let mut noticed = NotifiedChanges::default();
        loop {
            if self.is_stale {
                self.links.present = present()?;
                self.is_stale = false;
                noticed = NotifiedChanges::ANYTHING;
            }
            match recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => {
                    for change in link_changes(&self.buffer[..length])? {
                        match change {
                            LinkChange::Address => noticed.addresses = true,
                            LinkChange::IngressQdisc => noticed.links = true,
                            LinkChange::Present { index, name, master } => {
                                noticed.links |= self.links.upsert(index, KnownLink { name, master });
                            }
                            LinkChange::Gone { index } => noticed.links |= self.links.remove(index),
                        }
                    }
                }
                Err(Errno::EAGAIN) => return Ok(noticed),
                Err(Errno::ENOBUFS) => self.is_stale = true,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn present() -> io::Result<BTreeMap<u32, KnownLink>> {
    let links = Rtnetlink::open()?.links()?.into_iter();
    Ok(links.map(|Link { index, name, master, .. }| (index, KnownLink { name, master })).collect())
}

/// The properties of an interface on which the rules of a pod depend.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KnownLink {
    name: String,
    master: Option<u32>,
}

/// The interfaces by their index.
#[derive(Debug, Default)]
struct KnownLinks {
    present: BTreeMap<u32, KnownLink>,
    removed: BTreeSet<u32>,
}

impl KnownLinks {
    /// Returns whether the interface had another name or master before, is new with a master, or was removed.
    fn upsert(&mut self, index: u32, link: KnownLink) -> bool {
        let changed = match self.present.get(&index) {
            Some(known) => *known != link,
            None => link.master.is_some(),
        };
        self.present.insert(index, link);
        self.removed.remove(&index) || changed
    }

    /// Returns whether the interface was known.
    fn remove(&mut self, index: u32) -> bool {
        self.removed.insert(index);
        if self.removed.len() > MOST_REMOVED {
            self.removed.pop_first();
        }
        self.present.remove(&index).is_some()
    }
}

/// Blocks until the receiver is closed.
pub(crate) fn run(mut links: LinkWatch, events: &mpsc::Sender<Event>) {
    let (queued_links, queued_addresses) = (QueuedFlag::default(), QueuedFlag::default());
    while !events.is_closed() {
        let noticed = links.next().unwrap_or_else(|error| {
            tracing::warn!(
                "link notifications (rtnetlink) failed; renamed interfaces, new addresses and ingress qdiscs may go \
                 unnoticed until the next resync: {error}"
            );
            std::thread::sleep(AFTER_ERROR);
            NotifiedChanges::ANYTHING
        });
        let mut sent = false;
        for (noticed, queued, event) in [
            (noticed.links, &queued_links, Event::Links as fn(QueuedFlag) -> Event),
            (noticed.addresses, &queued_addresses, Event::Addresses),
        ] {
            if noticed && queued.enqueue() {
                sent = true;
                if events.blocking_send(event(queued.clone())).is_err() {
                    return;
                }
            }
        }
        if sent {
            std::thread::sleep(BETWEEN_EVENTS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renamed_returned_and_enslaved_links_are_noticed() {
        let link = |name: &str, master| KnownLink { name: name.into(), master };
        let mut links = KnownLinks { present: BTreeMap::from([(2, link("veth1", None))]), ..KnownLinks::default() };
        let changes = [(2, "veth1", None), (3, "veth2", None), (2, "lan0", None), (3, "veth2", Some(9))];
        let noticed = changes.map(|(index, name, master)| links.upsert(index, link(name, master)));
        assert_eq!(noticed, [false, false, true, true]);
        assert_eq!([links.remove(2), links.remove(2)], [true, false]);
        assert_eq!([(); 2].map(|()| links.upsert(2, link("lan0", None))), [true, false]);
        (10..10 + 2 * MOST_REMOVED as u32).for_each(|index| {
            links.remove(index);
        });
        assert_eq!(links.removed.len(), MOST_REMOVED);
    }

    #[test]
    fn event_is_queued_once_until_it_is_handled() {
        let queued = QueuedFlag::default();
        assert_eq!([queued.enqueue(), queued.clone().enqueue()], [true, false]);
        queued.clone().dequeue();
        assert!(queued.enqueue());
    }
}
