//! The packets: a denied flood, an established flow, and new flows.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::node::{CLIENT, FLOODER, SERVER, TARGET};
use super::{Target, Until};
use kit::lab::Lab;

const PAYLOAD: &[u8] = &[0; 64];

/// Destination port of both; only the server listens.
const PORT: u16 = 9000;

/// Datagrams there and back between two clock reads: some 100 us, so that few of them are interrupted.
const BATCH: u32 = 32;

/// A datagram of an allowed flow arrives within the call that sends it, unless the processor has other work.
const ARRIVES: Duration = Duration::from_secs(5);

/// Sends from the flooder's namespace to the target, on the calling thread's processor. Returns the number of packets.
pub(super) fn send_denied(lab: &Lab, target: Target, until: Until) -> u64 {
    const BETWEEN_LOOKS: u64 = 1024;
    lab.in_namespace_of(FLOODER.into(), || {
        let socket = UdpSocket::bind((FLOODER, 0)).expect("a socket");
        let begun = Instant::now();
        let mut sent = 0;
        let goes_on = |sent: u64| match until {
            Until::Packets(packets) => sent < packets.into(),
            Until::Time(time) => !sent.is_multiple_of(BETWEEN_LOOKS) || begun.elapsed() < time,
        };
        while goes_on(sent) {
            let port = match target {
                Target::OnePort => PORT,
                Target::EveryPort => (sent % u64::from(u16::MAX)) as u16 + 1,
            };
            match socket.send_to(PAYLOAD, (TARGET, port)) {
                Ok(_) => sent += 1,
                // The socket's buffer is full: the kernel has not freed the last packets yet.
                Err(error) if is_full(&error) => std::thread::yield_now(),
                Err(error) => panic!("sending: {error}"),
            }
        }
        sent
    })
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

/// An approved flow. One thread owns both ends, so that a datagram needs no context switch: the measured time is the
/// path through the node, and two system calls.
pub(super) struct EstablishedFlow {
    client: UdpSocket,
    server: UdpSocket,
}

impl EstablishedFlow {
    pub(super) fn open(lab: &Lab) -> EstablishedFlow {
        let socket = |own: Ipv4Addr, port: u16| {
            let own = SocketAddr::new(IpAddr::V4(own), port);
            let socket = lab.in_namespace_of(own.ip(), || UdpSocket::bind(own).expect("a socket"));
            socket.set_read_timeout(Some(ARRIVES)).expect("a timeout");
            socket
        };
        let (client, server) = (socket(CLIENT, 0), socket(SERVER, PORT));
        client.connect((SERVER, PORT)).expect("a connected socket");
        let established = EstablishedFlow { client, server };
        established.there_and_back();
        established
    }

    fn there_and_back(&self) {
        let mut datagram = [0; 2 * PAYLOAD.len()];
        self.client.send(PAYLOAD).expect("the client sends");
        let (length, client) = self.server.recv_from(&mut datagram).expect("the server receives");
        self.server.send_to(&datagram[..length], client).expect("the server answers");
        self.client.recv(&mut datagram).expect("the client receives");
    }

    pub(super) fn measure_for(&self, time: Duration) -> f64 {
        let begun = Instant::now();
        self.measure_while(|| begun.elapsed() < time)
    }

    pub(super) fn measure_until(&self, over: &AtomicBool) -> f64 {
        self.measure_while(|| !over.load(Ordering::Relaxed))
    }

    /// Nanoseconds per packet: the median of short batches.
    fn measure_while(&self, goes_on: impl Fn() -> bool) -> f64 {
        let mut batches = Vec::new();
        while batches.is_empty() || goes_on() {
            let begun = Instant::now();
            (0..BATCH).for_each(|_| self.there_and_back());
            batches.push(begun.elapsed().as_nanos() as f64 / f64::from(2 * BATCH));
        }
        batches.sort_by(f64::total_cmp);
        batches[batches.len() / 2]
    }

    /// Nanoseconds for the first packet of an allowed flow, including the creation of its socket: the median of short
    /// batches.
    pub(super) fn first_packets(&self, lab: &Lab, flows: u16) -> f64 {
        lab.in_namespace_of(CLIENT.into(), || {
            let mut batches = Vec::new();
            let mut datagram = [0; 2 * PAYLOAD.len()];
            for _ in 0..u32::from(flows).div_ceil(BATCH) {
                let begun = Instant::now();
                for _ in 0..BATCH {
                    let socket = UdpSocket::bind((CLIENT, 0)).expect("a socket");
                    socket.send_to(PAYLOAD, (SERVER, PORT)).expect("the client sends");
                    self.server.recv_from(&mut datagram).expect("the server receives");
                }
                batches.push(begun.elapsed().as_nanos() as f64 / f64::from(BATCH));
            }
            batches.sort_by(f64::total_cmp);
            batches[batches.len() / 2]
        })
    }
}
