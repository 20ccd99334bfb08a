//! Sends many probes at once, each the first packet of a new flow, and reports which of them reach their destination.
//!
//! TCP connects to a listener and UDP asks an echo server, both through the kernel's own sockets, so that replies must
//! pass too. ICMP echoes are raw and answered by the destination's kernel. Every other protocol is a raw packet, seen
//! on arrival. One thread owns all sockets; each belongs to the namespace in which it was opened.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::linger;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect, getsockopt,
    listen, recv, recvfrom, sendto, setsockopt, socket, sockopt,
};

use super::Lab;
use super::namespace::in_thread;
use super::packet::{self, PacketIdentity};
use crate::netdev_backlog::lost_packets;
use crate::oracle::Probe;

/// Silence after which a probe counts as dropped. An allowed one takes microseconds: the kernel carries a packet over a
/// veth within the call that sends it.
const SILENCE: Duration = Duration::from_millis(300);

/// Longer silence if the machine's backlog dropped packets meanwhile: TCP retransmits a lost SYN after one second and
/// after three.
const SILENCE_AFTER_LOSS: Duration = Duration::from_secs(4);

/// Maximum number of tries of a batch while the backlog drops packets.
const MOST_TRIES: usize = 4;

/// Probes in flight together; each needs a socket and perhaps a server.
const BATCH: usize = 512;

/// File descriptors for a batch's sockets and servers, some per namespace, with room for another test's batch.
const FILES: u64 = 8192;

/// A server of the previous batch may outlive its close briefly: a program that another thread starts has a copy of
/// every file between fork and exec.
const ADDRESS_FREE_WITHIN: Duration = Duration::from_secs(2);

/// Receive buffer of a socket that sees every packet of a namespace: a batch is a few hundred KiB.
const TAP_BUFFER_BYTES: usize = 8 << 20;

/// The probes are tiny; longer packets are foreign and may be truncated.
const PACKET_BYTES: usize = 256;

/// Whether each probe reached its destination, in their order. A TCP, UDP or echo probe must also be answered.
///
/// # Panics
/// If an address is missing from the lab, if a TCP or UDP probe has no port, or on system errors.
pub fn probe_all(lab: &Lab, probes: &[Probe]) -> Vec<bool> {
    probe_all_within(lab, probes, SILENCE)
}

/// As [`probe_all`], with another silence after which a probe counts as dropped. Probes without an answer after a third
/// of it are sent again (except TCP, which retransmits by itself after a second). If the machine's backlog drops
/// packets meanwhile, the whole batch is retried with a longer silence.
pub fn probe_all_within(lab: &Lab, probes: &[Probe], silence: Duration) -> Vec<bool> {
    allow_files();
    in_thread(|| probes.chunks(BATCH).flat_map(|batch| run(lab, batch, silence)).collect())
}

/// Allocates source ports and identifiers in a lab. Two flows must not share one, or conntrack would take the later for
/// a packet of the earlier.
#[derive(Debug, Default)]
pub(super) struct SourcePorts(AtomicU16);

impl SourcePorts {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 40_000;

    fn next(&self) -> u16 {
        let advance = |count: u16| Some((count + 1) % SourcePorts::COUNT);
        let (Ok(count) | Err(count)) = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, advance);
        SourcePorts::FIRST + count
    }
}

/// The socket of a probe in flight.
enum Flow {
    Connection(OwnedFd),
    Datagrams(OwnedFd),
    Packet { place: usize, packet: Vec<u8> },
    Passed,
    Refused,
}

fn run(lab: &Lab, probes: &[Probe], silence: Duration) -> Vec<bool> {
    let mut listeners = Vec::new();
    let mut echo_servers = Vec::new();
    for (place, served) in by_place(lab, probes, |probe| probe.destination) {
        lab.namespaces[place].enter();
        let wanted: BTreeSet<(u8, SocketAddr)> = served.iter().filter_map(|index| server_of(&probes[*index])).collect();
        for (protocol, address) in wanted {
            match protocol {
                Probe::TCP => listeners.push(listener(address)),
                _ => echo_servers.push(bound(SockType::Datagram, address)),
            }
        }
    }
    let raw = probes.iter().filter(|probe| is_raw(probe));
    let watched: BTreeSet<usize> = raw.map(|probe| lab.place_of(proved_at(probe))).collect();
    let taps: Vec<Tap> = watched.into_iter().flat_map(|place| taps(lab, place)).collect();

    let (mut lost, mut tries) = (lost_packets(), 1);
    // Keyed by namespace too, because the world also sees the packets that it forwards.
    let mut proofs: HashMap<(usize, PacketIdentity), usize> = HashMap::new();
    let mut senders: BTreeMap<usize, RawSender> = BTreeMap::new();
    let mut flows: Vec<Flow> = probes.iter().map(|_| Flow::Refused).collect();
    for (place, sent) in by_place(lab, probes, |probe| probe.source) {
        lab.namespaces[place].enter();
        for index in sent {
            let probe = &probes[index];
            flows[index] = match probe.protocol {
                Probe::TCP => connection(lab, probe),
                Probe::UDP => datagrams(lab, probe),
                _ => {
                    let marker = lab.ports.next();
                    proofs.insert((lab.place_of(proved_at(probe)), packet::proof(probe, marker)), index);
                    let packet = packet::build(probe, marker);
                    senders.entry(place).or_insert_with(RawSender::open).send(probe, &packet);
                    Flow::Packet { place, packet }
                }
            };
        }
    }

    let sent_at = Instant::now();
    let mut resend_at = Some(sent_at + silence / 3);
    let mut deadline = sent_at + silence;
    loop {
        let now = Instant::now();
        if resend_at.is_some_and(|at| at <= now) {
            resend_at = None;
            for (flow, probe) in flows.iter().zip(probes) {
                resend(flow, probe, &senders);
            }
        }
        let until = resend_at.unwrap_or(deadline).saturating_duration_since(now);
        let ready = wait(&taps, &echo_servers, &flows, until);
        for tap in ready.taps {
            let Tap { place, socket } = &taps[tap];
            for sighting in sightings(socket) {
                if let Some(index) = proofs.get(&(*place, sighting)) {
                    flows[*index] = Flow::Passed;
                }
            }
        }
        ready.echo_servers.iter().for_each(|server| echo(&echo_servers[*server]));
        for index in &ready.flows {
            flows[*index] = after_event(std::mem::replace(&mut flows[*index], Flow::Refused));
        }
        let under_way = flows.iter().any(|flow| !matches!(flow, Flow::Passed | Flow::Refused));
        // Packets that arrived before the deadline are still read, down to the last answer to them.
        if !under_way {
            break;
        }
        if now >= deadline && !ready.any {
            let lost_by_now = lost_packets();
            if lost_by_now == lost || tries == MOST_TRIES {
                break;
            }
            (lost, tries) = (lost_by_now, tries + 1);
            resend_at = Some(now);
            deadline = now + SILENCE_AFTER_LOSS;
        }
    }
    close(taps);
    flows.into_iter().map(|flow| matches!(flow, Flow::Passed)).collect()
}

/// Closes all taps in parallel: closing a packet socket waits for an RCU grace period (some 10 ms), and parallel closes
/// share it.
fn close(taps: Vec<Tap>) {
    std::thread::scope(|scope| {
        for tap in taps {
            scope.spawn(move || drop(tap));
        }
    });
}

/// The indices of the probes, by the namespace that has one of their addresses.
fn by_place(lab: &Lab, probes: &[Probe], address: impl Fn(&Probe) -> IpAddr) -> BTreeMap<usize, Vec<usize>> {
    let mut places: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, probe) in probes.iter().enumerate() {
        places.entry(lab.place_of(address(probe))).or_default().push(index);
    }
    places
}

fn is_raw(probe: &Probe) -> bool {
    !matches!(probe.protocol, Probe::TCP | Probe::UDP)
}

fn proved_at(probe: &Probe) -> IpAddr {
    if packet::is_echo(probe) { probe.source } else { probe.destination }
}

fn server_of(probe: &Probe) -> Option<(u8, SocketAddr)> {
    (!is_raw(probe)).then(|| (probe.protocol, destination_of(probe)))
}

fn destination_of(probe: &Probe) -> SocketAddr {
    let port = probe.port.filter(|port| *port != 0).unwrap_or_else(|| panic!("{probe} has no port"));
    SocketAddr::new(probe.destination, port)
}

fn open(family: AddressFamily, kind: SockType, protocol: impl Into<Option<SockProtocol>>) -> OwnedFd {
    socket(family, kind, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, protocol).expect("a socket")
}

fn family_of(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn bound(kind: SockType, address: SocketAddr) -> OwnedFd {
    let server = open(family_of(address.ip()), kind, None);
    setsockopt(&server, sockopt::ReuseAddr, &true).expect("a socket option");
    let deadline = Instant::now() + ADDRESS_FREE_WITHIN;
    loop {
        match bind(server.as_raw_fd(), &SockaddrStorage::from(address)) {
            Ok(()) => return server,
            Err(Errno::EADDRINUSE) if Instant::now() < deadline => std::thread::yield_now(),
            Err(error) => panic!("{address}: {error}"),
        }
    }
}

/// Connections are never accepted: the kernel completes the handshake by itself.
fn listener(address: SocketAddr) -> OwnedFd {
    let server = bound(SockType::Stream, address);
    let backlog = Backlog::new(i32::try_from(BATCH).expect("a small number")).expect("a backlog");
    listen(&server, backlog).expect("listening");
    server
}

/// A client's socket, bound to the source and an unused port.
fn client(lab: &Lab, probe: &Probe, kind: SockType) -> OwnedFd {
    let client = open(family_of(probe.source), kind, None);
    loop {
        let source = SocketAddr::new(probe.source, lab.ports.next());
        match bind(client.as_raw_fd(), &SockaddrStorage::from(source)) {
            Ok(()) => return client,
            // A server of this batch uses the port.
            Err(Errno::EADDRINUSE) => {}
            Err(error) => panic!("{source}: {error}"),
        }
    }
}

fn connection(lab: &Lab, probe: &Probe) -> Flow {
    let client = client(lab, probe, SockType::Stream);
    // Closed with a reset, which leaves no state at either end.
    setsockopt(&client, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 }).expect("a socket option");
    match connect(client.as_raw_fd(), &SockaddrStorage::from(destination_of(probe))) {
        Ok(()) | Err(Errno::EINPROGRESS) => Flow::Connection(client),
        Err(error) if is_refusal(error) => Flow::Refused,
        Err(error) => panic!("{probe}: {error}"),
    }
}

fn datagrams(lab: &Lab, probe: &Probe) -> Flow {
    let client = client(lab, probe, SockType::Datagram);
    match connect(client.as_raw_fd(), &SockaddrStorage::from(destination_of(probe))) {
        Ok(()) => {}
        Err(error) if is_refusal(error) => return Flow::Refused,
        Err(error) => panic!("{probe}: {error}"),
    }
    send_datagram(&client, probe);
    Flow::Datagrams(client)
}

fn send_datagram(client: &OwnedFd, probe: &Probe) {
    match nix::sys::socket::send(client.as_raw_fd(), b"probe", MsgFlags::MSG_DONTWAIT) {
        Ok(_) => {}
        Err(error) if is_refusal(error) => {}
        Err(error) => panic!("{probe}: {error}"),
    }
}

/// Errors that a firewall's or router's rejection causes.
fn is_refusal(error: Errno) -> bool {
    use Errno::*;
    matches!(error, EPERM | EACCES | ECONNREFUSED | ECONNRESET | EHOSTUNREACH | ENETUNREACH | ENOPROTOOPT | ETIMEDOUT)
}

fn resend(flow: &Flow, probe: &Probe, senders: &BTreeMap<usize, RawSender>) {
    match flow {
        Flow::Datagrams(client) => send_datagram(client, probe),
        Flow::Packet { place, packet } => senders[place].send(probe, packet),
        Flow::Connection(_) | Flow::Passed | Flow::Refused => {}
    }
}

/// Sends whole packets from one namespace.
struct RawSender {
    v4: OwnedFd,
    v6: OwnedFd,
}

impl RawSender {
    fn open() -> RawSender {
        // IPPROTO_RAW: packets include their own header (raw(7)), in IPv6 as well.
        let open = |family| open(family, SockType::Raw, SockProtocol::Raw);
        RawSender { v4: open(AddressFamily::Inet), v6: open(AddressFamily::Inet6) }
    }

    fn send(&self, probe: &Probe, packet: &[u8]) {
        let socket = if probe.destination.is_ipv4() { &self.v4 } else { &self.v6 };
        let destination = SockaddrStorage::from(SocketAddr::new(probe.destination, 0));
        match sendto(socket.as_raw_fd(), packet, &destination, MsgFlags::MSG_DONTWAIT) {
            Ok(_) => {}
            Err(error) if is_refusal(error) => {}
            Err(error) => panic!("{probe}: {error}"),
        }
    }
}

/// A socket that sees every packet of a family that arrives in a namespace, from the IP header on, but none that leaves
/// it.
struct Tap {
    place: usize,
    socket: OwnedFd,
}

fn taps(lab: &Lab, place: usize) -> [Tap; 2] {
    lab.namespaces[place].enter();
    [SockProtocol::EthIp, SockProtocol::EthIpv6].map(|protocol| {
        let socket = open(AddressFamily::Packet, SockType::Datagram, protocol);
        setsockopt(&socket, sockopt::RcvBufForce, &TAP_BUFFER_BYTES).expect("a socket option");
        Tap { place, socket }
    })
}

fn sightings(tap: &OwnedFd) -> Vec<PacketIdentity> {
    let mut seen = Vec::new();
    let mut packet = [0; PACKET_BYTES];
    loop {
        match recv(tap.as_raw_fd(), &mut packet, MsgFlags::MSG_DONTWAIT) {
            Ok(length) => seen.extend(packet::recognise(&packet[..length])),
            Err(Errno::EAGAIN) => return seen,
            Err(error) => panic!("reading packets: {error}"),
        }
    }
}

fn echo(server: &OwnedFd) {
    let mut datagram = [0; PACKET_BYTES];
    loop {
        match recvfrom::<SockaddrStorage>(server.as_raw_fd(), &mut datagram) {
            Ok((length, Some(client))) => {
                match sendto(server.as_raw_fd(), &datagram[..length], &client, MsgFlags::MSG_DONTWAIT) {
                    Ok(_) => {}
                    Err(error) if is_refusal(error) => {}
                    Err(error) => panic!("answering: {error}"),
                }
            }
            Ok((_, None)) => panic!("a datagram without a sender"),
            Err(Errno::EAGAIN) => return,
            Err(error) if is_refusal(error) => {}
            Err(error) => panic!("serving: {error}"),
        }
    }
}

/// The next state of a flow whose socket is ready.
fn after_event(flow: Flow) -> Flow {
    match flow {
        Flow::Connection(client) => {
            match Errno::from_raw(getsockopt(&client, sockopt::SocketError).expect("a socket's state")) {
                Errno::UnknownErrno => Flow::Passed,
                error if is_refusal(error) => Flow::Refused,
                error => panic!("connecting: {error}"),
            }
        }
        Flow::Datagrams(client) => {
            let mut answer = [0; PACKET_BYTES];
            match recv(client.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT) {
                Ok(_) => Flow::Passed,
                // The retransmitted datagram may still pass.
                Err(Errno::EAGAIN) => Flow::Datagrams(client),
                Err(error) if is_refusal(error) => Flow::Datagrams(client),
                Err(error) => panic!("awaiting an answer: {error}"),
            }
        }
        settled @ (Flow::Packet { .. } | Flow::Passed | Flow::Refused) => settled,
    }
}

/// The indices of the sockets with data or an error.
struct Ready {
    any: bool,
    taps: Vec<usize>,
    echo_servers: Vec<usize>,
    flows: Vec<usize>,
}

fn wait(taps: &[Tap], echo_servers: &[OwnedFd], flows: &[Flow], at_most: Duration) -> Ready {
    let readable = |socket| PollFd::new(AsFd::as_fd(socket), PollFlags::POLLIN);
    let taps_read = taps.iter().map(|tap| &tap.socket);
    let mut sockets: Vec<PollFd<'_>> = taps_read.chain(echo_servers).map(readable).collect();
    let mut polled = Vec::new();
    for (index, flow) in flows.iter().enumerate() {
        let (client, event) = match flow {
            Flow::Connection(client) => (client, PollFlags::POLLOUT),
            Flow::Datagrams(client) => (client, PollFlags::POLLIN),
            Flow::Packet { .. } | Flow::Passed | Flow::Refused => continue,
        };
        sockets.push(PollFd::new(client.as_fd(), event));
        polled.push(index);
    }
    let timeout = PollTimeout::try_from(at_most).expect("a short time");
    match poll(&mut sockets, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => panic!("waiting for packets: {error}"),
    }
    let mut ready = sockets.iter().map(|socket| socket.any().unwrap_or(true));
    let mut indices = |count: usize| -> Vec<usize> {
        let ready: Vec<bool> = ready.by_ref().take(count).collect();
        (0..count).filter(|index| ready[*index]).collect()
    };
    let taps = indices(taps.len());
    let echo_servers = indices(echo_servers.len());
    let flows: Vec<usize> = indices(polled.len()).into_iter().map(|position| polled[position]).collect();
    Ready { any: !(taps.is_empty() && echo_servers.is_empty() && flows.is_empty()), taps, echo_servers, flows }
}

fn allow_files() {
    let (now, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a process's limits");
    if now < FILES {
        setrlimit(Resource::RLIMIT_NOFILE, FILES.min(most), most).expect("as many files as are allowed");
    }
}
