//! Sends packets from two senders to one pod, and records which arrive.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::TestedFamily;

/// UDP port of the pod.
pub(super) const PORT: u16 = 9470;

/// Deadline for packets, which usually arrive within microseconds, on a busy machine.
const WITHIN: Duration = Duration::from_secs(3);
/// Receive timeout, after which missing packets are sent again.
const AGAIN: Duration = Duration::from_millis(20);

/// Distinct payloads, so that a late packet is not confused with another.
const CONTROL: [&[u8]; 2] = [b"friend, before the rules", b"stranger, before the rules"];
const ALLOWED: &[u8] = b"friend";
const DENIED: &[u8] = b"stranger";
const LONGEST: usize = 64;

/// Packets that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PacketArrivals {
    pub(super) allowed: bool,
    pub(super) denied: bool,
}

/// Sockets of the pod and of the senders. Each stays in the namespace in which it was opened.
pub(super) struct ProbeSockets {
    family: TestedFamily,
    server: UdpSocket,
    friend: UdpSocket,
    stranger: UdpSocket,
}

impl ProbeSockets {
    pub(super) fn new(family: TestedFamily, server: UdpSocket, friend: UdpSocket, stranger: UdpSocket) -> ProbeSockets {
        ProbeSockets { family, server, friend, stranger }
    }

    /// Opens a socket in the calling thread's namespace. Retries, since IPv6 addresses become usable in the background.
    pub(super) fn socket(address: IpAddr) -> io::Result<UdpSocket> {
        let deadline = Instant::now() + WITHIN;
        loop {
            match UdpSocket::bind((address, PORT)) {
                Ok(socket) => {
                    socket.set_read_timeout(Some(AGAIN))?;
                    return Ok(socket);
                }
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn family(&self) -> TestedFamily {
        self.family
    }

    /// Without rules packets of both senders must arrive, once the kernel has set up routes and neighbours.
    pub(super) fn control(&self) -> io::Result<()> {
        let deadline = Instant::now() + WITHIN;
        let (mut missing, mut unsent): (Vec<&[u8]>, Option<io::Error>) = (CONTROL.to_vec(), None);
        while !missing.is_empty() {
            if Instant::now() >= deadline {
                let silent =
                    || io::Error::new(ErrorKind::TimedOut, format!("nothing arrived within {} s", WITHIN.as_secs()));
                return Err(unsent.unwrap_or_else(silent));
            }
            // Routes may not be set up yet.
            unsent = self.send(&self.friend, CONTROL[0]).and_then(|()| self.send(&self.stranger, CONTROL[1])).err();
            while let Some(packet) = self.receive()? {
                missing.retain(|wanted| *wanted != packet);
            }
        }
        Ok(())
    }

    /// Sends both packets until one arrives. The denied one is sent first and uses the same path, so it would arrive
    /// first.
    pub(super) fn verdict(&self) -> io::Result<PacketArrivals> {
        let deadline = Instant::now() + WITHIN;
        let mut arrived = PacketArrivals { allowed: false, denied: false };
        while !arrived.allowed && !arrived.denied && Instant::now() < deadline {
            self.send(&self.stranger, DENIED)?;
            self.send(&self.friend, ALLOWED)?;
            while let Some(packet) = self.receive()? {
                arrived.allowed |= packet == ALLOWED;
                arrived.denied |= packet == DENIED;
            }
        }
        Ok(arrived)
    }

    fn send(&self, from: &UdpSocket, packet: &[u8]) -> io::Result<()> {
        let server = SocketAddr::new(self.server.local_addr()?.ip(), PORT);
        from.send_to(packet, server).map(|_| ())
    }

    /// The next packet; `None` on a timeout.
    fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = [0; LONGEST];
        match self.server.recv(&mut buffer) {
            Ok(length) => Ok(Some(buffer[..length].to_vec())),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }
}
