//! The packets: their senders, their flows, and the time of one.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket};

use super::place::{CLIENT, Place, SERVER, WORLD};
use crate::figures::Figure;
use kit::frame::udp_packet;

/// The server's port.
pub(super) const PORT: u16 = 9000;

/// The client's port of the established flow, which [`udp_packet`] writes.
pub(super) const CLIENT_PORT: u16 = 40_000;

const PAYLOAD: &[u8] = &[0; 64];

/// Packets between two clock reads: some 200 us, so that few batches are interrupted, and less than the server's socket
/// holds.
const BATCH: u32 = 64;

/// Source ports of new flows, used in turn.
const FIRST_PORT: u16 = 1024;
const PORTS: u32 = 60_000;

/// Offsets of the addresses in an IPv4 header without options.
const SOURCE: usize = 12;
const DESTINATION: usize = 16;
const SOURCE_PORT: usize = 20;

/// The kind of packets sent.
#[derive(Debug, Clone)]
pub(super) enum Traffic {
    /// All of one flow between the two pods, which has replied.
    Established,
    /// Each packet is the first of its flow, from the client to the server.
    FirstBetweenPods,
    /// Each packet is the first of its flow, from other nodes' addresses in turn to local addresses in turn.
    FirstFromWorld { sources: Vec<Ipv4Addr>, destinations: Vec<Ipv4Addr> },
}

/// The sockets at both ends of a place.
pub(super) struct Ends {
    client: UdpSocket,
    server: UdpSocket,
    from_client: OwnedFd,
    from_world: OwnedFd,
    sent: Cell<u32>,
    /// The packet buffer, in which only addresses and ports change: rebuilding it would add to the measured time.
    packet: RefCell<Vec<u8>>,
}

impl Ends {
    pub(super) fn of(place: &Place) -> Ends {
        let bound = |port: u16| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).expect("a socket");
        let raw = || {
            let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC);
            socket(AddressFamily::Inet, kind, flags, SockProtocol::Raw).expect("a raw socket")
        };
        let ends = Ends {
            client: place.at(CLIENT, || bound(CLIENT_PORT)),
            server: place.at(SERVER, || bound(PORT)),
            from_client: place.at(CLIENT, raw),
            from_world: place.at(WORLD, raw),
            sent: Cell::new(0),
            packet: RefCell::new(udp_packet(CLIENT.octets(), SERVER.octets(), PORT, PAYLOAD)),
        };
        // An application with one peer does not look up its route for every datagram.
        ends.client.connect((SERVER, PORT)).expect("a connected socket");
        for socket in [&ends.client, &ends.server] {
            socket.set_nonblocking(true).expect("a socket that does not block");
        }
        ends
    }

    /// Sends a datagram each way on the established flow.
    ///
    /// # Panics
    /// If a datagram does not arrive.
    pub(super) fn establish(&self) {
        let mut datagram = [0; 2 * PAYLOAD.len()];
        for _ in 0..2 {
            self.send_established();
            let (_, client) = arrived(|| self.server.recv_from(&mut datagram));
            assert_eq!(client, SocketAddr::from((CLIENT, CLIENT_PORT)));
            self.server.send_to(PAYLOAD, client).expect("the server answers");
            arrived(|| self.client.recv(&mut datagram));
        }
    }

    /// Whether the first packet of a flow from the world to the server arrives.
    ///
    /// # Panics
    /// If that of a later flow from the client does not.
    pub(super) fn passes_from_world(&self) -> bool {
        self.send(&self.from_world, WORLD, SERVER, self.next_port());
        self.send(&self.from_client, CLIENT, SERVER, self.next_port());
        let mut datagram = [0; 2 * PAYLOAD.len()];
        let mut next = || arrived(|| self.server.recv_from(&mut datagram)).1.ip();
        let first = next();
        let passes = first == WORLD;
        let last = if passes { next() } else { first };
        assert_eq!(last, CLIENT, "who sent what arrived");
        passes
    }

    /// Nanoseconds per packet: the median of the batches after the warm-up batches.
    ///
    /// # Panics
    /// If a packet does not arrive.
    pub(super) fn nanoseconds(&self, traffic: &Traffic, warm_up: u32, batches: u32) -> f64 {
        for _ in 0..warm_up {
            self.batch(traffic);
        }
        let took = (0..batches).map(|_| self.batch(traffic).as_nanos() as f64 / f64::from(BATCH));
        Figure::of(took).median()
    }

    /// Time of a batch from the sender's first system call until the receiver has counted the last packet. On one
    /// processor the node does all its work within the calls that send.
    fn batch(&self, traffic: &Traffic) -> Duration {
        let begun = Instant::now();
        self.send_all(traffic, BATCH);
        let mut datagram = [0; 2 * PAYLOAD.len()];
        for _ in 0..BATCH {
            arrived(|| self.server.recv(&mut datagram));
        }
        begun.elapsed()
    }

    /// Sends this many packets, whether or not the server receives them.
    pub(super) fn send_all(&self, traffic: &Traffic, packets: u32) {
        for _ in 0..packets {
            match traffic {
                Traffic::Established => self.send_established(),
                Traffic::FirstBetweenPods => self.send(&self.from_client, CLIENT, SERVER, self.next_port()),
                Traffic::FirstFromWorld { sources, destinations } => {
                    let pick = |from: &[Ipv4Addr]| from[self.sent.get() as usize % from.len()];
                    self.send(&self.from_world, pick(sources), pick(destinations), self.next_port());
                }
            }
        }
    }

    /// Empties the server's socket.
    ///
    /// # Panics
    /// If it cannot be read.
    pub(super) fn discard_received(&self) {
        let mut datagram = [0; 2 * PAYLOAD.len()];
        loop {
            match self.server.recv(&mut datagram) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("receiving: {error}"),
            }
        }
    }

    fn send_established(&self) {
        self.client.send(PAYLOAD).expect("the client sends");
    }

    fn next_port(&self) -> u16 {
        self.sent.set(self.sent.get().wrapping_add(1));
        FIRST_PORT + (self.sent.get() % PORTS) as u16
    }

    fn send(&self, socket: &OwnedFd, source: Ipv4Addr, destination: Ipv4Addr, source_port: u16) {
        let mut packet = self.packet.borrow_mut();
        // The kernel fills in the checksum of the header (raw(7)).
        packet[SOURCE..SOURCE + 4].copy_from_slice(&source.octets());
        packet[DESTINATION..DESTINATION + 4].copy_from_slice(&destination.octets());
        packet[SOURCE_PORT..SOURCE_PORT + 2].copy_from_slice(&source_port.to_be_bytes());
        let [a, b, c, d] = destination.octets();
        let to = SockaddrIn::new(a, b, c, d, 0);
        sendto(socket.as_raw_fd(), &packet, &to, MsgFlags::empty()).expect("the packet is sent");
    }
}

/// The received value. It is usually there when the sending call returns; on a busy processor the kernel may defer it
/// to a kernel thread.
///
/// # Panics
/// If nothing arrives.
fn arrived<T>(mut receive: impl FnMut() -> io::Result<T>) -> T {
    const WITHIN: Duration = Duration::from_secs(5);
    let mut deadline = None;
    loop {
        match receive() {
            Ok(received) => return received,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + WITHIN);
                assert!(Instant::now() < deadline, "a packet that was sent does not arrive");
                std::thread::yield_now();
            }
            Err(error) => panic!("receiving: {error}"),
        }
    }
}
