//! Records commits on a node with their times from netlink notifications, including the addresses of elements.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::SystemTime;

use nfnetlink::{ChangeRecord, decode_changes, decode_elements};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::RcvBufForce;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt, socket,
};

/// Receive buffer for unread notifications: the first commit of a large cluster has 100,000 elements of some 100 bytes,
/// and the kernel accounts twice the size.
const WAITING_BYTES: usize = 256 << 20;

/// Receive buffer of one datagram; the kernel fills at most 8 KiB (`NLMSG_GOODSIZE`).
const DATAGRAM_BYTES: usize = 64 << 10;

/// Poll timeout, which bounds how long the watching thread outlives its owner.
const LOOK_AGAIN_MS: u16 = 50;

#[derive(Debug, Clone, Default)]
pub(super) struct ObservedCommits {
    /// The time of each notification.
    pub(super) commits: Vec<SystemTime>,
    /// Times of the notifications of elements, by address.
    pub(super) elements: BTreeMap<Ipv4Addr, Vec<SystemTime>>,
    /// Notifications were lost (ENOBUFS), so the records above may be incomplete.
    pub(super) lost: bool,
}

/// Watches from its own thread until drop.
pub(super) struct Commits {
    seen: Arc<Mutex<ObservedCommits>>,
    over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Commits {
    /// Watches the calling thread's network namespace.
    ///
    /// # Panics
    /// If the kernel sends no notifications. Needs root.
    pub(super) fn watch() -> Commits {
        let kind = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, kind, SockProtocol::NetlinkNetFilter);
        let socket = socket.expect("a netlink socket");
        setsockopt(&socket, RcvBufForce, &WAITING_BYTES).expect("root may have a large buffer");
        let groups = 1 << (libc::NFNLGRP_NFTABLES - 1);
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups)).expect("announcements of nf_tables");
        let (seen, over) = (Arc::new(Mutex::default()), Arc::new(AtomicBool::new(false)));
        let thread = thread::spawn({
            let (seen, over) = (seen.clone(), over.clone());
            move || read(&socket, &seen, &over)
        });
        Commits { seen, over, thread: Some(thread) }
    }

    /// The records so far.
    pub(super) fn seen(&self) -> ObservedCommits {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Commits {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        kit::threads::end(self.thread.take());
    }
}

fn read(socket: &OwnedFd, seen: &Mutex<ObservedCommits>, over: &AtomicBool) {
    let mut datagram = vec![0; DATAGRAM_BYTES];
    while !over.load(Ordering::Relaxed) {
        match recv(socket.as_raw_fd(), &mut datagram, MsgFlags::empty()) {
            Ok(length) => record_commits(&datagram[..length], seen),
            Err(Errno::EAGAIN) => {
                let waits = &mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
                poll(waits, PollTimeout::from(LOOK_AGAIN_MS)).expect("a socket of ours");
            }
            Err(Errno::EINTR) => {}
            Err(Errno::ENOBUFS) => seen.lock().unwrap_or_else(PoisonError::into_inner).lost = true,
            Err(error) => panic!("announcements of commits: {error}"),
        }
    }
}

fn record_commits(datagram: &[u8], seen: &Mutex<ObservedCommits>) {
    let now = SystemTime::now();
    let changes = decode_changes(datagram).expect("announcements of the kernel");
    let commits = changes.iter().filter(|change| matches!(change, ChangeRecord::Commit { .. })).count();
    let elements = decode_elements(datagram).expect("announcements of the kernel");
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    seen.commits.extend(std::iter::repeat_n(now, commits));
    for element in elements {
        // The key of a set of peers starts with the address, alone or followed by protocol and port.
        if let Some(&[a, b, c, d]) = element.key.first_chunk::<4>()
            && [4, 12].contains(&element.key.len())
        {
            seen.elements.entry(Ipv4Addr::new(a, b, c, d)).or_default().push(now);
        }
    }
}
