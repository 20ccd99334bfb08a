//! Packets from two senders to one pod, and which of them arrive.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::Family;

/// Where the pod listens.
pub(super) const PORT: u16 = 9470;

/// What is to arrive does so within microseconds; a busy machine gets this long.
const WITHIN: Duration = Duration::from_secs(3);
/// After this long what has not arrived is sent again, and what is awaited in vain is not coming.
const AGAIN: Duration = Duration::from_millis(20);

/// What a packet carries, so that one which comes late is not taken for another.
const CONTROL: [&[u8]; 2] = [b"friend, before the rules", b"stranger, before the rules"];
const ALLOWED: &[u8] = b"friend";
const DENIED: &[u8] = b"stranger";
const LONGEST: usize = 64;

/// Which packets have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrived {
    pub(super) allowed: bool,
    pub(super) denied: bool,
}

/// The pod's socket and those of the senders. Each stays in the namespace that it was opened in.
pub(super) struct Line {
    family: Family,
    server: UdpSocket,
    friend: UdpSocket,
    stranger: UdpSocket,
}

impl Line {
    pub(super) fn new(family: Family, server: UdpSocket, friend: UdpSocket, stranger: UdpSocket) -> Line {
        Line { family, server, friend, stranger }
    }

    /// A socket in the calling thread's namespace. The kernel makes an IPv6 address usable in the background.
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

    pub(super) fn family(&self) -> Family {
        self.family
    }

    /// Without rules both senders must get through, in whatever time the kernel needs to learn the way.
    pub(super) fn control(&self) -> io::Result<()> {
        let deadline = Instant::now() + WITHIN;
        let (mut missing, mut unsent): (Vec<&[u8]>, Option<io::Error>) = (CONTROL.to_vec(), None);
        while !missing.is_empty() {
            if Instant::now() >= deadline {
                let silent =
                    || io::Error::new(ErrorKind::TimedOut, format!("nothing arrived within {} s", WITHIN.as_secs()));
                return Err(unsent.unwrap_or_else(silent));
            }
            // Routes may still be on their way.
            unsent = self.send(&self.friend, CONTROL[0]).and_then(|()| self.send(&self.stranger, CONTROL[1])).err();
            while let Some(packet) = self.receive()? {
                missing.retain(|wanted| *wanted != packet);
            }
        }
        Ok(())
    }

    /// Sends both ways until the allowed packet has arrived, or a denied one has. The denied one goes first and takes
    /// the same way, so it would arrive first.
    pub(super) fn verdict(&self) -> io::Result<Arrived> {
        let deadline = Instant::now() + WITHIN;
        let mut arrived = Arrived { allowed: false, denied: false };
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

    /// The next packet, if one comes.
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
