//! A pod whose first process does nothing but send, and a count of what arrives elsewhere.
//!
//! The count is kept by rules in the receiver's namespace: no packet is too fast for it.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};
use serde_json::Value;

use super::Sandbox;
use crate::kernel_table::{load_text, nft};

/// Ready in a pod's namespace, to send as soon as it is told to: what a container's process does once ADD has returned,
/// without the time that it takes to start one.
pub struct Prober {
    go: Sender<Duration>,
    thread: JoinHandle<Sent>,
}

/// What a prober has given to its kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    pub datagrams: u64,
    /// SYN packets.
    pub connections: u64,
}

impl Prober {
    /// Waits in the sandbox, whose interface need not be there yet.
    ///
    /// # Panics
    /// If it cannot be entered.
    pub fn ready(sandbox: &Arc<Sandbox>, target: SocketAddr) -> Prober {
        let (go, start) = channel();
        let (is_ready, ready) = channel();
        let sandbox = sandbox.clone();
        let thread = std::thread::spawn(move || {
            sandbox.enter();
            let any: IpAddr =
                if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let datagrams = UdpSocket::bind((any, 0)).expect("a socket");
            datagrams.set_nonblocking(true).expect("a socket that does not wait");
            is_ready.send(()).expect("somebody waits");
            send(&start, &datagrams, target)
        });
        ready.recv().expect("the prober is ready");
        Prober { go, thread }
    }

    /// Sends for this long, beginning now. It is sending when this returns, or about to; see [`Sending::end`].
    pub fn start(self, time: Duration) -> Sending {
        self.go.send(time).expect("the prober waits");
        Sending(self.thread)
    }
}

/// A prober at work.
pub struct Sending(JoinHandle<Sent>);

impl Sending {
    /// Waits until its time is up.
    ///
    /// # Panics
    /// If it could not send at all.
    pub fn end(self) -> Sent {
        self.0.join().expect("the prober sends")
    }
}

fn send(start: &Receiver<Duration>, datagrams: &UdpSocket, target: SocketAddr) -> Sent {
    let mut sent = Sent::default();
    // Without a start there is nothing to do: the test has ended.
    let Ok(time) = start.recv() else { return sent };
    let end = Instant::now() + time;
    let family = if target.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let address = SockaddrStorage::from(target);
    loop {
        match datagrams.send_to(b"probe", target) {
            Ok(_) => sent.datagrams += 1,
            Err(error) if is_no_harm(&error) => {}
            Err(error) => panic!("{target}: {error}"),
        }
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let connection = socket(family, SockType::Stream, flags, None).expect("a socket");
        match connect(connection.as_raw_fd(), &address) {
            Ok(()) | Err(Errno::EINPROGRESS) => sent.connections += 1,
            Err(error) if is_no_harm(&error.into()) => {}
            Err(error) => panic!("{target}: {error}"),
        }
        if Instant::now() >= end {
            return sent;
        }
    }
}

/// Buffers that are full, ports that are used up, an answer that nobody listens, or a neighbour that is not there.
fn is_no_harm(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::AddrNotAvailable | ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable
    ) || error.raw_os_error() == Some(Errno::ENOBUFS as i32)
}

/// What has arrived from one address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrived {
    pub datagrams: u64,
    /// SYN packets.
    pub connections: u64,
}

/// Counts, from now on and from nothing, what arrives at an address of this thread's network namespace.
///
/// # Panics
/// If the rules cannot be loaded.
pub fn count_arrivals(at: IpAddr) {
    let (family, number) = if at.is_ipv4() { ("ip", 4) } else { ("ip6", 6) };
    load_text(&format!(
        "table inet arrivals {{ }}
        delete table inet arrivals
        table inet arrivals {{
            set seen{number} {{ type ipv{number}_addr . inet_proto; flags dynamic; size 65535; counter; }}
            chain arrivals{number} {{
                type filter hook prerouting priority raw; policy accept;
                {family} daddr {at} meta l4proto udp update @seen{number} {{ {family} saddr . meta l4proto counter }}
                {family} daddr {at} tcp flags & (syn | ack) == syn update @seen{number} {{ {family} saddr . meta l4proto counter }}
            }}
        }}"
    ));
}

/// What has arrived in this thread's network namespace since [`count_arrivals`], by where it came from.
///
/// # Panics
/// If nothing is counted here.
pub fn arrivals() -> BTreeMap<IpAddr, Arrived> {
    let listing: Value = serde_json::from_str(&nft("-j list table inet arrivals")).expect("nft prints JSON");
    let mut arrived: BTreeMap<IpAddr, Arrived> = BTreeMap::new();
    let sets = listing["nftables"].as_array().expect("a list").iter().filter_map(|item| item.get("set"));
    for element in sets.filter_map(|set| set["elem"].as_array()).flatten() {
        let element = &element["elem"];
        let [source, protocol] = [0, 1].map(|part| element["val"]["concat"][part].as_str().expect("a part"));
        let packets = element["counter"]["packets"].as_u64().expect("a count");
        let entry = arrived.entry(source.parse().expect("an address")).or_default();
        match protocol {
            "udp" => entry.datagrams += packets,
            "tcp" => entry.connections += packets,
            other => panic!("nothing counts {other}"),
        }
    }
    arrived
}
