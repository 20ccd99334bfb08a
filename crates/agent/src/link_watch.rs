//! Sends changes of the node's interfaces to the event loop: renames, deletions and ingress qdiscs, so that the rules
//! of a pod follow its interface, and addresses, which the tunnel rules depend on.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt, socket, sockopt,
};
use std::os::fd::AsFd;
use tokio::sync::mpsc;

use crate::doctor::rtnetlink::{LinkChange, Rtnetlink, link_changes};
use crate::reconciler::Event;

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

/// Removed interfaces that are remembered, far more than a node has pods. They keep their index while they are in
/// another network namespace, and interfaces that are made meanwhile get a higher one.
const MOST_REMOVED: usize = 16_384;

/// Subjects of the received notifications.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Noticed {
    /// An interface was renamed or removed, or came back from another network namespace, or an ingress qdisc was added or
    /// removed.
    links: bool,
    addresses: bool,
}

impl Noticed {
    /// Assumed when notifications were lost.
    const ANYTHING: Noticed = Noticed { links: true, addresses: true };

    fn events(self) -> impl Iterator<Item = Event> {
        let Noticed { links, addresses } = self;
        [links.then_some(Event::Links), addresses.then_some(Event::Addresses)].into_iter().flatten()
    }
}

/// Subscription to the interfaces of the network namespace in which it was opened.
pub(crate) struct LinkWatch {
    socket: OwnedFd,
    names: Names,
    buffer: Vec<u8>,
}

impl LinkWatch {
    pub(crate) fn open() -> io::Result<LinkWatch> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        setsockopt(&socket, sockopt::RcvBuf, &WAITING)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
        // After the subscription, so that no change is missed.
        let names = Names { present: present()?, removed: BTreeSet::new() };
        Ok(LinkWatch { socket, names, buffer: vec![0; DATAGRAM] })
    }

    /// Waits for notifications.
    fn next(&mut self) -> io::Result<Noticed> {
        let mut descriptors = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut descriptors, PollTimeout::from(LOOK_MILLIS))?;
        let mut noticed = Noticed::default();
        loop {
            match recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => {
                    for change in link_changes(&self.buffer[..length])? {
                        match change {
                            LinkChange::Address => noticed.addresses = true,
                            LinkChange::IngressQdisc => noticed.links = true,
                            LinkChange::Present { index, name } => noticed.links |= self.names.upsert(index, name),
                            LinkChange::Gone { index } => noticed.links |= self.names.remove(index),
                        }
                    }
                }
                Err(Errno::EAGAIN) => return Ok(noticed),
                Err(Errno::ENOBUFS) => {
                    self.names.present = present()?;
                    noticed = Noticed::ANYTHING;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn present() -> io::Result<BTreeMap<u32, String>> {
    Ok(Rtnetlink::open()?.links()?.into_iter().map(|link| (link.index, link.name)).collect())
}

/// The names of interfaces by their index.
#[derive(Debug, Default)]
struct Names {
    present: BTreeMap<u32, String>,
    removed: BTreeSet<u32>,
}

impl Names {
    /// Returns whether the interface had another name before, or was removed.
    fn upsert(&mut self, index: u32, name: String) -> bool {
        let renamed = self.present.get(&index).is_some_and(|known| *known != name);
        self.present.insert(index, name);
        self.removed.remove(&index) || renamed
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
    while !events.is_closed() {
        let noticed = links.next().unwrap_or_else(|error| {
            tracing::warn!(
                "link notifications (rtnetlink) failed; renamed interfaces, new addresses and ingress qdiscs may go \
                 unnoticed until the next resync: {error}"
            );
            std::thread::sleep(AFTER_ERROR);
            Noticed::ANYTHING
        });
        for event in noticed.events() {
            if events.blocking_send(event).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renamed_and_returned_links_are_noticed() {
        let mut names = Names { present: BTreeMap::from([(2, "veth1".to_owned())]), ..Names::default() };
        let links = [(2, "veth1"), (3, "veth2"), (2, "lan0")];
        assert_eq!(links.map(|(index, name)| names.upsert(index, name.into())), [false, false, true]);
        assert_eq!([names.remove(2), names.remove(2)], [true, false]);
        assert_eq!([names.upsert(2, "lan0".into()), names.upsert(2, "lan0".into())], [true, false]);
        (10..10 + 2 * MOST_REMOVED as u32).for_each(|index| {
            names.remove(index);
        });
        assert_eq!(names.removed.len(), MOST_REMOVED);
    }
}
