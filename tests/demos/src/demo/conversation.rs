//! A TCP connection between two parties of the lab, byte by byte.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};

use super::screen::Screen;
use super::shop::Party;
use kit::lab::Lab;

/// Silence after which a connection counts as cut. An allowed byte takes microseconds.
const SILENCE: Duration = Duration::from_millis(300);

/// Timeout of an attempt to connect. An allowed one takes microseconds; a dropped one must be abandoned before the
/// kernel retransmits the SYN, a second later.
const ATTEMPT: Duration = Duration::from_millis(5);

pub(super) struct Conversation {
    client: TcpStream,
    server: TcpStream,
}

impl Conversation {
    /// Retries to connect until it succeeds; `None` after `within`.
    pub(super) fn open(
        lab: &Lab,
        source: &Party,
        destination: &Party,
        within: Duration,
        screen: &Screen,
    ) -> anyhow::Result<Option<Conversation>> {
        let address: IpAddr = destination.addresses[0];
        let port = destination.port.context("the destination has no port")?;
        let target = SocketAddr::new(address, port);
        let listener = lab.in_namespace_of(address, || TcpListener::bind(target)).context("cannot listen in a pod")?;
        let deadline = Instant::now() + within;
        let client = lab.in_namespace_of(source.addresses[0], || -> anyhow::Result<Option<TcpStream>> {
            while Instant::now() < deadline {
                screen.check()?;
                match TcpStream::connect_timeout(&target, ATTEMPT) {
                    Ok(stream) => return Ok(Some(stream)),
                    Err(error) if error.kind() == ErrorKind::TimedOut => {}
                    Err(error) => return Err(error).with_context(|| format!("connecting to {target}")),
                }
            }
            Ok(None)
        })?;
        let Some(client) = client else { return Ok(None) };
        let own = client.local_addr()?;
        let server = loop {
            let (server, peer) = listener.accept().context("a connection that was made")?;
            // The queue also has attempts that were abandoned a moment too early.
            if peer == own {
                break server;
            }
        };
        for end in [&client, &server] {
            end.set_nodelay(true)?;
            end.set_read_timeout(Some(SILENCE))?;
            // Closing frees the socket at once, even if the other end never receives the reset.
            setsockopt(end, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 })?;
        }
        Ok(Some(Conversation { client, server }))
    }

    /// Sends a byte there and one back; false if one of them does not arrive.
    pub(super) fn exchange(&mut self) -> anyhow::Result<bool> {
        Ok(self.reaches_server()? && self.reaches_client()?)
    }

    pub(super) fn reaches_server(&mut self) -> anyhow::Result<bool> {
        crosses(&mut self.client, &mut self.server)
    }

    pub(super) fn reaches_client(&mut self) -> anyhow::Result<bool> {
        crosses(&mut self.server, &mut self.client)
    }
}

fn crosses(from: &mut TcpStream, to: &mut TcpStream) -> anyhow::Result<bool> {
    from.write_all(&[0]).context("sending")?;
    match to.read_exact(&mut [0]) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(false),
        Err(error) => Err(error).context("receiving"),
    }
}
