//! Carries renames and ends of the node's interfaces to the loop, so that the rules of a pod follow its interface.

use std::collections::BTreeMap;
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
use crate::state_loop::Event;

/// `1 << (RTNLGRP_LINK - 1)`
const LINK_GROUP: u32 = 1;

/// Bytes of notifications that may wait unread. The kernel counts some 4 KB for one, so a thousand fit; when more are
/// lost the attachments are looked at again.
const WAITING: usize = 4 << 20;

/// Bytes of one datagram: one interface, of which the kernel says less than 4 KiB without its virtual functions.
const DATAGRAM: usize = 64 << 10;

/// How often it looks whether the agent still runs.
const LOOK_MILLIS: u16 = 60_000;

/// Wait after an error, so that one that stays is no busy loop. Until then the resync compares.
const AFTER_ERROR: Duration = Duration::from_secs(5);

/// The interfaces of the network namespace that it was opened in.
pub(crate) struct LinkWatch {
    socket: OwnedFd,
    names: BTreeMap<u32, String>,
    buffer: Vec<u8>,
}

impl LinkWatch {
    pub(crate) fn open() -> io::Result<LinkWatch> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        setsockopt(&socket, sockopt::RcvBuf, &WAITING)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, LINK_GROUP))?;
        // After the subscription, so that no change is between the two.
        let names = Rtnetlink::open()?.links()?.into_iter().map(|link| (link.index, link.name)).collect();
        Ok(LinkWatch { socket, names, buffer: vec![0; DATAGRAM] })
    }

    /// Waits for notifications. Says whether an interface that was there has another name or is gone.
    fn next(&mut self) -> io::Result<bool> {
        let mut descriptors = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut descriptors, PollTimeout::from(LOOK_MILLIS))?;
        let mut changed = false;
        loop {
            match recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => {
                    for change in link_changes(&self.buffer[..length])? {
                        changed |= take(&mut self.names, change);
                    }
                }
                Err(Errno::EAGAIN) => return Ok(changed),
                Err(Errno::ENOBUFS) => {
                    let links = Rtnetlink::open()?.links()?;
                    self.names = links.into_iter().map(|link| (link.index, link.name)).collect();
                    changed = true;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn take(names: &mut BTreeMap<u32, String>, change: LinkChange) -> bool {
    match change {
        LinkChange::Present { index, name } => {
            let renamed = names.get(&index).is_some_and(|known| *known != name);
            names.insert(index, name);
            renamed
        }
        LinkChange::Gone { index } => names.remove(&index).is_some(),
    }
}

/// Blocks until nobody listens any more.
pub(crate) fn run(mut links: LinkWatch, events: &mpsc::Sender<Event>) {
    while !events.is_closed() {
        let changed = links.next().unwrap_or_else(|error| {
            tracing::warn!(
                "link notifications (rtnetlink) failed; renamed interfaces may go unnoticed until the next \
                 resync: {error}"
            );
            std::thread::sleep(AFTER_ERROR);
            true
        });
        if changed && events.blocking_send(Event::Links).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renames_and_ends_of_known_links_are_changes() {
        let mut names = BTreeMap::from([(2, "veth1".to_owned())]);
        let present = |index, name: &str| LinkChange::Present { index, name: name.into() };
        let changes = [present(2, "veth1"), present(3, "veth2"), present(2, "lan0"), LinkChange::Gone { index: 3 }];
        assert_eq!(changes.map(|change| take(&mut names, change)), [false, false, true, true]);
        assert!(!take(&mut names, LinkChange::Gone { index: 3 }), "it is gone already");
    }
}
