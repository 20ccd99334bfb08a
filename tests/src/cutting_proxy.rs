//! A TCP proxy that cuts its first connections: within a request, or between a request and its answer.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Bytes of one direction after which a connection is cut.
#[derive(Debug, Clone, Copy)]
pub enum Cut {
    AfterRequestBytes(usize),
    /// The request arrives, and its answer is lost.
    AfterAnswerBytes(usize),
}

/// Starts a proxy to the target. Each of its first connections is cut, and later ones are not.
///
/// # Panics
/// If it cannot listen.
pub fn start(target: SocketAddr, cuts: impl IntoIterator<Item = Cut, IntoIter: Send + 'static>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of the loopback");
    let address = listener.local_addr().expect("the port's address");
    let mut cuts = cuts.into_iter();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            // While the target does not listen, clients are disconnected.
            let Ok(server) = TcpStream::connect(target) else { continue };
            let (requests, answers) = match cuts.next() {
                Some(Cut::AfterRequestBytes(bytes)) => (bytes, usize::MAX),
                Some(Cut::AfterAnswerBytes(bytes)) => (usize::MAX, bytes),
                None => (usize::MAX, usize::MAX),
            };
            forward(&client, &server, requests);
            forward(&server, &client, answers);
        }
    });
    address
}

/// Starts to forward one direction. Both streams are closed at its end, or after that many bytes.
fn forward(from: &TcpStream, to: &TcpStream, bytes: usize) {
    let streams = from.try_clone().and_then(|from| Ok((from, to.try_clone()?)));
    let (mut from, mut to) = streams.expect("a descriptor");
    thread::spawn(move || {
        // An error ends the connection as well as a cut.
        drop(copy(&mut from, &mut to, bytes));
        for stream in [&from, &to] {
            drop(stream.shutdown(Shutdown::Both));
        }
    });
}

fn copy(from: &mut TcpStream, to: &mut TcpStream, mut bytes: usize) -> io::Result<()> {
    let mut buffer = vec![0; 4096];
    while bytes > 0 {
        let most = buffer.len().min(bytes);
        let read = from.read(&mut buffer[..most])?;
        if read == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..read])?;
        bytes -= read;
    }
    Ok(())
}
